"""Commitments: they fit what was written, where it was written, and nothing else; and what they hide cannot be guessed.
Key numbers: neighbours stay neighbours, and only a holder of the index key can tell whose number it is."""

import hashlib
import itertools
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import commitments
from holdfast.core.commitments import TAIL_BITS, KeyIndex
from holdfast.core.model import ItemNo, NewItem, Output
from tests.core.made import PROPERTY, UID, seeded

SALT = b"salt-of-16-bytes"
KEYS = st.text(max_size=20)
INDEX = KeyIndex(b"the key of an index, of 32 bytes")
OTHER = KeyIndex(b"the key of another index: 32 too")

# -- commitments --------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[..., bytes], list[list[Any]]]] = {
    "payload": (commitments.payload, [[UID, bytes(16)], ["a", "b", "ab", ""], [0, 1], [SALT, bytes(16)], [b"1", b""]]),
    "raw": (commitments.raw, [[UID, bytes(16)], ["a", "b", "ab", ""], [0, 1], [SALT, bytes(16)], [b"1", b""]]),
    "output": (commitments.output, [[UID, bytes(16)], [0, 1], [0, 1], [0, 1], [SALT, bytes(16)], [b"1", b""]]),
    "file": (commitments.file, [[UID, bytes(16)], [0, 1], [0, 1], [0, 1], [SALT, bytes(16)], [b"1", b""]]),
    "accumulator": (commitments.accumulator, [[UID, bytes(16)], [0, 1], [0, 1], [SALT, bytes(16)], [b"1", b""]]),
    "text": (commitments.text, [[UID, bytes(16)], [-1, 0, 1], [-3, -2, -1, 0, 1], [SALT, bytes(16)], [b"1", b""]]),
    "section": (
        commitments.section,
        [[UID, bytes(16)], [0, 1], [-3, -2, -1, 0, 1], [b"", b"i", b"id"], [SALT, bytes(16)], [b"1", b"", b"d1"]],
    ),
    "state": (commitments.state, [[UID, bytes(16)], [0, 1], [b"1", b""]]),
}
"""Every kind of commitment, with values for each of its arguments."""


@pytest.mark.promise("E12")
def test_every_fact_and_every_label_makes_another_commitment() -> None:
    found = [make(*given_) for make, values in KINDS.values() for given_ in itertools.product(*values)]
    assert len(set(found)) == len(found) > 500
    assert {len(each) for each in found} == {commitments.DIGEST_BYTES}


@pytest.mark.promise("E12")
@PROPERTY
@given(key=KEYS, salt=st.binary(min_size=16, max_size=16), data=st.binary(max_size=40), at=st.integers(0, 1 << 30))
def test_a_flipped_bit_of_content_or_salt_makes_another_commitment(key: str, salt: bytes, data: bytes, at: int) -> None:
    for make in (commitments.payload, commitments.raw):
        told = make(UID, key, 0, salt, data)
        frame = salt + data
        bit = at % (8 * len(frame))
        flipped = (int.from_bytes(frame, "big") ^ 1 << bit).to_bytes(len(frame), "big")
        assert make(UID, key, 0, *commitments.unframe(flipped)) != told


@pytest.mark.promise("E12")
@PROPERTY
@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_letter_cannot_move_from_the_key_into_the_payload(text: str) -> None:
    for make in (commitments.payload, commitments.raw):
        told = {make(UID, text[:at], 0, SALT, text[at:].encode()) for at in range(len(text) + 1)}
        assert len(told) == len(text) + 1


@pytest.mark.promise("E5")
def test_a_commitment_hides_a_short_payload_behind_its_salt() -> None:
    one, other = commitments.salts(os.urandom, 2)
    assert commitments.payload(UID, "a", 0, one, b"yes") != commitments.payload(UID, "a", 0, other, b"yes")
    guesses = (b"yes", b"no", b"")
    told = commitments.payload(UID, "a", 0, one, b"yes")
    assert told not in {commitments.payload(UID, "a", 0, b"", guess) for guess in guesses}
    assert told not in {hashlib.sha256(guess).digest() for guess in guesses}


def test_many_outputs_are_committed_to_as_each_of_them_is() -> None:
    made = [Output(ItemNo(n), n // 4, n // 2, b"%d" % n) for n in range(12)]
    made += [Output(ItemNo(n), n % 2, n % 3, b"%d" % n) for n in range(6)]
    made += [Output(ItemNo(6), 1, 0, None, b"evidence"), Output(ItemNo(7), 1, 0, b"data", b"evidence")]
    salts = commitments.salts(seeded(), len(made))
    assert commitments.outputs(UID, made, salts) == [
        commitments.output(UID, o.n, o.stage, o.epoch, salt, o.data or b"")
        if o.file is None
        else commitments.file(UID, o.n, o.stage, o.epoch, salt, o.file)
        for o, salt in zip(made, salts, strict=True)
    ]


def test_salts_are_drawn_together_and_are_all_different() -> None:
    asked: list[int] = []

    def draw(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    salts = commitments.salts(draw, 100)
    assert asked == [100 * commitments.SALT_BYTES]
    assert (len(set(salts)), {len(salt) for salt in salts}) == (100, {commitments.SALT_BYTES})
    assert commitments.salts(draw, 0) == []


@PROPERTY
@given(st.binary(max_size=40))
def test_a_frame_comes_apart_into_salt_and_content_whatever_became_of_it(frame: bytes) -> None:
    salt, content = commitments.unframe(frame)
    assert salt + content == frame
    assert len(salt) == min(16, len(frame))


@pytest.mark.promise("E12")
def test_commitments_stay_the_same_from_one_version_to_the_next() -> None:
    """They are in files: what made them may never change."""
    place = UID, SALT
    assert [
        commitments.payload(UID, 7, 1, SALT, b"{}"),
        commitments.raw(UID, "7", 1, SALT, b"{}"),
        commitments.output(UID, 7, 1, 2, SALT, b"{}"),
        commitments.file(UID, 7, 1, 2, SALT, b"{}"),
        commitments.accumulator(UID, 7, 100, SALT, b"{}"),
        commitments.text(UID, -1, -3, SALT, b"{}"),
        commitments.section(UID, 3, -1, b"id", SALT, b"{}"),
        commitments.state(UID, 3, b"{}"),
    ] == [
        _sha256(b"holdfast/payload\0", place, b"\0\0\0\1\0\x02i7{}"),
        _sha256(b"holdfast/raw\0", place, b"\0\0\0\1\0\x02s7{}"),
        _sha256(b"holdfast/output\0", place, b"\0\0\0\0\0\0\0\7\0\1\0\0\0\2{}"),
        _sha256(b"holdfast/file\0", place, b"\0\0\0\0\0\0\0\7\0\1\0\0\0\2{}"),
        _sha256(b"holdfast/accumulator\0", place, b"\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\x64{}"),
        _sha256(b"holdfast/text\0", place, 8 * b"\xff" + b"\xff\xfd{}"),
        _sha256(b"holdfast/section\0", place, b"\0\0\0\0\0\0\0\3\xff\xff\2id{}"),
        _sha256(b"holdfast/state\0", (UID, b""), b"\0\0\0\0\0\0\0\3{}"),
    ]
    assert (commitments.SALT_BYTES, commitments.DIGEST_BYTES, commitments.UID_BYTES) == (16, 32, 16)


def _sha256(label: bytes, place: tuple[bytes, bytes], rest: bytes) -> bytes:
    uid, salt = place
    return hashlib.sha256(label + salt + uid + rest).digest()


@pytest.mark.promise("E12")
def test_digests_of_format_1_are_what_they_always_were() -> None:
    assert commitments.first_format(SALT, b"yes") == hashlib.sha256(SALT + b"yes").digest()
    assert commitments.first_format_item(SALT, "ab", b"yes") == hashlib.sha256(SALT + b"\0\2abyes").digest()
    assert commitments.first_format_item(SALT, "a", b"byes") != commitments.first_format_item(SALT, "ab", b"yes")


# -- the numbers of keys ------------------------------------------------------------------------------------------


@pytest.mark.promise("E4")
def test_a_number_and_its_text_have_one_number_in_the_index() -> None:
    assert INDEX.number(7) == INDEX.number("7")


@PROPERTY
@given(KEYS)
def test_the_number_of_a_key_fits_into_63_bits(key: str) -> None:
    assert 0 <= INDEX.number(key) < 1 << 63


def test_the_numbers_of_keys_stay_the_same_from_one_version_to_the_next() -> None:
    assert list(INDEX.numbers(["", "7", "abc", "page-0041", "€uro", "a" * 100])) == NUMBERS
    assert [INDEX.probe("page-0041", turn) for turn in (1, 2)] == PROBES
    assert INDEX.mark("note reconciled", b"{}").hex() == MARK


NUMBERS = [
    5495074164695171677,
    5495074165161273496,
    5495074164605765943,
    7375639598112807330,
    251268578973911352,
    5903458593948431684,
]
PROBES = [4720086938956082428, 2128358888930255152]
MARK = "9b69cec2ef48263832c4a294f5904c4f"


@PROPERTY
@given(st.lists(KEYS | st.integers(), max_size=20))
def test_the_number_of_a_key_does_not_depend_on_the_keys_beside_it(keys: list[str | int]) -> None:
    assert list(INDEX.numbers(keys)) == [INDEX.number(key) for key in keys]
    assert list(INDEX.numbers(sorted(keys, key=str))) == [INDEX.number(key) for key in sorted(keys, key=str)]


def test_neighbours_have_neighbouring_numbers() -> None:
    """Keys with one head are in one block of the index, in which no other key is."""
    for index in (INDEX, OTHER):
        numbers = list(index.numbers(f"page-{n:04}" for n in range(1000)))
        assert len({number >> TAIL_BITS for number in numbers}) == 1, "keys with one head are together"
        assert (
            len({number >> TAIL_BITS for number in index.numbers(f"page-{n:06}" for n in range(0, 50_000, 1000))}) == 50
        )


def test_ordered_keys_have_numbers_of_their_own() -> None:
    """Or almost: a group of new items in which two keys have one number is written one by one."""
    assert len(set(INDEX.numbers(f"page-{n:06}" for n in range(300_000)))) == 300_000


@pytest.mark.promise("E5")
def test_within_a_head_a_number_says_nothing_about_the_end_of_its_key() -> None:
    """Not even how two keys differ: with a mask for all keys of a head, three digits came back from the numbers."""
    numbers = [number % (1 << TAIL_BITS) for number in INDEX.numbers(f"patient-{n:03}" for n in range(1000))]
    differences = {one ^ other for one, other in itertools.pairwise(numbers)}
    assert len(differences) > 990, "neighbours differ each in another way"
    assert 14 < sum(each.bit_count() for each in differences) / len(differences) < 17, "in half of 31 bits"


@pytest.mark.promise("E13")
def test_a_number_and_its_text_are_not_the_same_content() -> None:
    assert commitments.payload(UID, 7, 0, SALT, b"{}") != commitments.payload(UID, "7", 0, SALT, b"{}")


@PROPERTY
@given(st.lists(st.tuples(KEYS | st.integers(), st.binary(max_size=20)), max_size=5))
def test_many_payloads_are_committed_to_as_each_of_them_is(rows: list[tuple[str | int, bytes]]) -> None:
    salts = [bytes([at]) * 16 for at in range(len(rows))]
    found = commitments.payloads(UID, [NewItem(key, data) for key, data in rows], salts)
    pairs = zip(rows, salts, strict=True)
    assert found == [commitments.payload(UID, key, 0, salt, data) for (key, data), salt in pairs]


def test_keys_of_three_bytes_and_less_have_numbers_of_their_own() -> None:
    short = ["", "\x01", "a", "b", "aa", "ab", "zz", "abc", "€", "\x01\x01\x01"]
    assert len(set(INDEX.numbers(short))) == len(short)


def test_a_key_that_is_no_text_of_any_file_has_a_number_too() -> None:
    assert INDEX.number("page-\udcff") != INDEX.number("page-\udcfe")
    assert INDEX.probe("page-\udcff", 1) != INDEX.probe("page-\udcfe", 1)


@pytest.mark.promise("E5")
@PROPERTY
@given(KEYS)
def test_a_number_cannot_be_computed_without_the_index_key(key: str) -> None:
    """Neither its head, nor its tail, nor where a probe leads: with another key everything is different."""
    name = key.encode("utf-8", "surrogatepass")
    one, two = (KeyIndex(number.to_bytes(32, "big")) for number in (1, 2))
    number, other = one.number(key), two.number(key)
    assert number >> TAIL_BITS != other >> TAIL_BITS
    assert number % (1 << TAIL_BITS) != other % (1 << TAIL_BITS)
    assert number % (1 << TAIL_BITS) != int.from_bytes(name[-3:], "big"), "its last bytes are not in it"
    assert number >> TAIL_BITS != zlib.crc32(name[:-3]), "as it was in format 1"
    assert one.probe(key, 1) != two.probe(key, 1)
    assert one.mark("payload", name) != two.mark("payload", name)


@pytest.mark.promise("E5")
def test_the_same_keys_under_two_index_keys_have_unrelated_numbers() -> None:
    """The difference of two numbers says nothing about another pair."""
    keys = [f"{n}-page" for n in range(300)]
    pairs = list(zip(INDEX.numbers(keys), OTHER.numbers(keys), strict=True))
    assert not {one for one, _ in pairs} & {other for _, other in pairs}
    assert len({one ^ other for one, other in pairs}) == len(keys)
    bits = sum((one ^ other).bit_count() for one, other in pairs) / len(keys)
    assert 28 < bits < 36, "about half of 63 bits differ"


@PROPERTY
@given(KEYS)
def test_a_probe_leads_elsewhere_and_not_back_for_a_long_time(key: str) -> None:
    numbers = [INDEX.number(key), *(INDEX.probe(key, turn) for turn in range(1, 500))]
    assert all(0 <= number < 1 << 63 for number in numbers)
    assert len(set(numbers)) == 500


def test_a_probe_does_not_walk_into_the_neighbours() -> None:
    neighbours = set(INDEX.numbers(f"page-{n:04}" for n in range(10_000)))
    assert INDEX.probe("page-0041", 1) not in neighbours


def test_keys_that_were_made_to_collide_no_longer_do() -> None:
    assert len(set(INDEX.numbers(["a", "\0a", "\0\0a"]))) == 3, "they did, by their last three bytes"
    heads = ("plumless", "buckeroo")
    assert len({zlib.crc32(head.encode()) for head in heads}) == 1, "two words that are known for it"
    assert len(set(INDEX.numbers(f"{head}042" for head in heads))) == 2


def test_a_mark_tells_apart_labels_and_contents() -> None:
    marks = {INDEX.mark(label, content) for label in ("note a", "note b", "payload") for content in (b"", b"1", b"2")}
    assert len(marks) == 9
    assert {len(mark) for mark in marks} == {16}
