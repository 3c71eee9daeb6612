"""What an item is, its chunk says: neither its key nor its payload does."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

import holdfast as hf
from holdfast.core.model import Kind
from holdfast.runtime.report import status
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import Rows
from tests.cli.conftest import Command


class Page(BaseModel):
    name: str
    n: int
    after: int | None = None
    until: int | None = None


def test_an_item_that_is_named_like_a_row_is_an_item_everywhere(here: Path, holdfast: Command) -> None:
    book = hf.Pipeline("book", store="state.db")

    @book.stage(retry=hf.Retry(attempts=1))
    def read(page: Page) -> int:
        raise ValueError(page.name)

    pages = [{"name": "follow", "n": 1}, {"name": "row 7", "n": "seven"}, {"name": "row 8", "n": 8, "after": 7}]
    report = book.run(pages, "b", key="name", progress=False, tolerate=3)
    assert report.counts.dead == 3
    assert "items    3 =" in str(report)
    listed = told(holdfast, "dead", "list")
    assert "row 7" in listed
    assert " - " not in listed
    assert "refused at the boundary" in told(holdfast, "why", "row 7")
    assert "seen by partition" not in told(holdfast, "why", "row 8")
    assert "place  " not in told(holdfast, "dead", "show", "row 8")
    assert seen_in(here) == (Kind.ITEMS, {})


def test_a_row_that_was_buried_is_told_as_a_row(here: Path, holdfast: Command) -> None:
    scan = hf.Scan("b", Rows(list(range(10))), store="state.db", every=5, isolate=True)

    @scan.handler
    def keep(rows: list[int]) -> None:
        if 7 in rows:
            raise ValueError("seven")

    assert scan.run(progress=False).counts.dead == 1
    assert " - " in told(holdfast, "dead", "list")
    row = next(word for word in told(holdfast, "dead", "list").splitlines() if "row " in word).split()[2]
    assert "could not be handled" in told(holdfast, "why", f"row {row}")
    assert "place" in told(holdfast, "dead", "show", f"row {row}")
    assert seen_in(here) == (Kind.PARTITIONS, {"dead": 1})


def told(holdfast: Command, command: str, *more: str) -> str:
    if command == "dead":
        return holdfast("dead", more[0], "b", *more[1:], "--store", "state.db").out
    return holdfast(command, "b", *more, "--store", "state.db").out


def seen_in(folder: Path) -> tuple[Kind, dict[str, Any]]:
    store = SqliteStore(folder / "state.db")
    (batch,) = store.batches("b")
    seen = status.snapshot(store, batch)
    store.close()
    return seen.kind, dict(seen.rows)
