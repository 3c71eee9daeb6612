"""What the rows of a scan cost, and who a handler says it is: both belong to the group of rows that it has in hand."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.core import canonical, journal, sections
from holdfast.core.journal import FLOAT32, pack
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit, evidence
from holdfast.runtime.operate.evidence import check
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.partitions import history
from holdfast.runtime.report import statistics, why
from holdfast.runtime.report.forecast import PastAttempts
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import Rows
from tests.runtime.support import SOON, App, wait_for, walk_of

ROWS, EVERY, GROUPS = 1000, 200, 5
CENTS = Decimal("0.10")
SHAPES = ("rows", "fold", "generator", "async rows", "async fold", "async generator")


def pay(ctx: hf.Context) -> None:
    ctx.spend(usd=CENTS, tokens=5, model="small", usage={"calls": 1})
    ctx.measure(x=1)


def paying(shape: str, said: Callable[[hf.Context], Any] = pay) -> Callable[..., Any]:
    """A handler of some shape that says something about every group of rows."""

    def rows(rows: list[int], ctx: hf.Context) -> None:
        said(ctx)

    def fold(rows: list[int], acc: int, ctx: hf.Context) -> int:
        said(ctx)
        return acc + len(rows)

    def generator(part: hf.Partition, ctx: hf.Context) -> Any:
        total = part.acc if part.acc is not None else 0
        for number, _ in enumerate(part, 1):
            if number % EVERY == 1:
                said(ctx)
            if number % EVERY == 0:
                yield total + number

    made = {"rows": rows, "fold": fold, "generator": generator}
    return made[shape] if shape in made else _paying_async(shape, said)


def _paying_async(shape: str, said: Callable[[hf.Context], Any]) -> Callable[..., Any]:
    async def rows(rows: list[int], ctx: hf.Context) -> None:
        said(ctx)

    async def fold(rows: list[int], acc: int, ctx: hf.Context) -> int:
        said(ctx)
        return acc + len(rows)

    async def generator(part: hf.Partition, ctx: hf.Context) -> Any:
        number = part.acc if part.acc is not None else 0
        async for _ in part:
            number += 1
            if number % EVERY == 1:
                said(ctx)
            if number % EVERY == 0:
                yield number

    return {"async rows": rows, "async fold": fold, "async generator": generator}[shape]


def scan_of(shape: str, said: Callable[[hf.Context], Any] = pay, rows: Any = range(ROWS), **options: Any) -> hf.Scan:
    scan = walk_of("rows", Rows(rows), **{"every": EVERY, "store": "memory:", "retry": SOON, **options})
    scan.handler(paying(shape, said))
    return scan


def once(scan: hf.Scan) -> Any:
    """Run a scan that ends, or look once at what is followed; then tell how it stands."""
    if scan.follows:
        scan.tick()
        return scan.report()
    return scan.run(progress=False)


def until(scan: hf.Scan, rows: int) -> Any:
    """Go on until so many rows are behind the checkpoint."""
    reports = [once(scan)]
    wait_for(lambda: reports[-1].rows == rows or reports.append(once(scan)))
    return reports[-1]


def costs(scan: hf.Scan) -> list[Decimal]:
    """What each checkpoint of the journal cost."""
    (batch,) = scan.pipeline.store.batches("rows")
    return [past.usd for past in history(scan.pipeline.store, batch)]


@pytest.mark.promise("E8")
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_group_costs_is_part_of_its_checkpoint(shape: str, follow: bool) -> None:
    scan = scan_of(shape, follow=follow)
    report = once(scan)
    assert (report.totals.usd, report.totals.tokens) == (GROUPS * CENTS, GROUPS * 5)
    assert costs(scan) == [CENTS] * GROUPS
    (batch,) = scan.pipeline.store.batches("rows")
    told = statistics.collect(scan.pipeline.store, batch).overall
    assert (told.usd.sum, told.usd.count, told.tokens.sum) == (GROUPS * CENTS, GROUPS, GROUPS * 5)
    assert (told.metrics["x"].count, told.usage["calls"], told.models["small"].usd) == (GROUPS, GROUPS, GROUPS * CENTS)


@pytest.mark.promise("E8")
@pytest.mark.parametrize("shape", ["rows", "fold", "generator"])
def test_a_budget_sees_every_checkpoint(shape: str) -> None:
    scan = scan_of(shape)
    first = scan.run(progress=False, budget=hf.Budget(usd="0.25"))
    assert (first.rows, first.totals.usd, first.is_complete) == (600, 3 * CENTS, False)
    assert "budget" in str(first)
    same = scan.run(progress=False, budget=hf.Budget(usd="0.25"))
    assert (same.rows, same.totals.usd) == (600, 3 * CENTS)
    whole = scan.run(progress=False, budget=hf.Budget(usd=1))
    assert (whole.rows, whole.totals.usd, whole.is_complete) == (ROWS, GROUPS * CENTS, True)


def checkpointed(n: int, rows: int, *, ends: bool = False) -> journal.Checkpointed:
    """A commit of one group of a partition, which cost ten cents."""
    took = pack(FLOAT32, [1.0])
    done = journal.Advanced(0, journal.numbers([n]), bytes(32), queued=took, seconds=took, finished=True)
    spent = journal.Spend(n, usd=canonical.to_units(CENTS))
    return journal.Checkpointed(advanced=[done] if ends else [], spends=[(0, spent)],
                                positions=[journal.Position(n, rows)])  # fmt: skip


@pytest.mark.promise("E8")
def test_a_forecast_knows_what_partitions_have_paid_that_are_half_done() -> None:
    past = PastAttempts.of([checkpointed(0, rows, ends=rows == 250) for rows in (50, 100, 150, 200, 250)])
    assert past.cost({0: 3}) == (3.0, canonical.to_units("1.50"))
    past.learn(checkpointed(1, 50))
    past.learn(checkpointed(1, 100))
    assert past.cost({0: 3}) == (3.0, canonical.to_units("1.30"))
    past.learn(checkpointed(1, 150, ends=True))
    assert past.cost({0: 2}) == (2.0, canonical.to_units("0.80"))


def test_a_partition_that_died_is_not_half_done_any_more() -> None:
    past = PastAttempts.of([checkpointed(0, 50, ends=True), checkpointed(1, 50), checkpointed(1, 100)])
    assert past.cost({0: 2}) == (2.0, 0)
    past.learn(journal.Checkpointed(attempts=[journal.Attempted(1, 0, 1, 0, "bury")]))
    assert past.cost({0: 2}) == (1.0, canonical.to_units("0.30"))


def test_partitions_share_a_budget() -> None:
    report = scan_of("rows", partitions=5, every=20).run(progress=False, workers=5, budget=hf.Budget(usd=2))
    assert 2 <= report.totals.usd <= 2 + 5 * CENTS, "at most one group in hand for each partition"
    assert report.rows == 20 * int(report.totals.usd / CENTS)


@pytest.mark.promise("E8")
@pytest.mark.parametrize("follow", [False, True])
def test_evidence_of_what_was_spent_holds(follow: bool, tmp_path: Path) -> None:
    scan = scan_of("fold", follow=follow)
    once(scan)
    (batch,) = scan.pipeline.store.batches("rows")
    evidence.write(scan.pipeline.store, batch, tmp_path / "rows.zip", {"unexplained": 0})
    assert check.main([str(tmp_path / "rows.zip")]) == 0


@pytest.mark.promise("E8")
def test_why_tells_what_a_partition_cost_up_to_its_checkpoint() -> None:
    scan = scan_of("rows")
    once(scan)
    (batch,) = scan.pipeline.store.batches("rows")
    told = why.tell(scan.pipeline.store, batch, "0")
    assert (told.usd, told.tokens) == ("0.50", 25)
    assert "$0.50" in str(told)


@pytest.mark.promise("E8")
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("shape", ["rows", "fold", "generator"])
def test_a_group_that_fails_costs_too_and_no_group_counts_twice(shape: str, follow: bool) -> None:
    calls = 0

    def fail_once(ctx: hf.Context) -> None:
        nonlocal calls
        calls += 1
        pay(ctx)
        if calls == 4:
            raise hf.Transient("no answer")

    scan = scan_of(shape, fail_once, follow=follow)
    report = until(scan, ROWS)
    assert calls == GROUPS + 1
    assert report.totals.usd == calls * CENTS
    assert costs(scan) == [CENTS] * GROUPS  # what failed is an attempt's money, not a checkpoint's


@pytest.mark.promise("E8")
@pytest.mark.parametrize("follow", [False, True])
def test_every_try_costs_while_a_row_is_looked_for_that_cannot_be_handled(follow: bool) -> None:
    calls = 0
    rows = Rows([*range(10), "poison", *range(10)])
    scan = walk_of("rows", rows, follow=follow, every=8, isolate=True, store="memory:")

    @scan.handler
    def handle(rows: list[Any], ctx: hf.Context) -> None:
        nonlocal calls
        calls += 1
        pay(ctx)
        if "poison" in rows:
            raise ValueError("no")

    report = once(scan)
    assert calls > 3
    assert report.counts.dead == 1
    assert report.totals.usd == calls * CENTS
    assert sum(costs(scan)) == calls * CENTS


@pytest.mark.promise("E8")
def test_a_row_that_was_redriven_costs_what_its_handler_says(tmp_path: Path) -> None:
    bad = True
    scan = hf.Follow("rows", Rows(["poison", 1, 2]), isolate=True, store=tmp_path / "state.db")

    @scan.handler
    def handle(rows: list[Any], ctx: hf.Context) -> None:
        pay(ctx)
        if bad and "poison" in rows:
            raise ValueError("no")

    before = once(scan).totals.usd
    bad = False
    (batch,) = scan.pipeline.store.batches("rows")
    redrive(scan.pipeline.store, batch, Actor(name="me", reason="seen to"))
    tick = scan.tick()
    assert tick.redriven == 1
    assert scan.report().totals.usd == before + CENTS


@pytest.mark.promise("E8")
@pytest.mark.parametrize("follow", [False, True])
def test_the_journal_accounts_for_the_money_of_checkpoints(follow: bool, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    once(scan_of("rows", follow=follow, store=store))
    (batch,) = store.batches("rows")
    assert audit.verify(store, batch).findings == ()
    apsw.Connection(str(tmp_path / "state.db")).execute("UPDATE chunks SET spent = spent + 1")
    assert any("spent" in str(each) for each in audit.verify(store, batch).findings)


def test_entries_of_checkpoints_without_money_are_as_they_were() -> None:
    scan = hf.Scan("rows", Rows(range(10)), every=5, store="memory:")
    scan.handler(lambda rows: None)
    once(scan)
    (batch,) = scan.pipeline.store.batches("rows")
    (chunk,) = scan.pipeline.store.chunks(batch.id)
    entries = scan.pipeline.store.entries(chunk.id, after=0, limit=100)
    assert not any(b"spends" in entry.body for entry in entries)
    assert sum(isinstance(sections.decode(entry), journal.Checkpointed) for entry in entries) == 2


# -- who a handler is ----------------------------------------------------------------------------------------------


def names_of(seen: list[Any]) -> Callable[[hf.Context], None]:
    def note(ctx: hf.Context) -> None:
        seen.append((ctx.idempotency_key, ctx.request_id, ctx.segment))

    return note


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_group_has_a_key_of_its_own(shape: str, follow: bool) -> None:
    seen: list[Any] = []
    once(scan_of(shape, names_of(seen), follow=follow))
    assert len(seen) == len({key for key, _, _ in seen}) == len({request for _, request, _ in seen}) == GROUPS


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_group_that_is_repeated_has_the_key_it_had(shape: str, follow: bool) -> None:
    seen: list[Any] = []
    note = names_of(seen)

    def fail_once(ctx: hf.Context) -> None:
        note(ctx)
        if len(seen) == 3:
            raise hf.Transient("no answer")

    scan = scan_of(shape, fail_once, follow=follow)
    until(scan, ROWS)
    assert len(seen) == GROUPS + 1
    assert seen[2] == seen[3]
    assert len({key for key, _, _ in seen}) == GROUPS


def test_the_next_tick_is_another_group() -> None:
    seen: list[Any] = []
    rows = list(range(3))
    scan = scan_of("rows", names_of(seen), rows, follow=True)
    scan.tick()
    rows.append(3)
    scan.tick()
    assert len({key for key, _, _ in seen}) == 2


def test_partitions_resets_and_batches_have_keys_of_their_own(tmp_path: Path) -> None:
    seen: list[Any] = []
    scan = scan_of("rows", names_of(seen), partitions=2, store=tmp_path / "state.db")
    scan.run(progress=False)
    scan.run("again", progress=False)
    assert len({key for key, _, _ in seen}) == len(seen) == 12


def test_more_rows_than_last_time_are_another_group() -> None:
    """A service that knows the key would answer for rows that it never saw."""
    seen: list[Any] = []
    rows = list(range(3))
    note = names_of(seen)

    def fail_once(ctx: hf.Context) -> None:
        note(ctx)
        if len(seen) == 1:
            raise hf.Transient("no answer")

    scan = scan_of("rows", fail_once, rows, follow=True)
    scan.tick()
    rows.append(3)
    until(scan, 4)
    assert seen[0][0] != seen[1][0]


def test_halves_of_a_group_have_keys_of_their_own() -> None:
    seen: list[Any] = []
    scan = hf.Scan("rows", Rows([0, "poison", 2, 3]), isolate=True, store="memory:")

    @scan.handler
    def handle(rows: list[Any], ctx: hf.Context) -> None:
        assert ctx.segment is not None
        seen.append((rows, ctx.idempotency_key, ctx.segment))
        if "poison" in rows:
            raise ValueError("no")

    once(scan)
    assert len({key for _, key, _ in seen}) == len(seen) == 5
    spans = [(rows, at.after.value, at.until.value, at.rows, at.count, at.more)
             for rows, _, at in seen]  # fmt: skip
    assert spans == [
        ([0, "poison", 2, 3], 0, 4, 0, 4, False),
        ([0, "poison"], 0, 2, 0, 2, True),
        ([0], 0, 1, 0, 1, True),
        (["poison"], 1, 2, 1, 1, True),
        ([2, 3], 2, 4, 2, 2, False),
    ]


def test_a_handler_knows_which_rows_it_has_in_hand() -> None:
    seen: list[Any] = []
    scan = scan_of("rows", names_of(seen), partitions=2)
    scan.run(progress=False)
    at = {(segment.start.value, segment.rows): segment for _, _, segment in seen}
    assert sorted(at) == [(0, 0), (0, 200), (0, 400), (500, 0), (500, 200), (500, 400)]
    last = at[500, 400]
    assert (last.after.value, last.until.value, last.count, last.more) == (900, 1000, 100, False)
    assert (last.interval, last.end.value) == (EVERY, 1000)
    assert at[0, 200].more is True


@pytest.mark.parametrize(("every", "told"), [(7, 7), ("5s", "5s"), ("auto", "auto")])
def test_the_interval_is_told_as_it_was_given(every: Any, told: Any) -> None:
    seen: list[Any] = []
    once(scan_of("rows", names_of(seen), range(3), every=every))
    assert seen[0][2].interval == told


def test_a_part_moves_on_with_every_yield() -> None:
    seen: list[Any] = []
    scan = hf.Scan("rows", Rows(range(6)), store="memory:")

    @scan.handler
    def handle(part: hf.Partition) -> Any:
        for number, _ in enumerate(part, 1):
            assert part.segment is not None
            seen.append((part.segment.rows, part.segment.until, part.idempotency_key, part.request_id))
            if number % 2 == 0:
                yield number
        seen.append((part.segment.rows, part.segment.until, part.idempotency_key, part.request_id))

    once(scan)
    assert [rows for rows, *_ in seen] == [0, 0, 2, 2, 4, 4, 6]
    assert {until for _, until, *_ in seen} == {None}
    assert len({key for _, _, key, _ in seen}) == len({request for *_, request in seen}) == 4


def test_attempts_begin_again_behind_a_checkpoint() -> None:
    seen: list[int] = []

    def fail_once(ctx: hf.Context) -> None:
        seen.append(ctx.attempt)
        if len(seen) == 2:
            raise hf.Transient("no answer")

    once(scan_of("rows", fail_once))
    assert seen == [1, 1, 2, 1, 1, 1]


def test_a_pipeline_has_no_segment(book: hf.Pipeline) -> None:
    seen: list[Any] = []

    @book.stage
    def note(number: int, ctx: hf.Context) -> int:
        seen.append(ctx.segment)
        return number

    book.run([1], progress=False)
    assert seen == [None]


# -- in processes --------------------------------------------------------------------------------------------------

PROGRAM = """
    import os, sys
    import holdfast as hf
    from holdfast.testing.rows import Rows

    follow = os.environ.get("FOLLOW") == "1" or "follow" in sys.argv
    os.environ["FOLLOW"] = "1" if follow else "0"
    scan = (hf.Follow if follow else hf.Scan)("rows", Rows(range(20), page=4), store="state.db", every=5,
                   retry=hf.Retry(attempts=3, wait=("1ms", "2ms")))

    @scan.handler(executor="processes")
    def keep(rows, acc: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.10", tokens=5)
        with open("keys", "a") as file: file.write(f"{rows[0]} {ctx.idempotency_key}\\n")
        if rows[0] == 10 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), 9)
        return acc + len(rows)

    if __name__ == "__main__":
        while (scan.tick().total if follow else scan.run(progress=False).rows) < 20: pass
        report = scan.report()
        print(report.totals.usd, report.totals.tokens)
"""


@pytest.mark.slow
@pytest.mark.promise("E8")
@pytest.mark.parametrize("how", ["bounded", "follow"])
def test_processes_that_die_leave_the_money_of_their_checkpoints(how: str, folder: Path) -> None:
    app = App(folder, PROGRAM)
    ended = app.run(how)
    assert ended.stdout.split() == ["0.40", "20"], ended.stderr
    seen = [line.split() for line in (folder / "keys").read_text().splitlines()]
    assert len(seen) == 5
    assert len({tuple(each) for each in seen}) == 4  # the group that was repeated had the key it had
    assert len({key for _, key in seen}) == 4
