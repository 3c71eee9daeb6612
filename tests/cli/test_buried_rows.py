"""What a person sees of a row that was buried: the row first, then what was wrong and where in their code."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command

APP = """
import holdfast as hf

orders = hf.Scan("orders", hf.JsonLines("orders.jsonl"), isolate=True, every=2)

@orders.handler
def add(rows, acc: int) -> int:
    for row in rows:
        acc += row["amt"]
    return acc
"""
LINE = APP.splitlines().index('        acc += row["amt"]') + 1


@pytest.fixture
def orders(here: Path, holdfast: Command) -> Path:
    (here / "app.py").write_text(APP)
    lines = ['{"id": 1, "amt": 2}', '{"id": 2, "note": "holdfast run"}', "[1]", "no JSON", '{"id": 3, "amt": 4}']
    (here / "orders.jsonl").write_text("\n\n".join(lines) + "\n")  # blank lines are no rows
    assert holdfast("run", "app.py:orders").code == 1
    return here


def test_a_reason_names_the_error_once_and_the_line_that_raised_it(orders: Path, holdfast: Command) -> None:
    letters = {each["code"]: each for each in holdfast("dead", "list", "orders", "--json").document["items"]}
    assert set(letters) == {"KeyError", "TypeError", "invalid"}
    assert letters["KeyError"]["reason"] == f"'amt' (app.py:{LINE} in add)"
    assert letters["TypeError"]["reason"].endswith(f"not str (app.py:{LINE} in add)")
    assert "TypeError" not in letters["TypeError"]["reason"]


def test_a_row_counts_no_attempts_before_it_was_redriven(orders: Path, holdfast: Command) -> None:
    header, *lines = holdfast("dead", "list", "orders").out.splitlines()
    at = header.index("attempts") + len("attempts") - 1
    assert [line[at] for line in lines[:3]] == ["-", "-", "-"]
    holdfast("dead", "redrive", "orders", "--code", "KeyError", "--yes", "--reason", "again")
    assert holdfast("run", "app.py:orders").code == 1
    assert [line[at] for line in holdfast("dead", "list", "orders").out.splitlines()[1:4]] == ["1", "-", "-"]


def test_the_row_is_shown_first_field_by_field_and_as_it_is(orders: Path, holdfast: Command) -> None:
    first, *lines = holdfast("dead", "show", "orders", "#1", "--store", ".holdfast/state.db").out.splitlines()
    assert first.startswith("item 'row ")
    assert [line.split(maxsplit=2)[-2:] for line in lines[:1]] == [["id", "2"]]
    assert lines[1].split(maxsplit=1) == ["note", "holdfast run"]
    assert lines[2].split()[0] == "place"


def test_what_is_no_record_is_shown_too(orders: Path, holdfast: Command) -> None:
    assert holdfast("dead", "show", "orders", "#2").out.splitlines()[1].split() == ["row", "[1]"]
    assert holdfast("dead", "show", "orders", "#3").out.splitlines()[1].split() == ["row", "no", "JSON"]
