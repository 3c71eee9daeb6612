"""A command that changes something shows what it would do, asks why, and asks for confirmation last."""

from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.interfaces.cli import common
from tests.cli.conftest import Command, at_a_terminal
from tests.cli.test_destructive import ACTS, everything
from tests.operations.world import World

APP = """
import holdfast as hf
totals = hf.Scan("totals", hf.Csv("stock.csv"), every=1)
@totals.handler
def add(rows, acc: int) -> int:
    return acc + len(rows)
pages = hf.Pipeline("pages", source=[1, 2])
@pages.stage(sink=hf.Files("out/{key}.json"))
def read(n: int) -> int:
    return n
"""
CONFIRMED = {
    **ACTS,
    "cancel": ["cancel", "moby-dick"],
    "close": ["close", "moby-dick"],
    "reset a scan": ["reset", "totals", "0", "--from-start"],
    "settle a partition": ["reset", "broken", "0", "--skip"],
    "move a cursor": ["cursor", "reset", "totals", "0", "--to-beginning"],
    "clone": ["cursor", "clone", "totals", "again"],
    "reopen": ["reopen", "pages"],
    "repair": ["reconcile", "totals-of-files", "--repair"],
    "rebuild": ["import", "app.py:pages", "--from-outputs", "--batch", "rebuilt"],
}
UNDOABLE = {
    "pause": ["pause", "moby-dick"],
    "unpause": ["unpause", "moby-dick"],
    "expect another number": ["expect", "moby-dick", "9"],
}


@pytest.fixture
def stage(world: World, here: Path, holdfast: Command) -> World:
    """The world, with a scan, a sealed batch, and one that has lost an output."""
    (here / "stock.csv").write_text("n\n1\n2\n")
    (here / "app.py").write_text(APP)
    assert holdfast("run", "app.py:totals", "--no-progress").code == 0
    assert holdfast("run", "app.py:pages", "--no-progress", "--seal").code == 0
    (here / "lost.py").write_text(APP.replace("out/", "lost/"))
    assert holdfast("run", "lost.py:pages", "--no-progress", "--batch", "totals-of-files").code == 0
    (here / "lost" / "1.json").unlink()
    (here / "broken.py").write_text(
        APP.replace('"totals"', '"broken"').replace("return acc", "assert not rows\n    return acc")
    )
    assert holdfast("run", "broken.py:totals", "--no-progress").code == 1
    assert holdfast("expect", "moby-dick", "5").code == 0
    return world


class Person:
    """Sits at the terminal: answers, and notes what was on the screen at every question."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **answers: Any) -> None:
        self.asked: list[str] = []
        self.before: list[str] = []
        self._answers, self._capsys = answers, capsys
        monkeypatch.setattr(common, "can_ask", lambda manner: not manner.as_json)
        monkeypatch.setattr(typer, "prompt", lambda text: self._ask("why", text))
        monkeypatch.setattr(typer, "confirm", lambda text: self._ask("sure", text))

    def _ask(self, kind: str, text: str) -> Any:
        assert kind == ("why" if "why?" in text else "sure")
        self.asked.append(kind)
        self.before.append(self._capsys.readouterr().out)
        answer = self._answers[kind]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if answer is typer.Abort:
            raise typer.Abort
        return answer


@pytest.mark.parametrize("act", CONFIRMED)
def test_the_preview_comes_first_then_the_reason_and_the_confirmation_last(
    stage: World, holdfast: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], act: str
) -> None:
    person = Person(monkeypatch, capsys, why=["  ", "because"], sure=True)
    answer = holdfast(*CONFIRMED[act])
    assert person.asked == ["why", "why", "sure"], "an empty reason is asked for again"
    assert person.before[0].strip(), "the preview was on the screen"
    assert not any(each.strip() for each in person.before[1:])
    assert answer.code in (0, 1), answer.err
    assert "Nothing was changed" not in answer.out


@pytest.mark.parametrize("act", CONFIRMED)
def test_a_reason_that_was_given_is_not_asked_for(
    stage: World, holdfast: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], act: str
) -> None:
    person = Person(monkeypatch, capsys, sure=False)
    before = everything(stage)
    answer = holdfast(*CONFIRMED[act], "--reason", "because")
    assert person.asked == ["sure"]
    assert (answer.code, answer.out) == (1, "Nothing was changed.\n")
    assert everything(stage) == before


@pytest.mark.parametrize("act", UNDOABLE)
def test_what_can_be_undone_needs_the_reason_only(
    stage: World, holdfast: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], act: str
) -> None:
    person = Person(monkeypatch, capsys, why="because")
    assert holdfast(*UNDOABLE[act]).code == 0
    assert person.asked == ["why"]


@pytest.mark.parametrize("act", [*CONFIRMED, *UNDOABLE])
@pytest.mark.parametrize("reason", [[], ["--reason", "  "]])
def test_yes_without_a_reason_is_refused_before_anything_is_shown_or_asked(
    stage: World, holdfast: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    act: str, reason: list[str],
) -> None:  # fmt: skip
    person, before = Person(monkeypatch, capsys), everything(stage)
    answer = holdfast(*{**CONFIRMED, **UNDOABLE}[act], "--yes", *reason)
    assert person.asked == []
    assert answer.code == 2
    assert "give the reason with --reason" in answer.err
    assert "nothing was changed" in answer.err
    assert "would" not in answer.out.replace("would not", "")
    assert everything(stage) == before


@pytest.mark.parametrize("act", [*CONFIRMED, *UNDOABLE])
@pytest.mark.parametrize("at", ["why", "sure"])
def test_ctrl_c_or_the_end_of_input_at_a_question_changes_nothing_and_says_so(
    stage: World, holdfast: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    act: str, at: str,
) -> None:  # fmt: skip
    if at == "sure" and act in UNDOABLE:
        at = "why"
    person = Person(monkeypatch, capsys, **{"why": "because", "sure": True, at: typer.Abort})
    before = everything(stage)
    answer = holdfast(*{**CONFIRMED, **UNDOABLE}[act])
    assert person.asked[-1] == at
    assert (answer.code, answer.out) == (1, "\nNothing was changed.\n")
    assert everything(stage) == before


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_at_a_real_terminal_too(world: World, here: Path, key: str) -> None:
    before = everything(world)
    code, said = at_a_terminal(ACTS["discard"], here, answers=[("why?", key)])
    assert (code, said.rstrip().endswith("Nothing was changed.")) == (1, True), said
    assert everything(world) == before


def test_a_dry_run_of_a_seal_does_not_seal(stage: World, holdfast: Command) -> None:
    answer = holdfast("reconcile", "totals", "--seal", "--dry-run")
    assert (answer.code, "totals would be sealed; nothing was changed." in answer.out) == (0, True)
    assert holdfast("status", "totals", "--json").document["sealed_at"] is None
    assert "would not be sealed" in holdfast("reconcile", "moby-dick", "--seal", "--dry-run").out
    assert "sealed_at" not in holdfast("reconcile", "totals", "--seal", "--dry-run", "--json").document
