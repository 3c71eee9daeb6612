"""One form for every value: what means the same is the same bytes."""

import itertools
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canonical
from tests.core.made import PROPERTY

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8"), max_size=8),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé\0", max_size=3), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.text(max_size=20)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value with the fields of every object in another order."""
    if isinstance(value, dict):
        names = list(value)
        chance.shuffle(names)
        return {name: shuffled(value[name], chance) for name in names}
    if isinstance(value, list):
        return [shuffled(each, chance) for each in value]
    return value


@pytest.mark.promise("E4")
@PROPERTY
@given(value=JSON, chance=st.randoms(use_true_random=False))
def test_the_order_of_fields_says_nothing(value: Any, chance: random.Random) -> None:
    other = shuffled(value, chance)
    assert canonical.encode(other) == canonical.encode(value)
    assert canonical.fingerprint(other) == canonical.fingerprint(value)
    salt = bytes(16)
    assert canonical.digest(salt, canonical.encode(other)) == canonical.digest(salt, canonical.encode(value))


@pytest.mark.promise("E4", "E5")
@PROPERTY
@given(JSON)
def test_bytes_come_back_as_the_value_and_as_the_same_bytes(value: Any) -> None:
    data = canonical.encode(value)
    assert canonical.decode(data) == value
    assert canonical.encode(canonical.decode(data)) == data


@pytest.mark.promise("E4")
@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"a": 1.0}), ({"a": 1}, {"a": True}), ({"a": 1}, {"a": "1"}), ({"a": None}, {}), ([1, 2], [2, 1]),
     ({"a": {"b": 1}}, {"a": {"b": 2}}), ("", None), (0.1 + 0.2, 0.3)],
)  # fmt: skip
def test_what_differs_has_another_digest(one: Any, other: Any) -> None:
    assert canonical.digest(b"", canonical.encode(one)) != canonical.digest(b"", canonical.encode(other))
    assert canonical.fingerprint(one) != canonical.fingerprint(other)


def test_a_fingerprint_stays_the_same_from_one_version_to_the_next() -> None:
    value = {"stages": [{"name": "read", "attempts": 3}], "book": "Ünß", "price": 0.1}
    assert canonical.encode(value) == '{"book":"Ünß","price":0.1,"stages":[{"attempts":3,"name":"read"}]}'.encode()
    assert canonical.fingerprint(value) == "2af5f519e474aa9226b10065e9d145f9"


def test_a_digest_hides_a_short_payload_behind_its_salt() -> None:
    assert canonical.digest(b"salt-1", b"yes") != canonical.digest(b"salt-2", b"yes")
    assert len(canonical.digest(b"salt-1", b"yes")) == canonical.DIGEST_BYTES


@pytest.mark.promise("E4")
def test_a_number_and_its_text_are_one_key() -> None:
    assert canonical.key_text(7) == canonical.key_text("7") == "7"
    assert canonical.key_hash(canonical.key_text(7)) == canonical.key_hash("7")


@PROPERTY
@given(KEYS)
def test_the_number_of_a_key_fits_into_56_bits(key: str) -> None:
    assert 0 <= canonical.key_hash(key) < 1 << 56


def test_the_numbers_of_keys_stay_the_same_from_one_version_to_the_next() -> None:
    assert [canonical.key_hash(key) for key in ("", "7", "abc", "page-0041", "€uro", "a" * 100)] == [
        0, 55, 6382179, 67743517043078193, 37140166354498159, 69082396378620257,
    ]  # fmt: skip
    assert [canonical.probe("page-0041", turn) for turn in (1, 2)] == [38096870671519204, 9172767845704334]
    assert canonical.SALT_BYTES == 16


def test_neighbours_have_neighbouring_numbers() -> None:
    numbers = [canonical.key_hash(f"page-{n:04}") for n in range(40, 50)]
    assert [later - number for number, later in itertools.pairwise(numbers)] == [1] * 9
    assert canonical.key_hash("page-0049") < canonical.key_hash("page-0050")


def test_keys_of_three_bytes_and_less_have_numbers_of_their_own() -> None:
    short = ["", "\x01", "a", "b", "aa", "ab", "zz", "abc", "€", "\x01\x01\x01"]
    assert len({canonical.key_hash(key) for key in short}) == len(short)


def test_a_key_that_is_no_text_of_any_file_has_a_number_too() -> None:
    assert canonical.key_hash("page-\udcff") != canonical.key_hash("page-\udcfe")


@PROPERTY
@given(KEYS)
def test_a_probe_leads_elsewhere_and_not_back_for_a_long_time(key: str) -> None:
    numbers = [canonical.key_hash(key), *(canonical.probe(key, turn) for turn in range(1, 500))]
    assert all(0 <= number < 1 << 56 for number in numbers)
    assert len(set(numbers)) == 500


def test_a_probe_does_not_walk_into_the_neighbours() -> None:
    neighbours = {canonical.key_hash(f"page-{n:04}") for n in range(10_000)}
    assert canonical.probe("page-0041", 1) not in neighbours


def test_keys_that_were_made_to_collide_part_company_at_the_first_probe() -> None:
    heads = ("plumless", "buckeroo")
    assert len({zlib.crc32(head.encode()) for head in heads}) == 1, "two words that are known for it"
    assert len({canonical.key_hash(f"{head}042") for head in heads}) == 1
    assert len({canonical.probe(f"{head}042", 1) for head in heads}) == 2


@PROPERTY
@given(st.text(st.sampled_from("aé€\ud800\udcff\N{GRINNING FACE}"), max_size=20))
def test_what_is_storable_can_be_written_and_is_not_changed_again(text: str) -> None:
    stored = canonical.storable(text)
    assert stored.encode("utf-8").decode("utf-8") == stored
    assert canonical.storable(stored) == stored
    assert (stored == text) == all(not 0xD800 <= ord(letter) < 0xE000 for letter in text)
