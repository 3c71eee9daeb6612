"""Acts are written in groups; what was left alone, and what moved on before the write, is counted."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.core.acts import change_of
from holdfast.core.errors import UsageError
from holdfast.core.model import Act, Batch, Change, ItemNo, State, StoredItem
from holdfast.core.states import Transition, move
from holdfast.runtime.acts import MEANWHILE, Actor, Acts, grouped
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance.kit import STAGES, Kit

BY = Actor(name="ann", reason="because")


class Watched(MemoryStore):
    """Keeps the acts it was given."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.acts: list[Act] = []

    def act(self, act: Act) -> list[ItemNo]:
        self.acts.append(act)
        return super().act(act)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    made = Kit(lambda place, **how: Watched(**how), tmp_path)
    made.admit(*range(7), ended=True)
    return made


@pytest.fixture
def batch(kit: Kit) -> Batch:
    return kit.store.batches()[0]


def cancelled(item: StoredItem) -> Change:
    return change_of(item.n, item.place, move(item.place, Transition.CANCEL, stages=STAGES, code="over"))


def test_what_is_decided_is_written_in_groups(kit: Kit, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.acts.ACT_ITEMS", 3)
    items = kit.store.items(kit.batch)
    acts = Acts(kit.store, batch, BY).carry_out("cancelled", map(cancelled, items), seize=True, body=b"why")
    assert isinstance(kit.store, Watched)
    assert [len(act.at_items) for act in kit.store.acts] == [3, 3, 1]
    assert len({act.id for act in kit.store.acts}) == 3
    assert {(act.kind, act.actor, act.reason, act.seize, act.body) for act in kit.store.acts} == {
        ("cancelled", "ann", "because", True, b"why")
    }
    assert acts.result("cancelled").changed == 7
    assert kit.states() == [State.CANCELLED] * 7


def test_what_is_left_alone_is_counted_by_its_reason(kit: Kit, batch: Batch) -> None:
    items = kit.store.items(kit.batch)
    decided = [cancelled(each) if each.n % 2 else "even" for each in items]
    result = Acts(kit.store, batch, BY).carry_out("cancelled", decided).result("cancelled")
    assert (result.changed, dict(result.left_alone)) == (3, {"even": 4})


def test_what_moved_on_before_the_write_is_told(kit: Kit, batch: Batch) -> None:
    stale = [cancelled(each) for each in kit.store.items(kit.batch)]
    kit.finish(kit.claim(limit=2))
    result = Acts(kit.store, batch, BY).carry_out("cancelled", stale).result("cancelled", warning="mind")
    assert (result.changed, dict(result.left_alone), result.warning) == (5, {MEANWHILE: 2}, "mind")
    assert kit.states()[:2] == [State.DONE] * 2


def test_where_nothing_changes_nothing_is_written(kit: Kit, batch: Batch) -> None:
    acts = Acts(kit.store, batch, BY)
    assert acts.carry_out("reset", ["no"] * 3).write("reset", []) == []
    assert isinstance(kit.store, Watched)
    assert kit.store.acts == []


def test_groups_are_read_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.acts.ACT_ITEMS", 2)
    read: list[int] = []
    groups = grouped(read.append(n) or n for n in range(5))  # type: ignore[func-returns-value]
    assert (next(groups), read) == ([0, 1], [0, 1])
    assert list(groups) == [[2, 3], [4]]


@pytest.mark.parametrize(("actor", "reason"), [("ann", " "), ("", "because")])
def test_the_journal_keeps_who_and_why(actor: str, reason: str) -> None:
    with pytest.raises(UsageError, match="the journal keeps"):
        Actor(name=actor, reason=reason)
