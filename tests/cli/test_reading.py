"""Commands that only look: what they say to people, and the one document they give to machines."""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer.main

from holdfast.interfaces.cli.app import app
from holdfast.interfaces.cli.render import clean, one_line, usd
from holdfast.runtime import text as words
from holdfast.stores import faults
from tests.cli.conftest import Command, python
from tests.operations.world import World, done


def leaves(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found = []
    for name, command in group.commands.items():
        found += leaves(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]
    return found


COMMANDS = leaves(typer.main.get_command(app))


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[" ".join(name) for name, _ in COMMANDS])
def test_every_command_takes_store_and_json_and_explains_itself(name: tuple[str, ...], command: Any) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--store", "--json"} <= options, name
    assert command.help


@pytest.mark.parametrize(
    "name",
    [" ".join(name) for name, _ in COMMANDS if name[0] == "reset" or name[-1] in ("redrive", "resolve", "discard")],
)
def test_every_destructive_command_takes_yes_reason_and_dry_run(name: str) -> None:
    command = {" ".join(path): found for path, found in COMMANDS}[name]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--yes", "--reason", "--actor", "--dry-run"} <= options


def test_status_lists_the_batches(world: World, holdfast: Command) -> None:
    answer = holdfast("status")
    assert answer.code == 0
    assert answer.out.splitlines()[1].split()[:7] == ["moby-dick", "interrupted", "5", "1", "1", "2", "1"]


def test_status_lists_a_screens_worth_of_batches_and_says_how_many_are_older(world: World, holdfast: Command) -> None:
    for number in range(40):
        World(world.store, world.clock, batch=f"batch-{number}")
    shown = holdfast("status").out
    assert ("batch-39" in shown, "batch-10 " in shown, "batch-9 " in shown) == (True, True, False)
    assert "and 11 older: holdfast status --limit 41" in shown
    assert "older" not in holdfast("status", "--limit", "41").out
    assert len(holdfast("status", "--json").document["batches"]) == 41
    assert [each["batch"] for each in holdfast("status", "--json", "--limit", "1").document["batches"]] == ["batch-39"]


def test_status_of_a_batch_adds_up(world: World, holdfast: Command) -> None:
    answer = holdfast("status", "moby-dick")
    assert "5 = 1 done + 1 skipped + 2 dead + 0 cancelled + 1 pending" in answer.out
    assert "http_404 (1), no_such_page (1)" in answer.out
    assert "$0.75 so far" in answer.out


@pytest.mark.promise("A14")
def test_status_as_json(world: World, holdfast: Command) -> None:
    seen = holdfast("status", "moby-dick", "--json").document
    counts = seen["counts"]
    assert counts["expected"] == sum(counts[name] for name in ("done", "skipped", "dead", "cancelled", "pending"))
    assert (seen["totals"]["usd"], seen["dead_codes"]) == ("0.75", {"http_404": 1, "no_such_page": 1})


def test_a_lease_that_ended_is_not_taken_for_a_process_that_is_gone(world: World, holdfast: Command) -> None:
    world.clock.advance(-90.0)
    world.claim(owner="elsewhere:boot:ns:1:2", seconds=30.0)
    assert "lease ended 1 min" in holdfast("status", "moby-dick", "--no-statistics").out


def test_status_watches_until_it_is_complete(world: World, holdfast: Command) -> None:
    world.finish()
    answer = holdfast("status", "moby-dick", "--watch", "--every", "0.1")
    assert answer.code == 0
    assert "complete with dead letters" in answer.out


def test_show_a_batch_with_its_statistics(world: World, holdfast: Command) -> None:
    text = holdfast("show", "moby-dick").out
    assert "execution s" in text
    assert "small" in text
    plain = holdfast("show", "moby-dick", "--json").document
    assert plain["statistics"]["stages"][0]["usd"]["sum"] == "0.75"
    assert plain["statistics"]["overall"]["outcomes"] == {"done": 4, "buried": 2, "skipped": 1}


def test_show_an_item_with_its_payload_and_outputs(world: World, holdfast: Command) -> None:
    plain = holdfast("show", "moby-dick", "fine", "--json").document
    assert plain["payload"] == {"page": "fine"}
    assert plain["outputs"]["correct"] == {"epoch": 0, "output": {"text": "fine@1"}}
    assert "holdfast why moby-dick fine" in holdfast("show", "moby-dick", "fine").out


def test_why_tells_the_story(world: World, holdfast: Command) -> None:
    text = holdfast("why", "moby-dick", "bad").out
    assert "attempt 1 at 'correct' failed after 1.5 s: http_404: overloaded; buried" in text
    assert "holdfast dead redrive moby-dick bad" in text
    assert holdfast("why", "moby-dick", "bad", "--json").document["state"] == "dead"


def test_dead_letters_are_listed_and_shown(world: World, holdfast: Command) -> None:
    assert "2 dead letters" in holdfast("dead", "list", "moby-dick").out
    assert "moby-dick  bad" in holdfast("dead", "list").out
    assert [
        each["key"] for each in holdfast("dead", "list", "moby-dick", "--code", "http_404", "--json").document["items"]
    ] == ["bad"]
    text = holdfast("dead", "show", "moby-dick", "bad").out
    assert "Traceback" in text
    assert '{"page":"bad"}' in text
    plain = holdfast("dead", "show", "moby-dick", "bad", "--json").document
    assert (len(plain["attempts"]), len(plain["digest"])) == (2, 64)


def test_audit_verify_holds(world: World, holdfast: Command) -> None:
    answer = holdfast("audit", "verify")
    assert (answer.code, "it holds" in answer.out) == (0, True)
    assert holdfast("audit", "verify", "moby-dick", "--full", "--json").document["holds"] is True


@pytest.mark.promise("E12")
def test_audit_verify_names_what_was_changed_and_ends_with_1(world: World, holdfast: Command) -> None:
    with world.store._file.writing("note") as db:  # type: ignore[attr-defined]
        db.execute("DROP TRIGGER payloads_are_append_only")
        db.execute("UPDATE items SET payload = CAST('{}' AS BLOB) WHERE id = (SELECT max(id) FROM items)")
    answer = holdfast("audit", "verify")
    assert answer.code == 1
    assert "item 4 ('rest'): its key or payload is not the one that was admitted" in answer.out
    assert holdfast("audit", "verify", "--json").document["batches"][0]["findings"][0]["kind"] == "payload"


def test_export_to_standard_output_and_to_files(world: World, holdfast: Command, here: Path) -> None:
    lines = holdfast("export", "moby-dick").out.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["fine"]
    (row,) = csv.DictReader(io.StringIO(holdfast("export", "moby-dick", "--format", "csv").out))
    assert row["text"] == "fine@1"
    assert holdfast("export", "moby-dick", "--state", "dead", "--json").out.count("\n") == 2
    assert holdfast("export", "moby-dick", "-o", "out.parquet", "--json").document == {
        "rows": 1,
        "format": "parquet",
        "path": "out.parquet",
    }
    assert (here / "out.parquet").exists()


def test_doctor_ends_with_1_on_what_is_unsafe(world: World, holdfast: Command, here: Path) -> None:
    assert holdfast("doctor").code == 0
    (here / ".holdfast" / "state.db").chmod(0o644)
    answer = holdfast("doctor", "--json")
    assert (answer.code, answer.document["level"]) == (1, "unsafe")


def test_faults_lists_every_point(holdfast: Command) -> None:
    assert set(holdfast("faults", "--json").document["points"]) == set(faults.POINTS)
    assert "commit.written" in holdfast("faults").out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["status", "moby-dik"], "did you mean 'moby-dick'?"),
        (["why", "moby-dick", "fin"], "did you mean 'fine'?"),
        (["show", "moby-dick", "#99"], "has no item '#99'"),
        (["status", "--store", "none/state.db"], "there is no store at none/state.db"),
        (["status", "--store", "postgresql://x"], "is not known to this version"),
        (["export", "moby-dick", "-o", "out.xyz"], "its format"),
        (["doctor", "--store", "memory:"], "nothing to check"),
    ],
)
def test_wrong_calls_end_with_2_and_say_what_to_do(world: World, holdfast: Command, args: list[str], says: str) -> None:
    answer = holdfast(*args)
    assert answer.code == 2
    assert says in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


def test_an_error_is_one_json_document_too(world: World, holdfast: Command) -> None:
    answer = holdfast("status", "nope", "--json")
    assert (answer.code, answer.document["error"]["type"]) == (2, "UsageError")


def test_typing_it_wrongly_ends_with_2(holdfast: Command) -> None:
    assert holdfast("status", "--nope").code == 2
    assert holdfast("frobnicate").code == 2
    assert holdfast().code == 2
    assert holdfast("--version").out.startswith("holdfast 0.")


def test_tracebacks_are_for_those_who_ask(here: Path) -> None:
    (here / "bad.db").write_text("this is no database " * 200)
    quiet = python("status", "--store", "bad.db", cwd=here)
    loud = python("status", "--store", "bad.db", cwd=here, HOLDFAST_DEBUG="1")
    assert (quiet.code, loud.code) == (1, 1)
    assert "is not a Holdfast store" in quiet.err
    assert "Traceback" not in quiet.err
    assert "Traceback" in loud.err


def test_what_comes_from_outside_cannot_paint_the_screen(here: Path, holdfast: Command, world: World) -> None:
    world.add("evil\x1b[2J\x07")
    assert "\x1b" not in holdfast("why", "moby-dick", "evil\x1b[2J\x07").out
    assert clean("a\x1b[31mb\u202e") == "a\\x1b[31mb\\u202e"
    assert clean("page\n1\t2") == "page\n1\t2"


def test_small_words() -> None:
    assert one_line("a\n  b " + "c" * 200, 10) == "a b ccccc…"
    assert [usd(Decimal(amount)) for amount in ("0", "5", "0.004932")] == ["$0.00", "$5.00", "$0.004932"]


def test_a_finished_batch_says_so(world: World, holdfast: Command) -> None:
    world.work(done)
    world.work(done)
    assert "complete with dead letters" in holdfast("status").out


def test_the_list_has_a_column_for_what_was_skipped_where_something_was(world: World, holdfast: Command) -> None:
    header, row = (line.split() for line in holdfast("status").out.splitlines()[:2])
    assert header[2:7] == ["items", "done", "skipped", "dead", "pending"]
    assert row[2:7] == ["5", "1", "1", "2", "1"]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0.912", "$0.912"), ("0.915", "$0.915"), ("0.90", "$0.90"), ("1234.5", "$1,234.50"), ("12.00001", "$12.00"),
     ("0.000021", "$0.000021"), ("0", "$0.00"), ("0.3333333", "$0.33")],
)  # fmt: skip
def test_an_amount_with_a_few_digits_below_a_cent_is_shown_as_it_is(amount: str, shown: str) -> None:
    assert words.usd(Decimal(amount)) == shown
