"""What a scan costs: the same for its thousandth checkpoint as for its first, and no more memory for more rows."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.runtime.support import App

PROGRAM = """
    import json, os, resource, sys
    import holdfast as hf
    from holdfast.testing.rows import Rows

    count, every = int(sys.argv[1]), int(sys.argv[2])

    def written():
        facts = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
        return int(facts["wchar"]), int(facts["syscw"])

    if "file" in sys.argv:
        with open("rows.csv", "w") as file:
            file.write("id\\n")
            file.writelines(f"{n}\\n" for n in range(count))
    source = hf.Csv("rows.csv") if "file" in sys.argv else Rows(range(count))
    scan = hf.Scan("costs", source, every=every, store="state.db", partitions=3 if "file" in sys.argv else 1)
    marks = []
    seen = 0

    @scan.handler
    def add(rows, acc: int) -> int:
        global seen
        if seen % (count // 4) == 0: marks.append(written())
        seen += len(rows)
        return acc + len(rows)

    if __name__ == "__main__":
        report = scan.run(progress=False)
        marks.append(written())
        print(json.dumps([report.rows, marks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


@pytest.fixture
def run(folder: Path) -> Callable[..., tuple[int, list[tuple[int, int]], int]]:
    def ended(*argv: str) -> tuple[int, list[tuple[int, int]], int]:
        for old in folder.glob("state.db*"):
            old.unlink()
        done = App(folder, PROGRAM, cold=True).run(*argv)
        assert done.returncode == 0, done.stderr
        rows, marks, peak = json.loads(done.stdout)
        return rows, marks, peak

    return ended


@pytest.mark.promise("B11")
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes are counted by Linux")
def test_the_last_checkpoints_write_no_more_than_the_first(
    run: Callable[..., tuple[int, list[tuple[int, int]], int]], tally: Callable[..., None]
) -> None:
    rows, marks, _ = run("4000", "1")
    assert (rows, len(marks)) == (4000, 5)
    quarters = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
    first, last = quarters[0], quarters[-1]
    assert last[0] <= 1.2 * first[0], f"bytes by quarter: {quarters}"
    assert last[1] <= 1.2 * first[1], f"writes by quarter: {quarters}"
    tally(bytes_of_a_checkpoint=last[0] // 1000)


@pytest.mark.slow
def test_a_million_rows_take_the_memory_of_a_hundred_thousand(
    run: Callable[..., tuple[int, list[tuple[int, int]], int]],
) -> None:
    peaks = [run(count, "1000", "file")[2] for count in ("100000", "1000000")]
    assert peaks[1] <= 1.25 * peaks[0], peaks
