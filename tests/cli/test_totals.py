"""`holdfast expect` and `holdfast close`, as a person types and sees them."""

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.course import Amended, Decide, to_steer
from holdfast.core.model import BatchId
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.stores.sqlite import SqliteStore
from tests.cli.conftest import Command

WHY = ("--reason", "because", "--actor", "ada", "--yes")


@pytest.fixture
def letters(here: Path) -> hf.Pipeline:
    """The default store with a batch of two items that came as messages."""
    made = hf.Pipeline("letters", store=here / ".holdfast" / "state.db")

    @made.stage
    def bind(number: int) -> str:
        return f"letter {number}"

    for number in (1, 2):
        made.process(number)
    return made


@pytest.mark.promise("A14", "A15")
def test_the_number_of_items_is_put_on_record_and_ends_the_batch(letters: hf.Pipeline, holdfast: Command) -> None:
    shown = holdfast("status", "letters").out
    assert "open" in shown.splitlines()[0]
    assert "more may come" in shown
    assert "not read to its end" not in shown
    compared = holdfast("reconcile", "letters")
    assert "not explained: more items may come: no source was read to its end, nor was it closed" in compared.out
    assert "2 admitted, more may come" in compared.out
    assert "Next: holdfast run …, or holdfast close letters" in compared.out
    dry = holdfast("expect", "letters", "3", "--dry-run", "--json").document
    assert dry == {"batch": "letters", "expected": 3, "before": None, "admitted": 2}
    assert "would be expected to have 3 items" in holdfast("expect", "letters", "3", "--dry-run").out
    answer = holdfast("expect", "letters", "3")
    assert (answer.code, answer.out) == (0, "letters is expected to have 3 items.\n")
    assert "already: nothing was changed" in holdfast("expect", "letters", "3").out
    assert "3, 1 have not come yet" in holdfast("status", "letters").out
    assert "1 of 3 expected items have not come" in holdfast("reconcile", "letters").out
    refused = holdfast("expect", "letters", "2")
    assert (refused.code, "--reason" in refused.err) == (2, True)
    found = holdfast("expect", "letters", "2", "--json", *WHY).document
    assert found == {
        "act": "expected", "batch": "letters", "changed": True, "mode": "open", "expected": 2, "closed_at": None,
        "sealed_at": None, "admitted": 2, "end": "complete", "unexplained": [],
    }  # fmt: skip
    assert holdfast("reconcile", "letters", "--seal", *WHY).code == 0
    assert "sealed" in holdfast("status", "letters").out.splitlines()[0]


@pytest.mark.promise("A14", "A15")
def test_a_close_tells_what_never_came_and_ends_with_1(letters: hf.Pipeline, holdfast: Command) -> None:
    holdfast("expect", "letters", "5")
    dry = holdfast("close", "letters", "--dry-run")
    assert "3 of 5 expected never came. It would take no new ones from now on, for good: a close cannot" in dry.out
    assert holdfast("close", "letters").code == 2  # there is no terminal to ask at
    assert letters.store.batches()[0].closed_at is None
    answer = holdfast("close", "letters", *WHY)
    assert answer.code == 1
    assert "come to its end: stopped: 3 never created" in answer.out
    assert holdfast("reconcile", "letters").code == 1
    shown = holdfast("status", "letters").out
    assert "stopped" in shown.splitlines()[0]
    assert "5, 3 never came" in shown
    assert "it takes no new items" in shown
    assert holdfast("reconcile", "letters", "--seal", *WHY).code == 1
    assert holdfast("expect", "letters", "2", *WHY).code == 0
    assert holdfast("close", "letters").code == 0  # closed already: nothing to agree to
    assert holdfast("reconcile", "letters", "--seal", *WHY).code == 0
    assert holdfast("audit", "verify").code == 0


def test_a_closed_batch_is_not_said_to_have_read_a_source(letters: hf.Pipeline, holdfast: Command) -> None:
    holdfast("close", "letters", *WHY)
    compared = holdfast("reconcile", "letters")
    assert (compared.code, "2 admitted, closed: no more come" in compared.out) == (0, True)
    assert "source" not in compared.out


@pytest.mark.promise("A14")
@pytest.mark.parametrize(("number", "close"), [("1", False), ("5", True)], ids=["more came", "fewer came"])
def test_the_number_that_is_suggested_can_be_typed(
    letters: hf.Pipeline, holdfast: Command, number: str, close: bool
) -> None:
    holdfast("expect", "letters", number)
    if close:
        holdfast("close", "letters", *WHY)
    shown = holdfast("reconcile", "letters").out
    assert "Next: holdfast expect letters 2 --reason …\n" in shown
    assert holdfast("expect", "letters", "2", "--reason", "miscounted").code == 0
    assert holdfast("reconcile", "letters").code == 0


def test_what_is_not_a_number_or_a_batch_is_refused(letters: hf.Pipeline, holdfast: Command) -> None:
    assert holdfast("expect", "letters", "many").code == 2
    assert "between 0 and" in holdfast("expect", "letters", "--", "-1").err
    assert "did you mean 'letters'" in holdfast("expect", "leters", "3").err
    assert "did you mean 'letters'" in holdfast("close", "leters", *WHY).err


@pytest.mark.promise("A14", "A15")
def test_a_comparison_that_is_overtaken_shows_the_batch_as_it_is_and_tells_no_end(
    letters: hf.Pipeline, holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, batch, came = letters.store, letters.store.batches()[0], list[str]()
    store.amend(batch.id, to_steer(None, reason="", expected=2), actor="ada")
    amend = SqliteStore.amend

    def overtaken(self: SqliteStore, at: BatchId, decide: Decide, *, actor: str) -> Amended:
        if not came:
            came.append(actor)
            operations.reset(store, batch, Actor(name="ada", reason="again"), "1")
        return amend(self, at, decide, actor=actor)

    monkeypatch.setattr(SqliteStore, "amend", overtaken)
    answer = holdfast("reconcile", "letters")
    assert (len(came), answer.code) == (1, 1)
    assert "not explained: 1 pending" in answer.out
    assert [event.kind for event in store.events()] == ["batch.opened"]


def test_more_items_than_expected_are_told_with_a_command_that_can_be_pasted(
    letters: hf.Pipeline, holdfast: Command
) -> None:
    holdfast("expect", "letters", "1", *WHY)
    assert "  finding  unexpected: 2 items came, 1 were expected" in str(letters.report("letters"))
    (finding,) = holdfast("reconcile", "letters", "--json").document["findings"]
    assert "`holdfast expect letters 2 --reason …`" in finding["remedy"]
