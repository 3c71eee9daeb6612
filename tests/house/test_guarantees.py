"""The page of guarantees, and the check behind it: a promise in force that is not proved fails the build."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.house.source import ROOT

PROMISES = """
[A]
title = "Things"
[A.promises]
A1 = { since = "0.1.0", says = "It holds." }
A2 = { since = "0.1.0", says = "It holds, too.", partly = "the other half is to come." }
A3 = { says = "It may hold one day." }
"""
LAYERS = """
[[layer]]
name = "fleet"
tests = ["tests/fleet"]
what = "Many."
[[layer]]
name = "zombies"
tests = ["tests/fleet/test_zombies.py"]
what = "Undead."
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """tools/guarantees.py, with docs of its own."""
    spec = importlib.util.spec_from_file_location("guarantees", ROOT / "tools" / "guarantees.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "guarantees", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    monkeypatch.setattr(module, "LAST_RUN", tmp_path / "run.json")
    (tmp_path / "promises.toml").write_text(PROMISES)
    (tmp_path / "layers.toml").write_text(LAYERS)
    return module


def entry(*promises: str, outcome: str = "passed", **counts: int) -> dict[str, Any]:
    return {"promises": list(promises), "outcome": outcome, "counts": counts}


FLEET = "tests/fleet/test_fleet.py::test_a_fleet"
ZOMBIE = "tests/fleet/test_zombies.py::test_a_zombie"
GOOD = {
    f"{FLEET}[1]": entry("A1", kills=300),
    f"{FLEET}[2]": entry("A1", kills=200),
    ZOMBIE: entry("A1", "A2", stopped_writers=7),
}


def check(tool: Any, tests: dict[str, Any], *, fresh: bool = True) -> int:
    """`--check --results` on a run; with a page that is up to date, or not."""
    facts = {"date": "2026-11-15", "commit": "abc", "minutes": 3.5, "system": "a machine"}
    tool.LAST_RUN.write_text(json.dumps({"run": facts, "tests": tests}))
    if fresh:
        tool.publish(tool.read_run(tool.LAST_RUN))
        page = tool.render(tool.load(tool.read_run(tool.LAST_RUN).tests))
        (tool.DOCS / "guarantees.md").write_text(page)
    return int(tool.main(["--check", "--results", str(tool.LAST_RUN)]))


def test_a_run_that_proves_every_promise_in_force_passes(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tool, GOOD) == 0
    assert "every promise in force is proved (2 of 3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({ZOMBIE: entry("A1")}, "A2 has no test: mark one"),
        ({ZOMBIE: entry("A2", outcome="failed")}, "A2 is not proved by this run: of its tests, 1 failed"),
        ({ZOMBIE: entry("A2", outcome="skipped")}, "A2 is not proved by this run: of its tests, 1 skipped"),
        ({ZOMBIE: entry("A2", outcome="not run")}, "A2 is not proved by this run: of its tests, 1 not run"),
        ({f"{FLEET}[2]": entry("A1", outcome="failed")}, "A1 is not proved by this run"),
        ({"tests/other/test_x.py::test_x": entry("A1")}, "tests/other/test_x.py does not belong to a layer"),
    ],
)
def test_a_promise_in_force_that_is_not_proved_fails_the_build(
    broken: dict[str, Any], why: str, tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tool, GOOD | broken) == 1
    assert why in capsys.readouterr().out


def test_a_page_that_is_out_of_date_fails_the_build(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(tool, GOOD)
    assert check(tool, GOOD | {f"{FLEET}_more": entry("A1")}, fresh=False) == 1
    assert "docs/guarantees.md is out of date" in capsys.readouterr().out


def test_the_page_tells_layers_counts_and_how_to_repeat_them(tool: Any) -> None:
    check(tool, GOOD)
    page = (tool.DOCS / "guarantees.md").read_text()
    assert "| fleet | Many. | 1 | 500 kills | `.venv/bin/pytest tests/fleet` |" in page
    assert "| zombies | Undead. | 1 | 7 stopped writers | `.venv/bin/pytest tests/fleet/test_zombies.py` |" in page
    assert "Counted: 500 kills, 7 stopped writers." in page
    assert "*In part: the other half is to come.*" in page
    assert "make prove PROMISE=A1" in page
    assert "- **A3** It may hold one day." in page
    assert "No soak is recorded yet." in page


def test_the_page_tells_the_soak(tool: Any) -> None:
    facts = {"date": "2026-11-15", "commit": "abc", "base": 5, "hours": 1.01, "seeds": 1234, "failures": 0}
    (tool.DOCS / "soak.json").write_text(json.dumps({**facts, "totals": {"kills": 12_345}}))
    check(tool, GOOD)
    page = (tool.DOCS / "guarantees.md").read_text()
    assert "**1.01 hours**, 1,234 seeds, **0 failures**" in page
    assert "| kills | 12,345 |" in page
