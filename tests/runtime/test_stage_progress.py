"""Progress per stage: what the screen, the log and a function are given, in ordinary stories, against the ledger."""

import io
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from rich.console import Console

import holdfast as hf
from holdfast.core import canonical
from holdfast.core.model import BatchId, Chunk, Counts, ItemState, State
from holdfast.core.retry import Policy
from holdfast.core.settle import settle
from holdfast.runtime.engine import stage_counts
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.progress import StageRates, _Lines, _Terminal, sentence, shown_stages, stage_sentences
from holdfast.runtime.engine.stage_counts import PendingByStage, StageCounts, read_pending
from holdfast.stores.base import each_item, find_batch
from tests.core.made import NOW, chunk, done, failed, item, lost, skipped
from tests.runtime.support import run, wait_for

Restart = Callable[..., hf.Pipeline]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Watcher:
    """A progress function that keeps every figure."""

    def __init__(self) -> None:
        self.seen: list[hf.Figures] = []

    def __call__(self, figures: hf.Figures) -> None:
        self.seen.append(figures)

    @property
    def last(self) -> hf.Figures:
        return self.seen[-1]


class Book:
    """Three stages: pages 7 and 107 die, pages 3 and 103 are skipped, and a signal comes at a page, if told so."""

    def __init__(self, stop_at: int | None = None, defer: Any = ()) -> None:
        self.stop_at, self.defer = stop_at, frozenset(defer)

    def __call__(self, book: hf.Pipeline) -> None:
        @book.stage
        def ocr(n: int, ctx: hf.Context) -> int:
            if n == self.stop_at:
                os.kill(os.getpid(), signal.SIGINT)
                wait_for(lambda: ctx.stopping)
            if n % 100 == 7:
                raise hf.Permanent("no_such_page", "there is no such page")
            return n

        @book.stage
        def correct(n: int) -> int:
            if n % 100 == 3:
                raise hf.Skip("blank")
            if n in self.defer:
                raise hf.Defer(3600)
            return n

        @book.stage
        def index(n: int) -> int:
            return n


def agrees(book: hf.Pipeline, figures: hf.Figures) -> None:
    """Hold the figures of every stage against the items in the store."""
    batch = find_batch(book.store, "book")
    assert batch is not None
    at = Counter(each.place.stage for each in each_item(book.store, batch.id, state=State.PENDING))
    total = sum(each.size for each in book.store.chunks(batch.id))
    assert figures.admitted == total
    settled, passed = sum(each.counts.settled for each in book.store.chunks(batch.id)), total
    for n, stage in enumerate(figures.stages):
        passed -= at[n]
        assert (stage.passed, stage.waiting, stage.running) == (passed, at[n], 0), stage
        assert not stage.is_estimate
    assert figures.stages[-1].passed == figures.whole.settled == settled


def test_at_the_end_every_item_is_past_every_stage(restart: Restart) -> None:
    book, watch = restart(Book()), Watcher()
    report = run(book, range(200), progress=watch)
    assert (report.counts.done, report.counts.dead, report.counts.skipped) == (196, 2, 2)
    assert [(stage.name, stage.passed) for stage in watch.last.stages] == [
        ("ocr", 200),
        ("correct", 200),
        ("index", 200),
    ]
    agrees(book, watch.last)


def test_items_that_are_left_are_counted_at_their_stage(restart: Restart) -> None:
    book, watch = restart(Book(defer=range(50, 90))), Watcher()
    report = run(book, range(200), progress=watch, deadline="1s")
    assert report.counts.pending == 40
    assert [stage.passed for stage in watch.last.stages] == [200, 160, 160]
    agrees(book, watch.last)


def test_after_ctrl_c_the_figures_are_those_of_the_store(restart: Restart) -> None:
    book, watch = restart(Book(stop_at=120)), Watcher()
    report = run(book, range(200), progress=watch, workers=2)
    assert report.state == "interrupted"
    agrees(book, watch.last)


def test_a_rerun_begins_where_the_items_are(restart: Restart) -> None:
    run(restart(Book(defer=range(50, 90))), range(200), deadline="1s")
    book, watch = restart(Book(defer=range(50, 90))), Watcher()
    run(book, range(200), progress=watch, deadline="1s")
    assert {tuple(stage.passed for stage in each.stages) for each in watch.seen} == {(200, 160, 160)}
    agrees(book, watch.last)


def test_dead_letters_that_are_redriven_and_die_again_are_behind(restart: Restart) -> None:
    run(restart(Book()), range(200))
    book, watch = restart(Book()), Watcher()
    with hf.open(book.store) as there:
        there["book"].dead().redrive(reason="again")
    report = run(book, range(200), progress=watch)
    assert report.counts.dead == 2
    agrees(book, watch.last)


def test_two_runs_side_by_side_show_the_stages_of_the_whole_batch(restart: Restart) -> None:
    held, freed, reports = threading.Event(), threading.Event(), list[hf.Report]()

    def define(waits: bool) -> Callable[[hf.Pipeline], None]:
        def stages(book: hf.Pipeline) -> None:
            @book.stage
            def ocr(n: int) -> int:
                if waits:
                    held.set()
                    assert freed.wait(30)
                return n

            @book.stage
            def correct(n: int) -> int:
                if n % 10 == 0:
                    raise hf.Defer(3600)
                return n

        return stages

    def start(waits: bool, watch: Watcher) -> threading.Thread:
        book = restart(define(waits))
        options: dict[str, Any] = {"progress": watch, "workers": 2, "deadline": "4s", "signals": "report"}
        thread = threading.Thread(target=lambda: reports.append(book.run(range(200), **options)))
        thread.start()
        return thread

    first, second = Watcher(), Watcher()
    threads = [start(True, first)]
    assert held.wait(30)
    threads.append(start(False, second))
    wait_for(lambda: second.seen and second.last.now.settled)
    freed.set()
    for thread in threads:
        thread.join(60)
    assert [report.counts.pending for report in reports] == [20, 20]
    for each in (first, second):
        agrees(restart(define(False)), each.last)


def test_the_counts_of_a_stage_add_up_at_every_moment(restart: Restart) -> None:
    watch = Watcher()
    run(restart(Book()), range(2_000), progress=watch)
    for figures in watch.seen:
        behind = figures.admitted
        for stage in figures.stages:
            assert stage.passed + stage.running + stage.waiting == behind
            behind = stage.passed


def test_what_a_handler_holds_is_in_its_stage(restart: Restart) -> None:
    watch, freed = Watcher(), threading.Event()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def first(n: int) -> int:
            return n

        @book.stage(concurrency=3)
        def second(n: int) -> int:
            assert freed.wait(30)
            return n

    def seen(figures: hf.Figures) -> None:
        watch(figures)
        if figures.stages[1].running == 3 and figures.stages[1].waiting == 17:
            freed.set()

    assert run(restart(define), range(20), progress=seen).is_complete
    assert [stage.passed for stage in watch.last.stages] == [20, 20]


# -- the counts behind it ---------------------------------------------------------------------------------------------


def test_commits_move_items_between_stages() -> None:
    counts = StageCounts()
    counts.replace(PendingByStage(Counter({0: 8, 1: 1})))
    outcomes = [done(item(0)), done(item(1)), done(item(2, stage=1)), skipped(item(3)), failed(item(4))]
    counts.add(settle(outcomes, stages=3, policies=[Policy()] * 3, now=NOW))
    assert counts.of(9, 3) == [6, 2, 1]
    counts.add(settle([lost(item(2, stage=2))], stages=3, policies=[Policy()] * 3, now=NOW))
    assert sum(counts.of(9, 3)) == 9
    assert counts.of(0, 3) == [0, 0, 0]


def test_a_skipped_item_leaves_its_stage() -> None:
    counts = StageCounts()
    counts.replace(PendingByStage(Counter({1: 2})))
    counts.add(settle([skipped(item(0, stage=1))], stages=2, policies=[Policy()] * 2, now=NOW))
    assert counts.of(5, 2) == [4, 1]


def test_a_stage_that_is_finished_leaves_nothing_behind() -> None:
    counts = StageCounts()
    counts.replace(PendingByStage(Counter({1: 2})))
    counts.add(settle([done(item(0, stage=1))], stages=2, policies=[Policy()] * 2, now=NOW))
    assert (counts.of(5, 2), counts.of(5, 3)) == ([4, 1], [4, 1, 0])


def test_of_very_many_pending_items_the_split_is_an_estimate(restart: Restart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_counts, "READ_ITEMS", 10)
    run(restart(Book(defer=range(50, 90))), range(200), deadline="1s")
    watch = Watcher()
    run(restart(Book(defer=range(50, 90))), range(200), progress=watch, deadline="1s")
    assert all(stage.is_estimate for stage in watch.last.stages)
    assert [stage.passed for stage in watch.last.stages] == [200, 160, 160]
    assert all("~" in each for each in stage_sentences(watch.last))


def test_while_a_run_writes_pending_items_are_not_read() -> None:
    ledger, reads = Ledger([]), list[int]()
    ledger.count_stages(["a", "b"], lambda: [0, 0])

    def read(_: Any) -> PendingByStage:
        reads.append(1)
        return PendingByStage()

    with ledger.writing():
        ledger.see(lambda: [chunk(0, 10, counts=Counts(attempts=5))], read_pending=read)
    assert not reads
    ledger.see(lambda: [chunk(0, 10, counts=Counts(attempts=5))], read_pending=read)
    ledger.see(lambda: [chunk(0, 10, counts=Counts(attempts=5))], read_pending=read)
    assert len(reads) == 1, "once for the same news"


# -- what is shown ----------------------------------------------------------------------------------------------------


def moment(*stages: hf.StageFigures, **facts: Any) -> hf.Figures:
    told = {"before": Counts(), "now": Counts(), "admitted": 447, "added": 447, "known": 0, "seconds": 10.0}
    return hf.Figures(**{**told, "ingested": True, "stages": stages, **facts})  # type: ignore[arg-type]


OCR = hf.StageFigures("ocr", 301, 16, 130, 60.2, 2.4)
CORRECT = hf.StageFigures("correct", 212, 9, 80, 4.1, 57.0)


def test_rates_are_measured_over_the_last_moments() -> None:
    rates = StageRates()
    rates.measure(moment(hf.StageFigures("a", 0, 0, 447)), 100.0)
    (stage,) = rates.measure(moment(hf.StageFigures("a", 47, 0, 400)), 110.0).stages
    assert (stage.rate, stage.seconds_left) == (4.7, pytest.approx(400 / 4.7))
    (stage,) = rates.measure(moment(hf.StageFigures("a", 47, 0, 400), ingested=False), 111.0).stages
    assert stage.seconds_left is None, "the source is still being read"
    (stage,) = rates.measure(moment(hf.StageFigures("a", 447, 0, 0)), 112.0).stages
    assert stage.seconds_left == 0.0


def test_a_log_line_has_the_figures_of_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    _Lines("book")(moment(OCR, CORRECT, now=Counts(done=212)), False)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.endswith(
        "; ocr 301 passed, 16 running, 130 waiting, 60/s, 2.4 s left"
        "; correct 212 passed, 9 running, 80 waiting, 4.1/s, 57.0 s left\n"
    )


def test_one_stage_is_the_batch_and_has_no_line_of_its_own() -> None:
    assert shown_stages(moment(OCR), 12) == []
    assert shown_stages(moment(OCR, CORRECT, counts_rows=True), 12) == []
    assert sentence("book", moment(OCR)).count("behind") == 0


def test_of_many_stages_those_with_the_most_items_are_shown() -> None:
    stages = [hf.StageFigures(f"s{n}", 0, 0, 100 if n % 2 else 0) for n in range(40)]
    shown = shown_stages(moment(*stages), 12)
    assert len(shown) == 12
    assert all(stage.waiting for stage in shown)
    assert [*stage_sentences(moment(*stages))][-1] == "and 28 more stages"


def screen(columns: int, figures: hf.Figures, **options: Any) -> list[str]:
    """The bar and its stages on a screen, the clock masked."""
    file = io.StringIO()
    console = Console(file=file, width=columns, height=30, force_terminal=True, highlight=False, **options)
    bar = _Terminal("moby-dick", console)
    bar(figures, False)
    bar.live.stop()
    file.seek(file.truncate(0))
    console.print(bar.picture)
    return [line.rstrip() for line in re.sub(r"0:00:\d\d", "0:00:00", file.getvalue()).splitlines()]


BUSY = moment(OCR, CORRECT, now=Counts(done=100, dead=3, spent=canonical.to_units("2.31")), before=Counts(done=109),
              paused=("correct",))  # fmt: skip


def test_the_bar_on_eighty_columns() -> None:
    assert screen(80, BUSY, no_color=True, color_system=None) == [
        "moby-dick  ━━━━━━━━━━━━━━                  212 of 447  0:00:00",
        "  109 before · 0/s · $2.31 · 3 dead · correct paused",
        "  ocr      301 passed  16 running  130 waiting   60/s   2.4 s left",
        "  correct  212 passed   9 running   80 waiting  4.1/s  57.0 s left",
    ]


def test_the_bar_on_two_hundred_columns() -> None:
    assert screen(200, BUSY, no_color=True, color_system=None) == [
        (
            "moby-dick  ━━━━━━━━━━━━━━                  212 of 447"
            "  109 before · 0/s · $2.31 · 3 dead · correct paused  0:00:00"
        ),
        "  ocr      301 passed  16 running  130 waiting   60/s   2.4 s left",
        "  correct  212 passed   9 running   80 waiting  4.1/s  57.0 s left",
    ]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_of_the_bar_is_wider_than_the_screen(columns: int) -> None:
    long = hf.StageFigures("a-stage-with-a-name-that-is-longer-than-most-screens-are", 10**9, 10**3, 10**9, 1e6, 1e6)
    lines = screen(columns, moment(long, long, careful="x" * 90), color_system="256")
    assert max(len(ESCAPE.sub("", line)) for line in lines) <= columns


def test_the_stages_never_take_more_than_the_screen() -> None:
    stages = [hf.StageFigures(f"s{n}", 0, 0, 1) for n in range(100)]
    lines = screen(80, moment(*stages), no_color=True, color_system=None)
    assert len(lines) <= 15
    assert lines[-1] == "  … and 88 more stages"


def test_without_color_the_screen_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    colored = [ESCAPE.sub("", line).rstrip() for line in screen(80, BUSY, color_system="256")]
    assert not any(re.search(r"\x1b\[[0-9;]*38;5", line) for line in screen(80, BUSY))
    assert colored[1:] == screen(80, BUSY, no_color=True, color_system=None)[1:]


def test_a_name_gives_no_orders_to_the_terminal() -> None:
    evil = hf.StageFigures("\x1b[2J[red]x", 1, 1, 1)
    text = "\n".join(screen(80, moment(evil, evil), color_system="256"))
    assert "\x1b[2J" not in text
    assert "[red]x" in text


def test_an_estimate_is_taken_from_all_over_the_batch() -> None:
    class Ahead:
        """A batch whose first quarter is at the third stage, and all the rest at the first."""

        def items(self, batch: BatchId, *, lo: int, hi: int, state: State, limit: int) -> list[Any]:
            return [
                SimpleNamespace(place=ItemState(stage=2 if n < 5_000 else 0)) for n in range(lo, min(hi, lo + limit))
            ]

    def begun(lo: int) -> Chunk:
        return replace(chunk(lo, lo + 1_000), counts=Counts(attempts=1))

    chunks = [*(begun(lo) for lo in range(0, 20_000, 1_000)), chunk(20_000, 30_000)]
    found = read_pending(cast("Any", Ahead()), cast("Any", SimpleNamespace(id=BatchId(1))), chunks)
    assert (dict(found.counts), found.is_estimate) == ({2: 5_000, 0: 25_000}, True)
    few = read_pending(cast("Any", Ahead()), cast("Any", SimpleNamespace(id=BatchId(1))), chunks[4:7])
    assert (dict(few.counts), few.is_estimate) == ({2: 1_000, 0: 2_000}, False)
