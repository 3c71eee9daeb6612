"""A row of a file stopped a partition; a person corrects it in the file and continues from the command line."""

from pathlib import Path

import pytest

import holdfast as hf
from tests.cli.conftest import Command

APP = """
import holdfast as hf

totals = hf.Scan("totals", hf.Csv("stock.csv"), every=10, partitions=PARTITIONS, retry=hf.Retry(attempts=1))

@totals.handler
def add(rows, acc: int) -> int:
    return acc + sum(int(row["n"]) for row in rows)

@totals.converge
def together(parts):
    return sum(parts)
"""
AGREED = ("--yes", "--reason", "a typo", "--actor", "ada")


def begin(here: Path, holdfast: Command, partitions: int, wrong: str, at: int) -> None:
    """A scan of the numbers 0 to 99, one of which is written wrongly."""
    (here / "app.py").write_text(APP.replace("PARTITIONS", str(partitions)))
    lines = [str(n) for n in range(100)]
    lines[at] = wrong
    (here / "stock.csv").write_text("n\n" + "\n".join(lines) + "\n")
    assert holdfast("run", "app.py:totals").code == 1


def correct(here: Path, wrong: str, right: str) -> None:
    path = here / "stock.csv"
    path.write_text(path.read_text().replace(wrong, right))


def test_the_dead_letter_names_rows_and_lines(here: Path, holdfast: Command) -> None:
    begin(here, holdfast, 1, "fifty", 50)
    told = holdfast("dead", "show", "totals", "0").out
    assert "rows 51 to 60 of the partition, lines 52 to 61 of stock.csv" in " ".join(told.split())


@pytest.mark.parametrize(("partitions", "wrong", "at", "right"), [(1, "fifty", 50, "50"), (2, "x0", 20, "20")])
def test_a_corrected_row_is_accepted_with_a_reason(
    here: Path, holdfast: Command, partitions: int, wrong: str, at: int, right: str
) -> None:
    begin(here, holdfast, partitions, wrong, at)
    correct(here, wrong, right)
    refused = holdfast("run", "app.py:totals")
    assert refused.code == 1
    assert "holdfast dead redrive totals 0 --reason" in " ".join(refused.err.split())
    assert holdfast("dead", "redrive", "totals", "0", *AGREED).code == 0
    refused = holdfast("run", "app.py:totals")
    assert refused.code == 1
    assert "--accept-source 'what you corrected'" in " ".join(refused.err.split())
    accepted = holdfast("run", "app.py:totals", "--accept-source", "row 51 had a typo")
    assert accepted.code == 0, accepted.err
    assert "4950" in accepted.out or "4,950" in accepted.out
    assert holdfast("run", "app.py:totals").code == 0
    assert holdfast("audit", "verify", "totals").code == 0
    assert holdfast("cursor", "audit", "totals", "app.py:totals").code == 0
    assert "row 51 had a typo" in holdfast("why", "totals", "0").out


def test_a_correction_that_moves_other_partitions_is_refused_with_the_way_out(here: Path, holdfast: Command) -> None:
    begin(here, holdfast, 2, "twenty", 20)
    correct(here, "twenty", "20")
    assert holdfast("dead", "redrive", "totals", "0", *AGREED).code == 0
    refused = holdfast("run", "app.py:totals", "--accept-source", "a typo")
    assert refused.code == 1
    assert "as many bytes as before" in " ".join(refused.err.split())
    correct(here, "\n20\n", "\n    20\n")
    assert holdfast("run", "app.py:totals", "--accept-source", "a typo").code == 0


def test_another_file_is_not_made_the_old_one_by_a_reason(here: Path, holdfast: Command) -> None:
    begin(here, holdfast, 1, "fifty", 50)
    assert holdfast("dead", "redrive", "totals", "0", *AGREED).code == 0
    correct(here, "\n3\n", "\n4\n")
    refused = holdfast("run", "app.py:totals", "--accept-source", "a typo")
    assert refused.code == 1
    assert "were already handled" in " ".join(refused.err.split())
    (here / "stock.csv").write_text("n\n" + "7\n" * 9_000)
    assert holdfast("run", "app.py:totals", "--accept-source", "a typo").code == 1


# -- rows that were buried one by one ----------------------------------------------------------------------------------


@pytest.fixture
def corrected(here: Path, holdfast: Command) -> Path:
    """A finished scan of 400 rows, two of which are written wrongly and were buried."""
    (here / "app.py").write_text(APP.replace("PARTITIONS", "2, isolate=True"))
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


def test_a_file_that_is_gone_is_named_after_a_decision_as_before_it(corrected: Path, holdfast: Command) -> None:
    assert holdfast("dead", "discard", "totals", "--all", "--yes", "--reason", "because").code == 0
    corrected.unlink()
    again = holdfast("run", "app.py:totals")
    assert again.code == 1
    assert "is finished, and Csv('stock.csv') has changed since" in " ".join(again.err.split())
    assert "there is no such file" in " ".join(again.err.split())
