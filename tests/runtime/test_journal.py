"""The journal reader: forward and backward, by kind, of one item, and no more reads than that takes."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.core import canonical, journal
from holdfast.core.course import to_note
from holdfast.core.model import Batch, Chunk, Entry
from holdfast.runtime.journal import backward, backward_of, first_hash, forward, forward_of, forward_over
from holdfast.stores.base import ENTRIES_AT_A_TIME
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance.kit import Kit

MANY = 2 * ENTRIES_AT_A_TIME + 3


class Counted(MemoryStore):
    """Counts how often entries are asked for, and how many."""

    asked = told = 0

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        self.asked += 1
        found = super().entries(chain, after=after, limit=limit)
        self.told += len(found)
        return found


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    def make(place: Path, **how: Any) -> Counted:
        return Counted(**how)

    return Kit(make, tmp_path)


def noted(kit: Kit, kind: str, number: int) -> None:
    body = journal.Acted(reason="noted", note=canonical.encode({"number": number}))
    kit.store.amend(kit.batch, to_note(kind, body), actor="ann")


def the_batch(kit: Kit) -> Batch:
    (found,) = kit.store.batches("book")
    return found


def cut_in_two(kit: Kit) -> tuple[Chunk, Chunk]:
    """A chunk that was worked on whole, then cut, and both parts of it worked on."""
    kit.admit(*range(4), ended=True)
    kit.land(kit.claim(), release=True)
    kit.land(kit.claim("bob", limit=2), release=True)
    kit.land(kit.claim("cid"), release=True)
    head, tail = kit.store.chunks(kit.batch)
    return head, tail


def test_forward_and_backward_tell_the_same_in_opposite_orders(kit: Kit) -> None:
    for number in range(MANY):
        noted(kit, "seen", number)
    batch = the_batch(kit)
    names = [each.name for each in forward(kit.store, batch)]
    assert len(names) == MANY + 1 == batch.seq
    assert [each.name for each in backward(kit.store, batch)] == names[::-1]


def test_entries_are_chosen_by_their_kind(kit: Kit) -> None:
    for number in range(MANY):
        noted(kit, "even" if number % 2 == 0 else "odd", number)
    batch = the_batch(kit)
    odd = [number for number in range(MANY) if number % 2]
    assert [each.note["number"] for each in forward(kit.store, batch, "odd")] == odd
    assert [each.note["number"] for each in backward(kit.store, batch, "odd")] == odd[::-1]
    assert [each.kind for each in forward(kit.store, batch, "opened", "none")] == ["opened"]


def test_a_stretch_of_a_chain_is_read_without_what_is_around_it(kit: Kit) -> None:
    for number in range(MANY):
        noted(kit, "seen", number)
    batch, store = the_batch(kit), kit.store
    assert isinstance(store, Counted)
    assert [each.seq for each in forward(store, batch, after=3, upto=6)] == [4, 5, 6]
    assert (store.asked, store.told) == (1, 3)
    assert [each.seq for each in backward(store, batch, most=3)] == [MANY + 1, MANY, MANY - 1]
    assert store.told == 6


def test_what_stands_behind_a_gap_is_not_within_the_stretch(kit: Kit) -> None:
    noted(kit, "seen", 0)
    batch = the_batch(kit)
    gap = [entry for entry in kit.chain() if entry.seq != 1]
    kit.store.entries = lambda *_, after=0, **__: [e for e in gap if e.seq > after]  # type: ignore[method-assign]
    assert [each.seq for each in forward(kit.store, batch, upto=1)] == []


def test_the_newest_is_read_alone(kit: Kit) -> None:
    for number in range(MANY):
        noted(kit, "seen", number)
    store = kit.store
    assert isinstance(store, Counted)
    assert next(backward(store, the_batch(kit), "seen")).note == {"number": MANY - 1}
    assert (store.asked, store.told) == (1, 1)


def test_entries_that_came_after_the_batch_was_read_are_not_among_its_newest(kit: Kit) -> None:
    noted(kit, "seen", 1)
    batch = the_batch(kit)
    noted(kit, "seen", 2)
    assert [each.note["number"] for each in backward(kit.store, batch, "seen")] == [1]
    assert [each.note["number"] for each in forward(kit.store, batch, "seen")] == [1, 2]


def test_an_item_is_followed_through_the_chunks_it_was_cut_from(kit: Kit) -> None:
    head, tail = cut_in_two(kit)
    chunks = kit.store.chunks(kit.batch)
    of_both = [each.name for each in forward(kit.store, head)], [each.name for each in forward(kit.store, tail)]
    assert [each.name for each in forward_of(kit.store, chunks, 3)] == of_both[0] + of_both[1]
    assert [each.name for each in forward_of(kit.store, chunks, 0)] == of_both[0]
    assert [each.name for each in backward_of(kit.store, chunks, 3)] == (of_both[0] + of_both[1])[::-1]


def test_several_chunks_are_read_parents_first_whatever_their_order(kit: Kit) -> None:
    head, tail = cut_in_two(kit)
    names = [each.name for chunk in (head, tail) for each in forward(kit.store, chunk)]
    assert [each.name for each in forward_over(kit.store, [tail, head])] == names
    claims = [each.actor for each in forward_over(kit.store, [tail, head], "claimed")]
    assert claims == ["ann", "bob", "cid"]


def test_an_entry_tells_who_when_and_what(kit: Kit) -> None:
    kit.clock.advance(7.0)
    noted(kit, "seen", 1)
    entry = next(forward(kit.store, the_batch(kit), "seen"))
    assert (entry.kind, entry.at, entry.actor, entry.seq) == ("seen", kit.clock(), "ann", 2)
    assert entry.told(journal.Acted).reason == "noted"
    with pytest.raises(AssertionError, match="Acted, not Sealed"):
        entry.told(journal.Sealed)


def test_a_batch_is_known_by_the_hash_of_its_first_entry(kit: Kit) -> None:
    first = kit.chain()[0].hash.hex()
    noted(kit, "seen", 1)
    assert first_hash(kit.store, the_batch(kit)) == first
