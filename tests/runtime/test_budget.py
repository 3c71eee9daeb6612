"""A budget pauses a batch instead of overspending."""

import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.core.journal import Spend
from holdfast.core.model import BatchId, Chunk, ChunkId, Counts, ItemNo
from holdfast.core.settle import NOTHING
from holdfast.runtime.engine.dispatch import Purse
from tests.core.made import chunk
from tests.runtime.support import App, Calls, run


def paid(price: Callable[[int], Any], seconds: float = 0.003, calls: Calls | None = None) -> Callable[..., None]:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ask(number: int, ctx: hf.Context) -> int:
            if calls is not None:
                calls(number)
            time.sleep(seconds)
            ctx.spend(usd=price(number))
            return number

    return define


@pytest.mark.promise("P13")
@pytest.mark.parametrize("item", [None, "0.30"], ids=["unknown cost", "known cost"])
def test_sixteen_workers_do_not_overspend(restart: Callable[..., hf.Pipeline], item: str | None) -> None:
    report = run(restart(paid(lambda _: "0.30")), range(100), workers=16, budget=hf.Budget(usd=5, item=item))
    assert report.totals.usd == Decimal("4.80")
    assert (report.state, report.exit_code) == ("paused", 75)
    assert report.counts.done == 16
    assert "raise it and run again" in report.why


@pytest.mark.promise("P13")
def test_a_batch_that_costs_exactly_its_budget_completes(restart: Callable[..., hf.Pipeline]) -> None:
    price = {number: "1.00" if number % 7 == 3 else "0.10" for number in range(70)}
    report = run(restart(paid(price.__getitem__, 0.0)), range(70), workers=16, budget=hf.Budget(usd=16))
    assert report.is_complete
    assert report.totals.usd == 16


def test_a_free_item_at_the_start_does_not_open_the_gates(restart: Callable[..., hf.Pipeline]) -> None:
    report = run(restart(paid(lambda number: 1 if number else 0)), range(100), workers=16, budget=hf.Budget(usd=5))
    assert report.totals.usd == 5
    assert report.counts.done == 6


@pytest.mark.parametrize("seconds", [0.0, 0.003])
@pytest.mark.promise("P13")
def test_dear_items_after_cheap_ones_overspend_by_what_is_in_flight_at_most(
    restart: Callable[..., hf.Pipeline], seconds: float
) -> None:
    report = run(
        restart(paid(lambda number: "1.00" if number >= 20 else "0.01", seconds)),
        range(100),
        workers=4,
        budget=hf.Budget(usd=5),
    )
    assert report.state == "paused"
    assert 4 <= report.totals.usd <= 5 + 4


def test_a_budget_that_is_raised_lets_the_batch_go_on(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    define = paid(lambda _: "0.10", 0.0, calls)
    for usd, done in ((1, 10), (1, 10), (2, 20), ("3.00", 30)):
        report = run(restart(define), range(40), budget=hf.Budget(usd=usd))
        assert (report.counts.done, report.totals.usd) == (done, Decimal(done) / 10)
    assert run(restart(define), range(40)).is_complete
    assert len(calls) == len(set(calls.seen)) == 40


@pytest.mark.promise("P13", "E8")
def test_failed_attempts_use_up_the_budget(restart: Callable[..., hf.Pipeline]) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ask(number: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.50")
            raise hf.Permanent("no")

    report = run(restart(define), range(100), workers=4, budget=hf.Budget(usd=3, item="0.50"))
    assert report.totals.usd == 3
    assert (report.counts.dead, report.counts.pending, report.state) == (6, 94, "paused")


def test_a_budget_covers_all_stages_of_an_item(restart: Callable[..., hf.Pipeline]) -> None:
    def define(book: hf.Pipeline) -> None:
        book.stage(lambda number: number, name="free")

        @book.stage
        def ask(number: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.40")
            return number

        @book.stage
        async def ask_again(number: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.60")
            return number

    report = run(restart(define), range(50), workers=16, budget=hf.Budget(usd=5))
    assert report.totals.usd == 5
    assert report.counts.done == 5


@pytest.mark.promise("P13")
def test_two_runs_at_the_same_time_share_one_budget(restart: Callable[..., hf.Pipeline]) -> None:
    define = paid(lambda _: "0.30", 0.01)
    books = [restart(define), restart(define)]
    reports: list[hf.Report] = []
    budget = hf.Budget(usd=5, item="0.30")
    threads = [
        threading.Thread(target=lambda book=book: reports.append(run(book, range(60), workers=8, budget=budget)))
        for book in books
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(reports) == 2
    assert books[0].report().totals.usd <= 5


def test_a_batch_that_costs_nothing_is_not_slowed_down_by_its_budget(restart: Callable[..., hf.Pipeline]) -> None:
    began = time.monotonic()
    report = run(restart(paid(lambda _: 0, 0.0)), range(2000), budget=hf.Budget(usd=1))
    assert report.is_complete
    assert time.monotonic() - began < 10


def test_items_that_wait_do_not_keep_the_budget_to_themselves(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=2, wait=("30s", "30s")))
        def ask(number: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.10")
            if number == 0 and calls(number) == 1:
                raise hf.Transient("later")
            return number

    report = run(restart(define), range(20), workers=2, budget=hf.Budget(usd=5), deadline=1.5, lease="500ms")
    assert report.counts.done == 19


MORTAL = """
import os, sys
import holdfast as hf

book = hf.Pipeline("book")

@book.stage
def ask(number: int, ctx: hf.Context) -> int:
    ctx.spend(usd="0.10")
    if number == {number} and "die" in sys.argv:
        os._exit(9)
    return number

if __name__ == "__main__":
    report = book.run(range(20), workers={workers}, budget=hf.Budget(usd={usd!r}), progress=False)
    print(report.state, report.counts.done, report.totals.usd)
"""


@pytest.mark.promise("P13")
def test_what_a_dead_process_had_set_aside_is_free_again(folder: Path) -> None:
    app = App(folder, MORTAL.format(number=0, usd="5", workers=4))
    assert app.run("die").returncode == 9, "it died with all of the budget set aside for its first item"
    ended = app.run(seconds=25)
    assert ended.stdout.split() == ["complete", "20", "2.00"], ended.stderr


@pytest.mark.promise("P13")
def test_a_budget_that_was_used_up_when_the_process_died_pauses_the_next_run_at_once(folder: Path) -> None:
    App(folder, MORTAL.format(number=11, usd="5", workers=1)).run("die")
    ended = App(folder, MORTAL.format(number=11, usd="1", workers=1)).run(seconds=25)
    assert ended.stdout.split()[0] == "paused", ended.stderr


@pytest.mark.promise("P13")
def test_what_is_set_aside_for_an_item_is_the_most_that_one_has_cost() -> None:
    """However cheap the last one was."""
    purse = Purse(1_000)
    for usd in (10, 100, 1):
        spent = replace(NOTHING, counts=Counts(done=1, spent=usd), spends=[(0, Spend(0, usd=usd))])
        purse.add(spent)
    assert purse.reserve() == 100
    purse.add(replace(NOTHING, counts=Counts(spent=30), spends=[(1, Spend(0, usd=30)), (1, Spend(1, usd=2))]))
    assert purse.reserve() == 130, "an item goes through all stages"


@pytest.mark.promise("P13")
def test_a_resumed_run_does_not_forget_what_items_cost_before_because_its_first_one_was_cheap() -> None:
    before = [Chunk(id=ChunkId(1), batch=BatchId(1), lo=ItemNo(0), hi=ItemNo(20), counts=Counts(done=10, spent=1_000))]
    purse = Purse(14_000, chunks=before)
    least = purse.reserve()
    assert least >= 100, "the mean of those before"
    purse.add(replace(NOTHING, counts=Counts(done=1, spent=5), spends=[(0, Spend(0, usd=5))]))
    assert purse.reserve() == least
    purse.add(replace(NOTHING, counts=Counts(done=1, spent=350), spends=[(0, Spend(0, usd=350))]))
    assert purse.reserve() == 350, "and learns of dearer ones"


@pytest.mark.promise("P13")
def test_a_budget_is_used_up_with_its_last_unit_whichever_run_spent_the_others() -> None:
    purse = Purse(100, chunks=[replace(chunk(0, 10, done=6), counts=Counts(done=6, spent=60))])
    purse.add(replace(NOTHING, counts=Counts(done=1, spent=39), spends=[(0, Spend(6, usd=39))]))
    assert not purse.is_empty
    purse.add(replace(NOTHING, counts=Counts(done=1, spent=1), spends=[(0, Spend(7, usd=1))]))
    assert purse.is_empty


def test_items_that_are_run_again_do_not_make_the_rest_look_dear(restart: Callable[..., hf.Pipeline]) -> None:
    def define(answer: int) -> Callable[[hf.Pipeline], None]:
        def stages(book: hf.Pipeline) -> None:
            @book.stage
            def pay(n: int, ctx: hf.Context) -> int:
                ctx.spend(usd="0.01")
                if n == 3:
                    raise hf.Permanent("three", "it is not wanted")
                return n

            @book.stage
            def free(n: int) -> int:
                return n + answer

        return stages

    run(restart(define(0)), range(200), tolerate=1, budget=hf.Budget(usd=3))
    book = restart(define(1))
    run_again = {"tolerate": 1, "budget": hf.Budget(usd=3)}
    with hf.open(book.store) as store:
        store["book"].reset(to_stage="free", reason="free was wrong")
    report = run(book, range(200), **run_again)
    assert (report.state, report.this_run.done) == ("complete with dead letters", 199), report
    assert str(report.totals.usd) == "2.00"
