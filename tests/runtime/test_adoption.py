"""What an earlier attempt made in the outside world and could not record is adopted, not paid for again."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from tests.runtime.support import ONCE, SOON, Calls, codes, outputs, run


class Ledger:
    """A service that books what it is asked to, and sometimes does not answer."""

    def __init__(self) -> None:
        self.booked: dict[int, str] = {}
        self.calls = Calls()
        self.searched = Calls()
        self.deaf: set[int] = set()
        """What is booked all the same, but never answered."""
        self.found: Callable[[int], Any] = self.booked.get

    def define(self, book: hf.Pipeline, **options: Any) -> None:
        @book.stage(**{"retry": SOON, **options})
        def pay(number: int, ctx: hf.Context) -> str:
            ctx.spend(usd=1)
            self.calls(number)
            self.booked[number] = f"receipt {number}"
            if number in self.deaf:
                raise ConnectionError("no answer")
            return self.booked[number]

        @pay.adopt
        def look_up(number: int, ctx: hf.Context) -> Any:
            self.searched((number, ctx.key, ctx.stage))
            return self.found(number)

        @pay.verify
        def is_booked(out: str, number: int, ctx: hf.Context) -> bool:
            return self.booked.get(number) == out

        @book.stage
        def finish(receipt: str) -> str:
            return receipt.upper()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.mark.promise("A7", "P5")
def test_an_attempt_whose_answer_was_lost_is_adopted(book: hf.Pipeline, ledger: Ledger) -> None:
    ledger.deaf = {2}
    ledger.define(book)
    report = run(book, range(4))
    assert report.counts.done == 4
    assert sorted(ledger.calls.seen) == [0, 1, 2, 3], "nobody was paid twice"
    assert ledger.searched.seen == [(2, 2, "pay")], "nothing is looked for that was never tried"
    assert outputs(book)[2] == "RECEIPT 2"
    assert str(report.totals.usd) == "4.00"
    assert report.metrics.stages[0].outcomes["adopted"] == 1
    assert (report.this_run.adopted, report.as_dict()["this_run"]["adopted"]) == (1, 1)
    assert "adopted  1 output that was there already: not made or paid for again" in str(report)
    assert run(book, range(4)).this_run.adopted == 0


@pytest.mark.promise("A7", "P5")
def test_an_answer_that_was_lost_while_the_stage_paused_is_adopted(book: hf.Pipeline) -> None:
    booked, calls, together = set[int](), Calls(), threading.Barrier(4)

    @book.stage(retry=SOON, breaker=hf.Breaker(failures=1, pause="10ms"))
    def pay(number: int) -> int:
        booked.add(number)
        if calls(number) > 1:
            return number
        together.wait()  # all but the first of them fail during the pause, at no cost of an attempt
        raise ConnectionError("no answer")

    @pay.adopt
    def look_up(number: int, ctx: hf.Context) -> int | None:
        return number if number in booked else None

    assert run(book, range(4), workers=4).counts.done == 4
    assert sorted(calls.seen) == [0, 1, 2, 3], "nobody was paid twice"


@pytest.mark.promise("P5")
def test_what_was_not_found_is_made(book: hf.Pipeline, ledger: Ledger) -> None:
    tried = Calls()

    @book.stage(retry=SOON)
    def pay(number: int) -> str:
        if tried(number) == 1:
            raise ConnectionError("refused")
        return f"receipt {number}"

    @pay.adopt(timeout="10s")
    def look_up(number: int, ctx: hf.Context) -> str | None:
        return None

    assert run(book, range(3)).counts.done == 3
    assert len(tried) == 6


@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    "found",
    [lambda n: {"no": "receipt"}, lambda n: f"receipt {n + 1}"],
    ids=["not an output", "refused by its verifier"],
)
def test_what_is_found_counts_only_if_it_is_valid(
    book: hf.Pipeline, ledger: Ledger, found: Callable[[int], Any]
) -> None:
    ledger.deaf = {1}
    ledger.define(book)
    refused = Calls()

    def find(number: int) -> Any:
        refused(number)
        ledger.deaf.clear()
        return found(number)

    ledger.found = find
    assert run(book, range(3)).counts.done == 3
    assert ledger.calls.seen.count(1) == 2
    assert outputs(book)[1] == "RECEIPT 1"
    assert refused.seen == [1]


def test_what_was_tried_in_another_epoch_is_looked_for(restart: Callable[..., hf.Pipeline], ledger: Ledger) -> None:
    first = restart(ledger.define)
    run(first, range(3))
    assert not ledger.searched.seen
    ledger.booked.pop(1)
    ledger.calls.clear()
    assert run(restart(ledger.define), verify="full").this_run.rewound == 1
    assert [n for n, *_ in ledger.searched.seen] == [1]
    assert ledger.calls.seen == [1], "it was gone, so it is made again"


def test_a_dead_letter_that_is_redriven_is_looked_for_first(
    restart: Callable[..., hf.Pipeline], ledger: Ledger
) -> None:
    ledger.deaf, ledger.found = {0, 1}, lambda number: None
    book = restart(lambda book: ledger.define(book, retry=ONCE))
    assert run(book, range(2)).counts.dead == 2
    (batch,) = book.store.batches("book")
    operations.redrive(book.store, batch, Actor(name="test", reason="they were booked"))
    ledger.calls.clear()
    ledger.found = ledger.booked.get
    assert run(restart(ledger.define)).counts.done == 2
    assert not ledger.calls.seen


def test_an_adopter_that_raises_is_no_answer(restart: Callable[..., hf.Pipeline], ledger: Ledger) -> None:
    def broken(number: int) -> None:
        raise LookupError("no such table")

    ledger.deaf, ledger.found = {1}, broken
    book = restart(ledger.define)
    report = run(book, range(3))
    assert codes(report) == {1: "adopter_failed"}
    assert "the adopter of stage 'pay' gave no answer about item 1" in report.dead[0].reason
    assert ledger.calls.seen.count(1) == 1, "while nothing is known, nothing is paid again"


def test_an_adopter_that_hangs_holds_up_nobody(book: hf.Pipeline) -> None:
    hung, calls = threading.Event(), Calls()

    @book.stage(retry=hf.Retry(attempts=2, wait=("1ms", "1ms")))
    def pay(number: int) -> int:
        calls(number)
        if number == 1:
            raise ConnectionError("no answer")
        return number

    @pay.adopt(timeout="50ms")
    def look_up(number: int, ctx: hf.Context) -> int:
        hung.wait()
        return number

    try:
        report = run(book, range(20), workers=2)
    finally:
        hung.set()
    assert codes(report) == {1: "adopter_failed"}
    assert report.counts.done == 19
    assert calls.seen.count(1) == 1


@pytest.mark.promise("P5")
def test_what_is_adopted_goes_to_its_file(book: hf.Pipeline, ledger: Ledger) -> None:
    ledger.deaf = {1}
    ledger.define(book, sink=hf.Files("out/{key}.txt"))
    assert run(book, range(3)).is_complete
    assert ledger.calls.seen.count(1) == 1
    assert Path("out/1.txt").read_text() == "receipt 1"


def test_an_async_stage_adopts_too(book: hf.Pipeline) -> None:
    booked, calls = set(), Calls()

    @book.stage(retry=SOON)
    async def pay(number: int) -> int:
        calls(number)
        booked.add(number)
        if number % 2:
            raise ConnectionError("no answer")
        return number

    @pay.adopt
    def look_up(number: int, ctx: hf.Context) -> int | None:
        return number if number in booked else None

    assert run(book, range(10)).counts.done == 10
    assert sorted(calls.seen) == list(range(10))


@pytest.mark.parametrize("adopter", [lambda: None, lambda item: None, lambda a, b, c: None])
def test_an_adopter_takes_the_item_and_the_context(book: hf.Pipeline, adopter: Any) -> None:
    stage = book.stage(name="look")(lambda value: value)
    with pytest.raises(hf.UsageError, match=r"the adopter of stage 'look' takes . arguments: write \(item, ctx\)"):
        stage.adopt(adopter)


@pytest.mark.parametrize("how", ["code", "payload", "reset"])
def test_an_adopter_that_looks_by_the_idempotency_key_does_not_find_what_is_to_be_replaced(
    restart: Callable[..., hf.Pipeline], how: str
) -> None:
    made: dict[str, str] = {}

    def define(mark: str) -> Callable[[hf.Pipeline], None]:
        def stages(book: hf.Pipeline) -> None:
            if mark == "old":

                @book.stage
                def write(page: dict[str, Any], ctx: hf.Context) -> str:
                    return made.setdefault(ctx.idempotency_key, str(page["text"]))
            else:

                @book.stage
                def write(page: dict[str, Any], ctx: hf.Context) -> str:
                    return made.setdefault(ctx.idempotency_key, str(page["text"]).upper())

            @write.adopt
            def written(page: dict[str, Any], ctx: hf.Context) -> str | None:
                return made.get(ctx.idempotency_key)

        return stages

    pages = [{"n": n, "text": "a"} for n in range(3)]
    book = restart(define("old"))
    assert run(book, pages, key="n").is_complete
    if how == "payload":
        pages[1] = {"n": 1, "text": "b"}
        report, wanted, keys = run(book, pages, key="n", changed="rerun"), ["a", "b", "a"], 4
    elif how == "reset":
        with hf.open(book.store) as store:
            store["book"].reset(1, reason="do it again")
        report, wanted, keys = run(book, pages, key="n"), ["a", "a", "a"], 4
    else:
        report, wanted = run(restart(define("new")), pages, key="n", on_code_change="rerun"), ["A", "A", "A"]
        keys = 6
    assert [result.output for result in report.results()] == wanted
    assert (report.this_run.adopted, len(made)) == (0, keys)
