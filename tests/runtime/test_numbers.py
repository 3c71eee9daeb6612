"""Numbers that people read, in stories of ordinary days: reruns, rewinds, two terminals. Each against the ledger."""

import os
import signal
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.model import BatchId, Chunk, ChunkId, Counts, ItemNo
from holdfast.core.retry import Policy
from holdfast.core.settle import settle
from holdfast.runtime import lookup
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.progress import Progress, _Terminal, sentence
from holdfast.runtime.operate.audit import verify
from holdfast.runtime.report import status as standing
from holdfast.runtime.report.status import Figures, Letters
from holdfast.stores.base import find_batch
from holdfast.testing.rows import Rows
from tests.core.made import NOW, chunk, failed, item, lost, skipped
from tests.runtime.support import run, wait_for, walk_of

Restart = Callable[..., hf.Pipeline]


def paying(price: str, *, version: int = 0) -> Callable[[hf.Pipeline], None]:
    def define(book: hf.Pipeline) -> None:
        if version:

            @book.stage(sink=hf.Files("out/{key}.json"))
            def page(n: int, ctx: hf.Context) -> int:
                ctx.spend(usd=price)
                return n + version
        else:

            @book.stage(sink=hf.Files("out/{key}.json"))
            def page(n: int, ctx: hf.Context) -> int:
                ctx.spend(usd=price)
                return n

    return define


class Watcher:
    """Keeps every figure that a run shows."""

    def __init__(self) -> None:
        self.seen: list[Figures] = []

    def __call__(self, figures: Figures) -> None:
        self.seen.append(figures)

    @property
    def last(self) -> Figures:
        return self.seen[-1]


@pytest.mark.promise("P8")
def test_what_was_made_again_was_not_saved(restart: Restart) -> None:
    run(restart(paying("1")), range(10))
    for n in range(5):
        Path(f"out/{n}.json").unlink()
    watch = Watcher()
    report = run(restart(paying("1")), range(10), progress=watch)
    assert (report.this_run.rewound, report.this_run.done, report.this_run.done_before) == (5, 5, 5)
    assert (report.saved.items, report.saved.usd, report.totals.usd) == (5, 5, 15)
    assert watch.last.whole.settled == watch.last.admitted == 10
    assert "10 of 10 settled, 5 done before, 5 done now" in sentence("book", watch.last)


def test_a_batch_that_was_made_again_as_a_whole_has_nothing_from_before(restart: Restart) -> None:
    run(restart(paying("1")), range(3))
    for n in range(3):
        Path(f"out/{n}.json").unlink()
    report = run(restart(paying("1")), range(3))
    assert (report.this_run.done, report.this_run.done_before, report.saved.items) == (3, 0, 0)
    assert "saved" not in str(report)


def test_a_payload_that_changed_is_not_counted_twice(book: hf.Pipeline) -> None:
    @book.stage
    def page(row: dict[str, int], ctx: hf.Context) -> int:
        ctx.spend(usd="0.10")
        return row["n"]

    run(book, [{"id": n, "n": n} for n in range(4)], key="id")
    watch = Watcher()
    changed = [{"id": n, "n": n + (n < 3)} for n in range(4)]
    report = run(book, changed, key="id", changed="rerun", progress=watch)
    assert (report.this_run.done, report.this_run.done_before, report.saved.usd) == (3, 1, Decimal("0.10"))
    assert watch.last.whole.settled == watch.last.admitted == 4


@pytest.mark.promise("P13")
def test_status_report_and_plan_agree_on_what_the_rest_of_a_rerun_costs(restart: Restart) -> None:
    run(restart(paying("0.10")), range(10))
    book = restart(paying("0.10", version=1))
    report = run(book, range(10), on_code_change="rerun", budget=hf.Budget(usd="1.50", item="0.10"))
    assert (report.totals.usd, report.counts.pending) == (Decimal("1.50"), 5)
    assert report.forecast.usd == book.report().forecast.usd == Decimal("0.50")
    assert book.plan(range(10)).forecast.usd == Decimal("0.50")
    again = run(book, range(10))
    assert (again.this_run.done, again.this_run.done_before) == (5, 5)
    assert (again.saved.items, again.saved.usd) == (5, Decimal("0.50"))


def test_what_is_left_costs_what_its_own_stages_cost(book: hf.Pipeline) -> None:
    @book.stage
    def cheap(n: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.01")
        return n

    @book.stage
    def dear(n: int, ctx: hf.Context) -> int:
        if n >= 4:
            raise hf.Defer(3600)
        ctx.spend(usd="1")
        return n

    deferred = run(book, range(10), deadline="30s", workers=1, progress=Stop(book, 10))
    assert (deferred.counts.done, deferred.counts.pending) == (4, 6)
    assert deferred.forecast.usd == Decimal("6.00"), "their first stage is paid for"


class Stop:
    """Pauses the batch once every item came through its first stage."""

    def __init__(self, book: hf.Pipeline, items: int) -> None:
        self.book, self.items, self.asked = book, items, False

    def __call__(self, figures: Figures) -> None:
        batch = find_batch(self.book.store, "book")
        if batch is None or self.asked:
            return
        passed = [item for item in self.book.store.items(batch.id) if item.place.stage >= 1 and item.place.due != 0]
        if len(passed) + figures.whole.settled == self.items:
            self.asked = True
            self.book.pause("book", reason="looked at")


def test_the_plan_knows_how_many_of_a_stage_may_run_together(restart: Restart) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage(concurrency=3)
        def scan(n: int) -> int:
            return n

        @book.stage
        def read(n: int) -> int:
            return n

    book = restart(define)
    run(book, range(8))
    many = book.plan(range(24), workers=16).forecast
    scan, read = many.stages
    assert (scan.items, scan.together, read.together) == (16, 3, 16)
    assert scan.seconds is not None
    assert many.seconds >= scan.seconds / 3
    one = book.plan(range(9), workers=16).forecast
    assert one.seconds == pytest.approx(one.work_seconds), "sixteen workers do not share one item"


@pytest.mark.promise("P1")
def test_two_runs_side_by_side_each_show_the_whole_batch(restart: Restart) -> None:
    held, freed = threading.Event(), threading.Event()

    def start(watch: Watcher) -> threading.Thread:
        def define(book: hf.Pipeline) -> None:
            @book.stage
            def page(n: int, ctx: hf.Context) -> int:
                ctx.spend(usd="0.10")
                if watch is first:
                    held.set()
                    assert freed.wait(30)
                return n

        book = restart(define)
        thread = threading.Thread(target=lambda: reports.append(run(book, range(200), workers=2, progress=watch)))
        thread.start()
        return thread

    first, second, reports = Watcher(), Watcher(), list[hf.Report]()
    threads = [start(first)]
    assert held.wait(30)
    threads.append(start(second))
    wait_for(lambda: second.seen and second.last.now.settled)
    freed.set()
    for thread in threads:
        thread.join(60)
    assert [report.state for report in reports] == ["complete", "complete"]
    assert first.last.now.done + second.last.now.done == 200
    for each in (first, second):
        assert each.last.whole.done == each.last.admitted == 200
        assert (each.last.whole.spent, each.last.elsewhere.done) == (first.last.whole.spent, 200 - each.last.now.done)
        assert "200 of 200 settled" in sentence("book", each.last)


def test_what_a_run_writes_itself_is_never_taken_for_the_work_of_others() -> None:
    ledger = Ledger([])
    mine = [Chunk(id=ChunkId(1), batch=BatchId(1), lo=ItemNo(0), hi=ItemNo(9), counts=Counts(done=9))]

    def look_while_it_writes() -> list[Chunk]:
        with ledger.writing():
            ledger.now = ledger.now.plus(Counts(done=9))
        return mine

    ledger.see(look_while_it_writes)
    assert ledger.figures().elsewhere.done == 0
    with ledger.writing():
        ledger.see(lambda: [*mine, *mine])  # the store has what is not added up yet
    assert ledger.figures().elsewhere.done == 0
    ledger.see(lambda: [*mine, *mine])
    assert ledger.figures().elsewhere.done == 9


# -- what a resume saved ----------------------------------------------------------------------------------------------


def test_what_unfinished_items_cost_was_not_saved(restart: Restart) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def ask(n: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.10" if n < 4 else "5")
            if n == 4:
                raise hf.Defer(3600)
            return n

        @book.stage
        def keep(n: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.01")
            return n

    first = run(restart(define), range(4))
    run(restart(define), range(5), deadline="1s")
    report = run(restart(define), range(5), deadline="1s")
    assert first.totals.usd == Decimal("0.44")
    assert (report.saved.items, report.saved.usd, report.saved.about) == (4, Decimal("0.44"), False)
    assert report.saved.seconds == pytest.approx(first.totals.seconds, rel=1e-3)
    assert "4 items not done again: $0.44" in str(report)


def test_an_item_that_failed_first_saves_all_that_it_cost(restart: Restart) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=3, wait=("1ms", "1ms")))
        def ask(n: int, ctx: hf.Context) -> int:
            ctx.spend(usd="1")
            if ctx.attempt < 2:
                raise hf.Transient("again")
            return n

    assert run(restart(define), range(3)).totals.usd == 6
    assert run(restart(define), range(3)).saved.usd == 6


def test_of_very_many_it_is_said_about(restart: Restart, monkeypatch: pytest.MonkeyPatch) -> None:
    run(restart(paying("1")), range(4))
    monkeypatch.setattr("holdfast.runtime.report.report.SAVED_ITEMS", 3)
    report = run(restart(paying("1")), range(4))
    assert (report.saved.usd, report.saved.about) == (4, True)
    assert "4 items not done again: about $4.00 and" in str(report)


# -- scans that are resumed -------------------------------------------------------------------------------------------


class Walked:
    """A scan of 40 rows, each of which takes ten seconds on a clock of its own, and costs a cent."""

    def __init__(self, source: object, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.time, self.handled, self.stop_after = 0.0, 0, 0
        for module in ("walk", "partition"):
            monkeypatch.setattr(f"holdfast.runtime.scan.{module}.clock", lambda: self.time)
        self.scan = walk_of("orders", source, store="state.db", every=5, **options)  # type: ignore[arg-type]

        @self.scan.handler
        def check(rows: list[Any], acc: int, ctx: hf.Context) -> int:
            self.time += 10.0 * len(rows)
            self.handled += len(rows)
            ctx.spend(usd=Decimal("0.01") * len(rows))
            if self.handled == self.stop_after:
                os.kill(os.getpid(), signal.SIGINT)
                wait_for(lambda: ctx.stopping)
            return acc + len(rows)

    def go(self, stop_after: int = 0) -> Any:
        self.stop_after = stop_after
        return self.scan.run(progress=False, signals="report")


def test_a_scan_that_is_resumed_has_worked_in_every_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = Walked(Rows(list(range(40))), monkeypatch)
    assert walked.go(stop_after=15).run.state == "interrupted"
    store = walked.scan.pipeline.store
    batch = lookup.batch_named(store, "orders")
    assert standing.snapshot(store, batch).totals.seconds == 150
    assert walked.go(stop_after=25).run.state == "interrupted"
    report = walked.go()
    assert (report.rows, report.run.totals.seconds, report.run.totals.usd) == (40, 400, Decimal("0.40"))
    assert verify(store, batch, full=True).holds
    again = walked.go()
    assert (again.run.saved.items, again.run.saved.seconds, again.run.saved.usd) == (1, 400, Decimal("0.40"))


def test_every_tick_of_a_scan_that_follows_has_worked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(range(12))
    walked = Walked(Rows(rows), monkeypatch, follow=True)
    for more, seconds in ((0, 120), (0, 120), (5, 170)):
        rows += range(more)
        walked.scan.tick()
        store = walked.scan.pipeline.store
        assert standing.snapshot(store, lookup.batch_named(store, "orders")).totals.seconds == seconds
    assert verify(store, lookup.batch_named(store, "orders"), full=True).holds


@pytest.mark.promise("P13")
def test_the_plan_of_a_scan_goes_by_the_rows_that_were_handled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = Walked(Rows(list(range(40))), monkeypatch)
    walked.go(stop_after=15)
    plan = walked.scan.plan(workers=1)
    assert (plan.forecast.work_seconds, plan.forecast.usd) == (250, Decimal("0.25"))
    assert "about 4 min 10 s" in str(plan)
    assert any("15 rows are behind the checkpoints, 25 left" in note for note in plan.notes)


def test_the_plan_of_a_scan_tells_what_it_knows_where_rows_are_not_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("rows.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(40)))
    walked = Walked(hf.Csv("rows.csv"), monkeypatch)
    walked.go(stop_after=15)
    told = str(walked.scan.plan(workers=1))
    assert "forecast 15 rows took 2 min 30 s of work and $0.15; how many are left is not known" in told
    assert "nothing is known" not in told


@pytest.mark.slow
def test_the_time_of_an_interrupted_scan_is_counted_as_well(folder: Path) -> None:
    scan = hf.Scan("orders", Rows(list(range(150))), store="state.db", every=1)

    @scan.handler
    def check(rows: list[Any], acc: int) -> int:
        threading.Event().wait(0.01)
        if acc == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        return acc + len(rows)

    first = scan.run(progress=False)
    assert first.run.state == "interrupted"
    assert first.rows >= 20
    assert first.run.totals.seconds >= first.rows * 0.01
    whole = scan.run(progress=False)
    assert whole.run.totals.seconds >= 150 * 0.01


# -- the line of a run ------------------------------------------------------------------------------------------------


def moment(**facts: Any) -> Figures:
    """A moment of a run of a hundred items, ten seconds after its start."""
    told = {"before": Counts(), "now": Counts(), "admitted": 100, "added": 100, "known": 0, "seconds": 10.0}
    return Figures(**{**told, "ingested": True, **facts})


def test_the_time_that_is_left_counts_what_others_do_and_is_not_told_before_all_items_are_known() -> None:
    line = sentence("book", moment(now=Counts(done=10), elsewhere=Counts(done=40)))
    assert line == "book: 50 of 100 settled, 10 done now, 40 by others, 5.0/s, about 10.0 s left"
    assert "left" not in sentence("book", moment(now=Counts(done=10), ingested=False))


def test_partitions_and_rows_that_died_are_told_apart() -> None:
    letters = Letters(count=3, settled=3, dead=3)
    line = sentence("totals", moment(now=Counts(dead=5), counts_rows=True, letters=letters))
    assert line.endswith("2 partitions dead, 3 rows dead")


def test_the_bar_of_a_scan_stands_where_its_rows_stand() -> None:
    bar = _Terminal("totals")
    bar(moment(counts_rows=True, rows_before=500, rows=100, rows_expected=1_000), True)
    assert (bar.picture.done, bar.picture.total) == (600, 1_000)


def test_rows_that_were_redriven_are_dead_again_only_where_they_were_buried() -> None:
    ledger = Ledger([])
    ledger.count_rows(0, letters=Letters(count=2, settled=0), redriven=frozenset({7, 8}))
    ledger.add(settle([skipped(item(7)), failed(item(8), transient=False)], stages=1, policies=[Policy()], now=NOW))
    assert ledger.figures().letters == Letters(count=2, settled=2, dead=1)


def test_an_attempt_that_is_tried_again_did_not_send_its_item_back() -> None:
    ledger = Ledger([])
    ledger.add(settle([failed(item(1)), lost(item(2, stage=1))], stages=2, policies=[Policy()] * 2, now=NOW))
    assert ledger.figures().rewound == 1


def test_what_others_sent_back_is_not_told_as_less_than_nothing() -> None:
    ledger = Ledger([chunk(0, 10, done=5)])
    ledger.see(lambda: [chunk(0, 10, done=2, dead=1)])
    assert (ledger.figures().elsewhere.done, ledger.figures().elsewhere.dead) == (0, 1)


def test_the_last_figures_are_those_of_the_whole_batch_where_looks_cost_money_too() -> None:
    watch = Watcher()
    progress = Progress("book", Ledger([]), watch, lambda: [chunk(0, 10, done=4)], dear=True)
    progress.start()
    progress.stop()
    assert watch.last.elsewhere.done == 4
