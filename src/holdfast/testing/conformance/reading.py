"""Reading in pages, and the journal."""

import pytest

from holdfast.core import journal, sections
from holdfast.core.errors import UsageError
from holdfast.core.model import BatchId, State, chain_of_batch
from holdfast.core.outcome import Outcome
from holdfast.stores.base import each_entry, each_item, each_output, find_item, lineage
from holdfast.testing.conformance.kit import DEFINITION, Kit, cancel, done, failed, new_item, proves, reset, skipped
from holdfast.testing.conformance.opening import TWINS


def _mixed(kit: Kit) -> None:
    """Admit ten items: two of each state, the rest pending."""
    kit.admit(*range(10))
    claim = kit.claim("ann")
    items = kit.load(claim)
    kit.land(claim, [done(items[0]), done(items[5])])
    again = {int(item.n): item for item in kit.load(claim)}
    outcomes: list[Outcome] = [done(again[0]), done(again[5]), skipped(again[1]), skipped(again[6])]
    kit.land(
        claim,
        [*outcomes, failed(items[2], transient=False), failed(items[7], transient=False)],
        version=1,
        release=True,
    )
    kit.act("cancelled", cancel(3, kit.place(3)), cancel(8, kit.place(8)))


@proves()
def the_clock_is_free_and_a_mark_changes_nothing(kit: Kit) -> None:
    kit.admit("a")
    before = kit.everything()
    assert kit.store.mark(kit.batch) == kit.store.mark(kit.batch), "nobody has written"
    assert kit.everything() == before
    kit.store.close()
    kit.clock.advance(5.0)
    assert kit.store.now() == kit.clock(), "nobody is asked for the time: not even a store that is closed"


@proves("P3")
def items_are_read_by_state_in_order_and_in_pages(kit: Kit) -> None:
    _mixed(kit)
    expected = {
        State.DONE: [0, 5],
        State.SKIPPED: [1, 6],
        State.DEAD: [2, 7],
        State.CANCELLED: [3, 8],
        State.PENDING: [4, 9],
    }
    for state, numbers in expected.items():
        assert [row.n for row in kit.store.items(kit.batch, state=state)] == numbers
        assert [row.n for row in kit.store.items(kit.batch, state=state, limit=1)] == numbers[:1]
        assert [row.n for row in kit.store.items(kit.batch, state=state, lo=numbers[0] + 1)] == numbers[1:]
        assert [row.n for row in kit.store.items(kit.batch, state=state, hi=numbers[1])] == numbers[:1]
        assert {row.place.state for row in kit.store.items(kit.batch, state=state)} == {state}
    assert [row.n for row in kit.store.items(kit.batch, lo=3, hi=6)] == [3, 4, 5]
    assert [row.n for row in kit.store.items(kit.batch, limit=4)] == [0, 1, 2, 3]
    assert kit.store.items(kit.batch, lo=10) == []
    assert [row.n for row in each_item(kit.store, kit.batch, state=State.DEAD)] == [2, 7]
    kit.check()


@proves("P9")
def what_is_read_is_a_copy(kit: Kit) -> None:
    _mixed(kit)
    before = kit.everything()
    rows, chunks = kit.store.items(kit.batch), kit.store.chunks(kit.batch)
    with pytest.raises(AttributeError):
        rows[0].place.state = State.DEAD  # type: ignore[misc]
    with pytest.raises(AttributeError):
        chunks[0].fence = 0  # type: ignore[misc]
    rows.clear()
    chunks.clear()
    kit.store.batches().clear()
    kit.store.entries(1).clear()
    assert kit.everything() == before


@proves()
def items_of_an_unknown_batch_are_refused(kit: Kit) -> None:
    for state in (None, State.DEAD):
        with pytest.raises(UsageError):
            kit.store.items(BatchId(99), state=state)


@proves()
def outputs_are_read_in_the_order_of_items_and_stages(kit: Kit) -> None:
    _mixed(kit)
    outputs = kit.store.outputs(kit.batch)
    assert [(o.n, o.stage) for o in outputs] == [(0, 0), (0, 1), (5, 0), (5, 1)]
    assert [o.n for o in kit.store.outputs(kit.batch, stage=1)] == [0, 5]
    assert [o.n for o in kit.store.outputs(kit.batch, lo=1, hi=6, stage=0)] == [5]
    assert kit.store.outputs(kit.batch, limit=3) == outputs[:3]
    assert kit.store.outputs(kit.batch, lo=6) == []


@proves()
def every_output_is_read_whatever_the_page(kit: Kit) -> None:
    kit.admit(*range(1501))
    claim = kit.claim("ann", 2000)
    items = kit.store.load(claim, None, 2000, 1 << 30)
    kit.land(claim, [done(item) for item in items])
    items = kit.store.load(claim, None, 2000, 1 << 30)
    kit.land(claim, [done(item) for item in items[:700]], version=1)
    expected = [(n, stage) for n in range(1501) for stage in range(2 if n < 700 else 1)]
    assert [(o.n, o.stage) for o in each_output(kit.store, kit.batch)] == expected
    assert [o.n for o in each_output(kit.store, kit.batch, stage=1)] == list(range(700))
    assert [row.n for row in each_item(kit.store, kit.batch)] == list(range(1501))
    assert [row.n for row in each_item(kit.store, kit.batch, state=State.PENDING)] == list(range(700, 1501))


@proves()
def items_are_found_by_key(kit: Kit) -> None:
    kit.admit("a", 7, "b")
    assert [find_item(kit.store, kit.batch, key) for key in ("a", "7", "b", "c", "")] == [0, 1, 2, None, None]


@proves("P9")
def a_group_of_items_is_told_apart_without_changing_anything(kit: Kit) -> None:
    kit.admit("a", 7, "b")
    before = kit.everything()
    asked = [new_item("a"), new_item("c"), new_item("7", b'"other"'), new_item("b"), new_item("c"), new_item("b", b"1")]
    answer = dict(kit.store.known(kit.batch, asked))
    assert answer == {0: (0, True), 2: (1, False), 3: (2, True), 5: (2, False)}
    assert dict(kit.store.known(kit.batch, [])) == {}
    assert kit.everything() == before
    other = kit.store.open_batch("other", "pages", DEFINITION, actor="tester").id
    assert dict(kit.store.known(other, asked)) == {}
    with pytest.raises(UsageError):
        kit.store.known(BatchId(99), asked)


@proves()
def keys_that_share_their_number_are_told_apart(kit: Kit) -> None:
    kit.admit(TWINS[0], TWINS[1])
    answer = dict(kit.store.known(kit.batch, [new_item(twin) for twin in reversed(TWINS)]))
    assert answer == {1: (1, True), 2: (0, True)}


@proves("E12", "B11")
def entries_are_read_in_order_and_in_pages(kit: Kit) -> None:
    _mixed(kit)
    (chunk,) = kit.store.chunks(kit.batch)
    whole = kit.chain(chunk.id)
    assert [entry.seq for entry in whole] == list(range(1, len(whole) + 1)) == list(range(1, chunk.seq + 1))
    assert kit.store.entries(chunk.id, after=1, limit=2) == whole[1:3]
    assert kit.store.entries(chunk.id, after=len(whole)) == []
    assert list(each_entry(kit.store, chunk.id)) == whole
    assert kit.store.entries(12345) == []
    assert whole[-1].hash == chunk.head


@proves("B11", "E13")
def entries_once_written_never_change(kit: Kit) -> None:
    kit.admit(*"abcd")
    seen = kit.chain()
    claim = kit.claim("ann", 2)
    for version in range(2):
        kit.land(claim, [done(kit.load(claim)[0])], version=version)
    earlier = kit.chain(claim.lease.chunk)
    kit.act("reset", reset(0, kit.place(0)), seize=True)
    kit.finish(kit.claim("bob"))
    kit.admit("e", ended=True)
    assert kit.chain(claim.lease.chunk)[: len(earlier)] == earlier
    assert kit.chain()[: len(seen)] == seen


@proves("E12")
def every_chain_verifies_from_the_batch_to_the_chunk_to_its_child(kit: Kit) -> None:
    kit.admit(*"abcdef")
    kit.admit("g")
    for limit in (1, 2, 1, 5, 5):
        kit.finish(kit.claim("ann", limit))
    batch = kit.store.batches()[0]
    entries = kit.chain()
    own = journal.chain_of(batch)
    checked = journal.check_chain(entries, own, batch.id, start=journal.GENESIS, head=batch.head, seq=batch.seq)
    assert len(list(checked)) == 3
    chunks = {chunk.id: chunk for chunk in kit.store.chunks(kit.batch)}
    assert [chunk.id for chunk in lineage(list(chunks.values()), 5)] == [1, 3, 4, 5]
    starts = {1: entries[1].hash, 2: entries[2].hash}
    for number in sorted(chunks):
        start, chunk = starts[number], chunks[number]
        for entry, header in journal.check_chain(
            kit.chain(number), journal.chain_of(batch, chunk), batch.id, start=start, head=chunk.head, seq=chunk.seq
        ):
            body = sections.decode(entry, header)
            if isinstance(body, journal.Claimed) and body.child is not None:
                starts[body.child[0]] = start
            start = entry.hash
    assert starts.keys() == chunks.keys()
    kit.check()


@proves()
def the_chain_of_a_batch_has_its_own_number(kit: Kit) -> None:
    assert {entry.chain for entry in kit.chain()} == {chain_of_batch(kit.batch)} == {-kit.batch}
