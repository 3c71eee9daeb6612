"""What a look at recorded outputs finds, sends back and tells: each item for its own reason, each counted once."""

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core import journal
from holdfast.core.limits import FINDINGS_LISTED
from holdfast.core.model import ItemNo, ItemState, Output, StoredItem
from holdfast.runtime import lookup
from holdfast.runtime.journal import forward_of
from holdfast.runtime.verify import recheck
from holdfast.runtime.verify.inspector import WARNED, Findings, OutputInspector
from tests.runtime.support import run_until_all_wait


@pytest.fixture
def book(book: hf.Pipeline) -> hf.Pipeline:
    """Two stages, the first with files; at the second, item 1 waits."""

    @book.stage(sink=hf.Files("out/{key}.json"))
    def read(number: int) -> int:
        return number

    @book.stage
    def write(number: int) -> int:
        if number == 1:
            raise hf.Defer(3600)
        return number

    run_until_all_wait(book, range(3))
    return book


def checker(book: hf.Pipeline) -> recheck.Checker:
    batch = lookup.batch_named(book.store, "book")
    inspector = OutputInspector(book.stages, batch="book", uid=batch.uid, pipeline="book")
    return recheck.Checker(
        book.store, batch, inspector, "quick", actor="op", threads=1, allowed=1.0,
        findings=Findings(["read", "write"]), stopping=lambda: False, tell=lambda what: None,
    )  # fmt: skip


@pytest.mark.promise("A6", "E12")
def test_every_item_goes_back_for_its_own_reason(book: hf.Pipeline) -> None:
    for number in (0, 2):
        Path(f"out/{number}.json").unlink()
    assert checker(book).recheck() == 2
    reasons: dict[int, str] = {}
    batch = lookup.batch_named(book.store, "book")
    for entry in forward_of(book.store, book.store.chunks(batch.id), 0):
        if isinstance(entry.body, journal.Acted):
            reasons |= {moved.n: entry.body.reason for moved in entry.body.items}
    assert {n: f"out/{n}.json" in reason for n, reason in reasons.items()} == {0: True, 2: True}, reasons


@pytest.mark.promise("P1", "P8")
def test_of_items_that_go_back_only_those_that_were_done_are_undone(book: hf.Pipeline) -> None:
    for number in (0, 1):
        Path(f"out/{number}.json").unlink()
    check = checker(book)
    assert (check.recheck(), check.undone) == (2, 1), "one of them waited at the second stage"


@pytest.mark.promise("P4")
def test_an_output_from_beyond_the_stage_of_its_item_is_not_looked_at() -> None:
    """What an earlier epoch left there is nothing that the item rests on."""
    item = StoredItem(n=ItemNo(7), key=7, place=ItemState(stage=1, epoch=1), payload=b"7", salt=b"salt")
    left = [Output(ItemNo(7), stage, 0, b"1") for stage in (0, 1, 2)]
    assert sorted(recheck.past_of(item, left, fence=1).outputs) == [0]


def test_what_could_not_be_verified_is_counted_once_whether_it_is_listed_or_not() -> None:
    findings, many = Findings(["read"]), FINDINGS_LISTED + 10
    for n in [*range(many), *range(many)]:
        findings.add(n, n, 0, "the disk gave no answer")
    assert (findings.count, len(findings.listed)) == (many, FINDINGS_LISTED)
    assert findings.warnings()[-1] == f"{many - WARNED} more could not be verified"
