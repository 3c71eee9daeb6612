"""What a person meets at night over a scan: changed sources, results of the wrong type, files that are not those."""

import json
import re
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Command

APP = """
import os
import sqlite3
import holdfast as hf
from holdfast.runtime.define.policy import Retry

totals = hf.Scan("totals", hf.Csv("stock.csv"), every=100, partitions=2, retry=Retry(attempts=1))

@totals.handler
def add(rows, acc: int) -> int:
    if os.path.exists("bad") and any(row["n"] == "750" for row in rows):
        raise ValueError("row 750")
    return acc + sum(int(row["n"]) for row in rows)

@totals.converge
def together(parts):
    return sum(parts)

orders = hf.Follow("orders", hf.Table("sqlite:///orders.db", "orders", cursor="at", key="id", unsafe_cursor=True),
                 every=10)

@orders.handler
def count(rows, acc: int) -> int:
    return acc + len(rows)
"""
AGREED = ("--yes", "--reason", "because", "--actor", "ada")


def stock(numbers: range) -> None:
    Path("stock.csv").write_text("n\n" + "".join(f"{n}\n" for n in numbers))


@pytest.fixture
def app(here: Path, holdfast: Command) -> Path:
    """A scan whose second partition died at row 750, and one that follows a table of 30 rows."""
    (here / "app.py").write_text(APP)
    (here / "again.py").write_text(APP)
    (here / "below.py").write_text(APP.replace("unsafe_cursor=True", 'unsafe_cursor=True, where="at < 5"'))
    (here / "other.py").write_text(APP.replace("stock.csv", "other.csv"))
    stock(range(1000))
    (here / "bad").touch()
    with sqlite3.connect(here / "orders.db") as connection:
        connection.execute("create table orders (id integer primary key, at integer)")
        connection.executemany("insert into orders values (?, ?)", [(n, n // 3) for n in range(30)])
    connection.close()
    assert holdfast("run", "app.py:totals", "--json").code == 1
    (here / "bad").unlink()
    return here


@pytest.fixture
def followed(app: Path, holdfast: Command) -> Path:
    assert holdfast("run", "app.py:orders", "--json").document["total"] == 30
    return app


# -- a changed source -----------------------------------------------------------------------------------------------


@pytest.mark.promise("C14")
def test_a_changed_source_is_refused_with_the_difference_and_every_way_on(followed: Path, holdfast: Command) -> None:
    for verb in ("run", "plan"):
        answer = holdfast(verb, "below.py:orders")
        assert answer.code == 1
        told = answer.err + answer.out
        for words in ('where: nothing became "at < 5"', "--accept-source", "cursor reset orders", "--batch NAME"):
            assert words in " ".join(told.split())
    assert holdfast("run", "below.py:orders", "--accept-source", "").code == 1


@pytest.mark.promise("C14")
def test_a_changed_source_is_accepted_with_a_reason(followed: Path, holdfast: Command) -> None:
    assert holdfast("run", "below.py:orders", "--accept-source", "they are all below").code == 0
    assert holdfast("run", "below.py:orders", "--json").document["total"] == 30
    assert holdfast("run", "again.py:orders").code == 1


@pytest.mark.promise("C14", "C15")
def test_a_reset_to_the_beginning_lets_another_source_be_followed(followed: Path, holdfast: Command) -> None:
    assert holdfast("cursor", "reset", "orders", "--to-beginning", *AGREED).code == 0
    answer = holdfast("run", "below.py:orders", "--json")
    assert (answer.code, answer.document["rows"]) == (0, 15)
    assert holdfast("run", "again.py:orders").code == 1


@pytest.mark.promise("C14", "C16")
def test_another_source_is_read_under_a_name_of_its_own(followed: Path, holdfast: Command) -> None:
    assert holdfast("run", "below.py:orders", "--batch", "backfill", "--json").document["total"] == 15
    assert holdfast("run", "app.py:orders", "--json").document["total"] == 30


@pytest.mark.promise("C14")
@pytest.mark.parametrize("fate", ["dead", "done"])
def test_another_source_is_refused_where_the_one_range_is_not_read_again(
    here: Path, holdfast: Command, fate: str
) -> None:
    app = """
import holdfast as hf

names = hf.Scan("names", hf.Folder("one"), retry=hf.Retry(attempts=1))

@names.handler
def count(rows, acc: int) -> int:
    raise ValueError("not today")
"""
    Path("app.py").write_text(app)
    Path("other.py").write_text(
        app.replace("one", "two").replace('raise ValueError("not today")', "return acc + len(rows)")
    )
    for folder in ("one", "two"):
        Path(folder).mkdir()
    Path("two/a").touch()
    if fate == "dead":
        Path("one/a").touch()
    assert holdfast("run", "app.py:names", "--allow-empty").code == (1 if fate == "dead" else 0)
    answer = holdfast("run", "other.py:names")
    assert (answer.code, "continues" in answer.err) == (1, False)
    assert 'name: "one" became "two"' in answer.err
    assert holdfast("cursor", "reset", "names", "--to-beginning", *AGREED).code == 0
    answer = holdfast("run", "other.py:names", "--json")
    assert (answer.code, answer.document["rows"]) == (0, 1)


@pytest.mark.promise("C14")
def test_a_reason_does_not_make_another_file_the_old_one(app: Path, holdfast: Command) -> None:
    stock(range(5, 1005))
    Path("stock.csv").rename("other.csv")
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    answer = holdfast("run", "other.py:totals", "--accept-source", "a corrected file")
    assert answer.code == 1
    assert "after the scan began" in answer.err
    stock(range(1000))
    assert holdfast("run", "app.py:totals").code == 0, "the refused source was remembered"


# -- states and files -----------------------------------------------------------------------------------------------


@pytest.mark.promise("C15", "C16")
def test_an_exported_state_knows_which_file_its_cursors_are_of(app: Path, holdfast: Command) -> None:
    Path("state.json").write_text(holdfast("cursor", "export", "totals").out)
    assert holdfast("cursor", "import", "moved", "state.json", *AGREED).code == 0
    stock(range(5, 1005))
    answer = holdfast("run", "app.py:totals", "--batch", "moved")
    assert answer.code == 1
    assert "after the scan began" in answer.err
    assert holdfast("run", "app.py:totals", "--batch", "anew").code == 0
    answer = holdfast("cursor", "reset", "anew", "--to-file", "state.json", *AGREED)
    assert answer.code == 1
    assert "nothing was changed" in answer.err


@pytest.mark.promise("C15")
def test_what_stands_there_already_is_said_before_anybody_is_asked(app: Path, holdfast: Command) -> None:
    Path("state.json").write_text(holdfast("cursor", "export", "totals").out)
    shown = holdfast("cursor", "reset", "totals", "--to-file", "state.json", "--dry-run", "--json").document
    assert [part.get("left_alone") for part in shown["partitions"]] == ["there already", None]


def test_a_lone_key_needs_no_name(followed: Path, holdfast: Command) -> None:
    for key in ("15", "id=15"):
        shown = holdfast("cursor", "reset", "orders", "--to-cursor", "5", "--key", key, "--acc", "keep", "--dry-run")
        assert shown.code == 0
        assert "id=15" in shown.out
    answer = holdfast("cursor", "reset", "orders", "--to-cursor", "5", "--key", "x", "--acc", "keep", "--dry-run")
    assert (answer.code, "'x' is not of type integer" in answer.err) == (2, True)


def test_a_key_of_another_type_is_refused_in_words(followed: Path, holdfast: Command) -> None:
    lease = {"owner_id": None, "fencing_token": 4}
    cursor = {"kind": "integer+pk", "value": 5, "tiebreaker": {"id": "15"}}
    Path("s.json").write_text(
        json.dumps({"version": 1, "poller_name": "p", "checkpoint": {"cursor": cursor}, "lease": lease})
    )
    answer = holdfast("import", "app.py:orders", "--batch", "b", "--from-state", "s.json", *AGREED)
    assert answer.code == 2
    assert "id of type str" in answer.err
    assert "id of type int" in answer.err


def test_rows_are_looked_up_only_where_they_are_counted(app: Path, holdfast: Command) -> None:
    for bad in (1.5, True, "7", None):
        Path("k.json").write_text(json.dumps({"cursor": bad, "items_processed": 7}))
        answer = holdfast("import", "app.py:totals", "--from-checkpoint", "1=k.json", "--by-rows", "--batch=b", *AGREED)
        assert answer.code == 2, bad
        assert "is not a number of rows" in answer.err


# -- results by hand ------------------------------------------------------------------------------------------------


def test_a_result_of_another_type_is_doubted_and_a_failing_converge_says_what_to_do(
    app: Path, holdfast: Command
) -> None:
    Path("r.json").write_text('"text"')
    shown = holdfast("reset", "totals", "1", "--complete-with", "r.json", *AGREED)
    assert "is a int, this result is a str" in shown.out
    answer = holdfast("run", "app.py:totals")
    assert answer.code == 1
    for words in ("converge '", "of type int, str", "holdfast reset totals PARTITION"):
        assert words in answer.err
    shown = holdfast("reset", "totals", "1", *AGREED)
    assert "its result is cleared" in shown.out
    answer = holdfast("run", "app.py:totals", "--json")
    assert (answer.code, answer.document["result"]) == (0, sum(range(1000)))


def test_a_converge_that_raises_is_no_success_for_people_and_for_machines_and_is_called_by_the_next_run(
    app: Path, holdfast: Command
) -> None:
    broken = APP.replace("return sum(parts)", 'raise ZeroDivisionError("no parts of that kind")')
    (app / "broken.py").write_text(broken)
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    says = "all its partitions are done, but converge 'together' raised ZeroDivisionError: no parts of that kind"
    answer = holdfast("run", "broken.py:totals")
    assert answer.code == 1
    assert says in " ".join(answer.err.split())
    assert "run again" in answer.err
    assert "Traceback" not in answer.err
    answer = holdfast("run", "broken.py:totals", "--json")
    assert answer.code == 1
    (error,) = answer.document.values()
    assert error["type"] == "NotConverged"
    assert says in error["message"]
    answer = holdfast("run", "app.py:totals", "--json")
    assert (answer.code, answer.document["result"]) == (0, sum(range(1000)))


def test_what_is_settled_is_not_settled_again_and_that_is_no_success(app: Path, holdfast: Command) -> None:
    Path("r.json").write_text("7")
    for how in (["--resolve"], ["--complete-with", "r.json"]):
        answer = holdfast("reset", "totals", "0", *how, *AGREED)
        assert answer.code == 1
        assert "is already done" in answer.err
    Path("r.json").write_text("{")
    answer = holdfast("reset", "totals", "1", "--complete-with", "r.json", *AGREED)
    assert (answer.code, "nothing was changed" in answer.err) == (2, True)


# -- plans ----------------------------------------------------------------------------------------------------------


def test_a_plan_of_a_scan_tells_its_partitions_and_rows(app: Path, holdfast: Command) -> None:
    fresh = holdfast("plan", "app.py:totals", "new").out
    assert "2 would run" in fresh
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    told = holdfast("plan", "app.py:totals").out
    assert "1 would run, 1 would be left alone" in told
    assert "rows are behind the checkpoints" in told
    assert "1 would run" in holdfast("plan", "app.py:orders").out
    stock(range(5))
    answer = holdfast("plan", "app.py:totals")
    assert (answer.code, "after the scan began" in answer.out) == (1, True)
    assert holdfast("plan", "app.py:totals", "--key", "n").code == 2


# -- how it looks ---------------------------------------------------------------------------------------------------


def test_a_scan_that_follows_is_called_so_and_tells_how_far_it_is(followed: Path, holdfast: Command) -> None:
    assert "orders  following" in holdfast("status").out
    told = holdfast("status", "orders", "--no-statistics").out
    assert "orders  following · scan orders" in told
    assert "30 so far, last row" in told
    plain = holdfast("status", "orders", "--json").document
    assert (plain["scan"]["follows"], plain["scan"]["rows"], plain["scan"]["rows_left"]) == (True, 30, None)


def test_a_clone_that_nobody_has_run_is_not_called_interrupted(app: Path, holdfast: Command) -> None:
    answer = holdfast("cursor", "clone", "totals", "copy", *AGREED)
    assert answer.code == 0
    assert "will be made" in answer.out
    assert "copy    not begun" in holdfast("status").out
    assert "totals  complete with dead letters" in holdfast("status").out


def test_a_reset_that_spoils_a_total_stands_in_status_report_and_audit(app: Path, holdfast: Command) -> None:
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    assert holdfast("run", "app.py:totals").code == 0
    where = holdfast("cursor", "show", "totals", "1", "--history", "--json").document["history"][0]["cursor"]
    to = ("--to-cursor", str(where["value"]), "--key", str(where["tiebreaker"]))
    shown = holdfast("cursor", "reset", "totals", "1", *to, "--acc", "drop", "--dry-run").out
    assert "its total may leave rows out or count them twice" in " ".join(shown.split())
    assert "would resume after" in shown
    answer = holdfast("cursor", "reset", "totals", "1", *to, "--acc", "drop", *AGREED)
    assert "will resume after" in answer.out
    assert "would" not in answer.out
    note = r"partition 1 was reset by ada on .*Z: because; its total may leave rows out or count them twice"
    ran = holdfast("run", "app.py:totals")
    assert re.search(f"  note     {note}", ran.out)
    assert re.search(note, holdfast("status", "totals").out)
    (told,) = holdfast("status", "totals", "--json").document["notes"]
    assert (told["partition"], told["reason"], told["by"]) == (1, "because", "ada")
    assert re.search(note, told["text"])
    for told_too in (("why", "totals", "1"), ("cursor", "show", "totals", "1")):
        assert re.search(note, " ".join(holdfast(*told_too).out.split()))
    audit = holdfast("cursor", "audit", "totals", "app.py:totals")
    assert audit.code == 1
    assert "All 1,000 rows up to the cursors of totals were delivered" in audit.out
    assert re.search(note, " ".join(audit.out.split()))
    cloned = holdfast("cursor", "clone", "totals", "copy", "--dry-run")
    assert re.search(f"total has a known flaw from the start: {note}", " ".join(cloned.out.split()))
    assert holdfast("cursor", "clone", "totals", "copy", *AGREED).code == 0
    assert holdfast("cursor", "clone", "copy", "third", *AGREED).code == 0
    for copy in ("copy", "third"):
        (told,) = holdfast("status", copy, "--json").document["notes"]
        assert told["partition"] == 1
        assert re.search(f"partition 1 was cloned by ada on .*; {note}", told["text"])
    assert holdfast("cursor", "reset", "copy", "1", "--to-beginning", *AGREED).code == 0
    assert "note" not in holdfast("status", "copy").out
    assert "totals" not in holdfast("cursor", "clone", "orders", "other", "--dry-run", "--json").document
    assert holdfast("cursor", "reset", "totals", "1", "--to-beginning", *AGREED).code == 0
    ran = holdfast("run", "app.py:totals")
    assert "499500" in ran.out
    assert "note" not in ran.out
    assert "note" not in holdfast("status", "totals").out


def test_a_file_that_grew_is_not_read_further_without_a_word(app: Path, holdfast: Command) -> None:
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    assert "note" not in holdfast("run", "app.py:totals").out
    with Path("stock.csv").open("a") as file:
        file.write("1000\n")
    assert "has grown by 5 bytes since batch 'totals' began" in holdfast("run", "app.py:totals").out


def test_a_converge_that_raised_is_outstanding_until_it_is_called(app: Path, holdfast: Command) -> None:
    Path("broken.py").write_text(APP.replace("    return sum(parts)", "    return parts[0] / 0"))
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    assert holdfast("run", "broken.py:totals").code == 1
    told = holdfast("status", "totals").out
    assert "complete, not converged" in told
    assert "outstanding: converge 'together' raised ZeroDivisionError" in told
    assert "totals  complete, not converged" in holdfast("status").out
    assert "ZeroDivisionError" in holdfast("status", "totals", "--json").document["not_converged"]
    assert holdfast("run", "app.py:totals").code == 0
    assert "converge" not in holdfast("status", "totals").out


def test_a_state_is_shown_to_people_as_they_write_it(here: Path, holdfast: Command) -> None:
    money = APP.replace("acc: int) -> int:\n    if", "acc: Decimal) -> Decimal:\n    if").replace(
        'sum(int(row["n"])', 'sum(Decimal(row["n"] + ".50")'
    )
    (here / "app.py").write_text("from decimal import Decimal\n" + money)
    stock(range(1000))
    assert holdfast("run", "app.py:totals").code == 0
    out = holdfast("cursor", "show", "totals").out
    assert "$decimal" not in out
    assert "accumulated  " in out
    document = holdfast("cursor", "show", "totals", "--json").document
    assert "$decimal" in document["partitions"][0]["checkpoint"]["acc"]


def test_pause_takes_yes_as_every_other_command(app: Path, holdfast: Command) -> None:
    assert holdfast("pause", "totals", "--yes", "--reason", "night").code == 0


def test_status_tells_rows_and_the_share_of_every_partition(app: Path, holdfast: Command) -> None:
    told = holdfast("status", "totals", "--no-statistics").out
    assert "partitions  2 = 1 done + 0 skipped + 1 dead" in told
    assert "items/s" not in told
    assert "100 %" in told
    assert "\x1b" not in told


def test_why_offers_what_can_be_typed_in_two_columns(app: Path, holdfast: Command) -> None:
    lines = holdfast("why", "totals", "1").out.splitlines()
    typed = [line for line in lines if line.strip().startswith("holdfast ")]
    columns = {len(line) - len(line[8:].split("   ", 1)[1].lstrip()) for line in typed}
    assert len(typed) >= 5
    assert len(columns) == 1, typed
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    assert "to resume at its checkpoint in epoch 1" in holdfast("why", "totals", "1").out


def test_buried_rows_are_not_counted_as_partitions(here: Path, holdfast: Command) -> None:
    app = APP.replace("partitions=2,", "partitions=2, isolate=True,").replace(
        "        raise", '        assert [row["n"] for row in rows] != ["750"], "row 750"\n        raise'
    )
    (here / "isolated.py").write_text(app)
    stock(range(1000))
    (here / "bad").touch()
    first = holdfast("run", "isolated.py:totals")
    assert "1 row died" in first.out
    assert "items    2 partitions = 2 done + 0 skipped + 0 dead" in first.out
    assert "buried   1 row = 1 dead" in first.out
    assert "1,000 in 2 partitions" in first.out
    assert "2 of 2 partitions settled" in first.err
    assert "1 row dead" in first.err
    assert "2 partitions done, 1,000 rows in " in first.out
    assert " rows/s), 0 rows before" in first.out
    status = holdfast("status", "totals").out
    assert "partitions   2 = 2 done" in status
    assert "buried rows  1 = 1 dead" in status
    (here / "bad").unlink()
    again = holdfast("dead", "redrive", "totals", "--code", "AssertionError", *AGREED)
    if again.code:
        again = holdfast("dead", "redrive", "totals", "--code", "ValueError", *AGREED)
    assert "will be tried again where it stopped" in again.out
    second = holdfast("run", "isolated.py:totals")
    assert "All 2 partitions are accounted for" in second.out
    assert "this run 1 buried row done, 1 row in " in second.out
    assert "1,000 rows before" in second.out
    assert "2 of 2 partitions settled" in second.err


def test_a_missing_file_is_not_told_of_in_partitions(here: Path, holdfast: Command) -> None:
    (here / "app.py").write_text(APP)
    answer = holdfast("run", "app.py:totals")
    assert answer.code != 0
    assert "0 of 0" not in answer.err
    assert "there is no such file" in answer.err


def test_a_cursor_in_the_middle_of_a_line_does_not_blame_the_file_alone(app: Path, holdfast: Command) -> None:
    assert holdfast("reset", "totals", "1", *AGREED).code == 0
    assert holdfast("run", "app.py:totals").code == 0
    to = ("--to-cursor", "3001", "--key", "0", "--acc", "drop")
    shown = holdfast("cursor", "reset", "totals", "1", *to, *AGREED)
    assert shown.code == 0
    told = holdfast("run", "app.py:totals")
    assert told.code == 1
    assert "its cursor was set into the middle of a line, or the file was rewritten" in " ".join(told.out.split())


def test_a_wrong_column_is_told_by_its_kind_of_error(here: Path, holdfast: Command) -> None:
    (here / "wrong.py").write_text(APP.replace('int(row["n"])', 'int(row["valu"])'))
    stock(range(100))
    assert holdfast("run", "wrong.py:totals").code == 1
    told = holdfast("dead", "show", "totals", "0").out
    assert "KeyError: 'valu'" in told
    told += holdfast("why", "totals", "0").out
    assert "from its first row" in told
    assert "from its start: no row is handled again" not in told
