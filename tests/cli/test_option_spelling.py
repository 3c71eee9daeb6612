"""What the command prints names its options; what Python raises names the arguments."""

import logging
import re
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.runtime.text import as_options
from tests.cli.conftest import Command

APP = """
import holdfast as hf

book = hf.Pipeline("book", source=[{{"id": n, "text": {text!r}}} for n in range({count})], key="id")

@book.stage(sink=hf.Files("out/{{batch}}-{{key}}.json"))
def read(row: dict) -> dict:
    if row["id"] == 3 or {broken}:
        raise ValueError("not that one")
    return {made}

orders = hf.Scan("orders", hf.Csv({csv!r}))

@orders.handler
def check(rows):
    return None
"""


def write(here: Path, name: str, text: str = "a", count: int = 4, made: str = "row", broken: bool = False,
          csv: str = "orders.csv") -> str:  # fmt: skip
    """A program under a name of its own, since Python loads each once; returns the target of its pipeline."""
    (here / f"{name}.py").write_text(APP.format(text=text, count=count, made=made, broken=broken, csv=csv))
    return f"{name}.py:book"


PYTHON = re.compile(r"\b[a-z_]+=[\"'T…]|\b(?:Budget|Tolerance|datetime)\b|\w=(?= )|run\(")
"""How an argument is written in Python."""


@pytest.fixture
def app(here: Path) -> Path:
    write(here, "app")
    (here / "orders.csv").write_text("n\n1\n2\n")
    return here


def told(found: object) -> str:
    text = f"{found.out}\n{found.err}"  # type: ignore[attr-defined]
    assert not PYTHON.search(text), text
    return text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "1000000"], "--workers 1000000: pass a whole number"),
        (["--budget", "0"], "--budget 0 would let nothing run"),
        (["--budget", "much"], "--budget much is not an amount of money"),
        (["--lease", "1ms"], "--lease 1ms: a lease lasts"),
        (["--deadline", "soon"], "--deadline soon: write a time"),
        (["--patience", "some"], "--patience some: write a time"),
        (["--tolerate", "few"], "--tolerate few: write a number of items"),
        (["--undo", "all of it"], "--undo 'all of it': write a number of items"),
        (["--stop-beyond", "many"], "--stop-beyond many: write a number of items"),
        (["--until", "2026-12-01T06:00"], "--until 2026-12-01T06:00:00 has no time zone"),
        (["--until", "2020-12-01T06:00+00:00"], "--until 2020-12-01T06:00:00+00:00 has passed"),
        (["--until", "late"], "--until late: write a time"),
        (["--budget", "1", "--store", "file://{here}/bucket"], "--budget does not work with"),
        (["--events", "-", "--store", "file://{here}/bucket"], "--events does not work with"),
    ],
)
def test_an_option_that_is_refused_is_called_as_it_was_given(
    app: Path, holdfast: Command, options: list[str], words: str
) -> None:
    found = holdfast("run", "app.py:book", *[each.format(here=app) for each in options])
    assert found.code == 2
    assert words in told(found)


def test_what_to_do_is_told_as_options(app: Path, holdfast: Command) -> None:
    told(holdfast("run", "app.py:book"))
    other = write(app, "other", text="b")
    assert "--changed rerun to handle it again, --changed keep" in told(holdfast("run", other))
    assert "--changed rerun" in told(holdfast("plan", other))
    assert "--changed rerun" in told(holdfast("run", other, "--changed", "rerun")), "a dead letter is left alone"
    newer = write(app, "newer", text="b", made="dict(row)")
    assert "--on-code-change keep to keep finished work, or --on-code-change rerun" in told(
        holdfast("run", newer, "--on-code-change", "refuse")
    )
    assert "with --on-code-change rerun" in told(holdfast("plan", newer))
    assert "--on-code-change rerun to run the affected" in told(holdfast("run", newer, "--changed", "keep"))
    assert logging.lastResort is not None
    warning = logging.LogRecord("holdfast.run", logging.WARNING, "", 0, 'Pass on_code_change="%s"', ("keep",), None)
    assert logging.lastResort.format(warning) == "Pass --on-code-change keep", (
        "where the program sets up no log of its own"
    )


def test_what_is_empty_or_broken_is_told_as_options(app: Path, holdfast: Command) -> None:
    empty, broken = write(app, "empty", count=0), write(app, "broken", count=40, broken=True)
    assert "--allow-empty" in told(holdfast("plan", empty))
    assert "--allow-empty" in told(holdfast("run", empty))
    assert "--tolerate 100%" in told(holdfast("run", broken, "--batch", "broken"))


def test_a_scan_is_told_its_options_as_well(app: Path, holdfast: Command) -> None:
    assert holdfast("run", "app.py:orders").code == 0
    assert "does not take --on-code-change rerun" in told(holdfast("run", "app.py:orders", "--on-code-change", "rerun"))
    (app / "none.csv").write_text("n\n")
    write(app, "empty", csv="none.csv")
    told(holdfast("run", "empty.py:orders"))
    assert "--allow-empty" in told(holdfast("run", "empty.py:orders", "--batch", "none"))


BROKEN = """
import holdfast as hf

orders = hf.Scan("orders", hf.Csv("orders.csv"), every=1, partitions={partitions}, retry=hf.Retry(attempts=1))

@orders.handler
def check(rows):
    if any(row["n"] == "x" for row in rows):
        raise ValueError("not that one")
"""


@pytest.mark.parametrize(
    ("partitions", "now", "words"),
    [
        (1, "n\n7\n2\n3\n4\n", "--batch NAME"),
        (2, "n\n1\n20\n3\n4\n", "--batch NAME"),
        (1, "n\n1\n2\n3\n4\n", "--accept-source 'what you corrected'"),
    ],
    ids=["handled rows", "borders", "refused"],
)
def test_a_scan_in_a_corrected_file_is_told_options(
    here: Path, holdfast: Command, partitions: int, now: str, words: str
) -> None:
    (here / "fixed.py").write_text(BROKEN.format(partitions=partitions))
    (here / "orders.csv").write_text("n\n1\nx\n3\n4\n")
    told(holdfast("run", "fixed.py:orders"))
    told(holdfast("dead", "redrive", "orders", "0", "--yes", "--reason", "corrected", "--actor", "ann"))
    (here / "orders.csv").write_text(now)
    reason = () if words.startswith("--accept") else ("--accept-source", "corrected")
    found = holdfast("run", "fixed.py:orders", *reason)
    assert found.code == 1
    assert words in " ".join(told(found).split())


def test_files_of_another_batch_are_told_without_arguments_of_run(app: Path, holdfast: Command) -> None:
    (app / "shared.py").write_text(APP.format(text="a", count=2, made="row", broken=False, csv="orders.csv").replace(
        "{batch}-{key}", "{key}"))  # fmt: skip
    assert holdfast("run", "shared.py:book").code == 0
    found = holdfast("run", "shared.py:book", "--batch", "second")
    assert found.code == 1
    text = " ".join(f"{found.out} {found.err}".split())
    assert not PYTHON.search(text.replace("hf.Files(…, replaces=True)", "")), "what is written in the program stays"
    assert "would replace them" in text


def test_machines_are_told_options_too(app: Path, holdfast: Command) -> None:
    holdfast("run", "app.py:book")
    newer, empty = write(app, "newer", made="dict(row)"), write(app, "empty", count=0)
    assert "--on-code-change rerun" in holdfast("plan", newer, "--json").document["notes"][0]
    assert "--on-code-change rerun" in holdfast("run", newer, "--json").document["warnings"][0]
    assert "--allow-empty" in holdfast("run", empty, "--batch", "none", "--json").document["why"]


def test_python_names_its_arguments() -> None:
    book = hf.Pipeline("book", store="memory:")
    book.stage(name="read")(lambda row: row)
    report = book.run([], progress=False)
    assert "pass allow_empty=True." in report.why
    with pytest.raises(hf.UsageError, match=r"^workers=0: pass a whole number"):
        book.run([1], workers=0)
    book.run([{"id": 1, "a": 1}], key="id", batch="b", progress=False)
    with pytest.raises(hf.PayloadChanged, match='Pass changed="rerun" to handle it again') as refused:
        book.run([{"id": 1, "a": 2}], key="id", batch="b", progress=False)
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("python", "command"),
    [
        (
            'Pass on_code_change="keep", or on_code_change="rerun"',
            "Pass --on-code-change keep, or --on-code-change rerun",
        ),
        ('with accept_source="why that is fine", or', "with --accept-source 'why that is fine', or"),
        ("pass allow_empty=True.", "pass --allow-empty."),
        ("a later end (until=…)", "a later end (--until …)"),
        ('undo="100%"', "--undo 100%"),
        ('he said code="E42" and workers=3', 'he said code="E42" and workers=3'),
        ("workers=3: too few", "--workers 3: too few"),
        ("Retry(attempts=0): a number", "Retry(attempts=0): a number"),
    ],
)
def test_only_what_is_ours_is_spelled_for_the_command(python: str, command: str) -> None:
    assert as_options(python) == command
