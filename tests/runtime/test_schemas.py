"""Annotations are schemas: checked on the way in, between stages, and on the way out."""

import copy
import dataclasses
import datetime as dt
import enum
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr
from typing_extensions import TypedDict

import holdfast as hf
from holdfast.stores.base import find_batch
from tests.runtime.support import ONCE, Calls, codes, outputs, run, run_until, run_until_all_wait


class Page(BaseModel):
    number: int
    image: str = ""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    number: int


class Renamed(BaseModel):
    number: int = Field(alias="pageNumber")
    image: str = Field("", validation_alias=AliasChoices("scan", "picture"))


class Row(TypedDict):
    number: int
    tags: list[str]


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: float


NOW = dt.datetime(2026, 11, 2, 3, 4, 5, 678_901, tzinfo=dt.UTC)

VALUES: dict[str, tuple[Any, Any]] = {
    "int": (int, 7),
    "large int": (int, 1 << 200),
    "float": (float, 0.1),
    "bool": (bool, False),
    "text": (str, "naïve 🐋 \x00 text"),
    "empty text": (str, ""),
    "none": (None, None),
    "optional": (int | None, None),
    "bytes": (bytes, b"bytes"),
    "list": (list[int], [1, 2, 3]),
    "empty list": (list[int], []),
    "tuple": (tuple[int, str], (1, "a")),
    "set": (set[int], {3, 1}),
    "dict": (dict[str, float], {"a": 1.5}),
    "dict by number": (dict[int, str], {1: "a"}),
    "model": (Page, Page(number=1, image="i")),
    "models": (list[Page], [Page(number=1), Page(number=2)]),
    "dataclass": (Point, Point(1, 2.5)),
    "typed dict": (Row, {"number": 1, "tags": ["a"]}),
    "decimal": (Decimal, Decimal("0.1000")),
    "moment": (dt.datetime, NOW),
    "day": (dt.date, NOW.date()),
    "span": (dt.timedelta, dt.timedelta(seconds=1.5)),
    "uuid": (uuid.UUID, uuid.UUID(int=9)),
    "path": (Path, Path("a/b")),
    "enum": (Colour, Colour.RED),
    "literal": (Literal["a", "b"], "a"),
    "limits": (Annotated[int, Field(gt=0)], 3),
    "anything": (Any, {"a": [1, 2.5, None, True, "x"], "b": {"c": []}}),
    "plain dict": (dict, {"a": 1}),
    "union": (int | str, "7"),
}


@pytest.mark.promise("E16")
@pytest.mark.parametrize(("annotation", "value"), VALUES.values(), ids=VALUES)
def test_a_value_crosses_stages_as_it_was(book: hf.Pipeline, annotation: Any, value: Any) -> None:
    seen = []

    def make(number: int) -> Any:
        return value

    def take(given: Any) -> Any:
        seen.append(given)
        return given

    make.__annotations__["return"] = annotation
    take.__annotations__ = {"given": annotation, "return": annotation}
    book.stage(make)
    book.stage(take)
    assert codes(run(book, [1])) == {}
    assert seen == [value]
    assert type(seen[0]) is type(value)
    assert outputs(book) == {1: value}


@pytest.mark.parametrize("item", [{"number": "12"}, Page(number=12), {"number": 12, "surplus": 1}])
def test_an_item_is_taken_if_it_fits_its_annotation(book: hf.Pipeline, item: Any) -> None:
    @book.stage
    def look(page: Page) -> int:
        return page.number

    run(book, [item])
    assert list(outputs(book).values()) == [12]


@pytest.mark.promise("E1", "E2")
@pytest.mark.parametrize(
    "item",
    [{"number": "x"}, {}, 17, None, "text", [1], {"number": None}, {"number": 1.5}, Page.model_construct(number="x")],
    ids=repr,
)
def test_an_item_that_does_not_fit_is_a_dead_letter_and_never_reaches_a_handler(book: hf.Pipeline, item: Any) -> None:
    calls = Calls()

    @book.stage
    def look(page: Page) -> int:
        return calls(page.number)

    report = run(book, [item, {"number": 5}])
    assert calls.seen == [5]
    (letter,) = report.dead
    assert (letter.code, letter.attempts) == ("invalid", 0)
    assert letter.reason


@pytest.mark.promise("E1")
def test_a_dead_letter_says_which_field_is_wrong_and_not_its_content(book: hf.Pipeline) -> None:
    @book.stage
    def look(page: Page) -> int:
        return page.number

    (letter,) = run(book, [{"number": "secret", "image": 5}]).dead
    assert "number:" in letter.reason
    assert "image:" in letter.reason
    assert "secret" not in letter.reason


def test_a_strict_model_is_as_strict_as_it_says(book: hf.Pipeline) -> None:
    @book.stage
    def look(page: Strict) -> Strict:
        return page

    report = run(book, [{"number": 1}, {"number": "2"}, {"number": 3, "more": 4}], key=str)
    assert (report.counts.done, report.counts.dead) == (1, 2)


@pytest.mark.parametrize(
    "item", [{"pageNumber": 4, "scan": "s"}, {"pageNumber": 4, "picture": "s"}, Renamed(pageNumber=4, scan="s")]
)
def test_fields_with_other_names_outside_are_stored_and_come_back(book: hf.Pipeline, item: Any) -> None:
    @book.stage
    def look(page: Renamed) -> Renamed:
        return page

    @book.stage
    def more(page: Renamed) -> Renamed:
        return page

    assert codes(run(book, [item])) == {}
    assert list(outputs(book).values()) == [Renamed(pageNumber=4, scan="s")]


def test_a_dict_of_one_stage_may_use_the_outside_names_of_the_next(book: hf.Pipeline) -> None:
    book.stage(lambda number: {"pageNumber": number}, name="make")

    @book.stage
    def look(page: Renamed) -> int:
        return page.number

    run(book, [3])
    assert outputs(book) == {3: 3}


def returning(book: hf.Pipeline, annotation: Any, value: Any) -> hf.Report:
    calls = Calls()

    def make(number: int) -> Any:
        calls(number)
        return value if number == 1 else {"number": 2} if annotation is Page else []

    make.__annotations__["return"] = annotation
    book.stage(make)
    report = run(book, [1])
    assert len(calls) == 1, "a wrong answer is not paid for twice"
    return report


def mutated() -> Page:
    page = Page(number=1)
    page.number = "one"  # type: ignore[assignment]
    return page


def loop() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    return deep


WRONG: dict[str, tuple[Any, Any]] = {
    "text for a number": (int, "one"),
    "none for a number": (int, None),
    "a fraction for a number": (int, 1.5),
    "a model with a wrong field": (Page, {"number": "one"}),
    "another model": (Page, Point(1, 2)),
    "a mutated model": (Page, mutated()),
    "a model made without checks": (Page, Page.model_construct(image=5)),
    "something for nothing": (None, 1),
    "not a number": (float, math.nan),
    "infinity": (float, math.inf),
    "not a number, hidden": (dict[str, float], {"a": math.nan}),
    "not a number, anywhere": (dict, {"a": math.nan}),
    "not a number, unannotated": (Any, [math.inf]),
    "an object": (Any, object()),
    "a function": (Any, print),
    "bytes that are no text": (Any, b"\xff"),
    "a moment, unannotated": (Any, NOW),
    "a model, unannotated": (Any, Page(number=1)),
    "a model inside, unannotated": (Any, {"page": Page(number=1)}),
    "a tuple, unannotated": (Any, (1, 2)),
    "a set, unannotated": (Any, {1}),
    "numbers as names, unannotated": (Any, {1: 2}),
    "half a surrogate pair": (str, "\udcff"),
    "half a surrogate pair, unannotated": (Any, {"a": "\udcff"}),
    "itself": (Any, loop()),
    "something very deep": (Any, nested()),
    "a generator": (Any, (n for n in (1, 2))),
}


@pytest.mark.promise("E2", "P5")
@pytest.mark.parametrize(("annotation", "value"), WRONG.values(), ids=WRONG)
def test_an_output_that_does_not_fit_fails_its_stage(book: hf.Pipeline, annotation: Any, value: Any) -> None:
    report = returning(book, annotation, value)
    assert report.counts.done == 0
    (letter,) = report.dead
    assert (letter.code, letter.stage) == ("invalid_output", "make")
    assert outputs(book) == {}


def test_a_handler_that_yields_for_a_list_gives_the_list(book: hf.Pipeline) -> None:
    @book.stage
    def lines(number: int) -> list[int]:
        yield from range(number)  # type: ignore[misc]

    run(book, [3])
    assert outputs(book) == {3: [0, 1, 2]}


def test_an_output_beyond_the_limit_fails_its_stage_and_says_what_to_do(book: hf.Pipeline) -> None:
    @book.stage
    def swell(number: int) -> str:
        return "x" * (64 * 1024 * 1024 + number)

    (letter,) = run(book, [1]).dead
    assert letter.code == "invalid_output"
    assert "write it to a file" in letter.reason


def test_a_payload_beyond_the_limit_is_a_dead_letter_with_its_beginning(book: hf.Pipeline) -> None:
    book.stage(lambda value: len(value["data"]), name="measure")
    report = run(book, [{"id": "big", "data": "x" * (17 << 20)}, {"id": "small", "data": "x"}], key="id")
    assert outputs(book) == {"small": 1}
    (letter,) = report.dead
    assert (letter.key, letter.code) == ("big", "too_large")
    assert "put the data in a file" in letter.reason
    kept = book.store.items(find_batch(book.store, "book").id, lo=0, hi=1)[0].payload
    assert len(kept) < 2000


def test_what_the_next_stage_cannot_read_fails_there(book: hf.Pipeline) -> None:
    book.stage(lambda number: {"nr": number}, name="make")

    @book.stage
    def look(page: Page) -> int:
        return page.number

    (letter,) = run(book, [1]).dead
    assert (letter.code, letter.stage) == ("invalid_input", "look")


@pytest.mark.promise("E5", "E16")
def test_a_handler_that_changes_its_input_changes_nothing(book: hf.Pipeline) -> None:
    seen = []

    @book.stage(retry=hf.Retry(attempts=3, wait=("1ms", "2ms")))
    def meddle(page: dict[str, Any], ctx: hf.Context) -> dict[str, Any]:
        seen.append((copy.deepcopy(page), ctx.idempotency_key))
        page["number"] = 99
        page["tags"].append("changed")
        if ctx.attempt < 3:
            raise hf.Transient("not yet")
        return page

    @book.stage
    def after(page: dict[str, Any]) -> dict[str, Any]:
        page["number"] = 100
        return {"ok": True}

    given = {"number": 1, "tags": ["a"]}
    run(book, [given])
    assert given == {"number": 1, "tags": ["a"]}
    assert [page for page, _ in seen] == [given] * 3
    assert len({key for _, key in seen}) == 1
    kept = book.store.items(find_batch(book.store, "book").id, lo=0, hi=1)[0].payload
    assert kept == b'{"number":1,"tags":["a"]}'


@pytest.mark.promise("E5")
def test_every_attempt_sees_the_same_value(restart: Callable[..., hf.Pipeline]) -> None:
    seen = []

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=9, wait=("1ms", "2ms")))
        def look(page: Page, ctx: hf.Context) -> Page:
            seen.append((page.number, page.image, ctx.idempotency_key))
            page.number += 1
            page.image = "changed"
            if len(seen) < 5:
                raise hf.Defer(0.3) if len(seen) == 3 else hf.Transient("again")
            return page

    run_until(lambda: len(seen) >= 3, restart(define), [{"number": 4, "image": "as it was"}])
    run(restart(define))
    assert len(seen) == 5
    assert len(set(seen)) == 1


def test_a_value_that_is_kept_by_the_handler_is_not_the_one_the_next_stage_gets(book: hf.Pipeline) -> None:
    kept: list[dict[str, Any]] = []

    @book.stage
    def first(number: int) -> dict[str, Any]:
        kept.append({"n": number})
        return kept[-1]

    @book.stage
    def second(value: dict[str, Any]) -> bool:
        return any(value is each for each in kept)

    run(book, range(20))
    assert set(outputs(book).values()) == {False}


def test_a_secret_is_refused_where_it_is_declared(book: hf.Pipeline) -> None:
    class Login(BaseModel):
        user: str
        password: SecretStr

    with pytest.raises(hf.UsageError, match="contains a secret"):

        @book.stage
        def log_in(login: Login) -> str:
            return login.user


def test_an_annotation_that_is_no_schema_is_refused_where_it_is_declared(book: hf.Pipeline) -> None:
    class Connection:
        pass

    with pytest.raises(hf.UsageError, match=r"stage 'look', input.*cannot be a schema"):

        @book.stage
        def look(connection: Connection) -> str:
            return ""


def test_an_annotation_that_cannot_be_resolved_is_refused(book: hf.Pipeline) -> None:
    with pytest.raises(hf.UsageError, match="its annotations cannot be resolved"):

        @book.stage
        def look(page: "NoSuchType") -> int:  # type: ignore[name-defined]  # noqa: F821
            return 1


def test_callables_of_any_kind_are_stages(book: hf.Pipeline) -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, number: int) -> int:
            return number * self.factor

        def add(self, number: int) -> int:
            return number + self.factor

    book.stage(name="double")(Scale(2))
    book.stage(Scale(3).add)
    book.stage(abs)
    run(book, [5])
    assert outputs(book) == {5: 13}


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1,
        lambda *, a: 1,
        lambda *args: 1,
        lambda **kw: 1,
        5,
        None,
    ],
    ids=["none", "by name", "any number", "any names", "a number", "nothing"],
)
def test_what_cannot_take_one_value_is_no_stage(book: hf.Pipeline, function: Any) -> None:
    with pytest.raises(hf.UsageError, match="stage"):
        book.stage(name="odd")(function)


@pytest.mark.promise("E2")
def test_a_verifier_must_agree_before_an_output_counts(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def read(number: int) -> str:
        return "x" * number

    @read.verify
    def long_enough(out: str) -> bool:
        return len(out) >= 3

    report = run(book, [1, 3, 5])
    assert set(outputs(book)) == {3, 5}
    assert codes(report) == {1: "unverified"}


def test_a_verifier_may_look_at_the_item_and_the_context(book: hf.Pipeline) -> None:
    seen = []

    @book.stage(retry=ONCE)
    def double(number: int) -> int:
        return 2 * number

    @double.verify
    def right(out: int, item: int, ctx: hf.Context) -> bool:
        seen.append((out, item, ctx.key))
        return out == 2 * item

    assert run(book, [4]).is_complete
    assert seen == [(8, 4, 4)]


def test_a_verifier_that_needs_the_item_does_not_bury_what_is_resumed(restart: Callable[..., hf.Pipeline]) -> None:
    ready = False

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def double(number: int) -> int:
            return 2 * number

        @double.verify
        def right(out: int, item: int, ctx: hf.Context) -> bool:
            return out == item + item

        @book.stage
        def finish(number: int) -> int:
            if not ready:
                raise hf.Defer(0)
            return number

    assert run_until_all_wait(restart(define), [4]).counts.pending == 1
    ready = True
    assert run(restart(define)).counts.done == 1


@pytest.mark.promise("A5", "A6")
def test_what_no_longer_verifies_is_made_again_before_the_next_stage(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    ready, least = False, 0

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            return calls(number)

        @read.verify
        def enough(out: int) -> bool:
            return out > least

        @book.stage
        def finish(number: int) -> int:
            if not ready:
                raise hf.Defer(0)
            return number

    run_until_all_wait(restart(define), [7])
    ready, least = True, 1
    again = restart(define)
    assert run(again).counts.done == 1
    assert outputs(again) == {7: 2}


def test_a_verifier_that_raises_fails_the_attempt(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def read(number: int) -> int:
        return number

    @read.verify
    def broken(out: int) -> bool:
        raise KeyError("no such rule")

    report = run(book, [1])
    assert codes(report) == {1: "verifier_failed"}
    assert "the verifier of stage 'read'" in report.dead[0].reason
    assert "it raised KeyError: 'no such rule'" in report.dead[0].reason


@pytest.mark.parametrize("verifier", [lambda: True, lambda a, b: True, lambda a, b, c, d: True])
def test_a_verifier_takes_one_or_three_arguments(book: hf.Pipeline, verifier: Any) -> None:
    stage = book.stage(name="look")(lambda value: value)
    with pytest.raises(hf.UsageError, match=r"write \(out\) or \(out, item, ctx\)"):
        stage.verify(verifier)


def test_an_async_verifier_is_refused(book: hf.Pipeline) -> None:
    stage = book.stage(name="look")(lambda value: value)

    async def later(out: Any) -> bool:
        return True

    with pytest.raises(hf.UsageError, match="is async"):
        stage.verify(later)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
@pytest.mark.promise("E1")
def test_a_number_that_is_none_is_refused_at_the_boundary(book: hf.Pipeline, score: float) -> None:
    class Scored(BaseModel):
        id: int
        score: float

    @book.stage
    def read(page: Scored) -> int:
        return page.id

    report = run(book, [{"id": 1, "score": score}, {"id": 2, "score": 0.5}], key="id")
    assert (report.counts.done, codes(report)) == (1, {1: "invalid"})


class Plain(BaseModel):
    number: int
    text: str
    share: float = 0.5
    ok: bool = True


class Wider(Plain):
    more: str = "more"


def changed(**fields: Any) -> Plain:
    """As a careless handler leaves it: pydantic looks at a field when it is made, not when it is assigned."""
    value = Plain(number=1, text="one")
    value.__dict__.update(fields)
    return value


BROKEN = {
    "a text for a number": changed(number="one"),
    "a truth for a number": changed(ok="perhaps"),
    "nothing at all": changed(text=None),
    "not a number": changed(share=math.nan),
    "half a character": changed(text="\ud800"),
    "a field that is missing": Plain.model_construct(number=1),
    "a number without an end": changed(number=10**5000),
    "an object": changed(text=object()),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.promise("E2")
def test_what_a_plain_model_does_not_declare_is_not_stored(book: hf.Pipeline, what: str) -> None:
    @book.stage(retry=ONCE)
    def read(number: int) -> Plain:
        return BROKEN[what]

    assert codes(run(book, [1])) == {1: "invalid_output"}


@pytest.mark.parametrize("number", [0, -1, 2**80])
def test_what_a_plain_model_declares_comes_back(book: hf.Pipeline, number: int) -> None:
    made = [Plain(number=number, text="", share=-0.0, ok=False), Wider(number=number, text='"\u0000\N{GRINNING FACE}')]

    @book.stage
    def read(index: int) -> Plain:
        return made[index]

    run(book, [0, 1])
    found = outputs(book)
    assert found[0] == made[0]
    assert (found[1].number, found[1].text) == (number, made[1].text)
