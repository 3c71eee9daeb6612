"""The boundary: what comes in is frozen with a key, or is a dead letter from the first moment."""

from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canonical, limits
from holdfast.core.ingest import admit, difference, refuse, sort_out
from holdfast.core.limits import KEY_BYTES, MESSAGE_CHARS, PAYLOAD_BYTES, PREVIEW_BYTES
from holdfast.core.model import START, NewItem, State
from tests.core.made import PROPERTY

PAYLOAD = b'{"page":1}'
MOST = (1 << 63) - 1


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


@pytest.mark.promise("E1", "E5")
def test_an_item_is_admitted_with_the_bytes_it_came_with() -> None:
    new = admit("page-1", PAYLOAD)
    assert (new.key, new.payload, new.place, new.raw, new.parent) == ("page-1", PAYLOAD, START, None, None)


@pytest.mark.promise("E1", "E5")
@pytest.mark.parametrize("key", ["page-1", "Seite ß €", 7, 1.5, MOST + 1])
def test_an_item_that_validation_changed_comes_with_the_bytes_its_source_gave(key: object) -> None:
    new = admit(key, PAYLOAD, b'{"page":"1"}')
    assert (new.payload, new.raw, new.place) == (PAYLOAD, b'{"page":"1"}', START)
    assert new.key == admit(key, PAYLOAD).key


@pytest.mark.promise("E1")
def test_what_is_refused_has_no_other_form() -> None:
    assert admit("page-1", b"x" * (PAYLOAD_BYTES + 1), b"raw").raw is None
    assert admit(None, PAYLOAD, b"raw").raw is None
    refused = refuse("page-1", b"raw", "invalid", "broken")
    assert (refused.payload, refused.raw) == (b"raw", None)


def test_a_key_may_be_a_text_a_number_or_what_prints_as_one() -> None:
    for key, stored in [
        ("page-1", "page-1"),
        ("Seite ß €", "Seite ß €"),
        ("\0", "\0"),
        (" ", " "),
        ("k" * KEY_BYTES, "k" * KEY_BYTES),
        (0, 0),
        (-7, -7),
        (MOST, MOST),
        (-MOST - 1, -MOST - 1),
        (MOST + 1, str(MOST + 1)),
        (-MOST - 2, str(-MOST - 2)),
        (10**500, "1" + 500 * "0"),
        (1.5, "1.5"),
        (Colour.RED, "red"),
        (Size.SMALL, "1"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"raw", "b'raw'"),
        (("a", 1), "('a', 1)"),
    ]:
        new = admit(key, PAYLOAD)
        assert new.place == START
        assert (new.key, isinstance(new.key, int)) == (stored, isinstance(stored, int))
        assert canonical.key_text(new.key) == str(stored)


MALFORMED: dict[str, tuple[object, str]] = {
    "none": (None, "its key is None"),
    "true": (True, "its key is True"),
    "false": (False, "its key is False"),
    "empty": ("", "its key is empty"),
    "one byte too long": ("k" * (KEY_BYTES + 1), f"more than {KEY_BYTES} bytes"),
    "4 kB": ("k" * 4096, f"more than {KEY_BYTES} bytes"),
    "too long only in UTF-8": ("€" * (KEY_BYTES // 3 + 1), f"more than {KEY_BYTES} bytes"),
    "a number of 600 digits": (10**600, f"more than {KEY_BYTES} bytes"),
    "a number that Python does not print": (10**5000, f"more than {KEY_BYTES} bytes"),
    "less than nothing, and as long": (-(10**5000), f"more than {KEY_BYTES} bytes"),
    "half a surrogate pair": ("page-\udcff", r"'page-\\udcff' is not valid text"),
    "a whole pair in halves": ("\ud83d\ude00", "is not valid text"),
}


@pytest.mark.promise("E1")
@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_key_makes_a_dead_letter_that_says_what_to_do(case: str) -> None:
    key, why = MALFORMED[case]
    new = admit(key, PAYLOAD)
    assert (new.place.state, new.place.code, new.place.attempt) == (State.DEAD, "invalid", 0)
    assert why in new.place.reason
    assert "field" in new.place.reason
    assert new.payload == PAYLOAD
    assert isinstance(new.key, str)
    assert new.key.startswith("invalid:")
    assert len(new.key.encode()) <= KEY_BYTES


@pytest.mark.promise("E1", "E4")
def test_malformed_items_that_differ_stay_apart_and_equal_ones_are_one() -> None:
    pairs = [(None, b"1"), (None, b"2"), ("k" * 600, b"1"), ("l" * 600, b"1"), ("\udcff", b"1"), ("\udcfe", b"1")]
    keys = [admit(key, payload).key for key, payload in pairs]
    assert len(set(keys)) == len(pairs)
    assert keys == [admit(key, payload, b"as it was given").key for key, payload in pairs]


@pytest.mark.promise("E1")
def test_a_payload_at_the_limit_is_kept_and_one_byte_more_is_too_large() -> None:
    data = b'"' + b"x" * (PAYLOAD_BYTES - 2) + b'"'
    assert admit("page-1", data).place == START
    new = admit("page-1", data + b" ")
    assert (new.key, new.place.state, new.place.code) == ("page-1", State.DEAD, "too_large")
    assert f"{PAYLOAD_BYTES + 1:,} bytes" in new.place.reason
    assert "pass its path" in new.place.reason
    kept = canonical.decode(new.payload)
    assert kept == {"cut_after": PREVIEW_BYTES, "bytes": PAYLOAD_BYTES + 1, "begins": '"' + "x" * (PREVIEW_BYTES - 1)}


def test_the_preview_of_what_is_no_text_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.ingest.PAYLOAD_BYTES", 100)
    new = admit(7, b"\xff\x00" * 600)
    assert (new.key, new.place.code) == (7, "too_large")
    begins = canonical.decode(new.payload)["begins"]
    assert begins.startswith("\N{REPLACEMENT CHARACTER}\0")


@pytest.mark.promise("E1")
@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("page-1", "page-1"),
        ("k" * KEY_BYTES, "k" * KEY_BYTES),
        (7, 7),
        (MOST + 1, str(MOST + 1)),
        (-MOST - 2, str(-MOST - 2)),
        (Size.SMALL, "1"),
        (Colour.RED, "red"),
    ],
    ids=["text", "long", "number", "large", "small", "enum", "word"],
)
def test_what_is_refused_keeps_its_key_where_it_has_one(key: object, stored: str | int) -> None:
    new = refuse(key, b'"not a page"', "invalid", "page: a number is missing")
    assert new.key == stored
    assert canonical.key_text(new.key) == str(stored)
    assert new.place.reason == "page: a number is missing"


@pytest.mark.promise("E1")
def test_what_is_refused_without_a_key_is_named_by_its_content() -> None:
    for key in (None, True, "", "k" * 600, 10**5000, 1.5, object(), "\udcff"):
        one, other = (refuse(key, raw, "invalid", "broken") for raw in (b"1", b"2"))
        assert one.key != other.key
        assert str(one.key).startswith("invalid:")


def test_what_is_refused_is_kept_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.ingest.PAYLOAD_BYTES", 100)
    kept, cut = (refuse(None, b"x" * size, "invalid", "broken") for size in (100, 101))
    assert kept.payload == b"x" * 100
    assert canonical.decode(cut.payload)["bytes"] == 101
    assert len(str(kept.key)) == len("invalid:") + 32


def test_the_reason_is_cut_and_can_be_stored() -> None:
    new = refuse("k", b"1", "invalid", "\udcff" + "x" * 10_000)
    assert new.place.reason.startswith("\\udcff")
    assert len(new.place.reason) <= MESSAGE_CHARS + 10
    assert new.place.reason.encode("utf-8")


ODD_KEYS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.text(min_size=500),
    st.text(st.sampled_from("aé€\ud800\udcff"), max_size=9), st.integers().map(lambda n: n**200),
)  # fmt: skip


@pytest.mark.promise("E1")
@PROPERTY
@given(key=ODD_KEYS, payload=st.binary(max_size=50))
def test_whatever_comes_is_admitted_or_is_a_dead_letter(key: object, payload: bytes) -> None:
    new = admit(key, payload)
    assert new == admit(key, payload)
    assert isinstance(new.key, str | int)
    text = canonical.key_text(new.key)
    assert 0 < len(text.encode("utf-8")) <= KEY_BYTES
    assert new.payload == payload
    assert new.raw is None
    assert new.place == START or (new.place.state, new.place.code) == (State.DEAD, "invalid")
    assert not isinstance(new.key, int) or -(1 << 63) <= new.key < 1 << 63


# -- which of a group are new -------------------------------------------------------------------------------------

POOL: list[Any] = ["a", "b", "c", "1", 1, 2, "2", None, "", "\0a", "\0\0a", *(f"k{n}" for n in range(6))]
"""Some share their number in the index: "a" and "\\0a"."""
ROWS = st.lists(st.tuples(st.sampled_from(POOL), st.sampled_from([b"0", b"1"])), max_size=14)


def made(row: tuple[Any, bytes]) -> NewItem:
    key, payload = row
    return admit(key, payload)


def naively(items: list[NewItem], stored: dict[str, tuple[int, bytes]], lo: int) -> tuple[list[NewItem], Any]:
    """The same with a dictionary and nothing clever."""
    numbers, fresh, changed = dict(stored), [], []
    for index, new in enumerate(items):
        text = str(new.key)
        if text not in numbers:
            numbers[text] = (lo + len(fresh), new.payload)
            fresh.append(new)
        elif numbers[text][1] != new.payload:
            changed.append((index, numbers[text][0]))
    dead = tuple(lo + at for at, new in enumerate(fresh) if new.place.state is State.DEAD)
    return fresh, (len(fresh), lo, len(items) - len(fresh), dead, tuple(changed))


@pytest.mark.promise("E4", "P8")
@PROPERTY
@given(before=ROWS, rows=ROWS)
def test_a_group_is_sorted_out_as_a_dictionary_would(before: list[Any], rows: list[Any]) -> None:
    stored: dict[str, tuple[int, bytes]] = {}
    for new in map(made, before):
        stored.setdefault(str(new.key), (len(stored), new.payload))
    items = [made(row) for row in rows]
    known = {
        index: (stored[str(new.key)][0], stored[str(new.key)][1] == new.payload)
        for index, new in enumerate(items)
        if str(new.key) in stored
    }
    fresh, answer = sort_out(items, known, len(stored))
    said = (answer.added, answer.lo, answer.known, answer.dead, answer.changed)
    assert (fresh, said) == naively(items, stored, len(stored))


@pytest.mark.promise("E4")
def test_the_first_of_two_equal_keys_in_a_group_is_the_item() -> None:
    items = [admit("a", b"1"), admit("b", b"1"), admit("a", b"1"), admit("a", b"2")]
    fresh, answer = sort_out(items, {}, 10)
    assert fresh == items[:2]
    assert (answer.added, answer.known, answer.changed) == (2, 2, ((3, 10),))


# -- what changed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"page": 1}, {"page": 2}, "page: 1 became 2"),
        ({"page": 1}, {"page": "1"}, "page: 1 became '1'"),
        ({"page": 1}, {"page": 1.0}, "page: 1 became 1.0"),
        ({"page": 1}, {"page": True}, "page: 1 became True"),
        ({"page": 1, "text": "x"}, {"page": 1}, "text: 'x' became nothing"),
        ({"page": 1}, {"page": 1, "text": None}, "text: nothing became None"),
        ({"b": 1, "a": 1}, {"a": 2, "b": 2}, "a: 1 became 2; b: 1 became 2"),
        ([1, 2], [1, 3], "[1, 2] became [1, 3]"),
        ({"page": 1}, [1], "{'page': 1} became [1]"),
        ("a", "b", "'a' became 'b'"),
    ],
)
def test_a_difference_is_told_field_by_field(before: Any, after: Any, words: str) -> None:
    assert difference(canonical.encode(before), canonical.encode(after)) == words


FILE = {"path": "in/a.txt", "name": "a.txt", "size": 1, "modified_ns": 0}
YEAR_10000 = 253_402_300_800 * 10**9


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"size": 2000}, "size: 1 byte became 2,000 bytes"),
        ({"modified_ns": 10**9}, "modified: 1970-01-01 00:00:00.000Z became 1970-01-01 00:00:01.000Z"),
        ({"modified_ns": YEAR_10000 - 1}, "modified: 1970-01-01 00:00:00.000Z became 9999-12-31 23:59:59.999Z"),
        ({"modified_ns": -(10**9)}, "modified: 1970-01-01 00:00:00.000Z became 1969-12-31 23:59:59.000Z"),
        ({"size": "large"}, "size: 1 became 'large'"),
        ({"size": True}, "size: 1 became True"),
        ({"size": None}, "size: 1 became None"),
        ({"modified_ns": YEAR_10000}, f"modified_ns: 0 became {YEAR_10000}"),
        ({"modified_ns": 10**30}, f"modified_ns: 0 became {10**30}"),
        ({"modified_ns": -(10**30)}, f"modified_ns: 0 became -{10**30}"),
        ({"modified_ns": "1970"}, "modified_ns: 0 became '1970'"),
        ({"modified_ns": False}, "modified_ns: 0 became False"),
    ],
)
def test_a_file_is_shown_as_people_read_it_and_what_only_looks_like_one_plainly(
    changed: dict[str, Any], words: str
) -> None:
    assert difference(canonical.encode(FILE), canonical.encode({**FILE, **changed})) == words
    back = difference(canonical.encode({**FILE, **changed}), canonical.encode(FILE))
    assert " became " in back


def test_five_fields_are_told_and_eighty_characters_of_each() -> None:
    before, after = ({f"f{n}": n + more for n in range(5)} for more in (0, 1))
    assert difference(canonical.encode(before), canonical.encode(after)).count(" became ") == 5
    assert " more" not in difference(canonical.encode(before), canonical.encode(after))
    six = difference(canonical.encode({**before, "g": 1}), canonical.encode({**after, "g": 2}))
    assert six.endswith("f4: 4 became 5; and 1 more")
    fits, cut = ("x" * 78, "x" * 79)
    assert difference(canonical.encode(fits), canonical.encode(cut)) == f"'{fits}' became '{'x' * 78}…"


def test_a_long_difference_is_cut() -> None:
    before, after = ({f"f{n}": n + more for n in range(8)} for more in (0, 1))
    words = difference(canonical.encode(before), canonical.encode(after))
    assert words.startswith("f0: 0 became 1; ")
    assert words.endswith("; and 3 more")
    long = difference(canonical.encode({"text": "a" * 500}), canonical.encode({"text": "b" * 500}))
    assert long.count("…") == 2
    assert len(long) < 200


def test_what_is_no_json_has_a_difference_too() -> None:
    for broken in (b"", b"not json", b"\xff", b"[" * 100_000):
        assert " became " in difference(broken, PAYLOAD)
        assert " became " in difference(PAYLOAD, broken)


def test_limits_leave_room_for_each_other() -> None:
    assert PREVIEW_BYTES < limits.INGEST_BYTES
    assert PAYLOAD_BYTES <= limits.INGEST_BYTES
