"""The shapes of the README, as a user writes them."""

import threading
from collections.abc import Callable, Iterator

import pytest
from pydantic import BaseModel

import holdfast as hf
from tests.runtime.support import ONCE, Calls, outputs, run, run_until_all_wait


class Page(BaseModel):
    number: int
    image: str


class Text(BaseModel):
    number: int
    text: str


class Reply(BaseModel):
    text: str
    cost: str = "0.01"
    tokens: int = 120
    model: str = "quill-small"


PAGES = [{"number": number, "image": f"scan {number}"} for number in range(1, 21)]


def define(book: hf.Pipeline, calls: Calls | None = None) -> None:
    keys: set[str] = set()

    async def llm(text: str, idempotency_key: str) -> Reply:
        keys.add(idempotency_key)
        return Reply(text=text.upper())

    @book.stage
    def ocr(page: Page) -> Text:
        if calls is not None:
            calls(page.number)
        return Text(number=page.number, text=f"text of {page.image}")

    @book.stage(retry=hf.Retry(attempts=5, within="15m"), sink=hf.Files("out/{key}.json"))
    async def correct(text: Text, ctx: hf.Context) -> Text:
        reply = await llm(text.text, idempotency_key=ctx.idempotency_key)
        ctx.spend(usd=reply.cost, tokens=reply.tokens, model=reply.model)
        return Text(number=text.number, text=reply.text)

    @correct.verify
    def long_enough(out: Text) -> bool:
        return len(out.text) > 5


def test_the_pipeline_of_the_readme_runs_to_its_end(book: hf.Pipeline) -> None:
    define(book)
    report = run(book, PAGES, batch="moby-dick", key="number", workers=16, budget=hf.Budget(usd=5))
    assert report.raise_unless_complete() is report
    assert report.counts.expected == report.counts.done == 20
    assert str(report.totals.usd) == "0.20"
    assert report.totals.tokens == 2400
    assert outputs(book, "moby-dick")[7] == Text(number=7, text="TEXT OF SCAN 7")


def test_without_a_store_the_state_is_kept_in_the_current_folder(folder) -> None:
    book = hf.Pipeline("book")
    define(book)
    run(book, PAGES, key="number")
    assert (folder / ".holdfast" / "state.db").exists()


def test_the_environment_names_the_store(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(folder / "elsewhere.db"))
    book = hf.Pipeline("book")
    define(book)
    run(book, PAGES, key="number")
    assert (folder / "elsewhere.db").exists()


@pytest.mark.promise("A14")
def test_the_counts_always_add_up(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def fickle(number: int) -> int:
        if number % 5 == 1:
            raise hf.Skip("odd one out")
        if number % 5 == 2:
            raise hf.Permanent("no_such_page")
        if number % 5 == 3:
            raise hf.Defer(3600)
        return number

    counts = run(book, [*range(50), "not a number"], deadline=1).counts
    assert (counts.done, counts.skipped, counts.dead, counts.cancelled, counts.pending) == (20, 10, 11, 0, 10)
    assert counts.expected == counts.done + counts.skipped + counts.dead + counts.cancelled + counts.pending
    assert counts.pending == counts.ready + counts.running + counts.waiting + counts.orphaned


def test_an_incomplete_batch_raises_with_its_report(book: hf.Pipeline) -> None:
    @book.stage
    def never(number: int) -> int:
        raise hf.Permanent("no_such_page", f"page {number} does not exist")

    report = run(book, [1, 2])
    with pytest.raises(hf.Incomplete, match="2 of 2 items") as caught:
        report.raise_unless_complete()
    assert caught.value.report is report
    assert report.exit_code == 1


def test_dead_letters_that_are_tolerated_do_not_make_a_batch_incomplete(book: hf.Pipeline) -> None:
    @book.stage
    def picky(number: int) -> int:
        if number < 2:
            raise hf.Permanent("no_such_page")
        return number

    assert run(book, range(100), tolerate=2).is_complete
    assert run(book, tolerate="2%").is_complete
    assert run(book, tolerate="2%").is_complete
    assert not run(book, tolerate=1).is_complete
    assert not run(book, tolerate="1%").is_complete


def test_a_share_that_is_tolerated_is_not_lost_to_rounding(book: hf.Pipeline) -> None:
    @book.stage
    def picky(number: int) -> int:
        if number > 70:
            raise hf.Permanent("no_such_page")
        return number

    assert run(book, range(100), tolerate="29%").is_complete
    assert not run(book, tolerate="28%").is_complete


@pytest.mark.promise("P11", "P3")
def test_running_again_does_nothing_that_is_finished(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    run(restart(lambda book: define(book, calls)), PAGES, key="number")
    again = run(restart(lambda book: define(book, calls)), PAGES, key="number")
    assert len(calls) == 20
    assert again.is_complete
    assert (again.this_run.done, again.this_run.done_before, again.saved.items) == (0, 20, 20)


@pytest.mark.promise("P3")
def test_running_again_with_more_items_does_only_what_is_new(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    run(restart(lambda book: define(book, calls)), PAGES[:12], key="number")
    calls.clear()
    report = run(restart(lambda book: define(book, calls)), PAGES, key="number")
    assert sorted(calls.seen) == list(range(13, 21))
    assert report.counts.done == report.counts.expected == 20


@pytest.mark.promise("A4")
def test_running_without_items_finishes_what_is_stored(restart: Callable[..., hf.Pipeline]) -> None:
    broken = True

    def pages(book: hf.Pipeline) -> None:
        @book.stage(retry=ONCE)
        def ocr(number: int) -> int:
            if broken:
                raise hf.Defer(0.01)
            return number

    assert run_until_all_wait(restart(pages), range(30)).counts.pending == 30
    broken = False
    assert run(restart(pages)).counts.done == 30


def test_a_batch_nobody_has_started_needs_items(book: hf.Pipeline) -> None:
    define(book)
    with pytest.raises(hf.UsageError, match="does not exist yet"):
        run(book)


@pytest.mark.promise("A14")
def test_a_source_that_was_not_read_to_its_end_is_not_called_complete(restart: Callable[..., hf.Pipeline]) -> None:
    def pages(book: hf.Pipeline) -> None:
        @book.stage
        def ocr(number: int) -> int:
            return number

    def cut_off() -> Iterator[int]:
        yield from range(10)
        raise ConnectionError("the other side went away")

    with pytest.raises(ConnectionError):
        run(restart(pages), cut_off())
    report = run(restart(pages))
    assert report.counts.pending == 0
    assert report.state == "open"
    assert "read the rest" in report.why
    assert report.exit_code == 75
    assert run(restart(pages), range(20)).counts.done == 20


def test_a_source_is_named_once(folder) -> None:
    book = hf.Pipeline("book", store=folder / "state.db", source=PAGES)
    define(book)
    assert run(book, key="number").counts.done == 20


def test_a_source_may_be_a_function_that_is_called_for_every_run(book: hf.Pipeline) -> None:
    define(book)
    pages = PAGES[:5]

    @book.source
    def scans() -> Iterator[dict[str, object]]:
        yield from pages

    assert run(book, key="number").counts.done == 5
    pages = PAGES
    assert run(book, key="number").counts.done == 20


def test_items_of_a_run_come_before_the_source_of_the_pipeline(folder) -> None:
    book = hf.Pipeline("book", store=folder / "state.db", source=PAGES)
    define(book)
    assert run(book, PAGES[:3], key="number").counts.expected == 3


@pytest.mark.parametrize("items", [[], (), iter(()), (n for n in ())], ids=["list", "tuple", "iterator", "generator"])
def test_an_empty_source_is_complete_at_once(book: hf.Pipeline, items: object) -> None:
    define(book)
    report = run(book, items, allow_empty=True)
    assert report.is_complete
    assert report.counts.expected == 0


def test_items_may_come_from_any_iterable(book: hf.Pipeline) -> None:
    @book.stage
    def double(number: int) -> int:
        return 2 * number

    for batch, items in {
        "set": {1, 2},
        "view": {1: "a", 2: "b"}.keys(),
        "range": range(1, 3),
        "map": map(int, "12"),
    }.items():
        run(book, items, batch=batch)
        assert outputs(book, batch) == {1: 2, 2: 4}


def test_stored_items_start_at_once_while_the_source_is_read_beside_them(restart: Callable[..., hf.Pipeline]) -> None:
    started = threading.Event()
    waits = True

    def pages(book: hf.Pipeline) -> None:
        @book.stage
        def ocr(number: int) -> int:
            if waits:
                raise hf.Defer(0)
            started.set()
            return number

    run_until_all_wait(restart(pages), range(5))
    waits = False

    def slow() -> Iterator[int]:
        assert started.wait(20), "stored items wait for the source"
        yield from range(10)

    assert run(restart(pages), slow()).counts.done == 10


def test_the_first_item_starts_while_the_source_looks_for_the_second(book: hf.Pipeline) -> None:
    started = threading.Event()

    @book.stage
    def ocr(number: int) -> int:
        started.set()
        return number

    def slow() -> Iterator[int]:
        yield 1
        assert started.wait(20), "the first item waits for the second"
        yield 2

    assert run(book, slow()).counts.done == 2


@pytest.mark.promise("B17")
def test_a_context_tells_the_attempt_and_has_no_way_to_the_store(book: hf.Pipeline) -> None:
    seen = {}

    @book.stage(timeout="10s")
    def look(number: int, ctx: hf.Context) -> int:
        seen[number] = ctx
        ctx.log.info("seen")
        return number

    run(book, [1, 2], batch="friday")
    ctx = seen[1]
    assert (ctx.batch, ctx.key, ctx.stage, ctx.attempt) == ("friday", 1, "look", 1)
    assert ctx.fence > 0
    assert len({seen[n].idempotency_key for n in seen}) == len({seen[n].request_id for n in seen}) == 2
    assert ctx.deadline is not None
    reachable = [getattr(ctx, name) for name in dir(ctx) if not name.startswith("__")]
    assert not [each for each in reachable if hasattr(each, "commit")]


def test_a_stage_can_be_called_alone(book: hf.Pipeline) -> None:
    @book.stage
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    assert double(4) == 8
    assert double.__doc__ == "Twice as much."


def test_defining_a_stage_again_replaces_it_in_its_place(book: hf.Pipeline) -> None:
    @book.stage
    def first(number: int) -> int:
        return number

    @book.stage
    def second(number: int) -> int:
        return number * 10

    @book.stage(name="first")
    def better(number: int) -> int:
        return number + 1

    assert [stage.name for stage in book.stages] == ["first", "second"]
    run(book, [1])
    assert outputs(book) == {1: 20}


def test_a_pipeline_defined_by_exec_works_as_in_a_notebook(folder) -> None:
    cell = "@book.stage\ndef double(number: int) -> int:\n    return 2 * number\n"
    namespace = {"book": hf.Pipeline("book", store=folder / "state.db")}
    exec(cell, namespace)
    exec(cell, namespace)
    run(namespace["book"], [1, 2])
    assert outputs(namespace["book"]) == {1: 2, 2: 4}


def test_two_pipelines_share_one_store(folder) -> None:
    book, film = (hf.Pipeline(name, store=folder / "state.db") for name in ("book", "film"))
    for pipeline in (book, film):
        pipeline.stage(lambda number: number, name="look")
    run(book, range(5))
    run(film, range(7))
    assert (book.report().counts.done, film.report().counts.done) == (5, 7)
    with pytest.raises(hf.UsageError, match="belongs to pipeline 'book'"):
        run(film, range(3), batch="book")
