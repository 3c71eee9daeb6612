"""The trial of one mutant, in a process that was forked for it: the test that should notice it is run.

The server that forks has imported this module, and with it all tests that the table names: collecting one then costs a
tenth of a second. In a process that is about to end, nothing has to be put back.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.forkserver import ROOT
from tests.model.textual import MUTANTS

NOTICED, UNNOTICED, UNFIT = 3, 4, 5
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=40", "--rootdir", str(ROOT),
           "-c", str(ROOT / "pyproject.toml"), "-W", "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip
UNFAIR = ("NameError", "UnboundLocalError", "SyntaxError", "ImportError", "Failed: Timeout")
"""How a mutant shows that is written wrongly, or makes its test hang instead of fail."""


class Witness:
    """Hears how a test ends."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.unfair: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", ""))
        if report.failed and (report.when != "call" or told.startswith(UNFAIR)):
            self.unfair.append(f"{report.when}: {told}")
        self.failed += report.failed
        self.passed += report.passed and report.when == "call"


def main(argv: list[str]) -> None:
    """Try the mutant of that name, or with `whole` Holdfast as it is; whatever is left running is not waited for."""
    status = UNFIT
    try:
        status = try_out(argv[0], whole="whole" in argv)
    except AssertionError as error:
        sys.stderr.write(f"{error}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def try_out(name: str, *, whole: bool) -> int:
    mutant = MUTANTS[name]
    if not whole:
        mutant.apply()
    witness = Witness()
    arguments = [*OPTIONS, f"--basetemp={Path.cwd() / 'tmp'}", f"{ROOT / mutant.file}::{mutant.test}"]
    pytest.main(arguments, plugins=[witness])
    assert witness.passed or witness.failed, f"{mutant.file}::{mutant.test} did not run: was it renamed?"
    assert not witness.unfair, f"{mutant.test} does not fail as a test should: {witness.unfair}"
    return NOTICED if witness.failed else UNNOTICED


def collect(files: Sequence[str]) -> None:
    """Import tests as pytest does, so that whoever is forked from this process finds them imported."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        pytest.main([*OPTIONS, "--collect-only", "-s", *(str(ROOT / file) for file in files)])
