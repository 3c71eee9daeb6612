"""Identity and change: what happens when an item comes again."""

import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core.course import ITEM_DEAD
from holdfast.core.model import BatchId, chain_of_batch
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit, operations
from holdfast.stores.base import each_entry
from tests.runtime.support import Calls, outputs, run, run_until_all_wait


class Page(BaseModel):
    number: int
    image: str = ""


class Shelved(BaseModel):
    number: int
    shelves: set[int]


def shelves(book: hf.Pipeline) -> None:
    @book.stage
    def look(item: Shelved) -> Shelved:
        return item


def definition(calls: Calls) -> Callable[[hf.Pipeline], None]:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ocr(page: Page) -> str:
            calls(page.number)
            return page.image.upper()

        @book.stage
        def done(text: str) -> str:
            return text

    return define


OLD = [{"number": 1, "image": "one"}, {"number": 2, "image": "two"}]
NEW = [{"number": 1, "image": "one"}, {"number": 2, "image": "zwei"}]


def test_a_changed_payload_is_refused_with_the_difference(restart: Callable[..., hf.Pipeline]) -> None:
    define = definition(Calls())
    run(restart(define), OLD, key="number")
    with pytest.raises(hf.PayloadChanged) as caught:
        run(restart(define), NEW, key="number")
    text = str(caught.value)
    assert "item 2 of batch 'book'" in text
    assert "image: 'two' became 'zwei'" in text
    assert 'changed="rerun"' in text
    assert outputs(restart(define)) == {1: "ONE", 2: "TWO"}


def test_what_else_the_source_had_is_kept_when_a_change_is_refused(restart: Callable[..., hf.Pipeline]) -> None:
    define = definition(Calls())
    run(restart(define), OLD, key="number")
    with pytest.raises(hf.PayloadChanged):
        run(restart(define), [*NEW, {"number": 3, "image": "three"}], key="number")
    assert run(restart(define), [*OLD, {"number": 3, "image": "three"}], key="number").counts.done == 3


def test_a_changed_payload_is_ignored_on_request(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    run(restart(definition(calls)), OLD, key="number")
    again = restart(definition(calls))
    assert run(again, NEW, key="number", changed="keep").is_complete
    assert outputs(again) == {1: "ONE", 2: "TWO"}
    assert len(calls) == 2


@pytest.mark.promise("P4")
def test_a_changed_payload_is_handled_again_on_request_and_no_other(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    run(restart(definition(calls)), OLD, key="number")
    calls.clear()
    again = restart(definition(calls))
    report = run(again, NEW, key="number", changed="rerun")
    assert calls.seen == [2]
    assert (report.counts.expected, report.counts.done) == (2, 2)
    assert report.saved.items == 1
    assert outputs(again) == {1: "ONE", 2: "ZWEI"}


def test_the_journal_says_which_fields_changed_and_nothing_of_what_is_in_them(
    restart: Callable[..., hf.Pipeline],
) -> None:
    book = restart(definition(Calls()))
    run(book, OLD, key="number")
    run(book, NEW, key="number", changed="rerun")
    chains = [chain_of_batch(BatchId(1)), *(int(chunk.id) for chunk in book.store.chunks(BatchId(1)))]
    entries = [entry for chain in chains for entry in each_entry(book.store, chain)]
    words = b"".join(text.frame or b"" for entry in entries for text in entry.texts)
    assert b"came again with another payload: image differ" in words
    assert b"zwei" not in words + b"".join(entry.body for entry in entries)


def test_a_payload_that_is_no_item_any_more_is_told_as_a_dead_letter(restart: Callable[..., hf.Pipeline]) -> None:
    book = restart(definition(Calls()))
    run(book, OLD, key="number")
    report = run(book, [OLD[0], {"number": 2, "image": 2}], key="number", changed="rerun")
    assert (report.counts.done, report.counts.dead) == (1, 1)
    assert [event.n for event in book.store.events() if event.kind == ITEM_DEAD] == [1]


def test_a_payload_that_changes_while_it_is_handled_fences_the_handler(restart: Callable[..., hf.Pipeline]) -> None:
    running, go_on = threading.Event(), threading.Event()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ocr(page: Page) -> str:
            if page.image == "old":
                running.set()
                assert go_on.wait(20)
            return page.image.upper()

    first = restart(define)
    thread = threading.Thread(target=lambda: run(first, [{"number": 1, "image": "old"}], key="number", lease="1s"))
    thread.start()
    assert running.wait(20)
    threading.Timer(0.3, go_on.set).start()
    second = restart(define)
    run(second, [{"number": 1, "image": "new"}], key="number", changed="rerun", lease="1s")
    thread.join(30)
    assert outputs(second) == {1: "NEW"}


def test_a_change_back_and_forth_is_handled_each_time(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    for pages in (OLD, NEW, OLD, NEW):
        again = restart(definition(calls))
        run(again, pages, key="number", changed="rerun")
    assert calls.seen.count(2) == 4
    assert calls.seen.count(1) == 1
    assert outputs(again)[2] == "ZWEI"


@pytest.mark.promise("E4")
def test_another_order_is_no_change(restart: Callable[..., hf.Pipeline]) -> None:
    def define(book: hf.Pipeline) -> None:
        book.stage(lambda value: value, name="keep")

    run(restart(define), [{"id": 1, "a": 1, "b": 2}], key="id")
    assert run(restart(define), [{"b": 2, "a": 1, "id": 1}], key="id").is_complete
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    run(restart(shelves, "sets"), [{"number": 1, "shelves": one}], key="number")
    assert run(restart(shelves, "sets"), [{"number": 1, "shelves": other}], key="number").is_complete


@pytest.mark.promise("E4")
def test_by_content_the_order_of_a_set_does_not_make_another_item(restart: Callable[..., hf.Pipeline]) -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    run(restart(shelves), [{"number": 1, "shelves": one}])
    assert run(restart(shelves), [{"number": 1, "shelves": other}]).counts.expected == 1


@pytest.mark.promise("E4")
def test_by_content_equal_payloads_are_one_item(restart: Callable[..., hf.Pipeline]) -> None:
    define = definition(Calls())
    items = [{"number": 1, "image": "a"}, {"image": "a", "number": "1"}, Page(number=1, image="a")]
    assert run(restart(define), items, identity="content").counts.expected == 1
    assert run(restart(define), [{"number": 1, "image": "b"}], identity="content").counts.expected == 2


def test_as_new_every_item_of_every_run_is_another_one(restart: Callable[..., hf.Pipeline]) -> None:
    define = definition(Calls())
    assert run(restart(define), [*OLD, *OLD], identity="new").counts.expected == 4
    assert run(restart(define), OLD, identity="new").counts.expected == 6


def test_an_invalid_item_that_comes_again_is_the_same_dead_letter(restart: Callable[..., hf.Pipeline]) -> None:
    define = definition(Calls())
    bad = [{"number": "x", "image": "i"}, {"image": "no number"}, 17, None, "text", {"number": {}}]
    first = run(restart(define), bad, key="number")
    again = run(restart(define), bad, key="number")
    assert first.counts.dead == again.counts.dead == again.counts.expected == len(bad)


def test_an_invalid_item_that_was_corrected_is_handled_on_request(restart: Callable[..., hf.Pipeline]) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ocr(page: Page) -> str:
            return page.image

    assert run(restart(define), [{"number": "x1", "image": 5}], key="image").counts.dead == 1
    with pytest.raises(hf.PayloadChanged, match="number: 'x1' became 1"):
        run(restart(define), [{"number": 1, "image": "5"}], key="image")
    discard(book := restart(define), "5")
    report = run(book, [{"number": 1, "image": "5"}], key="image", changed="rerun")
    assert (report.counts.done, report.counts.dead) == (1, 0)


def discard(book: hf.Pipeline, key: str) -> None:
    """A person gives a dead letter up."""
    store = book.store
    operations.discard(store, store.batches()[0], Actor(name="ann", reason="the scan was wrong"), [key])


UNLUCKY = [{"number": 1, "image": "one"}, {"number": 13, "image": "bad"}, {"number": 14, "image": 5}]
CORRECTED = [{"number": 1, "image": "one"}, {"number": 13, "image": "good"}, {"number": 14, "image": "five"}]


def unlucky(calls: Calls) -> Callable[[hf.Pipeline], None]:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ocr(page: Page) -> str:
            calls(page.number)
            if page.image == "bad":
                raise hf.Permanent("unreadable")
            return page.image.upper()

    return define


@pytest.mark.promise("E10")
def test_a_dead_letter_that_comes_with_another_payload_is_left_to_a_person(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    define = unlucky(calls)
    run(restart(define), UNLUCKY, key="number")
    before = list(restart(define).store.items(BatchId(1)))
    book = restart(define)
    assert book.plan(CORRECTED, key="number", changed="rerun").count("skip", "dead") == 2
    assert "2 dead letters came with another payload" in "".join(
        book.plan(CORRECTED, key="number", changed="rerun").notes
    )
    report = run(book, CORRECTED, key="number", changed="rerun")
    assert (report.counts.done, report.counts.dead, report.exit_code) == (1, 2, 1)
    assert list(book.store.items(BatchId(1))) == before, "payload and envelope are as they were"
    (warning,) = report.warnings
    assert "2 dead letters of book came with another payload and were left alone (13, 14)" in warning
    assert "holdfast dead discard book KEY" in warning
    assert sorted(calls.seen) == [1, 13]


@pytest.mark.promise("E10")
def test_a_person_gets_the_corrected_payload_in(restart: Callable[..., hf.Pipeline]) -> None:
    define = unlucky(Calls())
    run(restart(define), UNLUCKY, key="number")
    book = restart(define)
    discard(book, "13")
    discard(book, "14")
    report = run(book, CORRECTED, key="number", changed="rerun")
    assert report.is_complete
    assert report.warnings == ()
    assert outputs(book) == {1: "ONE", 13: "GOOD", 14: "FIVE"}
    assert audit.verify(book.store, book.store.batches()[0], full=True).findings == ()


@pytest.mark.promise("E10")
def test_a_message_replaces_no_dead_letter_either(
    restart: Callable[..., hf.Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    book = restart(unlucky(Calls()))
    assert book.process(UNLUCKY[1], key="number").state == "dead"
    before = list(book.store.items(BatchId(1)))
    again = book.process(CORRECTED[1], key="number", changed="rerun")
    assert (again.state, again.code) == ("dead", "unreadable")
    assert list(book.store.items(BatchId(1))) == before
    assert "1 dead letter of book came with another payload and was left alone (13)" in caplog.text


def test_an_item_that_becomes_invalid_is_buried_on_request(restart: Callable[..., hf.Pipeline]) -> None:
    define = definition(Calls())
    run(restart(define), OLD, key="number")
    report = run(restart(define), [{"number": 2, "image": 5}], key="number", changed="rerun")
    assert (report.counts.done, report.counts.dead) == (1, 1)
    assert report.dead[0].code == "invalid"


def test_other_stages_cannot_go_on_with_a_batch(restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(definition(Calls())), OLD, key="number")

    def renamed(book: hf.Pipeline) -> None:
        book.stage(lambda page: page, name="ocr")
        book.stage(lambda page: page, name="finish")

    with pytest.raises(hf.DefinitionChanged, match=r"opened with the stages ocr, done.*now has ocr, finish"):
        run(restart(renamed))


def test_other_code_may_go_on_with_a_batch(restart: Callable[..., hf.Pipeline]) -> None:
    fixed = False

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=1))
        def ocr(number: int) -> int:
            if not fixed:
                raise hf.Defer(0)
            return number

    run_until_all_wait(restart(define), [1, 2])
    fixed = True
    assert run(restart(define)).counts.done == 2


def test_a_run_that_is_refused_has_done_nothing_before(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage(sink=hf.Files("out/{key}.json"))
        def page(row: dict[str, int], ctx: hf.Context) -> int:
            calls(row["id"])
            ctx.spend(usd="0.10")
            return row["n"]

    rows = [{"id": n, "n": n} for n in range(300)]
    run(restart(define), rows, key="id")
    calls.clear()
    Path("out/3.json").unlink()
    changed = [{**row, "n": -1} if row["id"] == 299 else row for row in rows]
    book = restart(define)
    plan = book.plan(changed, key="id")
    assert plan.obstacles
    with pytest.raises(hf.PayloadChanged, match="item 299"):
        run(book, changed, key="id")
    assert (len(calls), book.report().totals.usd) == (0, Decimal("30.00"))
    assert run(book, changed, key="id", changed="keep").this_run.done == 1
    assert calls.seen == [3]


@pytest.mark.parametrize("at", [0, 1, 100], ids=["first", "second", "last"])
def test_a_run_that_is_refused_has_admitted_nothing(restart: Callable[..., hf.Pipeline], at: int) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def page(row: dict[str, int]) -> int:
            return row["n"]

    mine = [{"id": n, "n": n} for n in range(50)]
    run(restart(define), mine, key="id")
    foreign = [{"id": n, "n": n} for n in range(50, 150)]
    foreign.insert(at, {"id": 49, "n": 99})
    book = restart(define)
    with pytest.raises(hf.PayloadChanged, match="item 49"):
        run(book, foreign, key="id")
    assert (book.report().counts.expected, book.report().state) == (50, "complete")
    assert run(book, mine, key="id").this_run.done == 0
