"""A screen of 80 columns: figures are whole, lines go on below where they began, one of something is one."""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core import canonical
from holdfast.core.journal import Spend
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.app import call
from holdfast.runtime.text import many
from tests.cli.conftest import Command
from tests.operations.world import World, done

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


Shown = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Do something before a screen of 80 columns; returns its lines."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")

    def show(do: Callable[[], object]) -> list[str]:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", screen := Screen())
            do()
        lines = [line.rstrip() for line in ESCAPE.sub("", screen.getvalue()).splitlines()]
        assert max(map(len, lines)) <= 80
        return lines

    return show


def test_figures_of_statistics_are_never_split(world: World, shown: Shown) -> None:
    world.add("more", payload=lambda key: {"page": key})
    world.work(lambda item: done(item, queued=0.000054, seconds=1234.5678,
                                 spend=Spend(item.n, usd=canonical.to_units("0.0123"), tokens=12_345)))  # fmt: skip
    kinds = re.compile(r"(ocr|correct|all) +(queue|execution|total|cost|tokens)")
    rows = [line.split() for line in shown(lambda: call(["show", "moby-dick"])) if kinds.match(line)]
    assert len(rows) >= 10
    for row in rows:
        figures = row[3:] if row[2] == "s" else row[2:]
        assert len(figures) == 7, row
        assert all(re.fullmatch(r"[<$]?[\d,.]+", figure) for figure in figures), row


def test_a_line_of_a_report_goes_on_below_where_its_text_begins(shown: Shown) -> None:
    text = f"  items    5 = 5 done\n  note     {'a word or two ' * 12}\n  left     nothing"
    lines = shown(lambda: render.report(text))
    assert lines[0] == "  items    5 = 5 done"
    assert lines[1].startswith("  note     a word")
    assert lines[2].startswith("           ")
    assert lines[-1] == "  left     nothing"


def test_a_letter_that_nobody_has_to_answer_ends_without_an_empty_line(world: World, here: Path, shown: Shown) -> None:
    lines = shown(lambda: call(["dead", "show", "moby-dick", "fine"]))
    assert lines[-1]
    assert not [line for line in lines if line.startswith("  ") and len(line.split()) < 2], "no fact without a value"


def test_a_checkpoint_of_the_past_stands_apart_from_the_next(here: Path, holdfast: Command, shown: Shown) -> None:
    (here / "stock.csv").write_text("n\n1\n2\n3\n")
    (here / "narrow.py").write_text(
        'import holdfast as hf\ntotals = hf.Scan("totals", hf.Csv("stock.csv"), every=1)\n'
        "@totals.handler\ndef add(rows, acc: int) -> int:\n    return acc + len(rows)\n"
    )
    assert holdfast("run", "narrow.py:totals").code == 0
    *lines, _, last = shown(lambda: call(["cursor", "show", "totals", "--history"]))
    assert last.endswith("of totals.")
    assert len([line for line in lines if re.match(r"\d{4}-", line)]) == int(last.split()[0])
    assert all(re.match(r"\d{4}-| {4}", line) for line in lines), "a line continues indented"


def test_one_of_something_is_one(here: Path, holdfast: Command) -> None:
    (here / "app.py").write_text(
        "import holdfast as hf\n"
        'one = hf.Pipeline("one", source=[1])\n'
        '@one.stage(sink=hf.Files("out/{key}.json"))\n'
        "def make(n: int) -> int:\n    return n\n"
    )
    assert holdfast("run", "app.py:one", "--no-progress").code == 0
    assert "1 output looked at" in holdfast("reconcile", "one").out
    assert "1 item," in holdfast("audit", "verify", "one").out
    assert (many(1, "entry", "entries"), many(2, "entry", "entries")) == ("1 entry", "2 entries")
