"""What a person sees of a row that was buried: the row first, then what was wrong and where in their code."""

from pathlib import Path

import pytest

import holdfast as hf
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


CORRECTED = """
import holdfast as hf

totals = hf.Scan("totals", hf.Csv("stock.csv"), every=10, partitions=2, isolate=True, retry=hf.Retry(attempts=1))

@totals.handler
def add(rows, acc: int) -> int:
    return acc + sum(int(row["n"]) for row in rows)

@totals.converge
def together(parts):
    return sum(parts)
"""


@pytest.fixture
def corrected(here: Path, holdfast: Command) -> Path:
    """A finished scan of 400 rows, two of which are written wrongly and were buried."""
    (here / "app.py").write_text(CORRECTED)
    rows = [f"{n:04d}" for n in range(400)]
    rows[100], rows[300] = "o100", "o300"
    (here / "stock.csv").write_text("n\n" + "\n".join(rows) + "\n")
    assert holdfast("run", "app.py:totals").code == 1
    return here / "stock.csv"


WHOLE = str(sum(range(400)))


def test_rows_corrected_in_place_are_handled_and_the_file_stays_the_same(corrected: Path, holdfast: Command) -> None:
    corrected.write_text(corrected.read_text().replace("o100", " 100").replace("o300", "0300"))
    assert holdfast("dead", "redrive", "totals", "--all", "--yes", "--reason", "corrected").code == 0
    for _ in range(2):
        again = holdfast("run", "app.py:totals")
        assert (again.code, WHOLE in again.out) == (0, True), again


@pytest.mark.parametrize("change", ["longer", "two for one", "another file"])
@pytest.mark.parametrize("decision", ["redrive", "discard", "resolve"])
def test_after_a_decision_another_file_is_refused_as_before(
    corrected: Path, holdfast: Command, change: str, decision: str
) -> None:
    with hf.open() as store:
        keys = [str(letter.key) for letter in store["totals"].dead()]
    for row in keys if decision == "resolve" else ["--all"]:
        assert holdfast("dead", decision, "totals", row, "--yes", "--reason", "because").code == 0
    text = corrected.read_text()
    if change == "longer":
        text = text.replace("o100", "000100").replace("o300", "000300")
    elif change == "two for one":
        text = text.replace("o100\n", "0100\n0007\n").replace("o300", "0300")
    else:
        text = "n\n" + "".join(f"{n:04d}\n" for n in range(1000, 1400))
    corrected.write_text(text)
    again = holdfast("run", "app.py:totals")
    assert again.code == 1, again.out
    assert "has changed since" in again.err
    assert "as many bytes as before" in " ".join(again.err.split())
    assert "complete." not in again.out
