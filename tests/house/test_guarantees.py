"""The guarantees: a promise in force without a passing test fails the build, and the docs list every promise."""

import importlib.util
import json
import re
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
    """tools/guarantees.py, with docs and build products of its own."""
    module = loaded("guarantees", monkeypatch)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    monkeypatch.setattr(module, "BUILD", tmp_path)
    (tmp_path / "promises.toml").write_text(PROMISES)
    (tmp_path / "layers.toml").write_text(LAYERS)
    (tmp_path / "guarantees.md").write_text(f"Before.\n{module.BEGIN}\n{module.END}\nAfter.\n")
    return module


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
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
    """Run `--check --results` on a test run, with a page that is up to date or not."""
    if fresh:
        tool.main(["--docs"])
    return int(tool.main(["--check", "--results", str(ran(tool, tests))]))


def ran(tool: Any, tests: dict[str, Any]) -> Path:
    """Write the file that a test run leaves."""
    facts = {"date": "2026-11-15", "commit": "abc", "minutes": 3.5, "system": "a machine"}
    path: Path = tool.BUILD / "promises.json"
    path.write_text(json.dumps({"run": facts, "tests": tests}))
    return path


def report(tool: Any) -> str:
    """Return build/guarantees.md after a run that proved everything."""
    tool.BUILD = tool.BUILD / "build"
    tool.BUILD.mkdir(exist_ok=True)
    ran(tool, GOOD)
    assert tool.main([]) == 0
    return str((tool.BUILD / "guarantees.md").read_text())


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


def test_a_page_that_does_not_list_the_promises_fails_the_build(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tool, GOOD) == 0
    (tool.DOCS / "promises.toml").write_text(PROMISES.replace("It holds.", "It holds well."))
    assert check(tool, GOOD, fresh=False) == 1
    assert "docs/guarantees.md is out of date" in capsys.readouterr().out


def test_the_docs_list_every_promise_and_keep_the_rest_of_the_page(tool: Any) -> None:
    tool.main(["--docs"])
    page = (tool.DOCS / "guarantees.md").read_text()
    assert "| A1 | It holds. |" in page
    assert "| A2 | It holds, too. *Not complete: the other half is to come.* |" in page
    assert "- **A3** It may hold one day." in page
    assert page.startswith("Before.\n")
    assert page.endswith("\nAfter.\n")


def test_our_own_docs_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [*loaded("guarantees", monkeypatch).stale()]


def test_every_promise_in_force_has_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole build checks that a marked test passes; this finds a missing mark within a second."""
    marks = re.compile(r"\b(?:promise|proves)\(([^)]*)\)")
    marked: set[str] = set()
    for folder in (ROOT / "tests", ROOT / "src" / "holdfast" / "testing", ROOT / "examples"):
        for path in folder.rglob("*.py"):
            for found in marks.findall(path.read_text(encoding="utf-8")):
                marked |= set(re.findall(r'"([A-Z]\d+)"', found))
    sections = loaded("guarantees", monkeypatch).load_sections().values()
    in_force = {promise.id for promises in sections for promise in promises if promise.since is not None}
    assert in_force <= marked, f"mark a test with @pytest.mark.promise for {sorted(in_force - marked)}"


def test_the_report_has_layers_counts_and_how_to_repeat_them(tool: Any) -> None:
    page = report(tool)
    assert "| fleet | Many. | 1 | 500 kills | `.venv/bin/pytest tests/fleet` |" in page
    assert "| zombies | Undead. | 1 | 7 stopped writers | `.venv/bin/pytest tests/fleet/test_zombies.py` |" in page
    assert "Counted: 500 kills, 7 stopped writers." in page
    assert "*Not complete: the other half is to come.*" in page
    assert "  - `tests/fleet/test_zombies.py`: a zombie" in page
    assert "make prove PROMISE=A1" in page
    assert "- **A3** It may hold one day." in page
    assert "No soak is recorded." in page


def test_the_report_has_the_soak(tool: Any) -> None:
    facts = {"date": "2026-11-15", "commit": "abc", "base": 5, "hours": 1.01, "seeds": 1234, "failures": 0}
    (tool.BUILD / "build").mkdir()
    (tool.BUILD / "build" / "soak.json").write_text(json.dumps({**facts, "totals": {"kills": 12_345}}))
    page = report(tool)
    assert "**1.01 hours**, 1,234 seeds, **0 failures**" in page
    assert "| kills | 12,345 |" in page


def test_there_is_no_report_without_a_run(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([]) == 1
    assert "run make test" in capsys.readouterr().out


def test_the_results_of_a_release_are_collected_and_missing_ones_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = loaded("results", monkeypatch)
    for name in results.MADE_BY:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert results.main(tmp_path) == 0
    collected = tmp_path / "build" / "results"
    names = {"guarantees.md", "guarantees.json", "soak.json", "benchmarks.json"}
    assert {path.name for path in collected.iterdir()} == names
    (tmp_path / "build" / "soak.json").unlink()
    assert results.main(tmp_path) == 1
    assert "build/soak.json is missing: run make soak" in capsys.readouterr().out
    assert {path.name for path in collected.iterdir()} == names - {"soak.json"}
