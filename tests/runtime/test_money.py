"""What attempts cost, and what they measured: counted once, whatever became of them."""

import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field

import holdfast as hf
from tests.runtime.support import ONCE, SOON, codes, run, run_until_all_wait


def test_money_adds_up_exactly(book: hf.Pipeline) -> None:
    @book.stage
    def ask(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd=0.1)
        ctx.spend(usd="0.000000000001", tokens=3, model="small")
        ctx.spend(usd=Decimal("0.2"), tokens=4)
        return number

    report = run(book, range(10))
    assert report.totals.usd == Decimal("3.00000000001")
    assert report.totals.tokens == 70
    assert report.this_run.usd == report.totals.usd


@pytest.mark.promise("E8", "P8")
def test_failed_deferred_and_skipped_attempts_cost_too(book: hf.Pipeline) -> None:
    tries: dict[int, int] = {}

    @book.stage(retry=SOON)
    def ask(number: int, ctx: hf.Context) -> int:
        tries[number] = tries.get(number, 0) + 1
        ctx.spend(usd=1, tokens=1)
        if number == 1 and tries[number] < 3:
            raise hf.Transient("overloaded")
        if number == 2:
            raise hf.Permanent("no")
        if number == 3:
            raise hf.Skip("blank")
        if number == 4 and tries[number] < 2:
            raise hf.Defer(0)
        if number == 5:
            return "not a number"  # type: ignore[return-value]
        return number

    report = run(book, range(6))
    assert sum(tries.values()) == 9
    assert (report.totals.usd, report.totals.tokens) == (9, 9)


@pytest.mark.promise("E8", "P1")
def test_what_was_spent_before_a_restart_is_neither_lost_nor_counted_again(
    restart: Callable[..., hf.Pipeline],
) -> None:
    again = False

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ask(number: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.10", tokens=5)
            if number >= 5 and not again:
                raise hf.Defer(0.2)
            return number

    first = run_until_all_wait(restart(define), range(10))
    assert first.counts.done == 5
    again = True
    report = run(restart(define))
    assert report.totals.usd == first.totals.usd + Decimal("0.50")
    assert report.this_run.usd == Decimal("0.50")
    assert report.saved.usd == Decimal("0.50"), "what is not done yet was not saved"
    assert run(restart(define)).totals.usd == report.totals.usd


@pytest.mark.parametrize("usd", [-1, math.nan, math.inf, "five", None, [], 1e12, 10**30], ids=str)
def test_an_amount_that_is_none_fails_the_attempt_and_says_so(book: hf.Pipeline, usd: Any) -> None:
    @book.stage
    def ask(number: int, ctx: hf.Context) -> int:
        if number == 1:
            ctx.spend(usd=usd)
        return number

    report = run(book, [0, 1, 2])
    assert codes(report) == {1: "UsageError"}
    assert "usd=" in report.dead[0].reason
    assert report.totals.usd == 0


@pytest.mark.parametrize("tokens", [-1, 1.5, "12", None, True, 10**30], ids=str)
def test_tokens_are_whole_numbers(book: hf.Pipeline, tokens: Any) -> None:
    @book.stage
    def ask(number: int, ctx: hf.Context) -> int:
        ctx.spend(tokens=tokens)
        return number

    assert codes(run(book, [1])) == {1: "UsageError"}


@pytest.mark.parametrize("model", ["\udcff", "x" * 10_000, 5, "🐋"], ids=["half", "long", "number", "whale"])
def test_the_name_of_a_model_may_be_anything(book: hf.Pipeline, model: Any) -> None:
    @book.stage
    def ask(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd=1, model=model, usage={"input": 3})
        return number

    assert run(book, [1]).is_complete
    assert len(book.report().metrics.stages[0].models) == 1


def test_usage_that_is_not_json_fails_the_attempt_and_its_money_counts(book: hf.Pipeline) -> None:
    @book.stage
    def ask(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd=1, usage={"what": object()})
        return number

    report = run(book, [1])
    assert (report.counts.dead, report.totals.usd) == (1, 1)


class Quality(BaseModel):
    corrections: int
    confidence: float = Field(ge=0, le=1)


@pytest.mark.promise("P2")
def test_metrics_are_kept_if_they_are_valid(book: hf.Pipeline) -> None:
    @book.stage(metrics=Quality)
    def correct(number: int, ctx: hf.Context) -> int:
        ctx.measure(corrections=number)
        ctx.measure(confidence="0.5")
        return number

    run(book, range(1, 11))
    metrics = book.report().metrics.stages[0].metrics
    assert (metrics["corrections"].count, metrics["corrections"].sum, metrics["corrections"].max) == (10, 55, 10)
    assert metrics["confidence"].mean == 0.5


@pytest.mark.promise("P2")
@pytest.mark.parametrize(
    "measured",
    [{"corrections": "many"}, {"corrections": 1}, {"corrections": 1, "confidence": 7}, {}, {"confidence": math.nan}],
    ids=["text", "missing", "out of range", "nothing", "no number"],
)
def test_metrics_that_do_not_fit_fail_the_attempt_and_are_not_kept(book: hf.Pipeline, measured: Any) -> None:
    @book.stage(metrics=Quality, retry=ONCE)
    def correct(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.25")
        ctx.measure(**measured)
        return number

    report = run(book, [1])
    assert codes(report) == {1: "invalid_metrics"}
    assert report.totals.usd == Decimal("0.25"), "the money is gone all the same"
    assert not book.report().metrics.stages[0].metrics


@pytest.mark.promise("P2")
def test_metrics_of_failed_attempts_are_kept_if_they_are_valid(book: hf.Pipeline) -> None:
    @book.stage(metrics=Quality, retry=SOON)
    def correct(number: int, ctx: hf.Context) -> int:
        ctx.measure(corrections=10 * ctx.attempt, confidence=0.1)
        if ctx.attempt < 3:
            raise hf.Transient("not good enough")
        return number

    run(book, [1])
    corrections = book.report().metrics.stages[0].metrics["corrections"]
    assert (corrections.count, corrections.sum) == (3, 60)


@pytest.mark.promise("P2")
def test_metrics_without_a_model_are_kept_if_they_are_json(book: hf.Pipeline) -> None:
    @book.stage
    def correct(number: int, ctx: hf.Context) -> int:
        ctx.measure(words=number, label="a", odd=object() if number == 3 else None)
        return number

    report = run(book, range(1, 6))
    assert codes(report) == {3: "invalid_metrics"}
    assert book.report().metrics.stages[0].metrics["words"].count == 4


@pytest.mark.parametrize(
    "value",
    [10**40, "\udcff", {1: {2: 3}}, [1] * 1000, b"\xff", 1e300],
    ids=["large", "half", "dict", "list", "bytes", "float"],
)
def test_no_metric_ends_the_run(book: hf.Pipeline, value: Any) -> None:
    @book.stage(retry=ONCE)
    def correct(number: int, ctx: hf.Context) -> int:
        if number == 1:
            ctx.measure(odd=value)
        if number == 2:
            ctx.spend(usage={"odd": value})
        return number

    counts = run(book, range(5)).counts
    assert counts.done + counts.dead == 5
    assert counts.done >= 3
    assert book.report().metrics


@pytest.mark.promise("P14")
def test_seconds_are_measured_for_every_attempt(book: hf.Pipeline) -> None:
    import time

    @book.stage(retry=SOON)
    def work(number: int, ctx: hf.Context) -> int:
        time.sleep(0.01)
        if ctx.attempt == 1 and number % 2:
            raise hf.Transient("again")
        return number

    run(book, range(10), workers=2)
    stage = book.report().metrics.stages[0]
    assert stage.runs == stage.execution.count == stage.queue.count == 15
    assert stage.execution.min >= 0.01
    assert stage.total.sum == pytest.approx(stage.queue.sum + stage.execution.sum, rel=1e-3)
    assert 0 <= stage.queue.max < 30


@pytest.mark.promise("P1", "P7")
def test_totals_of_many_threads_are_the_sum_of_what_each_said(book: hf.Pipeline) -> None:
    prices = {number: random.Random(number).randrange(1, 10_000) for number in range(500)}

    @book.stage
    def first(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd=Decimal(prices[number]).scaleb(-6))
        return number

    @book.stage
    async def second(number: int, ctx: hf.Context) -> int:
        ctx.spend(usd=Decimal(prices[number]).scaleb(-6))
        return number

    report = run(book, range(500), workers=8)
    assert report.totals.usd == Decimal(2 * sum(prices.values())).scaleb(-6)
