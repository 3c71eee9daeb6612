"""The summary of a batch equals a reference computation over what its handlers really did."""

import statistics as reference
from array import array
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import canonical
from holdfast.core.counts import totals
from holdfast.core.journal import Spend
from holdfast.core.model import ClaimRequest, Item
from holdfast.core.outcome import Deferred, Done, Failed, Outcome, Skipped
from holdfast.runtime.report import statistics
from holdfast.stores.base import Idle
from holdfast.stores.memory import MemoryStore
from tests.operations.world import OWNER, Clock, World, done, failed, skipped


class Account:
    """What a handler did, kept by the test: one row per attempt."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def keep(self, outcome: Outcome) -> Outcome:
        adopted = isinstance(outcome, Done) and outcome.adopted
        narrow = isinstance(outcome, Done)  # columns are float32
        self.rows.append({
            "stage": outcome.item.place.stage,
            "adopted": adopted,
            "kind": {Done: "done", Skipped: "skipped", Deferred: "deferred", Failed: "failed"}[type(outcome)],
            "queue": float32(outcome.queued) if narrow else outcome.queued,
            "execution": float32(outcome.seconds) if narrow else outcome.seconds,
            "spend": outcome.spend,
            "code": outcome.code if isinstance(outcome, Failed) else "",
            "attempt": outcome.item.place.attempt + 1,
        })  # fmt: skip
        return outcome

    def runs(self, stage: int | None) -> list[dict[str, Any]]:
        return [row for row in self.rows if not row["adopted"] and stage in (None, row["stage"])]


def float32(value: float) -> float:
    return array("f", [value])[0]


times = st.floats(0, 5000, allow_nan=False)
spends = st.none() | st.builds(
    lambda usd, tokens, model, metrics: {"usd": usd, "tokens": tokens, "model": model, "metrics": metrics},
    st.integers(0, 10**13),
    st.integers(0, 5000),
    st.sampled_from(["", "small", "large"]),
    st.dictionaries(
        st.sampled_from(["confidence", "corrections"]), st.floats(-10, 10) | st.integers(-5, 5), max_size=2
    ),
)
deeds = st.lists(
    st.tuples(st.sampled_from(["done", "done", "done", "adopt", "fail", "die", "skip", "defer"]), times, times, spends),
    min_size=1,
    max_size=60,
)


def play(world: World, account: Account, script: list[tuple[str, float, float, Any]], items: int) -> None:
    world.add(*range(items))
    turn = 0
    for _ in range(200):
        claim = world.store.claim(ClaimRequest(batch=world.id, owner=OWNER, limit=7, seconds=30.0))
        if isinstance(claim, Idle):
            if not claim.pending:
                return
            world.clock.advance(5000.0)
            continue
        outcomes = []
        for item in world.items(claim):
            deed, queued, seconds, said = script[turn % len(script)]
            turn += 1
            outcomes.append(account.keep(outcome_of(item, deed, queued, seconds, said)))
        world.commit(claim, outcomes)


def outcome_of(item: Item, deed: str, queued: float, seconds: float, said: Any) -> Outcome:
    spend = Spend(item.n, **said) if said is not None and deed != "adopt" else None
    if deed in ("done", "adopt"):
        return done(item, queued=queued, seconds=seconds, spend=spend, adopted=deed == "adopt")
    if deed == "skip":
        return Skipped(item, "blank", queued, seconds, spend)
    if deed == "defer":
        return Deferred(item, 1.0, "later", queued, seconds, spend)
    return Failed(item, deed == "fail", f"code_{deed}", "no", 0.0, queued, seconds, None, "", spend)


def check_summary(found: statistics.Summary, values: list[Any], *, usd: bool = False) -> None:
    assert found.count == len(values)
    if not values:
        assert (found.min, found.max, found.mean, found.p50, found.p95) == (None,) * 5
        return
    exact = [Fraction(value) for value in values]
    cuts = reference.quantiles(exact, n=100, method="inclusive") if len(values) > 1 else [exact[0]] * 99
    wanted = [min(exact), max(exact), sum(exact), sum(exact) / len(exact), cuts[49], cuts[94]]
    given_ = [found.min, found.max, found.sum, found.mean, found.p50, found.p95]
    if usd:
        assert given_ == [Decimal(round(value)) / canonical.UNIT for value in wanted]
    else:
        assert given_ == pytest.approx([float(value) for value in wanted], rel=1e-9, abs=1e-12)


def check_stage(found: statistics.StageStatistics, account: Account, stage: int | None) -> None:
    runs = account.runs(stage)
    assert found.runs == len(runs)
    check_summary(found.queue, [row["queue"] for row in runs])
    check_summary(found.execution, [row["execution"] for row in runs])
    check_summary(found.total, [row["queue"] + row["execution"] for row in runs])
    said = [row["spend"] for row in runs if row["spend"] is not None]
    paid = [spend for spend in said if spend.usd or spend.tokens or spend.model]
    check_summary(found.usd, [spend.usd for spend in paid], usd=True)
    check_summary(found.tokens, [spend.tokens for spend in paid])
    for name in ("confidence", "corrections"):
        values = [spend.metrics[name] for spend in said if name in spend.metrics]
        if values:
            check_summary(found.metrics[name], values)
        else:
            assert name not in found.metrics
    assert {name: share.attempts for name, share in found.models.items()} == Counter(s.model for s in said if s.model)
    assert sum(bucket.count for bucket in found.total.buckets) == len(runs)
    check_distributions(found, account, stage)


def check_distributions(found: statistics.StageStatistics, account: Account, stage: int | None) -> None:
    runs = account.runs(stage)
    adopted = sum(1 for row in account.rows if row["adopted"] and stage in (None, row["stage"]))
    assert found.outcomes.get("adopted", 0) == adopted
    assert found.outcomes.get("done", 0) == sum(1 for row in runs if row["kind"] == "done")
    assert found.outcomes.get("retried", 0) + found.outcomes.get("buried", 0) == sum(
        1 for row in runs if row["kind"] == "failed"
    )
    assert sum(found.outcomes.values()) == len(runs) + adopted
    assert dict(found.codes) == Counter(row["code"] for row in runs if row["code"])
    done_after = Counter(row["attempt"] for row in runs if row["kind"] in ("done", "skipped"))
    assert all(found.attempt_counts.get(attempt, 0) >= items for attempt, items in done_after.items())
    assert found.attempts.count == sum(found.attempt_counts.values())


@pytest.mark.promise("P14")
@given(script=deeds, items=st.integers(1, 40), held=st.sampled_from([0, 10, 2_000_000]))
@settings(max_examples=60, deadline=None)
def test_the_summary_equals_a_reference_computation(script: list[Any], items: int, held: int) -> None:
    clock = Clock()
    world, account = World(MemoryStore(clock=clock), clock), Account()
    play(world, account, script, items)
    found = statistics.collect(world.store, world.batch, held=held)
    for stage in range(2):
        check_stage(found.stages[stage], account, stage)
    check_stage(found.overall, account, None)


@pytest.mark.promise("P14")
def test_every_store_tells_the_same(world: World) -> None:
    account = Account()
    script = [
        ("done", 0.1, 2.0, {"usd": 5, "tokens": 7, "model": "m", "metrics": {}}),
        ("fail", 1.0, 1.0, None),
        ("done", 0.5, 0.25, None),
    ]
    play(world, account, script, 25)
    found = statistics.collect(world.store, world.batch)
    check_stage(found.overall, account, None)
    assert found == statistics.collect(world.store, world.batch, held=5)


@pytest.mark.promise("P8", "P14")
def test_failed_attempts_count_and_adopted_outputs_cost_nothing(world: World) -> None:
    world.add("a", "b")
    world.work(
        lambda item: (
            failed(item, seconds=4.0, spend=Spend(item.n, usd=canonical.to_units("0.5")))
            if item.key == "a"
            else done(item, seconds=9.0, adopted=True)
        )
    )
    found = statistics.collect(world.store, world.batch).stages[0]
    assert (found.runs, found.execution.sum, found.usd.sum) == (1, 4.0, Decimal("0.50"))
    assert dict(found.outcomes) == {"adopted": 1, "retried": 1}
    assert dict(found.codes) == {"http_503": 1}


@pytest.mark.promise("P9")
def test_statistics_cannot_be_changed(world: World) -> None:
    world.add("a")
    world.finish()
    found = statistics.collect(world.store, world.batch)
    with pytest.raises(TypeError):
        found.overall.outcomes["done"] = 0  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.overall.runs = 0  # type: ignore[misc]


def test_a_batch_without_attempts_has_empty_statistics(world: World) -> None:
    plain = statistics.collect(world.store, world.batch).as_dict()
    assert plain["overall"]["total"] == {
        "count": 0,
        "min": None,
        "max": None,
        "sum": 0,
        "mean": None,
        "p50": None,
        "p95": None,
    }
    assert [stage["stage"] for stage in plain["stages"]] == ["ocr", "correct"]


@pytest.mark.promise("P1")
def test_totals_from_the_chunks_agree_with_the_journal(world: World) -> None:
    world.add(*range(20))
    world.work(
        lambda item: (
            done(item, spend=Spend(item.n, usd=canonical.to_units("0.01"), tokens=3)) if item.n % 3 else skipped(item)
        )
    )
    world.finish()
    found, cheap = statistics.collect(world.store, world.batch).overall, totals(world.store.chunks(world.id))
    assert (cheap.attempts, cheap.usd, cheap.tokens) == (found.runs, found.usd.sum, found.tokens.sum)
    assert cheap.seconds == pytest.approx(found.execution.sum)
    assert cheap.settled == 20


def test_a_flood_of_error_codes_is_counted_together(world: World) -> None:
    world.add(*range(300))
    world.work(lambda item: failed(item, transient=False, code=f"code_{item.n}"))
    codes = statistics.collect(world.store, world.batch).overall.codes
    assert len(codes) == 201
    assert codes["other"] == 100
