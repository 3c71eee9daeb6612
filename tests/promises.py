"""A pytest plugin: writes down which promises each test proves, how it ended and how much it did (--promises=FILE).
With --promise=C8 only the tests of that promise are run.

Marks and counts travel in a test's user_properties, so under xdist they reach the controller with its reports.
tools/guarantees.py reads the file.
"""

import json
import os
import platform
import shutil
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Record how much a test did: `tally(schedules=20_000, kills=312)` appears in the report of the guarantees."""

    def add(**counts: int) -> None:
        request.node.user_properties.append(("counts", counts))

    return add


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promises", metavar="FILE", help="write each promise's tests, outcomes and counts to FILE")
    parser.addoption("--promise", metavar="ID", help="run only the tests that prove this promise")


def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("--promise")
    if wanted is not None and wanted not in known_promises():
        raise pytest.UsageError(f"there is no promise {wanted!r}; docs/guarantees.md has them: make prove PROMISE=C8")
    target = config.getoption("--promises")
    is_xdist_worker = hasattr(config, "workerinput")
    if target and not is_xdist_worker:
        config.pluginmanager.register(Recorder(Path(target)), "promise-recorder")


def known_promises() -> set[str]:
    areas = tomllib.loads((ROOT / "docs" / "promises.toml").read_text(encoding="utf-8"))
    return {promise for area in areas.values() for promise in area["promises"]}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--promise")
    others = []
    for item in items:
        ids = sorted({promise for mark in item.iter_markers("promise") for promise in mark.args})
        if ids:
            item.user_properties.append(("promises", ids))
        if wanted and wanted not in ids:
            others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


class Recorder:
    """Collects one entry per test that proves something, and writes them all when the session ends."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.tests: dict[str, dict[str, Any]] = {}
        self.began = time.time()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.getoption("collectonly"):
            for item in session.items:
                self.entry(item.nodeid, item.user_properties)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        entry = self.entry(report.nodeid, report.user_properties)
        if entry is not None and (report.when == "call" or not report.passed):
            entry["outcome"] = worse(entry["outcome"], report.outcome)

    def pytest_sessionfinish(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        said = {"run": self.facts(), "tests": self.tests}
        self.target.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def facts(self) -> dict[str, Any]:
        """When and where this was."""
        return {
            "date": datetime.fromtimestamp(self.began, UTC).date().isoformat(),
            "commit": commit_of_this_tree(),
            "minutes": round((time.time() - self.began) / 60, 1),
            "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}",
        }

    def entry(self, nodeid: str, properties: list[tuple[str, Any]]) -> dict[str, Any] | None:
        ids = dict(properties).get("promises")
        if ids is None:
            return None
        entry = self.tests.setdefault(nodeid, {"promises": ids, "outcome": "not run"})
        entry["counts"] = sum((Counter(value) for name, value in properties if name == "counts"), Counter())
        return entry


def commit_of_this_tree() -> str:
    """The commit, with a mark when something was changed since; a copy without git has none."""
    git = shutil.which("git")
    command = [git or "git", "describe", "--always", "--dirty=, changed", "--abbrev=10", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def worse(one: str, other: str) -> str:
    return max(one, other, key=["not run", "passed", "skipped", "failed"].index)
