"""The outside world and the record part company: rows vanish between two runs, effects land and their commits do not.

A real SQLite database of a program's own is the outside world. Each handler notes that it was paid before it writes
there, so that what was paid twice is known whatever becomes of the process.
"""

import json
import os
import sqlite3
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forkserver import shared

ITEMS = 24
PROGRAM = """
import json, sqlite3, sys
import holdfast as hf

cases = hf.Pipeline("cases", store="state.db")

def world():
    return sqlite3.connect("world.db", timeout=30, isolation_level=None)

def stage_of(name):
    def handle(n: int) -> int:
        with open("paid.txt", "a") as paid:
            paid.write(f"{name} {n}\\n")
        db = world()
        db.execute("INSERT INTO facts VALUES (?, ?)", (name, n))
        db.close()
        return n

    stage = cases.stage(name=name)(handle)

    @stage.verify
    def is_there(out: int, item: int, ctx: hf.Context) -> bool:
        return found(name, item)

    @stage.adopt
    def look_up(item: int, ctx: hf.Context) -> int | None:
        return item if found(name, item) else None

def found(name, n):
    db = world()
    (count,) = db.execute("SELECT count(*) FROM facts WHERE stage = ? AND n = ?", (name, n)).fetchone()
    db.close()
    return count > 0

for name in ("record", "tag", "index"):
    stage_of(name)

if __name__ == "__main__":
    report = cases.run(range(ITEMS), workers=4, progress=False, verify=sys.argv[1])
    print(json.dumps({"done": report.counts.done, "rewound": report.this_run.rewound}))
    sys.exit(report.exit_code)
"""


class Cases:
    """The program, its outside world, and what it paid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app.py").write_text(textwrap.dedent(PROGRAM).replace("ITEMS", str(ITEMS)), encoding="utf-8")
        self.sql("CREATE TABLE facts (stage TEXT, n INTEGER)")

    def run(self, verify: str = "quick", fault: str = "") -> tuple[int, dict[str, Any]]:
        env = {**os.environ, "HOLDFAST_FAULT": fault}
        ended = shared().program("app.py", verify, cwd=self.folder, env=env).completed(120)
        assert ended.returncode in (0, -9), ended.stderr
        return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}

    def sql(self, statement: str, *values: object) -> list[Any]:
        db = sqlite3.connect(self.folder / "world.db", timeout=30, isolation_level=None)
        try:
            return db.execute(statement, values).fetchall()
        finally:
            db.close()

    def lose(self, stage: str, *ns: int) -> None:
        for n in ns:
            self.sql("DELETE FROM facts WHERE stage = ? AND n = ?", stage, n)

    @property
    def paid(self) -> Counter[str]:
        file = self.folder / "paid.txt"
        return Counter(file.read_text().split("\n")[:-1] if file.exists() else ())

    def facts(self) -> Counter[tuple[str, int]]:
        return Counter(self.sql("SELECT stage, n FROM facts"))


@pytest.fixture
def cases(tmp_path: Path) -> Cases:
    return Cases(tmp_path)


EVERYTHING = Counter(f"{stage} {n}" for stage in ("record", "tag", "index") for n in range(ITEMS))


@pytest.mark.promise("A5", "A7", "P5")
@pytest.mark.parametrize("fault", ["commit.before:2:kill", "commit.written:5:kill", "commit.after:4:kill"])
def test_an_effect_that_landed_without_its_commit_is_adopted_and_not_paid_again(
    cases: Cases, fault: str, tally: Callable[..., None]
) -> None:
    assert cases.run(fault=fault)[0] == -9
    landed = sum(cases.paid.values())
    assert landed, "it was killed after some effects"
    assert cases.run()[1] == {"done": ITEMS, "rewound": 0}
    assert cases.paid.keys() == EVERYTHING.keys()
    assert set(cases.facts().values()) == {1}, "every effect is there once"
    tally(kills=1, effects=landed)


@pytest.mark.slow
@pytest.mark.promise("A5", "A6", "P4")
def test_exactly_what_the_world_lost_is_done_again_from_the_right_stage(
    cases: Cases, tally: Callable[..., None]
) -> None:
    assert cases.run(fault="commit.after:6:kill")[0] == -9
    assert cases.run()[1]["done"] == ITEMS
    assert cases.facts().keys() == {(stage, n) for stage in ("record", "tag", "index") for n in range(ITEMS)}
    before = cases.paid
    cases.lose("index", 3)
    cases.lose("tag", 7, 8)
    cases.lose("record", 11)
    cases.lose("tag", 11)
    assert cases.run()[1]["rewound"] == 0, "a quick look asks nobody about what is done"
    assert cases.run("full", fault="act.after:1:kill")[0] == -9
    assert cases.run("full")[1]["done"] == ITEMS
    assert cases.paid - before == Counter(["index 3", "tag 7", "tag 8", "record 11", "tag 11"]), (
        "what is still there above it is adopted, not paid again"
    )
    assert set(cases.facts().values()) == {1}
    assert cases.run("full")[1] == {"done": ITEMS, "rewound": 0}
    tally(kills=2, lost=5)
