"""Documents of a legal case through eleven checkpoints, each checked against the case database before the next.

    holdfast run examples/documents/app.py:documents        # kill it, damage case.db, run it again with --verify full

The case database and its index are real SQLite (`casefile.py`) and know nothing of Holdfast. Every stage that changes
them has a verifier that looks whether the change is really there; the one that costs money can find what it paid for.
"""

import hashlib
import re
import sys
import time
from os import environ
from pathlib import Path

from pydantic import BaseModel

import holdfast as hf

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # so that `casefile` is found from wherever this file is loaded
import casefile  # noqa: E402

PAGE = 180
"""Characters on a page."""
PACE = float(environ.get("HOLDFAST_DEMO_PACE", "0"))
"""Seconds that every stage takes, for whoever wants to kill it."""


class Attachment(BaseModel):
    name: str
    text: str


class Document(BaseModel):
    """A document on its way: every stage adds what it found."""

    id: str
    custodian: str
    body: str
    attachments: list[Attachment] = []
    sha256: str = ""
    text: str = ""
    pages: int = 0
    days: list[str] = []
    tags: list[str] = []

    def with_(self, **facts: object) -> "Document":
        time.sleep(PACE)
        return self.model_copy(update=facts)


documents = hf.Pipeline("documents", source=hf.JsonLines(HERE / "documents.jsonl"), key="id")


@documents.stage
def receive(document: Document) -> Document:
    content = "\0".join([document.body, *(each.text for each in document.attachments)])
    return document.with_(sha256=hashlib.sha256(content.encode()).hexdigest())


@documents.stage
def duplicates(document: Document) -> Document:
    first = casefile.first_with(document.sha256, document.id)
    if first != document.id:
        raise hf.Skip(f"the same as {first}")
    return document.with_()


@duplicates.verify
def is_first(document: Document) -> bool:
    return casefile.first_with(document.sha256, document.id) == document.id


@documents.stage
def record(document: Document) -> Document:
    casefile.record(document.id, document.custodian, document.sha256)
    return document.with_()


@record.verify
def row_exists(document: Document) -> bool:
    return casefile.has_record(document.id, document.sha256)


@documents.stage
def attachments(document: Document) -> Document:
    casefile.attach(document.id, [(each.name, each.text) for each in document.attachments])
    return document.with_()


@attachments.verify
def all_attached(document: Document) -> bool:
    return casefile.attached(document.id) == [(each.name, len(each.text)) for each in document.attachments]


@documents.stage
def text(document: Document) -> Document:
    return document.with_(text="\n".join([document.body, *(each.text for each in document.attachments)]))


@documents.stage
def pages(document: Document) -> Document:
    cut = [document.text[at : at + PAGE] for at in range(0, len(document.text), PAGE)]
    casefile.paginate(document.id, cut)
    return document.with_(pages=len(cut))


@pages.verify
def page_count_matches(document: Document) -> bool:
    return casefile.page_count(document.id) == document.pages


@documents.stage
def dates(document: Document) -> Document:
    days = sorted(set(re.findall(r"\d{4}-\d{2}-\d{2}", document.text)))
    casefile.put_dates(document.id, days)
    return document.with_(days=days)


@dates.verify
def days_are_there(document: Document) -> bool:
    return casefile.dates(document.id) == document.days


@documents.stage
def tags(document: Document, ctx: hf.Context) -> Document:
    found = casefile.tag(document.id, document.text)
    ctx.spend(usd=f"0.{casefile.CENTS:02d}", model="tagger")
    return document.with_(tags=found)


@tags.verify
def tags_exist(document: Document) -> bool:
    return casefile.tags(document.id) == document.tags


@tags.adopt
def paid_for_already(document: Document, _ctx: hf.Context) -> Document | None:
    """The service answered, and we died before we could write that down: what it said is in the case database."""
    found = casefile.tags(document.id)
    return document.with_(tags=found) if found else None


@documents.stage
def redact(document: Document) -> Document:
    return document.with_(text=re.sub(r"\d{3}-\d{2}-\d{4}", "[number]", document.text))


@documents.stage
def index(document: Document) -> Document:
    casefile.put_in_index(document.id, document.text)
    return document.with_()


@index.verify
def is_found_once(document: Document) -> bool:
    return casefile.in_index(document.id) == 1


@documents.stage
def release(document: Document) -> str:
    casefile.release(document.id)
    return document.with_().id


@release.verify
def is_released(document: str) -> bool:
    return casefile.is_released(document)


if __name__ == "__main__":
    sys.exit(documents.run(batch="case-7").exit_code)
