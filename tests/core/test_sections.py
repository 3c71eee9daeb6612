"""Sections and words: a body that is taken apart comes together again, and nothing in it can be changed or moved."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import commitments, journal, sections
from holdfast.core.errors import ChainBroken
from holdfast.core.journal import (
    Acted,
    Advanced,
    Attempted,
    Body,
    Carried,
    Chain,
    ChainEnded,
    Checkpointed,
    Claimed,
    Continued,
    Formatted,
    Ingested,
    Moved,
    Opened,
    Position,
    RefusalReason,
    Reopened,
    Sealed,
    Snapshot,
    Spend,
    Steered,
    check,
    numbers,
)
from holdfast.core.model import BatchId, Entry, Kind, State, TextFrame
from holdfast.core.register import DataClass, register, text_fields
from holdfast.core.sections import CONTROL, EVERYBODY, FALLBACK, INGESTION, check_texts, decode, encode
from tests.core.made import GRANT, NOW, PROPERTY, UID, seeded

replace = msgspec.structs.replace
PLACE, BATCH = Chain(UID, 3, 7), BatchId(1)

# -- bodies with words ----------------------------------------------------------------------------------------------

MARK = "§words§"
"""In all words and in nothing else."""
WORDS = st.sampled_from(["", MARK, f"{MARK} a", f"no {MARK} answer"])
BYTES = WORDS.map(str.encode)
STAGES, ITEMS, SMALL = st.integers(0, 3), st.integers(0, 50), st.integers(0, 5)
SECONDS = st.sampled_from([0.0, 0.25, NOW])
DIGESTS = st.binary(max_size=1).map(lambda data: data * 32)
FIELDS = st.dictionaries(WORDS, st.none() | st.booleans() | SMALL | SECONDS | WORDS | st.lists(SMALL), max_size=2)
CODES, NAMES = st.sampled_from(["", "http_503", "deferred"]), st.sampled_from(["", "a"])
STATES = st.sampled_from(list(State))

ATTEMPTS = st.builds(
    Attempted, n=ITEMS, stage=STAGES, attempt=SMALL, epoch=SMALL, code=CODES, message=WORDS, trace=WORDS, due=SECONDS,
    outcome=st.sampled_from(["skip", "defer", "retry", "bury", "rewind"]), excused=st.booleans(), to_stage=SMALL,
)  # fmt: skip
SPENDS = st.tuples(
    STAGES, st.builds(Spend, n=ITEMS, usd=SMALL, tokens=SMALL, model=NAMES, usage=FIELDS, metrics=FIELDS)
)
POSITIONS = st.builds(Position, n=ITEMS, rows=SMALL, cursor=BYTES, digest=DIGESTS, seconds=SECONDS, mark=DIGESTS)
ADVANCED = st.builds(
    Advanced, stage=STAGES, items=st.lists(ITEMS, unique=True, min_size=1).map(numbers), digests=DIGESTS,
    queued=st.just(bytes(4)), seconds=st.just(bytes(4)), finished=st.booleans(), adopted=st.booleans(),
)  # fmt: skip
SNAPSHOTS = st.builds(Snapshot, n=ITEMS, stage=STAGES, epoch=SMALL, attempt=SMALL, code=CODES, used=SECONDS)
MOVED = st.builds(
    Moved, n=ITEMS, before=STATES, after=STATES, stage_before=STAGES, stage_after=STAGES, epoch=SMALL, digest=DIGESTS,
    output_digest=DIGESTS, position=st.none() | POSITIONS, revision=SMALL, raw_digest=DIGESTS,
)  # fmt: skip


def some(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(kind, max_size=3)


COMMITS = st.builds(
    Checkpointed, advanced=some(ADVANCED), attempts=some(ATTEMPTS), spends=some(SPENDS), positions=some(POSITIONS),
    released=st.booleans(), due=SECONDS, made_by=some(st.tuples(STAGES, NAMES)),
)  # fmt: skip
CLAIMS = st.builds(
    Claimed, lo=SMALL, hi=SMALL, expires=SECONDS, blame=SMALL, child=st.none() | st.tuples(SMALL, SMALL, SMALL),
    taken_from=NAMES, snapshots=some(SNAPSHOTS),
)  # fmt: skip
ACTS = st.builds(Acted, reason=WORDS, items=some(MOVED), seized=st.booleans(), note=BYTES)
INGESTED = st.builds(
    Ingested, lo=SMALL, hi=SMALL, digests=DIGESTS, invalid=some(st.tuples(ITEMS, CODES)), chunk=SMALL,
    ended=st.booleans(), kind=st.none() | st.sampled_from(list(Kind)), leg=SMALL, first=SMALL, end=SMALL, source=NAMES,
    schema=NAMES, raw_items=st.none() | st.lists(ITEMS, unique=True, min_size=1).map(numbers), raws=DIGESTS,
    parents=some(st.tuples(ITEMS, ITEMS)), refusals=some(st.builds(RefusalReason, n=ITEMS, reason=WORDS)),
)  # fmt: skip
CARRIED = st.builds(
    Carried, n=ITEMS, state=STATES, stage=STAGES, epoch=SMALL, payload=DIGESTS, revision=SMALL,
    outputs=some(st.tuples(STAGES, SMALL, DIGESTS)), position=st.none() | POSITIONS,
)  # fmt: skip
CONTINUED = st.builds(
    Continued, predecessor=SMALL, seq=SMALL, head=DIGESTS, state=DIGESTS, lo=SMALL, hi=SMALL, counts=some(SMALL),
    seconds=SECONDS, items=some(CARRIED),
)  # fmt: skip
OTHERS = st.one_of(
    st.builds(Steered, course=NAMES, reason=WORDS, expected=st.none() | SMALL, closed=st.booleans()),
    st.builds(Sealed, SMALL, DIGESTS, SMALL, SMALL, SMALL, SMALL, SMALL, reconciliation=BYTES, reason=WORDS),
    st.builds(Reopened, reason=WORDS),
    st.builds(Opened, name=NAMES, pipeline=NAMES, definition=st.just(b"{}")),
    st.builds(Formatted, batch=SMALL, chunks=some(st.tuples(SMALL, SMALL))),
    st.builds(ChainEnded, successor=SMALL, state=DIGESTS),
)
BODIES = st.one_of(COMMITS, CLAIMS, ACTS, INGESTED, CONTINUED, OTHERS)
HAS_WORDS = (Attempted, Spend, Position, RefusalReason, Acted, Steered, Sealed, Reopened)


def written(body: Body, *, draw: Callable[[int], bytes] | None = None, commit_id: bytes = b"id") -> Entry:
    encoded = encode(body, UID, PLACE.number, commit_id, draw or seeded())
    return journal.link(bytes(32), PLACE, seq=1, kind="any", at=NOW, actor="ann", fence=3, grant=GRANT,
                        commit_id=commit_id, encoded=encoded)  # fmt: skip


def checked(entry: Entry) -> journal.Header:
    return check(entry, bytes(32), PLACE, BATCH)


def sorted_(body: Body) -> Any:
    """A body with the records of each of its lists in an order of their own: sections keep that of their records, not
    that among each other."""
    plain = msgspec.structs.asdict(body)
    return type(body), {
        name: sorted(value, key=msgspec.msgpack.encode) if isinstance(value, list) else value
        for name, value in plain.items()
    }


def with_words(body: Body) -> list[Any]:
    """The records of a body that have words."""
    found = [body, *_records(body)]
    return [each for each in found if isinstance(each, HAS_WORDS) and any(getattr(each, name) for name in _words(each))]


def _records(value: Any) -> list[Any]:
    inside = [getattr(value, name) for name in value.__struct_fields__] if isinstance(value, msgspec.Struct) else []
    inside += list(value) if isinstance(value, list | tuple) else []
    return [each for part in inside for each in (part, *_records(part)) if part is not None]


def _words(record: Any) -> tuple[str, ...]:
    return text_fields(f"journal.{type(record).__name__}")


def flips(data: bytes) -> list[bytes]:
    number = int.from_bytes(data, "big")
    return [(number ^ (1 << bit)).to_bytes(len(data), "big") for bit in range(8 * len(data))]


# -- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("E12")
@PROPERTY
@given(BODIES)
def test_any_body_comes_back_with_its_words(body: Body) -> None:
    entry = written(body)
    header = checked(entry)
    assert sorted_(decode(entry, header)) == sorted_(body)
    assert decode(entry) == decode(entry, header)
    assert check_texts(entry, header) == sections.TextCheck(shown=len(with_words(body)))


@PROPERTY
@given(COMMITS | ACTS | CLAIMS)
def test_within_a_section_records_stay_in_their_order(body: Body) -> None:
    again = decode(written(body))
    assert decode(written(again)) == again, "what was put together once is put together in the same way"
    for boundary, part in sections.split(body):
        parts = dict(sections.split(again))
        assert parts[boundary] == part


@pytest.mark.promise("E12")
@PROPERTY
@given(BODIES)
def test_words_are_never_in_the_header_or_the_body(body: Body) -> None:
    entry = written(body)
    assert MARK.encode() not in entry.head
    assert MARK.encode() not in entry.body
    told = b"".join(text.frame or b"" for text in entry.texts)
    assert (MARK.encode() in told) == (MARK in str(msgspec.to_builtins(body, builtin_types=[bytes])) or _in_bytes(body))


def _in_bytes(body: Body) -> bool:
    return MARK.encode() in msgspec.msgpack.encode(body)


@PROPERTY
@given(BODIES)
def test_words_have_a_frame_of_their_item_and_boundary_and_salts_of_their_own(body: Body) -> None:
    entry = written(body)
    told = Counter((text.n, text.boundary) for text in entry.texts)
    parts = [(boundary, record) for boundary, part in sections.split(body) for record in with_words(part)]
    assert told == Counter((getattr(record, "n", EVERYBODY), boundary) for boundary, record in parts)
    frames = [text.frame or b"" for text in entry.texts] + [frame for _, frame in journal.frames_of(entry.body)]
    assert len({frame[: commitments.SALT_BYTES] for frame in frames}) == len(frames)


def test_every_record_that_has_words_is_in_these_tests() -> None:
    """By the register of data: also a record that gets words later."""
    found = {name.split(".")[1] for name, data in register().items() if data is DataClass.TEXT and is_of_journal(name)}
    assert found == {kind.__name__ for kind in HAS_WORDS}


def test_the_register_of_data_has_every_field_of_the_journal() -> None:
    kinds = [kind for kind in vars(journal).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    ours = [kind for kind in kinds if kind.__module__ == journal.__name__ and kind is not journal.FirstHeader]
    fields = {f"journal.{kind.__name__}.{name}" for kind in ours for name in kind.__struct_fields__}
    assert {name for name in register() if is_of_journal(name)} == fields


def is_of_journal(name: str) -> bool:
    """Whether it is a field of a record, not a column of the table."""
    return name.startswith("journal.") and name.count(".") == 2


# -- what is found ------------------------------------------------------------------------------------------------

BUSY = Checkpointed(
    advanced=[
        Advanced(0, numbers([1, 3]), bytes(64), bytes(8), bytes(8)),
        Advanced(1, numbers([5]), bytes(32), b"", b""),
    ],
    attempts=[
        Attempted(7, 0, 1, 0, "retry", "http_503", message="no answer"),
        Attempted(8, 1, 3, 0, "bury", "http_404", message="gone", trace="a.py:3"),
    ],
    spends=[(0, Spend(1, usd=5, usage={"in": 3})), (1, Spend(5, metrics={"words": 9}))],
    positions=[Position(9, 100, b"cursor", bytes(32))],
    released=True,
    due=NOW,
    made_by=[(0, "f00d"), (1, "beef")],
)
"""A commit with every kind of section and of words."""
MOVES = Acted(
    "because",
    [Moved(1, "dead", "pending", 1, 1, 0), Moved(2, "pending", "pending", 1, 0, 1, position=Position(2, 5, b"c"))],
    note=b"a note",
)
REFUSED = Ingested(0, 2, bytes(64), [(1, "invalid")], 1, refusals=[RefusalReason(1, "its key is empty")])
TAKEN = Claimed(0, 9, NOW, snapshots=[Snapshot(1, 0, 0, 1), Snapshot(2, 1, 0, 1)])
EXAMPLES = pytest.mark.parametrize("body", [BUSY, MOVES, REFUSED, TAKEN], ids=lambda body: type(body).__name__)


def test_a_commit_has_a_section_for_each_boundary() -> None:
    assert [boundary for boundary, _ in sections.split(BUSY)] == [CONTROL, FALLBACK, 0, 1]
    assert [boundary for boundary, _ in sections.split(MOVES)] == [CONTROL, FALLBACK, 1]
    assert [boundary for boundary, _ in sections.split(REFUSED)] == [INGESTION]
    assert [boundary for boundary, _ in sections.split(TAKEN)] == [CONTROL, 0, 1]
    assert [boundary for boundary, _ in sections.split(Checkpointed())] == [CONTROL]
    assert [boundary for boundary, _ in checked(written(BUSY)).sections] == [CONTROL, FALLBACK, 0, 1]


@pytest.mark.promise("E12")
@EXAMPLES
def test_every_flipped_bit_of_a_section_breaks_the_entry(body: Body, tally: Callable[..., None]) -> None:
    entry = written(body)
    found = flips(entry.body)
    for flipped in found:
        with pytest.raises(ChainBroken, match="its body was changed"):
            checked(replace(entry, body=flipped))
    tally(flipped_bits=len(found))


@pytest.mark.promise("E12")
@EXAMPLES
def test_every_flipped_bit_of_a_frame_of_words_is_found(body: Body, tally: Callable[..., None]) -> None:
    entry = written(body)
    header = checked(entry)
    for at, text in enumerate(entry.texts):
        whose = "the entry" if text.n == EVERYBODY else f"item {text.n}"
        for flipped in flips(text.frame or b""):
            texts = [*entry.texts[:at], replace(text, frame=flipped), *entry.texts[at + 1 :]]
            changed = replace(entry, texts=tuple(texts))
            assert checked(changed) == header, "the chain does not depend on words"
            assert check_texts(changed, header).changed == f"words of {whose}"
        tally(flipped_bits=8 * len(text.frame or b""))


@PROPERTY
@given(body=BODIES, data=st.data())
def test_a_flipped_bit_is_found_in_any_body(body: Body, data: st.DataObject) -> None:
    entry = written(body)
    header = checked(entry)
    with pytest.raises(ChainBroken, match="its body was changed"):
        checked(replace(entry, body=data.draw(st.sampled_from(flips(entry.body)))))
    for at, text in enumerate(entry.texts):
        flipped = replace(text, frame=data.draw(st.sampled_from(flips(text.frame or b""))))
        texts = (*entry.texts[:at], flipped, *entry.texts[at + 1 :])
        assert check_texts(replace(entry, texts=texts), header).changed


@pytest.mark.promise("E12")
@EXAMPLES
def test_sections_cannot_be_exchanged_left_out_joined_or_repeated(body: Body) -> None:
    entry = written(body)
    frames = journal.frames_of(entry.body)
    wrong = [frames[:-1], [*frames, frames[-1]], [(boundary + 1, frame) for boundary, frame in frames]]
    wrong += [[frames[0], *frames[1:][::-1]]] if len(frames) > 2 else []
    wrong += [[(frames[0][0], b"".join(frame for _, frame in frames))]] if len(frames) > 1 else []
    for each in wrong:
        with pytest.raises(ChainBroken, match="its body was changed"):
            checked(replace(entry, body=msgspec.msgpack.encode(each)))


@pytest.mark.promise("E12")
def test_a_section_fits_only_its_commit_its_boundary_its_chain_and_its_batch() -> None:
    ((boundary, frame),) = journal.frames_of(written(REFUSED).body)
    salt, content = commitments.unframe(frame)
    there = (UID, PLACE.number, boundary, b"id")
    ((_, told),) = checked(written(REFUSED)).sections
    assert told == commitments.section(*there, salt, content)
    for other in ((bytes(16), *there[1:]), (UID, 4, *there[2:]), (*there[:2], 0, b"id"), (*there[:3], b"ix")):
        assert commitments.section(*other, salt, content) != told


@pytest.mark.promise("E12")
def test_words_cannot_be_exchanged_added_or_passed_off_as_those_of_another_item() -> None:
    both = Checkpointed(attempts=[Attempted(n, 0, 1, 0, "retry", message=f"answer {n}") for n in (1, 2)])
    entry = written(both)
    header, (one, other) = checked(entry), entry.texts
    assert check_texts(entry, header) == sections.TextCheck(shown=2)
    more = TextFrame(3, 0, bytes(20))
    for texts, why in [
        ((other, one), "words of item 1"),
        ((replace(one, frame=other.frame), replace(other, frame=one.frame)), "words of item 1"),
        ((one, replace(other, n=1)), "words of item 2"),
        ((one, replace(other, boundary=1)), "words of item 2"),
        ((one, other, more), "words that nothing refers to"),
    ]:
        assert check_texts(replace(entry, texts=texts), header).changed == why


@pytest.mark.promise("E12")
@PROPERTY
@given(body=BODIES, data=st.data())
def test_words_of_some_can_be_removed_and_the_others_stay(body: Body, data: st.DataObject) -> None:
    entry = written(body)
    header = checked(entry)
    keep = [data.draw(st.booleans()) for _ in entry.texts]
    kept = [text if stays else replace(text, frame=None) for text, stays in zip(entry.texts, keep, strict=True)]
    bare = replace(entry, texts=tuple(kept))
    assert checked(bare) == header
    assert check_texts(bare, header) == sections.TextCheck(shown=sum(keep), removed=len(keep) - sum(keep))
    found = decode(bare, header)
    assert len(with_words(found)) == sum(keep)
    whole = sorted_(decode(entry, header))[1]
    assert {name: len(value) if isinstance(value, list) else 0 for name, value in sorted_(found)[1].items()} == {
        name: len(value) if isinstance(value, list) else 0 for name, value in whole.items()
    }, "no record is lost with its words"


def test_words_that_are_all_gone_are_counted_as_removed() -> None:
    entry = written(BUSY)
    header = checked(entry)
    assert check_texts(replace(entry, texts=()), header) == sections.TextCheck(removed=len(entry.texts))
    found = decode(replace(entry, texts=()), header)
    assert isinstance(found, Checkpointed)
    assert all(attempt.said and not attempt.message for attempt in found.attempts)


def test_an_entry_of_format_1_has_its_words_in_its_body() -> None:
    body = journal.encode_content(BUSY)
    head = msgspec.msgpack.encode(journal.FirstHeader(7, 1, 1, "checkpoint", NOW, "ann", 3, b"id", bytes(32)))
    entry = Entry(chain=7, seq=1, head=head, body=body, hash=bytes(32))
    assert decode(entry) == BUSY
    assert check_texts(entry, journal.decode_header(head)) == sections.TextCheck()


def test_a_boundary_has_a_name_for_people() -> None:
    told = [sections.boundary_name(at, ["read", "write"]) for at in (CONTROL, INGESTION, FALLBACK, 0, 1, 2)]
    assert told == ["control", "ingestion", "fallback", "read", "write", "stage 2"]
