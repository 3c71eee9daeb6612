"""How often the disk is waited for, counted by strace: unlike seconds, this does not move with the machine."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import strace
from tests.needed import missing
from tests.runtime.support import App

SATURATED = 0.02
"""Syncs per item at most, where handlers are faster than the disk."""
BESIDE = 50
"""Syncs of a short run that belong to no item: the store is made, the batch opened and closed, leases are renewed."""

QUICK = """
import sys
import holdfast as hf

book = hf.Pipeline("book", store="state.db")

@book.stage
def read(page: dict) -> dict:
    return {"n": page["n"], "text": page["text"][:60]}

if __name__ == "__main__":
    pages = ({"n": n, "text": f"page {n} " * 15} for n in range(int(sys.argv[1])))
    book.run(pages, key="n", progress=False).raise_unless_complete()
"""

AT_REST = """
import sys, time
import holdfast as hf

book = hf.Pipeline("book", store="state.db")
finished = []

@book.stage
def read(n: int) -> int:
    ends = time.monotonic() + 30
    while len(list(book.results())) < len(finished):  # what came back before is durable before the next is done
        assert time.monotonic() < ends, f"{finished[-1]} finished and was not committed while nothing else was to do"
        time.sleep(0.001)
    time.sleep(0.01)
    finished.append(n)
    return n

if __name__ == "__main__":
    book.run(range(int(sys.argv[1])), workers=1, progress=False).raise_unless_complete()
"""


@pytest.fixture(autouse=True)
def tracing() -> None:
    """Without strace nothing can be counted: a laptop may go without, CI may not."""
    if reason := strace.why_not():
        missing(f"{reason}: install strace, and permit ptrace")


def test_a_saturated_run_waits_for_the_disk_once_in_fifty_items_at_most(
    folder: Path, tally: Callable[..., None]
) -> None:
    items = 20_000
    syncs = counted(folder, QUICK, items)
    tally(items=items, syncs=syncs)
    assert 0 < syncs <= items * SATURATED


@pytest.mark.promise("P10")
def test_an_item_at_rest_is_durable_one_sync_after_it_finished(folder: Path, tally: Callable[..., None]) -> None:
    items = 100
    syncs = counted(folder, AT_REST, items)
    tally(items=items, syncs=syncs)
    assert items <= syncs <= items + BESIDE


def test_the_bound_is_broken_by_a_run_that_commits_item_by_item(folder: Path) -> None:
    assert counted(folder, AT_REST, 20) > 20 * SATURATED


def test_an_item_that_is_not_synced_is_noticed(folder: Path) -> None:
    unsafe = (
        'from holdfast.stores.sqlite import file as sqlite_file\n\nsqlite_file.SETTINGS["synchronous"] = "normal"\n'
    )
    assert counted(folder, unsafe + AT_REST, 100) < 100


def counted(folder: Path, source: str, items: int) -> int:
    """The syncs of a program of a user's, and of all its threads."""
    app, report = App(folder, source), folder / "strace.txt"
    command = strace.traced([sys.executable, str(app.file), str(items)], report)
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=110)
    assert ended.returncode == 0, ended.stderr
    return strace.syncs_in(report)
