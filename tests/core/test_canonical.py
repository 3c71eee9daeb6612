"""One form for every value: what means the same is the same bytes."""

import random
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
    assert canonical.digest(canonical.encode(other)) == canonical.digest(canonical.encode(value))


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
    assert canonical.digest(canonical.encode(one)) != canonical.digest(canonical.encode(other))
    assert canonical.fingerprint(one) != canonical.fingerprint(other)


def test_a_fingerprint_stays_the_same_from_one_version_to_the_next() -> None:
    value = {"stages": [{"name": "read", "attempts": 3}], "book": "Ünß", "price": 0.1}
    assert canonical.encode(value) == '{"book":"Ünß","price":0.1,"stages":[{"attempts":3,"name":"read"}]}'.encode()
    assert canonical.fingerprint(value) == "2af5f519e474aa9226b10065e9d145f9"


@pytest.mark.promise("E4")
def test_a_number_and_its_text_are_one_key() -> None:
    assert canonical.key_text(7) == canonical.key_text("7") == "7"


@PROPERTY
@given(st.text(st.sampled_from("aé€\ud800\udcff\N{GRINNING FACE}"), max_size=20))
def test_what_is_storable_can_be_written_and_is_not_changed_again(text: str) -> None:
    stored = canonical.storable(text)
    assert stored.encode("utf-8").decode("utf-8") == stored
    assert canonical.storable(stored) == stored
    assert (stored == text) == all(not 0xD800 <= ord(letter) < 0xE000 for letter in text)
