"""`holdfast cursor`, `reset` of a scan and `run` of one, as a person types them."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

APP = """
import os
from holdfast.runtime.define.policy import Retry
from holdfast.runtime.scan.scan import Scan
from holdfast.testing.rows import Rows

totals = Scan("totals", Rows(range(1000)), every=100, partitions=2, retry=Retry(attempts=1))

@totals.handler
def add(rows, acc: int) -> int:
    if os.path.exists("bad") and 750 in rows:
        raise ValueError("row 750")
    return acc + sum(rows)

@totals.converge
def together(parts):
    return sum(parts)
"""
AGREED = ("--yes", "--reason", "because", "--actor", "ada")
TOTAL = sum(range(1000))


@pytest.fixture
def app(here: Path, holdfast: Command) -> Path:
    """A scan whose second partition died after 200 of its 500 rows."""
    (here / "app.py").write_text(APP)
    (here / "bad").touch()
    answer = holdfast("run", "app.py:totals", "--json")
    assert (answer.code, answer.document["rows"]) == (1, 700)
    (here / "bad").unlink()
    return here


ACTS = {
    "to the beginning": ["cursor", "reset", "totals", "--to-beginning"],
    "to a cursor": ["cursor", "reset", "totals", "1", "--to-cursor", "600", "--acc", "keep"],
    "a clone": ["cursor", "clone", "totals", "backfill"],
    "a reset": ["reset", "totals", "1"],
    "from the start": ["reset", "totals", "1", "--from-start"],
    "by hand": ["reset", "totals", "1", "--resolve"],
}


def everything(holdfast: Command) -> str:
    plain = json.loads(holdfast("cursor", "export", "totals").out)
    return json.dumps([plain["partitions"], holdfast("status", "--json").document["batches"][0]["counts"]])


@pytest.mark.promise("C15")
@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_changed_before_a_person_agrees(app: Path, holdfast: Command, act: str) -> None:
    before = everything(holdfast)
    for more in ([], ["--yes"], ["--reason", "because"], ["--json"]):
        answer = holdfast(*ACTS[act], *more)
        assert answer.code == 2
        assert "nothing was changed" in answer.err
    assert "would" in holdfast(*ACTS[act], "--dry-run").out or act == "a reset"
    assert holdfast(*ACTS[act], "--dry-run", "--json").document["batch"] in ("totals", "backfill")
    assert everything(holdfast) == before
    assert [each["batch"] for each in holdfast("status", "--json").document["batches"]] == ["totals"]


@pytest.mark.promise("C15")
@pytest.mark.parametrize("act", ACTS)
def test_who_and_why_are_kept(app: Path, holdfast: Command, act: str) -> None:
    assert holdfast(*ACTS[act], *AGREED, "--json").document["changed"] > 0
    if act != "a clone":
        told = holdfast("why", "totals", "1").out
        assert "by ada" in told
        assert "because" in told


def test_what_comes_again_is_shown_before_it_is_asked(app: Path, holdfast: Command) -> None:
    shown = holdfast(*ACTS["to the beginning"], "--dry-run").out
    assert "500 rows are delivered again" in shown
    assert "200 rows are delivered again" in shown
    assert "100 rows are delivered again" in holdfast(*ACTS["to a cursor"], "--dry-run").out


@pytest.mark.promise("B13")
def test_a_reset_goes_on_and_a_run_finishes(app: Path, holdfast: Command) -> None:
    assert holdfast("reset", "totals", *AGREED).code == 0
    answer = holdfast("run", "app.py:totals", "--progress")
    assert answer.code == 0
    assert f"result   {TOTAL}" in answer.out
    assert "700 rows before, 300 rows now" in answer.err


def test_a_partition_is_completed_with_a_file(app: Path, holdfast: Command) -> None:
    Path("result.json").write_text("7")
    assert holdfast("reset", "totals", "1", "--complete-with", "result.json", *AGREED).code == 0
    answer = holdfast("run", "app.py:totals", "--json").document
    assert answer["result"] == sum(range(500)) + 7
    Path("result.json").write_text("{")
    assert holdfast("reset", "totals", "1", "--complete-with", "result.json", *AGREED).code == 2
    assert holdfast("reset", "totals", "1", "--complete-with", "nowhere.json", *AGREED).code == 2


def test_show_prints_the_whole_state(app: Path, holdfast: Command) -> None:
    out = holdfast("cursor", "show", "totals", "1").out
    for word in ("version 1", "sha256:", "row", "value 700", "tiebreaker nothing", "200 of 500", "last commit", "fence",
                 "owner", "updated", "100 rows"):  # fmt: skip
        assert word in out
    plain = holdfast("cursor", "show", "totals", "--json").document
    assert [part["checkpoint"]["rows"] for part in plain["partitions"]] == [500, 200]


@pytest.mark.promise("B11")
def test_the_history_is_told_as_lines_and_as_one_document(app: Path, holdfast: Command) -> None:
    out = holdfast("cursor", "show", "totals", "1", "--history").out
    assert out.count("partition 1") == 2
    entries = holdfast("cursor", "show", "totals", "--history", "--json").document["history"]
    assert [entry["rows"] for entry in entries if entry["partition"] == 1] == [100, 200]
    assert len(entries) == 7


def test_an_export_is_imported_into_another_store(app: Path, holdfast: Command) -> None:
    Path("saved.json").write_text(holdfast("cursor", "export", "totals").out)
    other = ("--store", "other.db")
    assert holdfast("cursor", "import", "totals", "saved.json", "--dry-run", *other).code == 0
    assert not Path("other.db").exists(), "a dry run makes no store"
    assert holdfast("cursor", "import", "totals", "saved.json", *AGREED, *other).code == 0
    answer = holdfast("run", "app.py:totals", "--json", *other).document
    assert (answer["result"], answer["rows"]) == (TOTAL, 1000)
    assert holdfast("cursor", "import", "totals", "saved.json", *AGREED).code == 0


@pytest.mark.promise("C18")
def test_a_file_that_is_no_state_makes_no_store(app: Path, holdfast: Command) -> None:
    Path("saved.json").write_text(holdfast("cursor", "export", "totals").out[:300])
    answer = holdfast("cursor", "import", "totals", "saved.json", *AGREED, "--store", "other.db")
    assert answer.code == 1
    assert "truncated" in answer.err
    assert not Path("other.db").exists()
    answer = holdfast("cursor", "reset", "totals", "--to-file", "saved.json", *AGREED, "--json")
    assert answer.document["error"]["type"] == "Damaged"


def test_an_audit_ends_with_1_where_rows_are_missing(app: Path, holdfast: Command) -> None:
    assert holdfast("cursor", "audit", "totals", "app.py:totals").code == 0
    holdfast("cursor", "reset", "totals", "1", "--to-cursor", "800", "--acc", "keep", *AGREED)
    holdfast("run", "app.py:totals")
    answer = holdfast("cursor", "audit", "totals", "app.py:totals")
    assert answer.code == 1
    assert "after row 700 up to row 800" in answer.out
    assert holdfast("cursor", "audit", "totals", "app.py:totals", "--json").document["gaps"][0]["held"] == 100


def test_a_dead_letter_knows_its_checkpoint(app: Path, holdfast: Command) -> None:
    for told in (holdfast("dead", "show", "totals", "1").out, holdfast("why", "totals", "1").out):
        assert "after row 700: 200 of 500 rows handled" in told
        assert "resume after row 700: no row is handled again" in told
        assert "begin again: 200 rows handled once more" in told
    assert holdfast("dead", "show", "totals", "1", "--json").document["checkpoint"]["rows"] == 200
    assert "200 of 500" in holdfast("show", "totals", "1").out


def test_status_tells_rows_cursor_and_lag_of_each_partition(app: Path, holdfast: Command) -> None:
    out = holdfast("status", "totals").out
    assert "200 of 500" in out
    assert "row 700" in out
    assert "300 rows left" in out
    assert [each["rows"] for each in holdfast("status", "totals", "--json").document["partitions"]] == [500, 200]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["cursor", "reset", "totals"], "pass where to"),
        (["cursor", "reset", "totals", "--to-beginning", "--to-cursor", "5"], "pass where to"),
        (["cursor", "reset", "totals", "--to-beginning", "--key", "5"], "belong to --to-cursor"),
        (["cursor", "reset", "totals", "--to-cursor", "5", "--acc", "half"], "is not one of"),
        (["cursor", "reset", "totals", "--to-cursor", "5", "--acc", "keep"], "2 partitions"),
        (["cursor", "reset", "totals", "7", "--to-beginning"], "has no item '7'"),
        (["reset", "totals", "--resolve"], "name the partition"),
        (["reset", "totals", "1", "--resolve", "--from-start"], "pass one of them"),
        (["reset", "totals", "1", "--to-stage", "2"], "one stage"),
        (["run", "app.py:totals", "--verify", "full"], "takes no --verify"),
        (["cursor", "clone", "totals", ""], "batch name"),
    ],
)
def test_what_makes_no_sense_is_said_and_changes_nothing(
    app: Path, holdfast: Command, args: list[str], why: str
) -> None:
    before = everything(holdfast)
    answer = holdfast(*args, *(() if args[0] == "run" else AGREED))
    assert answer.code == 2
    assert why in answer.err
    assert everything(holdfast) == before
