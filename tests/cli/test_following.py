"""A scan that follows, from the command line: what is told while it stays, when a row is buried, and afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.runtime.support import wait_for

APP = """
import os
import holdfast as hf
from holdfast.testing.rows import Rows

rows = [0, 1, 2, 3]
orders = hf.Follow("orders", Rows(rows), isolate=True, retry=hf.Retry(attempts=1))
ends = hf.Scan("ends", Rows(rows), isolate=True, retry=hf.Retry(attempts=1))

@ends.handler
@orders.handler
def count(rows, acc: int) -> int:
    if 2 in rows and not os.path.exists("mended"):
        raise hf.Permanent("poison", "2 cannot be handled")
    return acc + len(rows)
"""
AGREED = ("--all", "--yes", "--reason", "because", "--actor", "ada")


@pytest.fixture
def app(here: Path) -> Path:
    (here / "app.py").write_text(APP)
    return here


def test_a_redriven_row_on_a_quiet_table_is_done_by_a_run_which_says_so(app: Path, holdfast: Command) -> None:
    assert holdfast("run", "app.py:orders").code == 1
    again = holdfast("run", "app.py:orders")
    assert (again.code, "nothing new" in again.out) == (0, True)
    assert holdfast("dead", "redrive", "orders", *AGREED).code == 0
    failed = holdfast("run", "app.py:orders")
    assert (failed.code, "1 buried" in failed.out, "2 cannot be handled" in failed.out) == (1, True, True)
    (app / "mended").touch()
    assert holdfast("dead", "redrive", "orders", *AGREED).code == 0
    done = holdfast("run", "app.py:orders")
    assert (done.code, "1 redriven" in done.out) == (0, True)


def test_while_dead_letters_stand_an_alert_can_be_had(app: Path, holdfast: Command) -> None:
    assert holdfast("run", "app.py:orders").code == 1
    assert holdfast("run", "app.py:orders").code == 0
    assert holdfast("dead", "list", "orders").code == 0
    assert holdfast("dead", "list", "orders", "--exit-code").code == 1
    assert holdfast("dead", "list", "orders", "--exit-code", "--json").code == 1
    assert holdfast("dead", "list", "orders", "--exit-code", "--code", "other").code == 0
    assert holdfast("dead", "discard", "orders", *AGREED).code == 0
    assert holdfast("dead", "list", "orders", "--exit-code").code == 0
    assert holdfast("dead", "list", "orders", "--exit-code", "--json").code == 0


def test_a_run_that_stays_writes_a_line_when_it_did_something_and_ends_with_1_where_a_row_was_buried(
    app: Path, holdfast: Command
) -> None:
    with (app / "log").open("w") as log:
        command = [sys.executable, "-m", "holdfast", "run", "app.py:orders", "--poll", "10ms"]
        process = subprocess.Popen(command, cwd=app, stdout=log, stderr=log)
        wait_for(lambda: "4 rows, 4 in all, 1 buried" in (app / "log").read_text())
        process.terminate()
        assert process.wait(20) == 1  # it was stopped, which is 75; but that a row was buried, nobody else tells
    lines = (app / "log").read_text().splitlines()
    assert [("caught up" in line, "stopped" in line) for line in lines] == [(True, False), (False, True)]
    shown = holdfast("run", "app.py:orders", "--poll", "10ms", "--deadline", "200ms")
    assert shown.code == 75
    assert len(shown.out.splitlines()) == 1, shown.out  # nothing was done: only its end is told


def test_what_follows_is_told_as_such(app: Path, holdfast: Command) -> None:
    holdfast("run", "app.py:orders")
    (app / "mended").touch()
    holdfast("dead", "redrive", "orders", *AGREED)
    status = " ".join(holdfast("status", "orders").out.split())
    assert "the pending one is the scan itself, which follows its source" in status
    assert "buried rows 1 = 1 pending" in status
    compared = holdfast("reconcile", "orders").out
    assert "one of these is the scan itself, which never ends" in compared


@pytest.mark.parametrize(("scan", "words"), [("orders", "dead list BATCH --exit-code"), ("ends", "reconcile BATCH")])
def test_who_wants_to_tolerate_dead_rows_is_told_where(app: Path, holdfast: Command, scan: str, words: str) -> None:
    refused = holdfast("run", f"app.py:{scan}", "--tolerate", "1")
    assert refused.code == 2
    assert words in " ".join((refused.out + refused.err).split())


def test_without_converge_several_parts_have_no_result(app: Path, holdfast: Command) -> None:
    assert holdfast("run", "app.py:ends", "--json").document["result"] == 3
    (app / "mended").touch()
    holdfast("dead", "redrive", "ends", *AGREED)
    done = holdfast("run", "app.py:ends")
    assert (done.code, "2 parts, and no converge" in done.out) == (0, True)


def test_a_follower_that_was_cancelled_is_over_and_not_at_a_dead_letter(app: Path, holdfast: Command) -> None:
    (app / "mended").touch()
    assert holdfast("run", "app.py:orders").code == 0
    assert holdfast("cancel", "orders", "--yes", "--reason", "because").code == 0
    (app / "later.py").write_text(APP.replace("[0, 1, 2, 3]", "[0, 1, 2, 3, 4]"))
    again = holdfast("run", "later.py:orders")
    assert again.code == 1
    assert "over" in again.out
    assert "the batch was cancelled: it no longer follows its source" in again.out
    assert "dead letter" not in again.out
