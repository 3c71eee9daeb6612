"""The code or the configuration of a stage changed since the batch was last run: kept, run again, or refused."""

import argparse
import dataclasses
import inspect
import json.decoder
import logging
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field

import holdfast as hf
from holdfast.core import canonical, journal, sections
from holdfast.core.model import State, chain_of_batch
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.define import stage
from holdfast.runtime.define.stage import code_of
from holdfast.runtime.operate import operations
from holdfast.runtime.operate.audit import verify
from holdfast.stores import faults
from holdfast.stores.base import each_entry
from tests.runtime.support import Calls, outputs, run

Define = Callable[[hf.Pipeline], None]
Restart = Callable[[Define], hf.Pipeline]


class Killed(BaseException):
    """Stands for the death of the process at a fault point."""


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.arm(None)


def pipeline(calls: Calls, middle: Callable[..., Any], **options: Any) -> Define:
    """Three stages, of which the second may differ."""

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def first(n: int) -> int:
            calls(("first", n))
            if n == 99:
                raise hf.Permanent("not_that_one")
            return n

        book.stage(name="second", **options)(middle)

        @book.stage
        def third(n: int) -> int:
            calls(("third", n))
            if n in (70, 71):
                raise hf.Permanent("not_this_one")
            return n + 1000

    return define


def versions(calls: Calls) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def old(n: int) -> int:
        calls(("old", n))
        if n == 5:
            raise hf.Skip("not for us")
        return n * 10

    def new(n: int) -> int:
        calls(("new", n))
        return n * 20

    return old, new


def kinds(book: hf.Pipeline) -> list[str]:
    batch = lookup.batch_named(book.store, "book")
    return [journal.decode_header(entry.head).kind for entry in each_entry(book.store, chain_of_batch(batch.id))]


def acts(book: hf.Pipeline, kind: str) -> list[journal.Acted]:
    batch = lookup.batch_named(book.store, "book")
    found = []
    for chunk in book.store.chunks(batch.id):
        for entry in each_entry(book.store, chunk.id):
            if journal.decode_header(entry.head).kind == kind:
                body = sections.decode(entry)
                assert isinstance(body, journal.Acted)
                found.append(body)
    return found


# -- what counts as a change ------------------------------------------------------------------------------------------


def test_comments_layout_docstrings_and_decorators_do_not_count() -> None:
    def plain(n: int) -> int:
        return n + 1

    first = code_of(plain)

    def plain(n: int) -> int:  # type: ignore[no-redef]
        """Says something."""

        # and more
        return (
            n   +   1
        )  # fmt: skip

    assert code_of(plain) == first

    def plain(n: int) -> int:  # type: ignore[no-redef]
        return n + 2

    assert code_of(plain) != first


@pytest.mark.parametrize("module", [argparse, dataclasses, json.decoder, logging], ids=lambda module: module.__name__)
def test_the_code_is_what_inspect_calls_the_source(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by a parser, because the tokenizer of `inspect` keeps a first run waiting."""
    classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    functions = [each for place in (module, *classes) for each in vars(place).values() if inspect.isfunction(each)]
    found = [code_of(function) for function in functions]
    own = [each for each in functions if each.__module__ == module.__name__ and each.__name__ != "<lambda>"]
    assert all(map(stage._text_of, own))
    monkeypatch.setattr(stage, "_text_of", lambda _: "")
    assert found == [code_of(function) for function in functions]


def test_a_text_in_the_middle_of_a_function_counts() -> None:
    def say() -> str:
        return "a"

    first = code_of(say)

    def say() -> str:  # type: ignore[no-redef]
        return "b"

    assert code_of(say) != first


def test_how_a_stage_is_tried_again_does_not_matter(restart: Restart, caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    old, _ = versions(calls)
    run(restart(pipeline(calls, old)), range(5))
    book = restart(pipeline(calls, old, retry=hf.Retry(attempts=9), timeout="1h", concurrency=1))
    assert run(book, range(5), on_code_change="refuse").warnings == ()
    assert kinds(book).count("opened") == 1


def test_descriptions_in_a_schema_do_not_matter_but_fields_do() -> None:
    from holdfast.runtime.define.schema import Schema

    class Page(BaseModel):
        title: str

    first = Schema(Page, "it").shape()

    class Page(BaseModel):  # type: ignore[no-redef]
        """A page."""

        title: str = Field(description="what stands on top")

    assert Schema(Page, "it").shape() == first

    class Page(BaseModel):  # type: ignore[no-redef]
        title: str
        number: int = 0

    assert Schema(Page, "it").shape() != first


# -- the three choices ------------------------------------------------------------------------------------------------


def test_by_default_it_goes_on_and_says_so_once(restart: Restart, caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    old, new = versions(calls)
    run(restart(pipeline(calls, old)), range(4))
    with caplog.at_level(logging.WARNING, "holdfast.run"):
        report = run(restart(pipeline(calls, new)), range(6))
    (said,) = report.warnings
    assert "the code of stage 'second' changed" in said
    assert 'on_code_change="rerun"' in said
    assert 'on_code_change="keep"' in said
    assert said in caplog.text
    assert said in str(report)
    assert sorted(call for call in calls.seen if call[0] == "new") == [("new", 4), ("new", 5)]
    book = restart(pipeline(calls, new))
    assert run(book, range(6)).warnings == ()
    assert kinds(book).count("opened") == 2


def test_what_nobody_decided_about_can_still_be_run_again(restart: Restart) -> None:
    calls = Calls()
    old, new = versions(calls)
    run(restart(pipeline(calls, old)), range(4))
    assert run(restart(pipeline(calls, new)), range(4)).warnings
    with pytest.raises(hf.DefinitionChanged, match="its code changed"):
        run(restart(pipeline(calls, new)), range(4), on_code_change="refuse")
    book = restart(pipeline(calls, new))
    run(book, range(4), on_code_change="rerun")
    assert outputs(book) == {n: n * 20 + 1000 for n in range(4)}
    calls.clear()
    run(restart(pipeline(calls, new)), range(4), on_code_change="rerun")
    assert not calls.seen, "the question is settled"


def test_keep_accepts_it_quietly_and_for_good(restart: Restart) -> None:
    calls = Calls()
    old, new = versions(calls)
    run(restart(pipeline(calls, old)), range(4))
    calls.clear()
    report = run(restart(pipeline(calls, new)), range(4), on_code_change="keep")
    assert (report.warnings, calls.seen) == ((), [])
    assert run(restart(pipeline(calls, new)), range(4), on_code_change="refuse").warnings == ()
    assert run(restart(pipeline(calls, new)), range(4), on_code_change="rerun").this_run.done == 0


def test_rerun_does_the_changed_stage_again_and_those_after_it(restart: Restart) -> None:
    calls = Calls()
    old, new = versions(calls)
    book = restart(pipeline(calls, old))
    run(book, range(7))
    before = {item.key: item.place.epoch for item in book.store.items(lookup.batch_named(book.store, "book").id)}
    calls.clear()
    book = restart(pipeline(calls, new))
    report = run(book, range(9), on_code_change="rerun")
    assert report.is_complete
    assert {call[0] for call in calls.seen if call[0] != "third" and call[1] < 7} == {"new"}
    assert outputs(book) == {n: n * 20 + 1000 for n in range(9)}, "what the old code skipped was done, too"
    batch = lookup.batch_named(book.store, "book")
    after = {item.key: item.place.epoch for item in book.store.items(batch.id)}
    assert all(after[key] == before[key] + 1 for key in range(7))
    assert {act.reason for act in acts(book, "reset")} == {"the code of stage 'second' changed"}
    assert verify(book.store, batch, full=True).holds
    assert run(restart(pipeline(calls, new)), range(9), on_code_change="refuse").warnings == ()


@pytest.mark.promise("E10")
def test_rerun_leaves_to_people_what_is_theirs(restart: Restart) -> None:
    calls = Calls()
    old, new = versions(calls)
    book = restart(pipeline(calls, old))
    run(book, [1, 7, 99])
    batch = lookup.batch_named(book.store, "book")
    by = Actor(name="ann", reason="by hand")
    states = {item.key: item.place for item in book.store.items(batch.id)}
    assert (states[7].state, states[99].state) == (State.DEAD, State.DEAD)
    operations.resolve(book.store, batch, by, "7", output=b"12345")
    book = restart(pipeline(calls, new))
    run(book, [1, 7, 99], on_code_change="rerun", tolerate=1)
    assert outputs(book) == {1: 1020, 7: 12345}
    (dead,) = book.store.items(batch.id, state=State.DEAD)
    assert dead.key == 99


def paid(price: str, word: str) -> Define:
    """One stage whose every call costs something."""

    def old(n: int, ctx: hf.Context) -> str:
        ctx.spend(usd=price)
        return f"old {n}"

    def new(n: int, ctx: hf.Context) -> str:
        ctx.spend(usd=price)
        if n == 8:
            raise hf.Skip("not that one")
        return f"new {n}"

    return lambda book: book.stage(name="ask")({"old": old, "new": new}[word]) and None


def test_rerun_pays_for_what_other_code_made_and_nothing_else(restart: Restart) -> None:
    assert run(restart(paid("0.10", "old")), range(3)).totals.usd == Decimal("0.30")
    assert run(restart(paid("0.10", "new")), range(9)).this_run.usd == Decimal("0.60")
    book = restart(paid("0.10", "new"))
    plan = book.plan(range(9), on_code_change="rerun")
    assert (plan.count("run", "changed code"), plan.count("skip", "done"), plan.count("skip", "skipped")) == (3, 5, 1)
    assert any("3 items passed it" in note for note in book.plan(range(9)).notes)
    report = run(book, range(9), on_code_change="rerun")
    assert (report.this_run.usd, report.totals.usd) == (Decimal("0.30"), Decimal("1.20"))
    assert outputs(book) == {n: f"new {n}" for n in range(8)}
    for _ in range(2):
        again = run(restart(paid("0.10", "new")), range(9), on_code_change="rerun")
        assert (again.this_run.done, again.this_run.usd, again.totals.usd) == (0, 0, Decimal("1.20"))
    book = restart(paid("0.10", "new"))
    assert verify(book.store, lookup.batch_named(book.store, "book"), full=True).holds


def test_what_the_code_of_before_made_is_good_again_when_it_comes_back(restart: Restart) -> None:
    run(restart(paid("1", "old")), range(3))
    run(restart(paid("1", "new")), range(5))
    book = restart(paid("1", "old"))
    assert run(book, range(5), on_code_change="rerun").this_run.usd == 2
    assert outputs(book) == {n: f"old {n}" for n in range(5)}


def test_a_message_is_known_by_its_code_as_well(restart: Restart) -> None:
    restart(paid("1", "old")).process(1, batch="book")
    restart(paid("1", "new")).process(2, batch="book")
    book = restart(paid("1", "new"))
    assert run(book, [1, 2, 3], on_code_change="rerun").this_run.usd == 2
    assert outputs(book) == {n: f"new {n}" for n in (1, 2, 3)}


def test_without_a_word_about_who_made_it_everything_is_run_again(restart: Restart, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.core.settle._made_by", lambda settled, makers: [])  # as older versions wrote it
    run(restart(paid("1", "old")), range(2))
    run(restart(paid("1", "new")), range(3))
    monkeypatch.undo()
    assert run(restart(paid("1", "new")), range(3), on_code_change="rerun").this_run.usd == 3


def test_refuse_names_what_differs(restart: Restart) -> None:
    calls = Calls()
    old, new = versions(calls)
    run(restart(pipeline(calls, old, sink=hf.Files("a/{key}.json"))), range(3))
    book = restart(pipeline(calls, new, sink=hf.Files("b/{key}.json")))
    with pytest.raises(hf.DefinitionChanged) as refused:
        run(book, range(3), on_code_change="refuse")
    for text in ("stage 'second'", "its code changed", "from a/{key}.json to b/{key}.json", 'on_code_change="rerun"'):
        assert text in str(refused.value)
    assert kinds(book).count("opened") == 1, "nothing was remembered"


def test_another_sink_writes_again_where_it_shall_stand(restart: Restart, folder: Path) -> None:
    calls = Calls()
    old, _ = versions(calls)
    run(restart(pipeline(calls, old, sink=hf.Files("a/{key}.json"))), range(3))
    run(restart(pipeline(calls, old, sink=hf.Files("b/{key}.json"))), range(3), on_code_change="rerun")
    assert sorted(path.name for path in (folder / "b").glob("*.json")) == ["0.json", "1.json", "2.json"]


def test_a_batch_in_which_nothing_was_begun_has_nothing_to_ask(restart: Restart) -> None:
    calls = Calls()
    old, new = versions(calls)
    book = restart(pipeline(calls, old))
    run(book, ["x"], batch="book", tolerate=1)
    assert run(restart(pipeline(calls, new)), [3], on_code_change="refuse", tolerate=1).warnings == ()


def test_without_items_the_question_is_asked_as_well(restart: Restart) -> None:
    calls = Calls()
    old, new = versions(calls)
    run(restart(pipeline(calls, old)), range(4), key=lambda n: n)
    with pytest.raises(hf.DefinitionChanged):
        run(restart(pipeline(calls, new)), on_code_change="refuse")
    assert run(restart(pipeline(calls, new))).warnings
    book = restart(pipeline(calls, new))
    assert run(book, on_code_change="rerun").is_complete
    assert outputs(book)[3] == 1060
    definition = canonical.decode(lookup.batch_named(book.store, "book").definition)
    assert definition["keyed"] == "a function", "what identifies the items is remembered all the same"


def test_an_unknown_choice_is_refused(book: hf.Pipeline) -> None:
    book.stage(versions(Calls())[0])
    with pytest.raises(hf.UsageError, match="on_code_change='perhaps'"):
        run(book, [1], on_code_change="perhaps")


# -- killed in between ------------------------------------------------------------------------------------------------

POINTS = ("act.before", "act.written", "act.after", "open_batch.before", "open_batch.written", "open_batch.after")


@pytest.mark.promise("A7", "E12")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("hit", [1, 2])
def test_killed_between_going_back_and_remembering_it_comes_to_the_same_end(
    point: str, hit: int, restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    old, new = versions(calls)
    run(restart(pipeline(calls, old)), range(6))
    monkeypatch.setattr("holdfast.runtime.acts.ACT_ITEMS", 4)  # two acts for six items
    seen = 0

    def strike(reached: str) -> None:
        nonlocal seen
        seen += reached == point
        if reached == point and seen == hit:
            raise Killed

    faults.arm(strike)
    book = restart(pipeline(calls, new))
    calls.clear()
    try:
        run(book, range(6), on_code_change="rerun")
        assert seen < hit, f"{point} was reached and nothing happened"
    except Killed:
        assert not calls.seen, "nothing is run before all of it went back"
    faults.arm(None)
    book.store.close()
    book = restart(pipeline(calls, new))
    report = run(book, range(6), on_code_change="rerun")
    assert report.is_complete
    assert outputs(book) == {n: n * 20 + 1000 for n in range(6)}
    assert sorted(calls.seen).count(("new", 3)) == 1, "nobody went back twice"
    batch = lookup.batch_named(book.store, "book")
    assert {item.place.epoch for item in book.store.items(batch.id)} == {1}
    assert verify(book.store, batch, full=True).holds
