"""What a machine should have for the tests: what it lacks is listed at the end, and where CI is set it is a failure."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tools import machine

MARK = "NOT TESTED: "


def missing(what: str) -> NoReturn:
    """A laptop may lack a server; CI may not."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}: CI is set, and needs it")
    pytest.skip(f"{MARK}{what}")


def program(name: str, otherwise: str) -> list[str]:
    """The command that runs a program which `make test` sets up where it may."""
    found = machine.find(name)
    if found is None:
        missing(otherwise)
    return found


def folder_of(name: str, otherwise: str) -> Path:
    """The folder in which a program and its companions are."""
    return Path(program(name, otherwise)[0]).parent


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """List at the very end what could not be tested, with what to install."""
    yield
    skipped = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    lacking = {reason: count for reason, count in skipped.items() if reason.startswith(MARK)}
    if lacking:
        terminalreporter.section("not tested on this machine")
        for reason, count in sorted(lacking.items()):
            terminalreporter.write_line(f"{count:5} tests: {reason.removeprefix(MARK)}")


def _reason(report: pytest.TestReport) -> str:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return str(told).removeprefix("Skipped: ")
