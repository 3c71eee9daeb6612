"""`holdfast pause`, `holdfast cancel` and the end of a batch, as a person types and sees them."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.core.course import to_steer
from holdfast.core.model import BatchMode
from tests.cli.conftest import Command
from tests.operations.world import World

APP = """
import holdfast as hf

book = hf.Pipeline("book", source=range(20))

@book.stage
def read(number: int) -> int:
    if number % 2:
        raise hf.Permanent("odd")
    return number
"""
WHY = ("--reason", "because", "--actor", "ada")


@pytest.fixture
def app(here: Path) -> Path:
    (here / "app.py").write_text(APP, encoding="utf-8")
    return here


def course(world: World) -> BatchMode:
    return world.batch.course


def test_a_pause_is_shown_and_lifted(world: World, holdfast: Command) -> None:
    answer = holdfast("pause", "moby-dick", *WHY)
    assert (answer.code, course(world)) == (0, BatchMode.PAUSED)
    assert "holdfast unpause" in answer.out
    assert "nothing was changed" in holdfast("pause", "moby-dick", *WHY).out
    shown = holdfast("status", "moby-dick").out
    assert "paused" in shown.splitlines()[0]
    assert "holdfast unpause" in shown
    assert holdfast("status", "moby-dick", "--json").document["mode"] == "paused"
    lifted = holdfast("unpause", "moby-dick", "--json", *WHY).document
    assert (lifted["act"], lifted["batch"], lifted["mode"], lifted["changed"]) == (
        "unpaused",
        "moby-dick",
        "open",
        True,
    )
    assert course(world) is BatchMode.OPEN


def test_a_pause_needs_a_reason_and_a_batch_that_exists(world: World, holdfast: Command) -> None:
    answer = holdfast("pause", "moby-dick")
    assert (answer.code, course(world)) == (2, BatchMode.OPEN)
    assert "--reason" in answer.err
    assert "did you mean 'moby-dick'" in holdfast("pause", "moby-dik", *WHY).err


def test_cancel_shows_counts_and_asks_first(world: World, holdfast: Command) -> None:
    for more in ([], ["--reason", "x"], ["--yes"], ["--json"]):
        answer = holdfast("cancel", "moby-dick", *more)
        assert answer.code == 2
        assert "nothing was changed" in answer.err
    shown = holdfast("cancel", "moby-dick", "--dry-run").out
    assert "1 item of moby-dick would be cancelled" in shown
    assert "4 items that are settled" in shown
    assert course(world) is BatchMode.OPEN
    assert holdfast("cancel", "moby-dick", "--dry-run", "--json").document["free"] == 1


@pytest.mark.promise("A15")
def test_cancel_ends_a_batch_and_doing_it_again_does_no_harm(world: World, holdfast: Command) -> None:
    answer = holdfast("cancel", "moby-dick", "--yes", *WHY)
    assert answer.code == 0
    assert "cancelled: 1 item" in answer.out
    assert holdfast("cancel", "moby-dick", "--yes", "--json", *WHY).document["changed"] == 0
    shown = holdfast("status", "moby-dick")
    assert "cancelled" in shown.out.splitlines()[0]
    assert holdfast("status", "moby-dick", "--json").document["end"] == "cancelled"
    assert "because" in holdfast("why", "moby-dick", "rest").out
    assert holdfast("audit", "verify").code == 0
    assert "was cancelled, which cannot be undone" in holdfast("unpause", "moby-dick", *WHY).err


def test_cancel_leaves_what_somebody_holds_unless_told_otherwise(world: World, holdfast: Command) -> None:
    world.claim(owner="elsewhere", seconds=3600)
    shown = holdfast("cancel", "moby-dick", "--yes", *WHY)
    assert "held by elsewhere" in shown.out
    assert "left alone: 1 (in flight" in shown.out
    assert "1 item left with their owners" in holdfast("status", "moby-dick").out
    at_once = holdfast("cancel", "moby-dick", "--at-once", "--yes", *WHY)
    assert "thrown away" in at_once.out
    assert "cancelled: 1 item" in at_once.out
    assert holdfast("audit", "verify").code == 0


def test_a_cancelled_batch_asked_to_run_again_answers_with_1(app: Path, holdfast: Command) -> None:
    assert holdfast("run", "app.py:book", "--deadline", "0s").code == 75
    assert holdfast("cancel", "book", "--yes", *WHY).code == 0
    answer = holdfast("run", "app.py:book")
    assert answer.code == 1
    assert "choose another batch name" in answer.out


def test_a_paused_batch_asked_to_run_answers_with_75(app: Path, holdfast: Command) -> None:
    holdfast("run", "app.py:book", "--deadline", "0s")
    holdfast("pause", "book", *WHY)
    answer = holdfast("run", "app.py:book", "--json")
    assert answer.code == 75
    assert (answer.document["reason"], answer.document["run_again"]) == ("paused", True)
    assert "holdfast unpause book" in answer.document["why"]


def test_a_batch_gets_its_end_from_the_command_line(app: Path, holdfast: Command) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
    assert holdfast("run", "app.py:book", "--until", tomorrow).code == 1
    seen = holdfast("status", "book", "--json").document
    assert seen["ends_at"] == datetime.fromisoformat(tomorrow).timestamp()
    shown = holdfast("status", "book").out
    assert any(hours in shown for hours in ("in 23 h", "in 24 h"))
    assert holdfast("run", "app.py:book", "--until", "2h").code == 1
    assert holdfast("status", "book", "--json").document["ends_at"] < time.time() + 7201
    for wrong in ("2020-01-01T00:00+00:00", "2999-01-01", "2999-99-01", "soon"):
        answer = holdfast("run", "app.py:book", "--until", wrong)
        assert (answer.code, "until" in answer.err) == (2, True), answer


@pytest.mark.parametrize(
    ("options", "code", "state"),
    [
        (["--stop-beyond", "3"], 1, "over tolerance"),
        (["--stop-beyond", "10%"], 1, ""),
        (["--stop-beyond", "60%"], 0, "complete with dead letters"),
        (["--stop-beyond", "3", "--tolerate", "3"], 1, "over tolerance"),
        (["--stop-beyond", "0.2"], 2, ""),
        (["--stop-beyond", "many"], 2, ""),
        (["--stop-beyond", "many%"], 2, ""),
    ],
)
def test_a_tolerance_from_the_command_line(
    app: Path, holdfast: Command, options: list[str], code: int, state: str
) -> None:
    answer = holdfast("run", "app.py:book", "--workers", "1", "--json", *options)
    assert answer.code == code, answer
    assert state == "" or answer.document["state"] == state


def test_watching_ends_with_the_batch(world: World, holdfast: Command) -> None:
    holdfast("cancel", "moby-dick", "--yes", *WHY)
    assert "cancelled" in holdfast("status", "moby-dick", "--watch").out


def test_a_cancelled_batch_is_not_sent_back_and_nobody_suggests_it(world: World, holdfast: Command) -> None:
    holdfast("cancel", "moby-dick", "--yes", *WHY)
    before = holdfast("status", "moby-dick", "--json").document["counts"]
    for act in (
        ["reset", "moby-dick"],
        ["dead", "redrive", "moby-dick", "--all"],
        ["reconcile", "moby-dick", "--repair"],
    ):
        answer = holdfast(*act, "--yes", *WHY)
        assert (answer.code, "choose another batch name" in answer.err) == (1, True), answer
    assert holdfast("status", "moby-dick", "--json").document["counts"] == before
    shown = holdfast("reconcile", "moby-dick", "--seal", "--tolerate", "5").out
    assert "taken until it was cancelled" in shown
    told = holdfast("why", "moby-dick", "rest").out
    assert "cancelled at 'ocr': because" in told
    assert "holdfast reopen" not in told
    assert "holdfast reset" not in told


def test_whoever_sends_items_back_after_the_end_hears_of_it(world: World, holdfast: Command) -> None:
    world.store.amend(world.id, to_steer(BatchMode.OPEN, reason="run until", ends_at=world.clock() - 1), actor="ada")
    for act in (["dead", "redrive", "moby-dick", "--all"], ["reset", "moby-dick", "fine"], ["reset", "moby-dick"]):
        assert "with a later --until" in holdfast(*act, "--dry-run").out
        assert "with a later --until" in holdfast(*act, "--dry-run", "--json").document["warning"]
        done = holdfast(*act, "--yes", *WHY, "--json").document
        assert (done["changed"] > 0, "cancels the items that go back" in done["warning"]) == (True, True)
    assert "warning" not in holdfast("dead", "discard", "moby-dick", "--all", "--yes", *WHY, "--json").document


def test_a_paused_batch_says_how_to_go_on_wherever_it_is_shown(app: Path, holdfast: Command) -> None:
    (app / "app.py").write_text(APP.replace("range(20)", "range(20), orphan_after=1e-6"), encoding="utf-8")
    holdfast("run", "app.py:book")
    holdfast("reset", "book", "0", "--yes", *WHY)
    holdfast("pause", "book", *WHY)
    for shown in (["plan", "app.py:book"], ["orphans", "book"], ["why", "book", "0"], ["status", "book"]):
        assert "holdfast unpause book --reason" in holdfast(*shown).out, shown
    assert "run the batch again" not in holdfast("status", "book").out


def test_reconcile_and_status_divide_what_is_pending_alike(app: Path, holdfast: Command) -> None:
    (app / "app.py").write_text(APP.replace("range(20)", "range(20), orphan_after=1e-6"), encoding="utf-8")
    holdfast("run", "app.py:book")
    holdfast("reset", "book", "0", "--yes", *WHY)
    found = holdfast("reconcile", "book", "--json").document["counts"]
    assert found["orphaned"] == found["pending"] == holdfast("status", "book", "--json").document["counts"]["orphaned"]
    assert "Next: holdfast status book" in holdfast("reconcile", "book").out


def test_a_run_that_sealed_its_batch_says_so(app: Path, holdfast: Command) -> None:
    answer = holdfast("run", "app.py:book", "--seal", "--tolerate", "10")
    assert (answer.code, "  sealed   at " in answer.out) == (0, True)
    assert holdfast("run", "app.py:book", "--seal", "--tolerate", "10", "--json").document["sealed_at"] > 0
    told = holdfast("why", "book", "0").out
    assert "holdfast reopen book --reason" in told
    assert "holdfast reset" not in told
