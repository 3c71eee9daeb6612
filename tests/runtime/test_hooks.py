"""What users hang on the life of a pipeline and of a stage."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.limits import REWINDS
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.stores.base import find_batch
from tests.runtime.support import ONCE, Calls, run, run_until_all_wait


def two_stages(book: hf.Pipeline) -> tuple[Any, Any]:
    first = book.stage(name="first", retry=ONCE)(lambda number: number)
    second = book.stage(name="second", retry=ONCE)(lambda number: number)
    return first, second


def test_hooks_are_called_in_the_order_of_life(book: hf.Pipeline) -> None:
    told: list[str] = []
    first, second = two_stages(book)
    book.before(lambda batch: told.append(f"run of {batch}"))
    first.before(lambda: told.append("first begins"))
    second.before(lambda batch: told.append(f"second begins in {batch}"))
    first.after(lambda facts: told.append(f"{facts.stage} has {facts.runs}"))
    second.after(lambda facts: told.append(f"{facts.stage} has {facts.runs}"))
    book.after(lambda report: told.append(f"{report.counts.done} done"))
    run(book, range(10))
    assert told == [
        "run of book",
        "first begins",
        "second begins in book",
        "first has 10",
        "second has 10",
        "10 done",
    ]


def test_a_stage_begins_once_in_a_run_before_its_first_item(book: hf.Pipeline) -> None:
    told: list[Any] = []
    lock = threading.Lock()

    @book.stage
    def read(number: int) -> int:
        with lock:
            told.append(number)
        return number

    read.before(lambda: told.append("begins"))
    run(book, range(50), workers=8)
    assert told[0] == "begins"
    assert told.count("begins") == 1
    run(book, range(50))
    assert told.count("begins") == 1, "nothing of the stage was run again"
    run(book, range(51))
    assert told[-2:] == ["begins", 50]


@pytest.mark.promise("P11")
def test_what_after_returns_is_kept_with_the_time_and_it_is_called_once(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        first, _ = two_stages(book)

        @first.after
        def summary(facts: Any) -> dict[str, Any]:
            calls(facts.stage)
            return {"runs": facts.runs, "words": ["a", "b"]}

    report = run(restart(define), range(7))
    assert report.stages["first"]["metadata"] == {"runs": 7, "words": ["a", "b"]}
    assert report.stages["first"]["completed_at"].startswith("20")
    again = run(restart(define), range(7))
    assert again.stages == report.stages
    assert len(calls) == 1


def test_a_stage_that_gets_more_items_is_complete_again(restart: Callable[..., hf.Pipeline]) -> None:
    def define(book: hf.Pipeline) -> None:
        first, _ = two_stages(book)
        first.after(lambda facts: facts.runs)

    assert run(restart(define), range(7)).stages["first"]["metadata"] == 7
    assert run(restart(define), range(9)).stages["first"]["metadata"] == 9


def test_a_stage_is_not_complete_while_an_item_of_it_is_open(book: hf.Pipeline) -> None:
    told = []
    first, _ = two_stages(book)
    hold = True

    @book.stage(name="second")
    def hesitate(number: int) -> int:
        if number == 3 and hold:
            raise hf.Defer(0.2)
        return number

    first.after(lambda: told.append("first"))
    hesitate.after(lambda: told.append("second"))
    run_until_all_wait(book, range(5))
    assert told == ["first"]
    hold = False
    run(book)
    assert told == ["first", "second"]


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"\xff", {"a": object()}], ids=["set", "object", "bytes", "nested"]
)
def test_what_after_returns_may_be_anything(book: hf.Pipeline, value: Any) -> None:
    first, _ = two_stages(book)
    first.after(lambda: value)
    report = run(book, range(3))
    assert report.is_complete
    assert report.stages["first"]["metadata"] is not None


def test_every_item_that_is_buried_is_told_once_after_that_is_durable(book: hf.Pipeline) -> None:
    told: list[tuple[str, hf.DeadLetter, str]] = []

    @book.stage(retry=ONCE)
    def read(number: int) -> int:
        if number % 3 == 0:
            raise hf.Permanent("no_such_page", f"page {number}")
        return number

    def tell(who: str) -> Callable[[hf.DeadLetter], None]:
        def hook(letter: hf.DeadLetter) -> None:
            batch = find_batch(book.store, "book")
            state = book.store.items(batch.id, lo=letter.number, hi=letter.number + 1)[0].place.state
            told.append((who, letter, str(state)))

        hook.__qualname__ = who
        return hook

    read.on_failure(tell("stage"))
    book.on_failure(tell("pipeline"))
    run(book, range(10))
    run(book, range(10))
    assert {(who, letter.key) for who, letter, _ in told} == {
        (w, k) for w in ("stage", "pipeline") for k in (0, 3, 6, 9)
    }
    assert len(told) == 8
    assert {state for _, _, state in told} == {"dead"}
    assert {(letter.stage, letter.code, letter.attempts) for _, letter, _ in told} == {("read", "no_such_page", 1)}


def test_items_that_are_refused_at_the_boundary_are_told_too(book: hf.Pipeline) -> None:
    told = []

    @book.stage
    def read(number: int) -> int:
        return number

    book.on_failure(lambda letter: told.append((letter.key, letter.code)))
    run(book, [1, "x", 2])
    assert told == [("x", "invalid")]


@pytest.mark.parametrize("way", ["run", "process"])
def test_items_that_come_again_with_a_payload_that_is_refused_are_told_and_counted(way: str, book: hf.Pipeline) -> None:
    told: list[tuple[Any, str]] = []

    @book.stage
    def read(row: dict[str, int]) -> int:
        return row["v"]

    book.on_failure(lambda letter: told.append((letter.key, letter.code)))
    run(book, [{"id": 1, "v": 1}, {"id": 2, "v": 2}], key="id")
    if way == "run":
        report = run(book, [{"id": 1, "v": "x"}, {"id": 2, "v": 2}], key="id", changed="rerun")
        assert (report.this_run.dead, report.this_run.done_before, report.counts.dead) == (1, 1, 1)
    else:
        with book.processor(key="id", changed="rerun") as one:
            assert one.process({"id": 1, "v": "x"}).state == "dead"
    assert told == [(1, "invalid")]


@pytest.mark.parametrize("way", ["run", "process"])
def test_an_item_that_is_buried_because_it_went_back_too_often_is_told(
    way: str, book: hf.Pipeline, folder: Path
) -> None:
    """The look at what is recorded buries it, before anything is run."""
    told: list[tuple[Any, str]] = []

    @book.stage(sink=hf.Files("out/{key}.json"))
    def read(number: int) -> int:
        return number

    read.on_failure(lambda letter: told.append((letter.key, letter.code)))
    run(book, range(3))
    for _ in range(REWINDS):
        (folder / "out" / "1.json").unlink()
        assert run(book, range(3)).is_complete
    assert not told
    (folder / "out" / "1.json").unlink()
    if way == "run":
        report = run(book, range(3))
        assert (report.counts.dead, report.this_run.dead, report.this_run.rewound) == (1, 1, 0)
    else:
        assert book.process(1).state == "dead"
    assert told == [(1, "rewound_too_often")]
    run(book, range(3))
    assert len(told) == 1


def test_a_failure_hook_that_raises_is_noted_and_changes_nothing(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def read(number: int) -> int:
        raise hf.Permanent("no")

    @book.on_failure
    def broken(letter: hf.DeadLetter) -> None:
        raise ValueError("the pager is down")

    report = run(book, [1, 2])
    assert report.counts.dead == 2
    assert len(report.warnings) == 2
    assert "the pager is down" in report.warnings[0]
    assert "the pager is down" in str(report)


def test_a_before_hook_that_raises_stops_the_run_and_nothing_is_lost(restart: Callable[..., hf.Pipeline]) -> None:
    broken = True

    def define(book: hf.Pipeline) -> None:
        two_stages(book)

        def check() -> None:
            if broken:
                raise RuntimeError("no credentials")

        book.before(check)

    with pytest.raises(RuntimeError, match="no credentials"):
        run(restart(define), range(5))
    broken = False
    assert run(restart(define), range(5)).is_complete


def test_a_stage_that_cannot_begin_stops_the_run_and_nothing_is_lost(restart: Callable[..., hf.Pipeline]) -> None:
    broken = True

    def define(book: hf.Pipeline) -> None:
        _, second = two_stages(book)

        @second.before
        def check() -> None:
            if broken:
                raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        run(restart(define), range(5))
    broken = False
    assert run(restart(define), range(5)).is_complete


def test_an_after_hook_that_raises_does_not_hide_the_report_and_is_called_again(
    restart: Callable[..., hf.Pipeline],
) -> None:
    broken = True

    def define(book: hf.Pipeline) -> None:
        first, _ = two_stages(book)

        @first.after
        def summary(facts: Any) -> int:
            if broken:
                raise RuntimeError("no room")
            return facts.runs

    report = run(restart(define), range(5))
    assert (report.counts.done, report.state, report.exit_code) == (5, "complete", 1)
    assert "the hook after stage 'first' failed: RuntimeError: no room; the work is recorded" in str(report)
    broken = False
    again = run(restart(define))
    assert (again.stages["first"]["metadata"], again.exit_code) == (5, 0)


def test_a_hook_after_the_pipeline_that_raises_does_not_hide_the_report(book: hf.Pipeline) -> None:
    two_stages(book)

    @book.after
    def mail(report: hf.Report) -> None:
        raise RuntimeError("mail server down")

    report = run(book, range(5))
    assert (report.counts.done, report.state, report.exit_code) == (5, "complete", 1)
    assert "the hook after pipeline 'book' failed: RuntimeError: mail server down" in str(report)
    assert report.as_dict()["failed_hooks"] == list(report.failed_hooks)


def test_a_stage_whose_dead_letter_was_redriven_is_complete_again(restart: Callable[..., hf.Pipeline]) -> None:
    broken = True

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=ONCE)
        def read(number: int) -> int:
            if number == 3 and broken:
                raise hf.Permanent("torn")
            return number

        read.after(lambda facts: dict(facts.outcomes))

    first = run(restart(define), range(4))
    assert first.stages["read"]["metadata"] == {"done": 3, "buried": 1}
    broken = False
    book = restart(define)
    operations.redrive(
        book.store, lookup.batch_named(book.store, "book"), Actor(name="test", reason="the scan is whole")
    )
    assert run(book).stages["read"]["metadata"] == {"done": 4, "buried": 1}
    assert run(restart(define)).stages["read"]["metadata"] == {"done": 4, "buried": 1}


def test_a_pipeline_hears_of_its_end_only_when_it_is_complete(book: hf.Pipeline) -> None:
    told = []
    ready = False

    @book.stage
    def read(number: int) -> int:
        if not ready:
            raise hf.Defer(0.2)
        return number

    book.after(lambda report: told.append(report.state))
    run_until_all_wait(book, [1])
    assert told == []
    ready = True
    run(book)
    assert told == ["complete"]


def test_hooks_may_be_async_and_run_on_the_loop_of_the_handlers(book: hf.Pipeline) -> None:
    told: list[tuple[str, Any]] = []
    loops: set[int] = set()

    @book.stage(retry=ONCE)
    async def read(number: int) -> int:
        loops.add(id(asyncio.get_running_loop()))
        if number == 3:
            raise hf.Permanent("no_such_page")
        return number

    def hook(name: str, facts: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def tell(given: Any) -> Any:
            await asyncio.sleep(0)
            loops.add(id(asyncio.get_running_loop()))
            told.append((name, facts(given)))
            return facts(given)

        return tell

    book.before(hook("run begins", str))
    read.before(hook("stage begins", str))
    read.on_failure(hook("buried", lambda letter: letter.key))
    read.after(hook("stage is complete", lambda facts: facts.runs))
    book.after(hook("run is complete", lambda report: report.counts.done))
    report = run(book, range(5), tolerate=1)
    assert told == [
        ("run begins", "book"),
        ("stage begins", "book"),
        ("buried", 3),
        ("stage is complete", 5),
        ("run is complete", 4),
    ]
    assert report.stages["read"]["metadata"] == 5
    assert len(loops) == 1


def test_what_an_async_hook_raises_reaches_the_caller(book: hf.Pipeline) -> None:
    two_stages(book)

    @book.before
    async def check() -> None:
        raise RuntimeError("no credentials")

    with pytest.raises(RuntimeError, match="no credentials"):
        run(book, range(5))


def test_defining_a_hook_again_replaces_it(book: hf.Pipeline) -> None:
    told = []
    two_stages(book)
    for word in ("old", "new"):

        @book.before
        def tell(batch: str, word: str = word) -> None:
            told.append(word)

    run(book, [1])
    assert told == ["new"]
