"""Keys: what identifies an item, from one run to the next."""

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from enum import Enum

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core.commitments import KeyIndex
from holdfast.testing.conformance.opening import one_number
from tests.runtime.support import Calls, codes, outputs, run


def define(book: hf.Pipeline) -> None:
    book.stage(lambda value: value, name="keep")


@pytest.fixture
def keeping(book: hf.Pipeline) -> hf.Pipeline:
    define(book)
    return book


def test_a_key_is_a_field_of_a_dict(keeping: hf.Pipeline) -> None:
    run(keeping, [{"id": "a", "n": 1}, {"id": "b", "n": 2}], key="id")
    assert set(outputs(keeping)) == {"a", "b"}


def test_a_key_is_a_field_of_an_object(book: hf.Pipeline) -> None:
    class Page(BaseModel):
        number: int

    @book.stage
    def look(page: Page) -> Page:
        return page

    run(book, [Page(number=3), Page(number=5)], key="number")
    assert set(outputs(book)) == {3, 5}


def test_a_key_is_a_function_of_the_item(keeping: hf.Pipeline) -> None:
    run(keeping, [{"shelf": "A", "n": 1}, {"shelf": "B", "n": 1}], key=lambda item: f"{item['shelf']}/{item['n']}")
    assert set(outputs(keeping)) == {"A/1", "B/1"}


def test_short_values_are_their_own_keys(keeping: hf.Pipeline) -> None:
    run(keeping, ["moby", 7, -3, "x" * 128])
    assert set(outputs(keeping)) == {"moby", 7, -3, "x" * 128}


def test_values_without_a_key_are_identified_by_their_content(restart: Callable[..., hf.Pipeline]) -> None:
    items = [{"a": 1}, {"a": 2}, [1, 2], 1.5, True, None, "", "x" * 500]
    assert run(restart(define), items).counts.done == len(items)
    again = run(restart(define), reversed(items))
    assert (again.counts.expected, again.this_run.admitted) == (len(items), 0)


@pytest.mark.promise("E4")
def test_the_order_of_fields_does_not_make_another_item(restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(define), [{"a": 1, "b": {"c": 2, "d": 3}}])
    assert run(restart(define), [{"b": {"d": 3, "c": 2}, "a": 1}]).counts.expected == 1


def test_a_number_and_its_text_are_one_key(restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(define), [{"id": 7}], key="id")
    with pytest.raises(hf.PayloadChanged):
        run(restart(define), [{"id": "7"}], key="id")
    assert run(restart(define), [{"id": "7"}], key="id", changed="keep").counts.expected == 1


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.50"), "1.50"),
        (dt.date(2026, 11, 2), "2026-11-02"),
        (2.5, "2.5"),
        (("a", 1), "('a', 1)"),
        (Colour.RED, "Colour.RED"),
        (1 << 80, str(1 << 80)),
        (-(1 << 63), -(1 << 63)),
    ],
    ids=["uuid", "decimal", "date", "float", "tuple", "enum", "large number", "smallest number"],
)
def test_keys_of_other_types_are_known_by_their_text(keeping: hf.Pipeline, key: object, text: object) -> None:
    run(keeping, [1], key=lambda _: key)
    assert list(outputs(keeping)) == [text]


@pytest.mark.parametrize(
    "key",
    [None, True, "", {"a": 1}, {1, 2}, object(), "x" * 513, "é" * 257],
    ids=["none", "bool", "empty", "dict", "set", "object", "513 bytes", "514 bytes of text"],
)
def test_what_cannot_be_a_key_makes_a_dead_letter_that_says_so(keeping: hf.Pipeline, key: object) -> None:
    items = [{"n": 1}, {"n": 2}]
    report = run(keeping, items, key=lambda item: key if item["n"] == 1 else "fine")
    assert (report.counts.done, report.counts.dead) == (1, 1)
    (letter,) = report.dead
    assert letter.code == "invalid"
    assert "key" in letter.reason


def test_a_key_of_four_kilobytes_is_refused_and_the_rest_goes_on(keeping: hf.Pipeline) -> None:
    report = run(keeping, [{"id": "k" * 4096}, {"id": "short"}], key="id")
    assert set(outputs(keeping)) == {"short"}
    (letter,) = report.dead
    assert "512 bytes" in letter.reason
    assert str(letter.key).startswith("invalid:")


def test_a_key_of_512_bytes_is_kept(keeping: hf.Pipeline) -> None:
    run(keeping, [{"id": "k" * 512}], key="id")
    assert set(outputs(keeping)) == {"k" * 512}


@pytest.mark.parametrize(
    "key",
    ["a/b/../c", "..", "naïve café", "数据", "a b\tc\nd", "x\x00y", "' OR 1=1 --", "%s{key}", "🐋", "-", "."],
    ids=str,
)
def test_any_text_is_a_key(restart: Callable[..., hf.Pipeline], key: str) -> None:
    run(restart(define), [{"id": key}], key="id")
    again = restart(define)
    assert run(again, [{"id": key}], key="id").this_run.admitted == 0
    assert set(outputs(again)) == {key}


def test_half_a_surrogate_pair_does_not_stop_the_others(keeping: hf.Pipeline) -> None:
    report = run(keeping, ["name of a \udcff file", "fine"])
    assert (report.counts.done, report.counts.dead) == (1, 1)
    report = run(
        keeping, [{"id": 1}, {"id": 2}], batch="keys", key=lambda item: "\udcff" if item["id"] == 1 else "fine"
    )
    assert report.counts.expected == 2


def test_a_missing_field_makes_a_dead_letter(keeping: hf.Pipeline) -> None:
    report = run(keeping, [{"id": 1}, {"nr": 2}, 3, None], key="id")
    assert (report.counts.done, report.counts.dead) == (1, 3)
    assert set(codes(report).values()) == {"invalid"}
    assert "the field 'id'" in report.dead[0].reason


@pytest.mark.parametrize("error", [ZeroDivisionError, RuntimeError, LookupError, AssertionError, hf.Permanent])
def test_a_key_function_that_raises_makes_a_dead_letter(keeping: hf.Pipeline, error: type[Exception]) -> None:
    def key(number: int) -> int:
        if number == 1:
            raise error("no key for this one")
        return number

    report = run(keeping, [1, 2, 3], key=key)
    assert (report.counts.done, report.counts.dead) == (2, 1)
    assert error.__name__ in report.dead[0].reason


@pytest.mark.promise("P8")
def test_the_same_item_twice_in_one_source_counts_once(keeping: hf.Pipeline) -> None:
    calls = Calls()
    keeping.stage(calls, name="count")
    report = run(keeping, [1, 2, 1, 2, 3, 3, 3])
    assert report.counts.expected == report.counts.done == len(calls) == 3


def test_the_same_item_twice_is_found_in_a_long_source_too(keeping: hf.Pipeline) -> None:
    report = run(keeping, (n % 1500 for n in range(6000)))
    assert report.counts.expected == 1500


def test_two_payloads_under_one_key_in_one_source_are_refused(keeping: hf.Pipeline) -> None:
    with pytest.raises(hf.PayloadChanged, match="n: 1 became 2"):
        run(keeping, [{"id": "a", "n": 1}, {"id": "a", "n": 2}], key="id")


@pytest.mark.promise("P8")
def test_keys_that_collide_in_the_index_are_told_apart(
    restart: Callable[..., hf.Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyIndex, "numbers", one_number)
    items = [{"id": "one"}, {"id": "other"}, {"id": "another"}]
    run(restart(define), items, key="id")
    again = restart(define)
    report = run(again, reversed(items), key="id")
    assert (report.counts.expected, report.this_run.admitted) == (3, 0)
    assert {key: value["id"] for key, value in outputs(again).items()} == {item["id"]: item["id"] for item in items}
