"""How an item came: the envelope that handlers and operators get, and a new one for every corrected payload."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core import canonical, commitments
from tests.runtime.support import run


class Page(BaseModel):
    number: int
    text: str = "blank"


class DatedPage(Page):
    year: int = 1900


class SourceInWords:
    """A source that is not ours: what it prints may be a secret."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"number": 1}

    def __repr__(self) -> str:
        return "SourceInWords(password='hunter2')"


SEEN: list[hf.Envelope] = []


def read(page: Page, ctx: hf.Context) -> int:
    SEEN.append(ctx.envelope)
    return page.number


def read_dated(page: DatedPage) -> int:
    return page.number


def page_reader(pipeline: hf.Pipeline) -> None:
    SEEN.clear()
    pipeline.stage(read, name="read")


def dated_reader(pipeline: hf.Pipeline) -> None:
    pipeline.stage(read_dated, name="read")


def revisions(folder: Path, key: str) -> list[hf.ItemRevision]:
    with hf.open(folder / "state.db") as store:
        return store["book"].item(key).revisions()


@pytest.mark.promise("E5")
def test_a_handler_gets_the_envelope_of_its_item(restart: Callable[..., hf.Pipeline], folder: Path) -> None:
    book = restart(page_reader)
    run(book, [{"number": 1, "text": "a"}, {"number": "2"}], key="number")
    with hf.open(folder / "state.db") as store:
        one, two = (store["book"].item(key).envelope for key in ("1", "2"))
    assert sorted(SEEN, key=lambda seen: seen.mapped_digest) == sorted([one, two], key=lambda seen: seen.mapped_digest)
    assert (one.boundary, one.source, one.compliance, one.revision) == ("ingestion", "list", "valid", 0)
    assert one.raw_digest == one.mapped_digest, "validation changed nothing"
    assert two.raw_digest != two.mapped_digest, "validation made a number of a text, and added another"
    assert one.schema == two.schema == book.stages[0].input.shape()
    assert one.producer


@pytest.mark.promise("E5", "E13")
def test_a_revision_and_its_salt_open_the_commitment_of_its_envelope(
    restart: Callable[..., hf.Pipeline], folder: Path
) -> None:
    book = restart(page_reader)
    run(book, [{"number": 1, "text": "a"}], key="number")
    run(book, [{"number": 1, "text": "b"}], key="number", changed="rerun")
    uid = book.store.batches()[0].uid
    first, second = revisions(folder, "1")
    for at, (each, text) in enumerate([(first, "a"), (second, "b")]):
        assert (each.number, each.envelope.revision, each.payload) == (at, at, {"number": 1, "text": text})
        opened = commitments.payload(uid, 1, at, bytes.fromhex(each.salt), canonical.encode(each.payload))
        assert opened.hex() == each.envelope.mapped_digest
    assert first.salt != second.salt
    assert first.envelope.ingested_at < second.envelope.ingested_at
    assert [first.envelope, second.envelope] == SEEN, "a handler gets the envelope of the revision it handles"


def test_a_revision_tells_its_own_source_and_schema(restart: Callable[..., hf.Pipeline], folder: Path) -> None:
    """The schema may have changed meanwhile, and the correction may come from elsewhere."""
    run(restart(page_reader), [{"number": 1, "text": "a"}], key="number")
    book = restart(dated_reader)
    run(book, ({"number": 1, "text": "b"} for _ in range(1)), key="number", changed="rerun")
    first, second = (each.envelope for each in revisions(folder, "1"))
    assert (first.source, second.source) == ("list", "generator")
    assert second.schema == book.stages[0].input.shape() != first.schema
    assert first.raw_digest == first.mapped_digest
    assert second.raw_digest != second.mapped_digest, "validation added a year"


def test_a_revision_that_is_not_valid_says_so(restart: Callable[..., hf.Pipeline], folder: Path) -> None:
    book = restart(page_reader)
    run(book, [{"number": 1, "text": "a"}, {"number": 2, "text": 5}], key="number")
    report = run(book, [{"number": 1, "text": 7}], key="number", changed="rerun")
    assert report.counts.dead == 2
    assert [each.envelope.compliance for each in revisions(folder, "1")] == ["valid", "invalid"]
    assert [each.envelope.compliance for each in revisions(folder, "2")] == ["invalid"]


def test_a_message_is_its_own_source(restart: Callable[..., hf.Pipeline], folder: Path) -> None:
    book = restart(page_reader)
    book.process({"number": 1, "text": "a"}, key="number")
    book.process({"number": 1, "text": "b"}, key="number", changed="rerun")
    assert [each.envelope.source for each in revisions(folder, "1")] == ["a message", "a message"]
    assert [seen.revision for seen in SEEN] == [0, 1]


@pytest.mark.promise("P12")
def test_the_source_of_an_envelope_is_not_what_a_foreign_object_prints(
    restart: Callable[..., hf.Pipeline], folder: Path
) -> None:
    run(restart(page_reader), SourceInWords(), key="number")
    (only,) = revisions(folder, "1")
    assert only.envelope.source == "SourceInWords"
    assert b"hunter2" not in (folder / "state.db").read_bytes()
