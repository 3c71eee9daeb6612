"""The chain: whatever is changed, taken out, put in or cut off is found, and the error names the entry. So it is in
chains of format 1, which are no longer written."""

import hashlib
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import commitments, journal, sections
from holdfast.core.errors import ChainBroken
from holdfast.core.journal import GENESIS, Chain, Header, Numbers, check, check_chain, link, numbers
from holdfast.core.model import BatchId, Entry
from tests.core.made import GRANT, NOW, PROPERTY, UID, seeded

replace = msgspec.structs.replace
CHUNK, NUMBER = 7, 3
"""The number of the chunk in its store, and in its batch."""
PLACE = Chain(UID, NUMBER, CHUNK)
BATCH = BatchId(1)
LENGTH = 200
FIRST_LENGTH = 40


def body_of(seq: int) -> journal.Body:
    """Bodies of the kinds and sizes that chains have: with one section and with several."""
    if seq % 5 == 1:
        return journal.Claimed(lo=0, hi=50, expires=NOW + seq)
    told = journal.Attempted(n=seq, stage=1, attempt=1, epoch=0, outcome="retry", code="http_503")
    return journal.Checkpointed(attempts=[told], released=seq % 5 == 0)


def chain_of(length: int, *, place: Chain = PLACE, start: bytes = GENESIS, first: int = 1) -> list[Entry]:
    entries, draw = list[Entry](), seeded(place.number)
    for seq in range(first, first + length):
        id_ = seq.to_bytes(16, "big")
        encoded = sections.encode(body_of(seq), place.uid, place.number, id_, draw)
        entry = link(start, place, seq=seq, kind="checkpoint", at=NOW + seq, actor="ann", fence=3, grant=GRANT,
                     commit_id=id_, encoded=encoded)  # fmt: skip
        entries.append(entry)
        start = entry.hash
    return entries


def first_chain_of(length: int) -> list[Entry]:
    """A chain as versions with format 1 wrote it."""
    entries, prev = list[Entry](), GENESIS
    for seq in range(1, length + 1):
        body = journal.encode_content(body_of(seq))
        header = journal.FirstHeader(CHUNK, BATCH, seq, "checkpoint", NOW + seq, "ann", 3, seq.to_bytes(16, "big"),
                                     hashlib.sha256(body).digest())  # fmt: skip
        head = msgspec.msgpack.encode(header)
        prev = hashlib.sha256(prev + head).digest()
        entries.append(Entry(chain=CHUNK, seq=seq, head=head, body=body, hash=prev))
    return entries


CHAIN = chain_of(LENGTH)
FIRST = first_chain_of(FIRST_LENGTH)
MIXED = [*FIRST, *chain_of(20, start=FIRST[-1].hash, first=FIRST_LENGTH + 1)]
"""A chain of format 1 that continues in format 2."""


def checked(entries: Sequence[Entry], of: Sequence[Entry], *, start: bytes = GENESIS) -> list[Header]:
    """The headers of the entries; the store knows the head of the true chain."""
    found = check_chain(entries, PLACE, BATCH, start=start, head=of[-1].hash, seq=len(of))
    return [header for _, header in found]


def walk(entries: Sequence[Entry], *, start: bytes = GENESIS, of: Sequence[Entry] = CHAIN) -> int:
    """How many entries verify."""
    return len(checked(entries, of, start=start))


@pytest.mark.promise("E12")
@pytest.mark.parametrize("chain", [CHAIN, FIRST, MIXED], ids=["format 2", "format 1", "both"])
def test_a_chain_that_nobody_touched_verifies(chain: list[Entry]) -> None:
    assert walk(chain, of=chain) == len(chain)
    assert [(header.seq, header.fence, header.actor) for header in checked(chain, chain)] == [
        (seq, 3, "ann") for seq in range(1, len(chain) + 1)
    ]


def test_a_header_says_its_format_its_batch_and_its_grant() -> None:
    old, new = checked(MIXED, MIXED)[0], checked(MIXED, MIXED)[-1]
    assert (new.format, new.uid, new.chain, new.grant, new.batch) == (2, UID, NUMBER, GRANT, 0)
    assert (old.format, old.uid, old.chain, old.grant, old.batch) == (1, b"", CHUNK, b"", BATCH)


def test_a_header_of_a_later_format_is_not_guessed_at() -> None:
    later = msgspec.msgpack.encode([3, *msgspec.msgpack.decode(CHAIN[0].head)[1:]])
    with pytest.raises(ChainBroken, match="it has format 3, which this version does not know"):
        check(replace(CHAIN[0], head=later), None, PLACE, BATCH)


def test_an_empty_chain_verifies_when_the_store_says_it_is_empty() -> None:
    assert list(check_chain([], PLACE, BATCH, start=GENESIS, head=GENESIS, seq=0)) == []
    with pytest.raises(ChainBroken, match="the chain ends at entry 0, but the store's head is entry 3"):
        list(check_chain([], PLACE, BATCH, start=GENESIS, head=CHAIN[2].hash, seq=3))


def flips(data: bytes) -> list[bytes]:
    """The bytes with one bit turned over, for every bit."""
    number = int.from_bytes(data, "big")
    return [(number ^ (1 << bit)).to_bytes(len(data), "big") for bit in range(8 * len(data))]


@pytest.mark.promise("E12")
@pytest.mark.parametrize("chain", [CHAIN, FIRST], ids=["format 2", "format 1"])
def test_every_flipped_bit_is_found_and_its_entry_named(chain: list[Entry], tally: Callable[..., None]) -> None:
    found, prev = 0, GENESIS
    for entry in chain:
        here = f"entry {entry.seq} of chunk {CHUNK}"
        for field in ("head", "body", "hash"):
            for flipped in flips(getattr(entry, field)):
                try:
                    check(replace(entry, **{field: flipped}), prev, PLACE, BATCH)
                except ChainBroken as error:
                    found += here in str(error)
                else:
                    pytest.fail(f"a bit of {here} was turned over in its {field}, and nobody noticed")
        prev = entry.hash
    bits = sum(8 * (len(entry.head) + len(entry.body) + len(entry.hash)) for entry in chain)
    assert found == bits
    tally(flipped_bits=bits)


@pytest.mark.promise("E12")
@pytest.mark.parametrize("field", ["head", "body", "hash"])
def test_a_flipped_bit_stops_the_walk_at_its_entry(field: str) -> None:
    for at, entry in enumerate(CHAIN):
        changed = [*CHAIN[:at], replace(entry, **{field: flips(getattr(entry, field))[at]}), *CHAIN[at + 1 :]]
        with pytest.raises(ChainBroken, match=f"entry {at + 1} of chunk {CHUNK}:"):
            walk(changed)


@pytest.mark.promise("E12")
def test_an_entry_under_another_number_or_in_another_chain_is_found() -> None:
    with pytest.raises(ChainBroken, match="entry 5 of chunk 7 is missing: entry 6 follows entry 4"):
        walk([*CHAIN[:4], replace(CHAIN[4], seq=6), *CHAIN[5:]])
    for there in (PLACE._replace(number=4), PLACE._replace(uid=bytes(16)), PLACE._replace(number=0)):
        with pytest.raises(
            ChainBroken, match="entry 5 of chunk 7: its header says it is entry 5 of chunk 3 of another"
        ):
            check(CHAIN[4], CHAIN[3].hash, there, BATCH)
    for there, batch in ((PLACE._replace(id=8), 1), (PLACE, 2)):
        with pytest.raises(
            ChainBroken, match="entry 5 of chunk 7: its header says it is entry 5 of chunk 7 of another"
        ):
            check(FIRST[4], FIRST[3].hash, there, BatchId(batch))


@pytest.mark.promise("E12")
def test_a_chain_means_the_same_in_every_store() -> None:
    moved = [replace(entry, chain=70) for entry in CHAIN]
    found = check_chain(moved, PLACE._replace(id=70), BatchId(9), start=GENESIS, head=CHAIN[-1].hash, seq=LENGTH)
    assert len(list(found)) == LENGTH


def without(at: int) -> list[Entry]:
    return [*CHAIN[:at], *CHAIN[at + 1 :]]


@pytest.mark.promise("E12")
@pytest.mark.parametrize("at", [0, 1, 99, 198])
def test_an_entry_that_was_taken_out_is_named(at: int) -> None:
    with pytest.raises(ChainBroken, match=f"entry {at + 1} of chunk 7 is missing: entry {at + 2} follows entry {at}"):
        walk(without(at))


@pytest.mark.promise("E12")
@pytest.mark.parametrize("at", [0, 1, 99, 198])
def test_an_entry_that_was_taken_out_and_the_rest_moved_up_is_found(at: int) -> None:
    moved = [replace(entry, seq=seq) for seq, entry in enumerate(without(at), start=1)]
    with pytest.raises(ChainBroken, match=f"entry {at + 1} of chunk 7"):
        walk(moved)


@pytest.mark.promise("E12")
@pytest.mark.parametrize("at", [0, 1, 99, 198])
def test_two_entries_that_changed_places_are_found(at: int) -> None:
    one, other = CHAIN[at], CHAIN[at + 1]
    with pytest.raises(ChainBroken, match=f"entry {at + 1} of chunk 7"):
        walk([*CHAIN[:at], other, one, *CHAIN[at + 2 :]])
    renumbered = [replace(other, seq=one.seq), replace(one, seq=other.seq)]
    with pytest.raises(ChainBroken, match=f"entry {at + 1} of chunk 7"):
        walk([*CHAIN[:at], *renumbered, *CHAIN[at + 2 :]])


@pytest.mark.promise("E12")
@pytest.mark.parametrize("at", [0, 99, 199])
def test_an_entry_that_stands_there_twice_is_found(at: int) -> None:
    with pytest.raises(
        ChainBroken, match=f"entry {at + 2} of chunk 7 is missing: entry {at + 1} follows entry {at + 1}"
    ):
        walk([*CHAIN[: at + 1], CHAIN[at], *CHAIN[at + 1 :]])
    moved = [replace(entry, seq=seq) for seq, entry in enumerate([*CHAIN[: at + 1], *CHAIN[at:]], start=1)]
    with pytest.raises(ChainBroken, match=f"entry {at + 2} of chunk 7"):
        walk(moved)


@pytest.mark.promise("E12")
@pytest.mark.parametrize("kept", [0, 1, 100, 199])
def test_an_end_that_was_cut_off_is_found(kept: int) -> None:
    with pytest.raises(ChainBroken, match=f"ends at entry {kept}, but the store's head is entry 200"):
        walk(CHAIN[:kept])


@pytest.mark.promise("E12")
def test_an_end_that_was_put_on_is_found() -> None:
    with pytest.raises(ChainBroken, match="entry 201 of chunk 7 ends at entry 201, but the store's head is entry 200"):
        walk(chain_of(LENGTH + 1))


@pytest.mark.promise("E12")
def test_the_entry_of_another_batch_is_found_under_whatever_name() -> None:
    other = chain_of(LENGTH, place=Chain(b"uid-of-another-1", 4, 8))
    for stranger in (other[4], replace(other[4], chain=CHUNK)):
        with pytest.raises(ChainBroken, match="entry 5 of chunk"):
            walk([*CHAIN[:4], stranger, *CHAIN[5:]])


@pytest.mark.promise("E12")
def test_a_whole_chain_of_another_batch_is_found_at_its_first_entry() -> None:
    with pytest.raises(ChainBroken, match="entry 1 of chunk 7"):
        walk(chain_of(LENGTH, start=CHAIN[3].hash))
    other = chain_of(LENGTH, place=PLACE._replace(uid=b"uid-of-another-1"))
    with pytest.raises(ChainBroken, match="entry 1 of chunk 7: its header says"):
        walk(other, of=other)
    again = [*chain_of(LENGTH - 1), *chain_of(LENGTH, place=PLACE._replace(uid=b"uid-of-another-1"))[-1:]]
    with pytest.raises(ChainBroken, match="entry 200 of chunk 7"):
        walk(again)


@pytest.mark.promise("E12")
def test_whoever_changes_an_entry_and_its_hash_breaks_the_next_link() -> None:
    old = CHAIN[4]
    header = msgspec.structs.replace(journal.decode_header(old.head), actor="mallory")
    forged = link(CHAIN[3].hash, PLACE, seq=5, kind=header.kind, at=header.at, actor="mallory", fence=header.fence,
                  grant=header.grant, commit_id=header.commit_id,
                  encoded=journal.Encoded(old.body, header.sections))  # fmt: skip
    assert check(forged, CHAIN[3].hash, PLACE, BATCH).actor == "mallory"
    with pytest.raises(ChainBroken, match="entry 6 of chunk 7"):
        walk([*CHAIN[:4], forged, *CHAIN[5:]])


@pytest.mark.promise("E12")
def test_whoever_forges_the_last_entry_is_found_by_the_head() -> None:
    encoded = sections.encode(journal.Checkpointed(), UID, NUMBER, b"", random.randbytes)
    forged = link(CHAIN[-2].hash, PLACE, seq=LENGTH, kind="checkpoint", at=NOW, actor="mallory", fence=3,
                  encoded=encoded)  # fmt: skip
    assert check(forged, CHAIN[-2].hash, PLACE, BATCH).actor == "mallory"
    with pytest.raises(ChainBroken, match="the end was cut off or changed"):
        walk([*CHAIN[:-1], forged])


def test_a_header_that_cannot_be_read_is_named_where_no_hash_is_compared() -> None:
    for broken in (b"", b"\xc1", b"\x80", CHAIN[4].head[:-1], msgspec.msgpack.encode([7, 1, "five"])):
        with pytest.raises(ChainBroken, match="entry 5 of chunk 7: its header cannot be read"):
            check(replace(CHAIN[4], head=broken), None, PLACE, BATCH)


def test_a_body_is_checked_where_no_hash_is_compared() -> None:
    for chain in (CHAIN, FIRST):
        assert check(chain[4], None, PLACE, BATCH).seq == 5
        for body in (chain[5].body, b"", b"\x90", b"\xc1", chain[4].body[:-1], chain[4].body + b"\0"):
            with pytest.raises(ChainBroken, match="entry 5 of chunk 7: its body was changed"):
                check(replace(chain[4], body=body), None, PLACE, BATCH)


def test_a_link_is_the_hash_of_the_link_before_and_the_header() -> None:
    first, second = CHAIN[:2]
    assert first.hash == hashlib.sha256(GENESIS + first.head).digest()
    assert second.hash == hashlib.sha256(first.hash + second.head).digest()
    header = journal.decode_header(second.head)
    ((boundary, frame),) = journal.frames_of(second.body)
    place = (header.uid, header.chain, boundary, header.commit_id)
    assert header.sections == [(1, commitments.section(*place, frame[:16], frame[16:]))]
    assert journal.decode_header(FIRST[1].head).sections == [(0, hashlib.sha256(FIRST[1].body).digest())]


def test_an_entry_is_called_after_its_chunk_or_its_batch() -> None:
    assert journal.name(7, 2) == "entry 2 of chunk 7"
    assert journal.name(-7, 2) == "entry 2 of batch 7"


# -- item numbers -----------------------------------------------------------------------------------------------------

NS = st.lists(st.integers(0, (1 << 32) - 1), unique=True, max_size=60)


@PROPERTY
@given(ns=NS, base=st.integers(0, (1 << 34) - (1 << 32)))
def test_item_numbers_come_back_in_their_order(ns: list[int], base: int) -> None:
    given_ns = [base + n for n in ns]
    compact = numbers(given_ns)
    assert list(compact) == given_ns
    assert len(compact) == len(given_ns)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(compact), type=Numbers)
    assert list(stored) == given_ns


@PROPERTY
@given(ns=st.lists(st.integers(0, 40), unique=True, max_size=20), n=st.integers(-5, 50))
def test_an_item_is_among_the_numbers_or_not(ns: list[int], n: int) -> None:
    assert (n in numbers(ns)) == (n in ns)


@pytest.mark.parametrize(("ns", "picked"), [([5], False), ([5, 6, 7], False), ([7, 6, 5], True), ([5, 7], True)])
def test_a_range_is_told_by_its_ends_and_anything_else_by_its_items(ns: list[int], picked: bool) -> None:
    assert bool(numbers(ns).picks) == picked
    assert list(numbers(ns)) == ns


def test_numbers_of_nothing_are_none() -> None:
    assert list(numbers([])) == []
    assert len(numbers([])) == 0
    assert 0 not in numbers([])
    assert "5" not in numbers([5])


# -- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    "body",
    [
        journal.Checkpointed(),
        journal.Checkpointed(spends=[(1, journal.Spend(3, usd=5, usage={"in": 3}, metrics={"words": [1, 2.5]}))]),
        journal.Claimed(lo=1, hi=5, expires=NOW, child=(2, 5, 9), snapshots=[journal.Snapshot(1, 2, 3, 4, "http_503")]),
        journal.Opened(name="book", pipeline="pages", definition=b"{}"),
        journal.Ingested(lo=0, hi=1, digests=bytes(32), invalid=[(0, "invalid")], chunk=4, ended=True),
        journal.Acted(reason="why", items=[journal.Moved(1, "dead", "pending", 1, 1, 0)], seized=True),
        journal.Sealed(1, bytes(32), 5, 2, 1, 1, 1, reconciliation=b"{}", reason="read by two"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_body_comes_back_as_it_was(body: journal.Body) -> None:
    data = journal.encode_content(body)
    assert journal.decode_content(data) == body
    assert journal.encode_content(journal.decode_content(data)) == data
    entry = link(
        GENESIS, PLACE, seq=1, kind="any", at=NOW, actor="", encoded=sections.encode(body, UID, 3, b"", seeded())
    )
    assert sections.decode(entry) == body


def test_what_a_stored_body_leaves_out_means_what_it_always_meant() -> None:
    def told(kind: type, **fields: object) -> object:
        return msgspec.structs.asdict(msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=kind))

    assert told(journal.Checkpointed, type="checkpoint") == {
        "advanced": [], "attempts": [], "spends": [], "positions": [], "released": False, "due": 0.0,
        "made_by": [],
    }  # fmt: skip
    assert told(journal.Advanced, stage=1, items={"lo": 0, "hi": 2}, digests=b"", queued=b"", seconds=b"") == {
        "stage": 1, "items": Numbers(0, 2, b""), "digests": b"", "queued": b"", "seconds": b"", "attempts": b"",
        "epochs": b"", "finished": False, "adopted": False,
    }  # fmt: skip
    assert told(journal.Attempted, n=1, stage=0, attempt=1, epoch=0, outcome="skip") == {
        "n": 1, "stage": 0, "attempt": 1, "epoch": 0, "outcome": "skip", "code": "", "message": "", "due": 0.0,
        "deadline": 0.0, "queued": 0.0, "seconds": 0.0, "trace": "", "to_stage": 0, "deferred": 0.0, "used": 0.0,
        "excused": False, "wait": 0.0, "said": b"",
    }  # fmt: skip
    assert told(journal.Spend, n=1) == {
        "n": 1, "usd": 0, "tokens": 0, "model": "", "usage": {}, "metrics": {}, "said": b"",
    }  # fmt: skip
    assert told(journal.Claimed, type="claimed", lo=0, hi=1, expires=2.0) == {
        "lo": 0, "hi": 1, "expires": 2.0, "blame": 0, "child": None, "taken_from": "", "snapshots": [],
    }  # fmt: skip
    assert told(journal.Snapshot, n=1, stage=0, epoch=0, attempt=0) == {
        "n": 1, "stage": 0, "epoch": 0, "attempt": 0, "code": "", "since": 0.0, "used": 0.0,
    }  # fmt: skip
    assert told(journal.Ingested, type="ingested", lo=0, hi=1) == {
        "lo": 0, "hi": 1, "digests": b"", "invalid": [], "chunk": 0, "ended": False, "cursor": b"",
        "kind": None, "leg": 0, "first": 0, "end": 0, "source": "", "schema": "", "raw_items": None, "raws": b"",
        "parents": [], "refusals": [],
    }  # fmt: skip
    assert told(journal.Acted, type="acted", reason="why") == {
        "reason": "why", "items": [], "seized": False, "note": b"", "said": b"",
    }  # fmt: skip
    counts = {"chunks": 1, "heads": bytes(32), "expected": 5, "done": 2, "skipped": 1, "dead": 1, "cancelled": 1}
    assert told(journal.Sealed, type="sealed", **counts) == {**counts, "reconciliation": b"", "reason": "", "said": b""}
