"""Memory stays flat: what a source gives and what handlers make does not pile up."""

import json
from pathlib import Path

import pytest

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
    ended = App(folder, APP).run(str(count), str(folder / f"{count}.db"), *arguments, seconds=110)
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
