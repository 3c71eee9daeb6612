"""The end of a batch is told of the batch as it is: whoever changes it between the look and the note is seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import journal, sections, states
from holdfast.core.acts import change_of
from holdfast.core.canonical import decode
from holdfast.core.course import Amended, BatchFacts, Decide, to_note, to_steer
from holdfast.core.errors import Refused
from holdfast.core.model import BatchId, BatchMode, State, chain_of_batch
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.operate.audit import verify
from holdfast.runtime.report import lifecycle, reconcile, status
from holdfast.stores.base import ENTRIES_AT_A_TIME, Store, outbox_of
from holdfast.stores.memory import MemoryStore

BY = Actor(name="ann", reason="because")
Story = Callable[[hf.Pipeline], object]


@pytest.fixture(params=["state.db", "bucket", "memory"])
def letters(request: pytest.FixtureRequest, tmp_path: Path) -> hf.Pipeline:
    where: Any = {"state.db": tmp_path / "state.db", "bucket": f"file://{tmp_path}/bucket", "memory": MemoryStore()}
    made = hf.Pipeline("letters", store=where[request.param])

    @made.stage
    def bind(number: int) -> str:
        if number == 13:
            raise hf.Permanent("unlucky")
        return f"letter {number}"

    return made


def noted(letters: hf.Pipeline) -> list[Any]:
    """What was put on record about every end; where there is an outbox, the same was published."""
    store = letters.store
    batch = lookup.batch_named(store, "letters")
    entries = store.entries(chain_of_batch(batch.id))
    bodies = [sections.decode(e) for e in entries if journal.decode_header(e.head).kind == "reconciled"]
    facts = [decode(body.note) for body in bodies if isinstance(body, journal.Acted)]
    if store.capabilities.events:
        told = [decode(each.body)["counts"] for each in outbox_of(store).events() if each.kind == "batch.finished"]
        assert told == [each["counts"] for each in facts if set(each["found"]) <= {"never created"}]
    assert verify(store, batch).findings == ()
    return facts


def race(letters: hf.Pipeline, meanwhile: Story, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let something happen between the first look that finds the end and the note that tells of it."""
    amend, came = letters.store.amend, list[int]()

    def overtaken(batch: BatchId, decide: Decide, *, actor: str) -> Amended:
        if not came and kind_of(letters.store, batch, decide) == "reconciled":
            came.append(1)
            meanwhile(letters)
        return amend(batch, decide, actor=actor)

    monkeypatch.setattr(letters.store, "amend", overtaken)
    return came


def kind_of(store: Store, batch: BatchId, decide: Decide) -> str:
    """The kind of the entry that a decision would write now."""
    found = next(each for each in store.batches() if each.id == batch)
    change = decide(BatchFacts(found, store.now(), lambda: store.chunks(batch), lambda _kind, _body: False))
    return "" if change is None else change.kind


def redriven(letters: hf.Pipeline) -> object:
    return operations.redrive(letters.store, lookup.batch_named(letters.store, "letters"), BY)


def discarded(letters: hf.Pipeline) -> object:
    return operations.discard(letters.store, lookup.batch_named(letters.store, "letters"), BY, ["13"])


def reset(letters: hf.Pipeline) -> object:
    return operations.reset(letters.store, lookup.batch_named(letters.store, "letters"), BY, "1")


def expects_more(letters: hf.Pipeline) -> object:
    return letters.expect(None, 3, reason="one was forgotten")


def settled_unseen(letters: hf.Pipeline) -> None:
    """Both items are settled and all that were expected, and whoever saw to that died before looking."""
    letters.process(13)
    batch = lookup.batch_named(letters.store, "letters")
    letters.store.amend(batch.id, to_steer(None, reason="", expected=2), actor="ann")


def last_message(letters: hf.Pipeline) -> None:
    letters.expect(None, 2)
    letters.process(13)


def last_word(letters: hf.Pipeline) -> None:
    letters.process(13)
    letters.expect(None, 2)


def closed(letters: hf.Pipeline) -> None:
    letters.process(13)
    letters.close()


def ran(letters: hf.Pipeline) -> None:
    letters.run([1, 13], progress=False)


def compared(letters: hf.Pipeline) -> None:
    settled_unseen(letters)
    letters.reconcile()


def named(story: Callable[..., object]) -> str:
    return str(story.__name__)


@pytest.mark.promise("A14", "A15")
@pytest.mark.parametrize("who", [last_message, last_word, ran, compared], ids=named)
@pytest.mark.parametrize("meanwhile", [redriven, reset, expects_more], ids=named)
def test_an_end_that_is_taken_back_before_it_is_told_is_not_told(
    letters: hf.Pipeline, who: Story, meanwhile: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.process(1)
    came = race(letters, meanwhile, monkeypatch)
    who(letters)
    assert came == [1]
    assert noted(letters) == []
    assert status.snapshot(letters.store, lookup.batch_named(letters.store, "letters")).end is None


@pytest.mark.promise("A14", "A15")
@pytest.mark.parametrize("who", [last_message, last_word, closed, ran, compared], ids=named)
def test_two_acts_at_once_leave_the_end_that_is_true_and_no_other(
    letters: hf.Pipeline, who: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.process(1)
    came = race(letters, discarded, monkeypatch)
    who(letters)
    assert came == [1]
    assert [each["counts"] for each in noted(letters)] == [
        {"expected": 2, "done": 1, "skipped": 0, "dead": 0, "cancelled": 1, "pending": 0}
    ]


@pytest.mark.promise("A15")
def test_what_does_not_concern_the_end_does_not_keep_it_from_being_told(
    letters: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.process(1)
    batch, looked = lookup.batch_named(letters.store, "letters"), list[str]()
    whole, body = reconcile.reconcile, journal.Acted(reason="it is late")
    monkeypatch.setattr(reconcile, "reconcile", lambda *args, **named: looked.append("") or whole(*args, **named))
    came = race(letters, lambda _: letters.store.amend(batch.id, to_note("warned", body), actor="ann"), monkeypatch)
    last_message(letters)
    assert (came, len(looked), len(noted(letters))) == ([1], 1, 1)


def test_a_batch_that_others_keep_changing_is_left_to_them(
    letters: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.process(1)
    amend, numbers = letters.store.amend, iter(range(10, 100))

    def overtaken(batch: BatchId, decide: Decide, *, actor: str) -> Amended:
        if kind_of(letters.store, batch, decide) == "reconciled":
            ends_at = letters.store.now() + 1e6 + next(numbers)
            amend(batch, to_steer(BatchMode.OPEN, reason="later", ends_at=ends_at), actor="ann")
        return amend(batch, decide, actor=actor)

    monkeypatch.setattr(letters.store, "amend", overtaken)
    last_message(letters)
    assert noted(letters) == []
    monkeypatch.setattr(letters.store, "amend", amend)
    letters.process(13)
    assert len(noted(letters)) == 1


@pytest.mark.promise("A14")
def test_a_batch_that_was_said_to_have_more_items_meanwhile_is_not_sealed(letters: hf.Pipeline) -> None:
    letters.process(1)
    letters.expect(None, 1)
    found, batch = letters.reconcile(), lookup.batch_named(letters.store, "letters")
    letters.close()
    letters.store.amend(batch.id, to_steer(None, reason="one was forgotten", expected=2), actor="ann")
    with pytest.raises(Refused, match="changed while it was reconciled"):
        lifecycle.seal(letters.store, batch, found, actor="ann")
    assert lookup.batch_named(letters.store, "letters").sealed_at is None


def test_a_message_that_comes_again_compares_nothing_however_much_was_noted_since(
    letters: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.expect(None, 2)
    for number in (1, 2):
        letters.process(number)
    batch, before = lookup.batch_named(letters.store, "letters"), noted(letters)
    for number in range(3 * ENTRIES_AT_A_TIME):
        letters.store.amend(batch.id, to_note("late", journal.Acted(reason=f"{number}", note=b"{}")), actor="a")
    compared: list[object] = []
    monkeypatch.setattr(reconcile, "reconcile", lambda *args, **_: compared.append(args))
    letters.process(2)
    assert not compared
    assert len(before) == 1


def test_only_the_message_that_leaves_nothing_pending_compares_the_batch(
    letters: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, chunks = list[int](), list[int]()
    compare, read = reconcile.reconcile, letters.store.chunks
    monkeypatch.setattr(reconcile, "reconcile", lambda *args, **more: (compared.append(1), compare(*args, **more))[1])
    counted = lambda *args, **named: (chunks.extend([] if named else [1]), read(*args, **named))[1]  # noqa: E731
    monkeypatch.setattr(letters.store, "chunks", counted)
    letters.expect(None, 6)
    for number in range(5):
        letters.process(number)
    assert (compared, chunks) == ([], []), "while something is to come, a message sums nothing up"
    letters.process(5)
    assert compared == [1]


def test_an_act_tells_both_what_keeps_items_from_going_on_and_what_went_wrong_at_its_end(letters: hf.Pipeline) -> None:
    letters.run([1, 13], progress=False)
    batch = lookup.batch_named(letters.store, "letters")
    ended = letters.store.amend(
        batch.id, to_steer(BatchMode.OPEN, reason="x", ends_at=letters.store.now() - 1.0), actor="a"
    ).batch
    [dead] = letters.store.items(batch.id, state=State.DEAD)
    change = change_of(dead.n, dead.place, states.move(dead.place, states.Transition.REDRIVE, stages=1))
    did = operations.act_on(letters.store, ended, [dead], lambda _: change, kind="redriven", by=BY,
                            at_end=lambda changed: f"{changed} has no name")  # fmt: skip
    assert did.warning.startswith("letters ended at ")
    assert did.warning.endswith("; 1 has no name")


def told(letters: hf.Pipeline) -> list[str]:
    """The ends that were told, in words, where there is an outbox; else how many were noted."""
    facts = noted(letters)
    if not letters.store.capabilities.events:
        return [""] * len(facts)
    return [decode(each.body)["end"] for each in outbox_of(letters.store).events() if each.kind == "batch.finished"]


@pytest.mark.promise("A14", "A15")
def test_an_end_that_comes_again_after_another_one_is_told_again(letters: hf.Pipeline) -> None:
    letters.expect(None, 2)
    for number in (1, 2):
        letters.process(number)
    letters.expect(None, 3, reason="one more")
    letters.close(reason="it never came")
    letters.expect(None, 2, reason="it was right")
    letters.expect(None, 3, reason="no, it was not")
    words = ["complete", "stopped", "complete", "stopped"]
    assert told(letters) == (words if letters.store.capabilities.events else [""] * 4)
    for _ in range(2):
        letters.reconcile()
        letters.process(1)
    assert len(told(letters)) == 4


@pytest.mark.promise("A15")
def test_two_that_come_to_an_end_again_at_once_tell_it_once(
    letters: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.process(1)
    letters.close()
    letters.expect(None, 2, reason="one more")
    batch = lookup.batch_named(letters.store, "letters")
    letters.store.amend(batch.id, to_steer(None, reason="there was none", expected=1), actor="ann")
    letters.reconcile()
    letters.store.amend(batch.id, to_steer(None, reason="one more", expected=2), actor="ann")
    race(letters, lambda _: letters.reconcile(), monkeypatch)
    letters.reconcile()
    assert len(told(letters)) == 4


@pytest.mark.promise("A15")
def test_what_was_put_right_is_not_another_end(tmp_path: Path) -> None:
    made = hf.Pipeline("letters", store=tmp_path / "state.db")
    made.stage(name="bind", sink=hf.Files(tmp_path / "out" / "{key}.json"))(lambda number: number)
    made.run([1, 2], progress=False)
    kept = (tmp_path / "out" / "1.json").rename(tmp_path / "kept")
    assert made.reconcile().unexplained == ("1 missing",)
    kept.rename(tmp_path / "out" / "1.json")
    assert made.reconcile().is_explained
    assert told(made) == ["complete"]


@pytest.mark.promise("A14", "A15")
def test_an_end_that_only_its_word_tells_from_the_last_one_is_told(letters: hf.Pipeline) -> None:
    letters.process(1)
    store, batch = letters.store, lookup.batch_named(letters.store, "letters")
    store.amend(batch.id, to_steer(BatchMode.OPEN, reason="it was late", ends_at=store.now() - 1), actor="ann")
    letters.reconcile()
    letters.close()
    assert told(letters) == (["stopped", "complete"] if store.capabilities.events else [""] * 2)
