"""The book: 447 pages for $5.00, killed after about 200."""

import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.stores.base import find_batch
from holdfast.stores.sqlite import SqliteStore

BOOK = Path(__file__).resolve().parents[2] / "examples" / "book"

PROGRAM = """
import sys
sys.path.insert(0, {book!r})
import app
import holdfast as hf

report = app.book.run(batch="moby-dick", key="number", workers=16, budget=hf.Budget(usd=5), progress=False)
print(report.as_dict()["state"], report.counts.done, report.totals.usd)
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "HOLDFAST_DEMO_LEDGER": str(folder / "bill.jsonl")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(book=str(BOOK))],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def counts(folder: Path) -> tuple[int, int]:
    """(items, done) as another process sees them."""
    path = folder / ".holdfast" / "state.db"
    if not path.exists():
        return 0, 0
    store = SqliteStore(path)
    batch = find_batch(store, "moby-dick")
    chunks = store.chunks(batch.id) if batch is not None else []
    store.close()
    return sum(chunk.size for chunk in chunks), sum(chunk.counts.done for chunk in chunks)


@pytest.mark.promise("P13", "P10", "P11")
def test_the_book_is_killed_after_200_pages_and_ends_at_five_dollars_plus_what_was_in_flight(folder: Path) -> None:
    sys.path.insert(0, str(BOOK))
    import service

    process = start(folder)
    ends = time.monotonic() + 60
    while counts(folder)[1] < 200:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    items, done = counts(folder)
    assert (items, 200 <= done < 447) == (447, True)
    files = {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*.json")}

    out, err = start(folder).communicate(timeout=90)
    assert out.split() == ["complete", "447", "5.00"], err
    bill = service.read_bill(folder / "bill.jsonl")
    assert bill.usd - bill.repeated_usd == 5
    assert bill.repeated <= 16
    assert bill.usd <= 5 + 16 * Decimal("0.05")
    still = {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*.json")}
    assert len(still) == 447
    assert files.items() <= still.items(), "what was finished was not made again"


@pytest.mark.promise("P11")
@pytest.mark.slow
def test_the_book_is_not_paid_for_twice(folder: Path) -> None:
    for _ in range(2):
        out, err = start(folder).communicate(timeout=90)
        assert out.split() == ["complete", "447", "5.00"], err
    assert len((folder / "bill.jsonl").read_text().splitlines()) == 447
    assert hf.__version__
