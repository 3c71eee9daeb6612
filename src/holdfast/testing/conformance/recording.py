"""The record: commitments, salts, words apart from entries, revisions, windows of stages, grants, chains that end,
and copies of whole batches."""

from collections import Counter
from typing import TypeGuard
from unittest import mock

import msgspec
import pytest

from holdfast.core import commitments, course, journal, lease, record, sections
from holdfast.core.errors import ChainBroken, Refused
from holdfast.core.journal import Ingested
from holdfast.core.model import (
    Claim,
    CommitRefusal,
    Entry,
    ItemNo,
    ItemOrigin,
    Kind,
    NewItem,
    Receipt,
    State,
    TextFrame,
    chain_of_batch,
)
from holdfast.stores.base import Idle, Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance.kit import (
    DEFINITION,
    HeldCopy,
    Kit,
    done,
    failed,
    new_item,
    proves,
    redrive,
    reset,
    skipped,
)

LOST = [Receipt(landed=False, reason=CommitRefusal.LOST)]


def everything_written(kit: Kit) -> list[Entry]:
    chains = [chain_of_batch(kit.batch), *(chunk.id for chunk in kit.store.chunks(kit.batch))]
    return [entry for chain in chains for entry in kit.chain(chain)]


# -- grants -------------------------------------------------------------------------------------------------------


@proves("C1", "C3", "C8")
def every_grant_has_a_random_id_of_its_own(kit: Kit) -> None:
    kit.admit(*"abcdef")
    claims = [kit.claim("ann", 1) for _ in range(3)]
    kit.land(claims[0], release=True)
    claims.append(kit.claim("ann", 1))
    assert len({claim.lease.grant for claim in claims}) == 4
    assert {len(claim.lease.grant) for claim in claims} == {commitments.GRANT_BYTES}
    kit.check()


@proves("C3", "C8", "C13")
def a_commit_of_another_grant_with_the_same_fence_and_version_is_refused(kit: Kit) -> None:
    """As after a restore: a copy of the store has handed out the same fence to another owner."""
    kit.admit("a")
    claim = kit.claim("ann")
    elsewhere = msgspec.structs.replace(kit.commit_of(claim, [done(kit.load(claim)[0])]), grant=b"restored")
    before = kit.everything()
    assert kit.store.commit([elsewhere]) == LOST
    released = msgspec.structs.replace(kit.commit_of(claim, release=True), grant=b"restored")
    assert kit.store.commit([released]) == LOST
    assert kit.everything() == before
    kit.land(claim, [done(kit.load(claim)[0])])
    kit.check()


@proves("C3", "C7")
def a_lease_of_another_grant_with_the_same_owner_and_fence_is_not_renewed(kit: Kit) -> None:
    kit.admit("a")
    lease_ = kit.claim("ann").lease
    assert kit.store.renew([msgspec.structs.replace(lease_, grant=b"restored")], 60) == []
    assert [kept.grant for kept in kit.store.renew([lease_], 60)] == [lease_.grant]


@proves("E12")
def every_entry_of_an_owner_names_its_grant(kit: Kit) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    kit.land(claim, [failed(kit.load(claim)[0], transient=False)], release=True)
    kit.act("redriven", redrive(0, kit.place(0)))
    headers = [journal.decode_header(entry.head) for entry in kit.chain(claim.lease.chunk)]
    assert [(header.kind, header.grant) for header in headers] == [
        ("claimed", claim.lease.grant), ("checkpoint", claim.lease.grant), ("redriven", b"")]  # fmt: skip
    assert {(header.uid, header.chain) for header in headers} == {(claim.uid, claim.number)}


# -- commitments --------------------------------------------------------------------------------------------------


@proves("E5", "E12")
def every_piece_of_content_has_a_salt_of_its_own(kit: Kit) -> None:
    kit.admit("a", "b", payload=b"the same")
    claim = kit.claim()
    items = kit.load(claim)
    kit.land(claim, [done(item) for item in items])
    kit.land(claim, [done(item) for item in kit.load(claim)], version=1, release=True)
    kit.admit("part", kind=Kind.PARTITIONS)
    claim = kit.claim()
    (part,) = kit.load(claim)
    for version in range(2):
        written = kit.reach(claim, part, 10 * (version + 1), acc=b"[1]", version=version)
        assert kit.store.commit([written])[0].landed
    salts = [row.salt for row in kit.store.items(kit.batch)] + [o.salt for o in kit.store.outputs(kit.batch)]
    salts += [at.salt for at in kit.store.checkpoints(kit.batch)]
    for entry in everything_written(kit):
        salts += [frame[: commitments.SALT_BYTES] for _, frame in journal.frames_of(entry.body)]
        salts += [text.frame[: commitments.SALT_BYTES] for text in entry.texts if text.frame is not None]
    assert len(salts) > 15
    assert {len(salt) for salt in salts} == {commitments.SALT_BYTES}
    assert Counter(salts).most_common(1)[0][1] == 1, "no salt protects two pieces of content"
    kit.check()


@proves("E5")
def the_journal_has_a_commitment_to_every_output_with_its_own_salt(kit: Kit) -> None:
    kit.admit(*"ab")
    claim = kit.claim()
    items = kit.load(claim)
    kit.land(claim, [done(items[1]), failed(items[0])])
    (advanced,) = _commit(kit, claim).advanced
    (output,) = kit.store.outputs(kit.batch)
    assert advanced.digests == record.of_output(claim.uid, output)
    other = msgspec.structs.replace(output, data=b"another")
    assert record.of_output(claim.uid, other) != advanced.digests


def _commit(kit: Kit, claim: Claim) -> journal.Checkpointed:
    body = kit.last(claim.lease.chunk)
    assert isinstance(body, journal.Checkpointed)
    return body


@proves("E1", "E13")
def an_item_that_validation_changed_has_a_commitment_to_what_was_given(kit: Kit) -> None:
    items = [NewItem("a", b"1", raw=b'"1"'), NewItem("b", b"2"), NewItem("c", b"3", raw=b'"3"')]
    kit.store.add_items(kit.batch, items, origin=ItemOrigin(source="a list", schema="f00d"), actor="ann")
    body = kit.last()
    assert isinstance(body, Ingested)
    assert (body.source, body.schema, list(body.raw_items or ())) == ("a list", "f00d", [0, 2])
    rows, uid = kit.store.items(kit.batch), kit.store.batches()[0].uid
    assert [bool(row.raw_salt) for row in rows] == [True, False, True]
    given = [commitments.raw(uid, row.key, 0, row.raw_salt, b'"%b"' % row.payload) for row in rows if row.raw_salt]
    assert body.raws == b"".join(given)
    kit.check()


# -- sections and words -------------------------------------------------------------------------------------------


@proves("E12", "E16")
def an_entry_has_a_section_for_each_boundary_it_speaks_of(kit: Kit) -> None:
    kit.admit(*"abc")
    claim = kit.claim()
    a, b, c = kit.load(claim)
    kit.land(claim, [done(a), failed(b), failed(c, transient=False)])
    a, b = kit.load(claim)
    kit.clock.advance(60)
    kit.land(claim, [done(a), done(b)], version=1, release=True)
    first, second = kit.chain(claim.lease.chunk)[1:]
    told = [[boundary for boundary, _ in journal.decode_header(entry.head).sections] for entry in (first, second)]
    assert told == [[sections.FALLBACK, 0], [sections.CONTROL, 0, 1]]
    opened, ingested = (journal.decode_header(entry.head).sections for entry in kit.chain())
    assert ([boundary for boundary, _ in opened], [boundary for boundary, _ in ingested]) == (
        [sections.CONTROL], [sections.INGESTION])  # fmt: skip


@proves("E12")
def words_stand_beside_an_entry_and_not_in_it(kit: Kit) -> None:
    kit.admit("a")
    kit.store.add_items(kit.batch, [new_item(None, b"refused")])
    claim = kit.claim()
    kit.land(claim, [failed(kit.load(claim)[0], transient=False)], release=True)
    kit.act("redriven", redrive(0, kit.place(0)))
    words = [b"no answer", b"because", b"its key is None"]
    for entry in everything_written(kit):
        assert not any(each in entry.body or each in entry.head for each in words)
    frames = b"".join(text.frame or b"" for entry in everything_written(kit) for text in entry.texts)
    assert all(each in frames for each in words)
    kit.check()


@proves("E12")
def words_can_be_removed_and_the_chain_still_verifies(kit: Kit) -> None:
    kit.admit(*"ab")
    claim = kit.claim()
    kit.land(claim, [failed(item, transient=False) for item in kit.load(claim)], release=True)
    batch, (chunk,) = kit.store.batches()[0], kit.store.chunks(kit.batch)
    entry = kit.chain(chunk.id)[-1]
    bare = msgspec.structs.replace(entry, texts=(msgspec.structs.replace(entry.texts[0], frame=None), entry.texts[1]))
    header = journal.check(bare, kit.chain(chunk.id)[-2].hash, journal.chain_of(batch, chunk), batch.id)
    body = sections.decode(bare, header)
    assert isinstance(body, journal.Checkpointed)
    assert [(a.n, a.code, a.message) for a in body.attempts] == [(0, "http_404", ""), (1, "http_404", "no answer")]
    assert sections.check_texts(bare, header) == sections.TextCheck(shown=1, removed=1)
    swapped = msgspec.structs.replace(entry, texts=entry.texts[::-1])
    assert sections.check_texts(swapped, header).changed
    forged = TextFrame(0, sections.FALLBACK, bytes(16) + b"\x92\xa0\xa0")
    assert sections.check_texts(msgspec.structs.replace(entry, texts=(forged, entry.texts[1])), header).changed


@proves("E12")
def a_section_cannot_be_changed_moved_or_left_out(kit: Kit) -> None:
    kit.admit(*"ab")
    claim = kit.claim()
    a, b = kit.load(claim)
    kit.land(claim, [done(a), failed(b, transient=False)], release=True)
    batch, (chunk,) = kit.store.batches()[0], kit.store.chunks(kit.batch)
    entries = kit.chain(chunk.id)
    chain, frames = journal.chain_of(batch, chunk), journal.frames_of(entries[1].body)
    for wrong in (frames[::-1], frames[:-1], [(boundary, data[:-1]) for boundary, data in frames]):
        forged = msgspec.structs.replace(entries[1], body=msgspec.msgpack.encode(wrong))
        with pytest.raises(ChainBroken, match="body was changed"):
            journal.check(forged, entries[0].hash, chain, batch.id)
    for other in (chain._replace(uid=bytes(16)), chain._replace(number=chain.number + 1)):
        with pytest.raises(ChainBroken, match="moved or copied"):
            journal.check(entries[1], entries[0].hash, other, batch.id)


# -- revisions ----------------------------------------------------------------------------------------------------


@proves("E5", "E8", "E13")
def a_corrected_payload_is_the_next_revision_of_the_same_item(kit: Kit) -> None:
    kit.admit("a", payload=b"1")
    kit.finish(kit.claim())
    for number, payload in ((1, b"2"), (2, b"3")):
        change = msgspec.structs.replace(reset(0, kit.place(0)), renewed=new_item("a", payload))
        assert kit.act("renewed", change) == [0]
        (row,) = kit.store.items(kit.batch)
        assert (row.payload, row.revision, row.place.epoch) == (payload, number, number)
        claim = kit.claim()
        (item,) = kit.load(claim)
        assert (item.input, item.revision) == (payload, number)
        kit.finish(claim)
    kept = kit.store.revisions(kit.batch, ItemNo(0))
    assert [(row.revision, row.payload) for row in kept] == [(0, b"1"), (1, b"2"), (2, b"3")]
    uid = kit.store.batches()[0].uid
    told = [moved.digest for entry in everything_written(kit) for moved in _moved(entry) if moved.digest]
    assert told == [commitments.payload(uid, "a", row.revision, row.salt, row.payload) for row in kept[1:]]
    assert kit.store.revisions(kit.batch, ItemNo(7)) == []
    assert kit.store.batches()[0].admitted == 1
    assert kit.admit("a", payload=b"3").known == 1
    assert [index for index, _ in kit.admit("a", payload=b"2").changed] == [0], (
        "only the newest revision is its payload"
    )
    kit.check()


def _moved(entry: Entry) -> list[journal.Moved]:
    body = sections.decode(entry)
    return body.items if isinstance(body, journal.Acted) else []


# -- windows and parents ------------------------------------------------------------------------------------------


@proves("A2")
def items_pass_only_through_the_window_of_their_chunk(kit: Kit) -> None:
    kit.store.add_items(kit.batch, [new_item("a"), new_item("b")], origin=ItemOrigin(leg=0, first=0, end=1))
    kit.store.add_items(kit.batch, [new_item("c")], origin=ItemOrigin(leg=1, first=1, end=2))
    assert [(chunk.leg, chunk.first, chunk.end) for chunk in kit.store.chunks(kit.batch)] == [(0, 0, 1), (1, 1, 2)]
    assert [row.place.stage for row in kit.store.items(kit.batch)] == [0, 0, 1]
    first = kit.claim("ann", limit=1)
    assert (first.first, first.end) == (0, 1)
    kit.land(first, [done(kit.load(first)[0])], release=True)
    rest = kit.claim("bob")
    assert (rest.lo, rest.first, rest.end) == (1, 0, 1), "a chunk that is cut off has the same window"
    kit.land(rest, [failed(kit.load(rest)[0], transient=False)], release=True)
    later = kit.claim("eve")
    (item,) = kit.load(later)
    assert (item.place.stage, item.input) == (1, new_item("c").payload)
    kit.land(later, [done(item)], release=True)
    assert kit.states() == [State.DONE, State.DEAD, State.DONE]
    assert [row.place.stage for row in kit.store.items(kit.batch)] == [1, 0, 2]
    kit.check()


@proves("E13")
def an_item_may_have_a_parent_which_the_journal_names(kit: Kit) -> None:
    kit.admit("doc")
    children = [NewItem(f"doc/{n}", b"%d" % n, parent=ItemNo(0)) for n in range(2)]
    kit.store.add_items(kit.batch, children)
    assert [row.parent for row in kit.store.items(kit.batch)] == [None, 0, 0]
    body = kit.last()
    assert isinstance(body, Ingested)
    assert body.parents == [(1, 0), (2, 0)]
    kit.check()


# -- chains that end ----------------------------------------------------------------------------------------------


@proves("B11", "E12")
def a_long_chain_ends_and_its_successor_takes_everything_over(kit: Kit) -> None:
    kit.admit("feed", kind=Kind.PARTITIONS)
    with mock.patch.object(lease, "CHAIN_ENTRIES", 6):
        for turn in range(6):
            claim = kit.claim("ann")
            (item,) = kit.load(claim)
            rows = 10 * (turn + 1)
            outcomes = [failed(item, usd=5)] if turn == 0 else []
            assert kit.store.commit([kit.reach(claim, item, rows, acc=b"[%d]" % rows, outcomes=outcomes)])[0].landed
            assert kit.store.commit([kit.commit_of(claim, version=1, release=True)])[0].landed
            kit.clock.advance(60)
    chunks = kit.store.chunks(kit.batch)
    assert [(chunk.lo, chunk.hi, chunk.number) for chunk in chunks] == [(0, 0, 1), (0, 0, 2), (0, 1, 3)]
    assert [chunk.parent for chunk in chunks] == [None, *(chunk.id for chunk in chunks[:2])]
    assert [chunk.fence - chunks[0].fence for chunk in chunks] == [0, 2, 4], "fences only grow"
    assert [(chunk.counts.attempts, chunk.counts.spent) for chunk in chunks] == [(0, 0), (0, 0), (1, 5)]
    assert kit.kinds(chunks[0].id)[-1] == "ended"
    assert kit.kinds(chunks[1].id)[0] == "continued"
    (at,) = kit.store.checkpoints(kit.batch)
    assert (at.rows, at.acc) == (60, b"[60]")
    assert [chunk.id for chunk in kit.store.chunks(kit.batch, of=ItemNo(0))] == [chunks[-1].id]
    first = sections.decode(kit.chain(chunks[1].id)[0])
    last = kit.chain(chunks[0].id)[-1]
    assert isinstance(first, journal.Continued)
    assert (first.predecessor, first.seq, first.head) == (1, last.seq, last.hash)
    kit.check()


@proves("A7", "E12")
def a_chain_ends_although_its_owner_died(kit: Kit) -> None:
    """The successor is granted as its chunk would have been: it is known whose it was, and who is to blame."""
    kit.admit("feed", kind=Kind.PARTITIONS)
    with mock.patch.object(lease, "CHAIN_ENTRIES", 3):
        for turn in range(9):
            claim = kit.claim(f"owner {turn}")
            if turn % 3 == 0:
                assert kit.store.commit([kit.reach(claim, kit.load(claim)[0], turn + 1)])[0].landed
            kit.clock.advance(1000)
    assert sum(chunk.is_ended for chunk in kit.store.chunks(kit.batch)) > 1
    taken = [body.taken_from for body in map(sections.decode, everything_written(kit)) if _is_grant(body)]
    assert taken == ["", *(f"owner {turn}" for turn in range(8))]
    kit.check()


def _is_grant(body: journal.Body) -> TypeGuard[journal.Claimed]:
    return isinstance(body, journal.Claimed)


@proves("C13", "E12")
def an_owner_from_before_the_end_of_a_chain_cannot_commit(kit: Kit) -> None:
    kit.admit("feed", kind=Kind.PARTITIONS)
    with mock.patch.object(lease, "CHAIN_ENTRIES", 1):
        slow = kit.claim("ann")
        (item,) = kit.load(slow)
        kit.clock.advance(100)
        claim = kit.claim("bob")
    assert claim.lease.chunk != slow.lease.chunk
    assert kit.store.commit([kit.reach(slow, item, 10)]) == LOST
    assert kit.store.renew([slow.lease], 60) == []
    assert kit.store.commit([kit.reach(claim, item, 20)])[0].landed
    kit.check()


# -- copies of batches --------------------------------------------------------------------------------------------


def with_everything(kit: Kit, store: Store) -> Kit:
    """Return a new batch of a store in which everything occurs that a copy has to take over."""
    there = kit.at(store, store.open_batch("novel", "pages", DEFINITION, actor="tester").id)
    _work_on_items(there)
    _work_on_partitions(there)
    store.add_items(there.batch, [NewItem("a/1", b"1", parent=ItemNo(0))], origin=ItemOrigin(leg=1, first=1, end=2))
    store.amend(there.batch, NOTE, actor="ann")
    there.check()
    return there


def _elsewhere(kit: Kit) -> Kit:
    """Return such a batch in a memory store, where it is the second."""
    memory = MemoryStore(clock=kit.clock, is_dead=kit.dead.__contains__)
    memory.open_batch("elsewhere", "pages", DEFINITION, actor="tester")
    return with_everything(kit, memory)


NOTE = course.to_note("told", journal.Acted(reason="so"), once=True)


def _work_on_items(kit: Kit) -> None:
    """Leave items that are done, skipped, dead with words, waiting, half-way, new and corrected twice, in chunks that
    were cut off one another."""
    raw = NewItem("b", b"2", raw=b'"2"')
    kit.store.add_items(kit.batch, [new_item("a"), raw, *(new_item(key) for key in "cdefgh")], actor="ann")
    kit.store.add_items(kit.batch, [new_item(None, b"refused")], actor="ann")
    claim = kit.claim("ann", limit=6)
    a, b, c, d, e, _ = kit.load(claim)
    kit.land(claim, [done(a, usd=3), done(b), skipped(c), failed(d, transient=False), failed(e)])
    kit.land(claim, [done(kit.load(claim)[0])], version=1, release=True)
    kit.land(kit.claim("bob", limit=1, only=1), release=True)
    for payload in (b"20", b"200"):
        change = msgspec.structs.replace(reset(0, kit.place(0)), renewed=NewItem("a", payload, raw=b"r" + payload))
        assert kit.act("renewed", change) == [0]
    change = msgspec.structs.replace(reset(2, kit.place(2)), renewed=new_item("c", b"30"))
    assert kit.act("renewed", change) == [2]


def _work_on_partitions(kit: Kit) -> None:
    """Leave a partition whose chain has ended, with a small accumulator, and one with a large one."""
    for key, acc in (("feed", b"[1]"), ("large", b"[%b]" % (b"1" * 10_000))):
        n = kit.admit(key, kind=Kind.PARTITIONS).lo
        with mock.patch.object(lease, "CHAIN_ENTRIES", 3):
            for turn in range(2):
                claim = kit.claim("ann", only=n)
                (item,) = kit.load(claim)
                assert kit.store.commit([kit.reach(claim, item, 10 * (turn + 1), acc=acc)])[0].landed
                assert kit.store.commit([kit.commit_of(claim, version=1, release=True)])[0].landed


@proves("B7", "E12", "E13", "C8")
def a_batch_of_another_store_is_installed_as_it_was(kit: Kit) -> None:
    kit.admit(*"ab")
    kit.finish(kit.claim())
    mine, there = kit.everything(), _elsewhere(kit)
    copy = HeldCopy(there.store, there.batch)
    made = kit.store.install(copy)
    here = kit.at(kit.store, made.id)
    assert made in kit.store.batches()
    assert HeldCopy(kit.store, made.id).content() == copy.content()
    assert (kit.store.batches("book"), *kit.everything()[1:]) == mine, "the batch that was there is unchanged"
    here.check()
    back = MemoryStore(clock=kit.clock)
    again = back.install(HeldCopy(kit.store, made.id))
    assert HeldCopy(back, again.id).content() == copy.content()


@proves("A1", "C3", "E2")
def work_continues_on_an_installed_batch(kit: Kit) -> None:
    there = _elsewhere(kit)
    here = kit.at(kit.store, kit.store.install(HeldCopy(there.store, there.batch)).id)
    fences = {chunk.number: chunk.fence for chunk in there.store.chunks(there.batch)}
    kit.clock.advance(100)
    known = kit.store.known(here.batch, [new_item("b", b"2"), new_item("a", b"200"), new_item("a", b"20")])
    assert known == {0: (1, True), 1: (0, True), 2: (0, False)}, "payloads are compared with the newest revision"
    while not isinstance(claim := kit.store.claim(here.want(limit=2)), Idle):
        assert claim.lease.fence > fences.get(claim.number, 0)
        assert {item.key: item.input for item in here.load(claim)}.get("a", b"200") in (b"200", b"200|0")
        here.land(claim, [done(item) for item in here.load(claim)], release=True)
    assert State.PENDING not in here.states()
    (dead,) = (row for row in kit.store.items(here.batch, state=State.DEAD) if row.key == "d")
    assert here.act("redriven", redrive(dead.n, dead.place)) == [dead.n]
    here.check()
    added = here.admit("a", "new")
    assert (added.known, added.added) == (1, 1)
    here.check()
    assert HeldCopy(there.store, there.batch).batch.admitted == added.lo, "the source is unchanged"


@proves("B7")
def a_batch_is_installed_once_and_its_notes_are_known(kit: Kit) -> None:
    there = _elsewhere(kit)
    copy = HeldCopy(there.store, there.batch)
    here = kit.at(kit.store, kit.store.install(copy).id)
    before = here.everything()
    other = HeldCopy(there.store, there.batch)
    other.batch = msgspec.structs.replace(other.batch, uid=bytes(16))
    renamed = HeldCopy(there.store, there.batch)
    renamed.batch = msgspec.structs.replace(renamed.batch, name="another")
    for wrong in (copy, other, renamed):
        with pytest.raises(Refused, match="nothing was changed"):
            kit.store.install(wrong)
    assert not kit.store.amend(here.batch, NOTE, actor="ann").written
    assert here.everything() == before
    later = course.to_note("told", journal.Acted(reason="so on"), once=True)
    assert kit.store.amend(here.batch, later, actor="ann").written
    here.check()


@proves("C1")
def a_batch_that_is_being_worked_on_is_not_installed(kit: Kit) -> None:
    there = _elsewhere(kit)
    there.claim("ann", limit=1, only=7)
    before = kit.everything()
    with pytest.raises(Refused, match="being worked on"):
        kit.store.install(HeldCopy(there.store, there.batch))
    assert kit.everything() == before


@proves("A6", "B7")
def a_sealed_batch_is_installed_sealed(kit: Kit) -> None:
    memory = MemoryStore(clock=kit.clock)
    there = kit.at(memory, memory.open_batch("novel", "pages", DEFINITION, actor="tester").id)
    there.admit(*"ab", ended=True)
    there.finish(there.claim())
    memory.seal(there.batch, actor="ann", reconciliation=b"{}")
    made = kit.store.install(HeldCopy(memory, there.batch))
    here = kit.at(kit.store, made.id)
    assert made.sealed_at is not None
    with pytest.raises(Refused, match="sealed"):
        here.act("reset", reset(0, here.place(0)))
    kit.store.amend(made.id, course.to_reopen("a mistake"), actor="ann")
    assert here.act("reset", reset(0, here.place(0))) == [0]
    here.finish(here.claim())
    here.check()
