"""Commands that a command suggests can be pasted as they stand: they exist, and they name the store."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import holdfast as package
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.app import app
from holdfast.runtime.text import GROUPS, SINGLE
from tests.cli.conftest import Command

APP = """
import holdfast as hf

orders = hf.Scan("orders", hf.Csv("orders.csv"), isolate=True{more})

@orders.handler
def check(rows):
    for row in rows:
        int(row["n"])
"""


def commands_of() -> set[str]:
    """Every command there is, as it is typed."""
    found: set[str] = set()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        verbs = getattr(command, "commands", None)
        found |= {name} if verbs is None else {f"{name} {verb}" for verb in verbs}
    return found


def suggested(text: str) -> list[list[str]]:
    """The commands in a text, as a shell would take them apart; a column of two blanks ends one."""
    lines = [line for line in text.splitlines() if "holdfast " in line]
    found = [re.search(r"holdfast [a-z].*?(?=$|`| {2,}|;)", line) for line in lines]
    return [shlex.split(each.group())[1:] for each in found if each is not None]


@pytest.fixture
def orders(here: Path) -> Path:
    (here / "app.py").write_text(APP.format(more=""))
    (here / "own.py").write_text(APP.format(more=', store="my state.db"'))
    (here / "orders.csv").write_text("n\n1\nx\n3\n")
    return here


def test_all_commands_are_known_to_whoever_completes_suggestions() -> None:
    known = {*SINGLE, *(f"{group} {verb}" for group, verbs in GROUPS.items() for verb in verbs)}
    assert known == commands_of() - {"faults", "demo"}


def test_no_text_in_the_code_suggests_a_command_that_there_is_not() -> None:
    there = {*commands_of(), *GROUPS}
    for file in Path(package.__file__).parent.rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
        for text in texts:
            for found in (
                re.findall(r"`holdfast ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", text) if isinstance(text, str) else ()
            ):
                assert found in there or found.split()[0] in there, (file, found)


@pytest.mark.parametrize("store", ["state.db", "my state.db", "file:///{here}/bucket"])
def test_every_suggestion_names_the_store_that_was_given(orders: Path, holdfast: Command, store: str) -> None:
    store = store.format(here=orders)
    assert holdfast("run", "app.py:orders", "--store", store).code == 1
    listed = holdfast("dead", "list", "orders", "--store", store)
    (show,) = suggested(listed.out)
    assert show[:4] == ["dead", "show", "--store", store]
    shown = holdfast(*show)
    assert shown.code == 0, shown.err
    offered = suggested(shown.out)
    assert len(offered) >= 3
    for command in offered:
        assert command[command.index("--store") + 1] == store
    (redrive,) = [command for command in offered if command[:2] == ["dead", "redrive"]]
    again = holdfast(*[word.replace("…", "because") for word in redrive], "--yes")
    assert (again.code, "redrive" in again.out) == (0, True), again.err


def test_machines_get_the_same_commands(orders: Path, holdfast: Command) -> None:
    holdfast("run", "app.py:orders", "--store", "my state.db")
    (letter,) = holdfast("dead", "list", "orders", "--store", "my state.db", "--json").document["items"]
    told = holdfast("why", "orders", letter["key"], "--store", "my state.db", "--json").document
    assert all("--store 'my state.db'" in command for command in told["commands"])
    missing = holdfast("dead", "list", "orders", "--store", "state.db", "--json")
    assert missing.code == 2


def test_a_store_that_the_definition_names_is_named_too(orders: Path, holdfast: Command) -> None:
    told = holdfast("run", "own.py:orders")
    (listing,) = suggested(told.out)[:1]
    assert listing[:4] == ["dead", "list", "--store", "my state.db"]
    assert "--store" not in holdfast("run", "app.py:orders").out


def test_what_was_given_is_forgotten_with_the_command(orders: Path, holdfast: Command) -> None:
    holdfast("run", "app.py:orders")
    holdfast("dead", "list", "orders", "--store", "elsewhere.db")
    assert "--store" not in holdfast("dead", "list", "orders").out


@pytest.mark.parametrize(
    "text", ["holdfast 0.1.0", "holdfast demo", "/usr/bin/holdfast run", "holdfast running", "holdfast run --store x"]
)
def test_what_is_no_suggestion_stays_as_it_is(text: str) -> None:
    render.remember("state.db")
    try:
        assert render.pasteable(text) == text
    finally:
        render.remember(None)


ODD = """
import holdfast as hf

keys = hf.Pipeline("keys", store="my store.db", source=["--all", "-1", "it's", "fine"])

@keys.stage
def refuse(key: str) -> str:
    if key == "fine":
        return key
    raise hf.Permanent("refused")
"""


def test_names_that_a_shell_or_a_parser_would_take_apart_can_be_pasted(here: Path, holdfast: Command) -> None:
    (here / "app.py").write_text(ODD)
    report = holdfast("run", "app.py:keys", "--batch", "my keys")
    (see, *_) = suggested(report.out)
    assert see[:4] == ["dead", "list", "--store", "my store.db"], "the code names the store"
    listed = holdfast(*[part.rstrip(",") for part in see[:5]])
    assert listed.code == 0, listed.err
    for key in ("--all", "-1", "it's"):
        why = holdfast("why", "--store", "my store.db", "--", "my keys", key)
        discard = next(each for each in suggested(why.out) if each[:2] == ["dead", "discard"])
        verb, rest = discard[:2], ["given up" if part == "…" else part for part in discard[2:]]
        done = holdfast(*verb, "--yes", *rest)
        assert (done.code, "1 item" in done.out or "discarded 1" in done.out) == (0, True), (done.out, done.err)
    left = holdfast("status", "my keys", "--store", "my store.db", "--json").document["counts"]
    assert (left["cancelled"], left["dead"], left["done"]) == (3, 0, 1)


def test_a_batch_whose_name_looks_like_an_option_can_be_named(here: Path, holdfast: Command) -> None:
    (here / "app.py").write_text(ODD.replace("my store.db", "dashes.db"))
    report = holdfast("run", "app.py:keys", "--batch=--all")
    (see, *_) = suggested(report.out)
    assert see == ["dead", "list", "--store", "dashes.db", "--", "--all"]
    assert "3 dead letters" in holdfast(*see).out
    paused = holdfast("pause", "--store", "dashes.db", "--reason", "looked at", "--", "--all")
    (again, *_) = suggested(paused.out)
    assert again[:4] == ["unpause", "--store", "dashes.db", "--reason"]
    assert again[-2:] == ["--", "--all"] or "--all," in again[-1] or "--all," in again, again
    status = holdfast("status", "--store", "dashes.db", "--", "--all")
    assert all("--" in each for each in suggested(status.out))
