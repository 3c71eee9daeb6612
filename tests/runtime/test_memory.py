"""Memory stays flat: what a source gives and what handlers make does not pile up."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.model import START, BatchId, Checkpoint, Chunk, ChunkId, Counts, ItemNo, Kind, State, StoredItem
from holdfast.runtime import partitions
from holdfast.runtime.engine import session as run_module
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.session import Session
from holdfast.runtime.report.status import Letters
from tests.runtime.support import App

APP = """
import json, resource, sys
import holdfast as hf

book = hf.Pipeline("book", store=sys.argv[2])

@book.stage
def read(page: dict) -> dict:
    return {"n": page["n"], "text": page["text"].upper()}

@book.stage
def finish(page: dict) -> int:
    return len(page["text"])

def pages(count):
    for number in range(count):
        yield {"n": number, "text": f"page {number} " * 8}

if __name__ == "__main__":
    report = book.run(pages(int(sys.argv[1])), key="n", progress=False)
    results = sum(1 for _ in report.results()) if "read" in sys.argv else 0
    print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, report.counts.done, results]))
"""


def peak(folder: Path, count: int, *arguments: str) -> int:
    """Kilobytes at most."""
    ended = App(folder, APP, cold=True).run(str(count), str(folder / f"{count}.db"), *arguments, seconds=110)
    assert ended.returncode == 0, ended.stderr
    most, done, results = json.loads(ended.stdout)
    assert done == count
    assert results in (0, count)
    return int(most)


def test_ten_times_the_items_take_about_the_same_memory(folder: Path) -> None:
    few, many = peak(folder, 5_000), peak(folder, 50_000)
    assert many < few * 1.6, f"{few // 1024} MB for 5,000 items, {many // 1024} MB for 50,000"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_thousand_items_take_about_the_memory_of_twenty_thousand(folder: Path) -> None:
    few, many = peak(folder, 20_000, "read"), peak(folder, 200_000, "read")
    assert many < few * 1.6, f"{few // 1024} MB for 20,000 items, {many // 1024} MB for 200,000"


def test_rows_that_were_buried_are_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 50_000

    def items(_store: object, _batch: object, *, lo: int, hi: int, state: State) -> Iterator[StoredItem]:
        """Only those that are asked for: dead ones are counted where their chunk counts them."""
        assert (lo, hi, state) == (1, rows + 1, State.PENDING)
        for n in range(1, 4):
            yield StoredItem(n=ItemNo(n), key=f"row {n}", place=START, payload=b"", salt=b"")

    def checkpoints(_store: object, _batch: object) -> list[Checkpoint]:
        return [Checkpoint(n=ItemNo(n), rows=7, cursor=b"") for n in (0, 1)]

    monkeypatch.setattr(run_module, "each_item", items)
    monkeypatch.setattr(partitions, "each_checkpoint", checkpoints)
    chunks = [
        Chunk(id=ChunkId(1), batch=BatchId(1), lo=ItemNo(0), hi=ItemNo(1), kind=Kind.PARTITIONS),
        Chunk(id=ChunkId(2), batch=BatchId(1), lo=ItemNo(1), hi=ItemNo(rows + 1), kind=Kind.ROWS,
              counts=Counts(dead=rows - 3)),
    ]  # fmt: skip
    ledger, run = Ledger(chunks), SimpleNamespace(store=None)
    batch: Any = SimpleNamespace(id=1)
    tracemalloc.start()
    try:
        Session._count_rows(run, batch, ledger)  # type: ignore[arg-type]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (ledger.letters, ledger.rows_before) == (Letters(rows, rows - 3, rows - 3), 7)
    assert most < 200_000, f"{most:,} bytes for {rows:,} rows"
