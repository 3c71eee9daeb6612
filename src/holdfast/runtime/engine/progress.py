"""The progress of a run: a bar with a line per stage in a terminal, lines in a log, a line that is rewritten in a
notebook, or a function of the user's."""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical
from holdfast.core.errors import HoldfastError
from holdfast.core.model import Chunk
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.engine.stage_counts import PendingByStage
from holdfast.runtime.report.status import Figures, StageFigures
from holdfast.runtime.text import BAD, CARE, FAINT, GOOD, HEAD, in_words, many, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

log = logging.getLogger("holdfast.progress")

LIVE_SECONDS = 0.1
LOG_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How often a run reads the progress of other processes, at most."""
SAMPLES = 50
"""Moments over which rates are measured."""
STAGES_SHOWN = 12
"""Stages that are shown at most: those with the most items."""
BAR_WIDTH = 30
NAME_WIDTH = 30


class Progress:
    """A thread that shows the figures of a ledger until it is stopped."""

    def __init__(self, batch: str, ledger: Ledger, shown: "bool | Callable[[Any], None] | None",
                 chunks: Callable[[], Sequence[Chunk]], *, dear: bool,
                 read_pending: Callable[[Sequence[Chunk]], PendingByStage] | None = None) -> None:  # fmt: skip
        self._ledger = ledger
        self._chunks = chunks
        self._dear = dear
        """Whether reading the store costs money: then only the last figures are those of the whole batch."""
        self._read_pending = read_pending
        self._rates = StageRates()
        self._look_at = 0.0
        self._stop = threading.Event()
        self._show, every = _choose(batch, shown)
        self._thread = threading.Thread(target=self._run, args=(every,), name="holdfast-progress", daemon=True)

    def start(self) -> None:
        if self._show is not None:
            self._rates.measure(self._ledger.figures(), time.monotonic())
            self._thread.start()

    def stop(self) -> None:
        if self._show is not None:
            self._stop.set()
            self._thread.join(timeout=2.0)

    def _run(self, every: float) -> None:
        assert self._show is not None
        try:
            while not self._stop.wait(every):
                if not self._dear and time.monotonic() >= self._look_at:
                    self._look()
                self._show(self._figures(), False)
            self._look(is_last=True)
            self._show(self._figures(), True)
        except Exception as error:  # noqa: BLE001 - a function of the user's, or a closed terminal; the run continues
            log.warning("progress is no longer shown: %s: %s", type(error).__name__, error)

    def _figures(self) -> Figures:
        return self._rates.measure(self._ledger.figures(), time.monotonic())

    def _look(self, *, is_last: bool = False) -> None:
        """Read the progress of other processes; this takes a twentieth of the time at most."""
        began = time.monotonic()
        with suppress(HoldfastError):  # the run itself reports trouble with the store
            self._ledger.see(self._chunks, is_last=is_last, read_pending=self._read_pending)
        self._look_at = time.monotonic() + max(LOOK_SECONDS, 20 * (time.monotonic() - began))


class StageRates:
    """Rates of the stages over the last moments that were shown."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=SAMPLES)

    def measure(self, figures: Figures, now: float) -> Figures:
        """Return the figures with the rate of every stage, and the time that it needs at that rate."""
        if not figures.stages:
            return figures
        self._seen.append((now, tuple(stage.passed for stage in figures.stages)))
        since, before = self._seen[0]
        took = now - since
        rates = [(stage.passed - then) / took if took > 0 else 0.0
                 for stage, then in zip(figures.stages, before, strict=True)]  # fmt: skip
        measured = [_with_rate(*each, figures) for each in zip(figures.stages, rates, strict=True)]
        return replace(figures, stages=tuple(measured))


def _with_rate(stage: StageFigures, rate: float, figures: Figures) -> StageFigures:
    left = figures.admitted - stage.passed
    knows = rate > 0 and left > 0 and figures.ingested
    return replace(stage, rate=max(0.0, rate), seconds_left=left / rate if knows else 0.0 if not left else None)


Show = Callable[[Figures, bool], None]


def _choose(batch: str, shown: "bool | Callable[[Any], None] | None") -> tuple[Show | None, float]:
    if shown is False:
        return None, 0.0
    if callable(shown):
        call = shown
        return lambda figures, last: call(figures), LIVE_SECONDS
    if _in_notebook():
        return _Notebook(batch), 0.5
    if sys.stderr is None or sys.stderr.closed:
        return None, 0.0
    if sys.stderr.isatty():
        return _Terminal(batch), LIVE_SECONDS
    return _Lines(batch), LOG_SECONDS


def sentence(batch: str, figures: Figures) -> str:
    """Return the figures of the batch in one line, without those of its stages."""
    before, now = figures.before, figures.now
    rate = (now.settled + figures.elsewhere.settled) / figures.seconds if figures.seconds > 0 else 0.0
    done = min(figures.whole.settled, figures.admitted)
    left = figures.admitted - done
    if figures.counts_rows and not figures.admitted and not figures.ingested:
        return f"{batch}: its source has not been read yet"
    noun, rows = " partitions" if figures.counts_rows else "", figures.letters
    settled, admitted = done - rows.settled, figures.admitted - rows.count
    parts = [f"{batch}: {settled:,} of {admitted:,}{'' if figures.ingested else '+'}{noun} settled"]
    if figures.counts_rows:
        parts += _rows(figures)
    else:
        if before.done:
            parts.append(f"{before.done:,} done before")
        parts.append(f"{now.done:,} done now")
        if figures.elsewhere.done:
            parts.append(f"{figures.elsewhere.done:,} by others")
        parts.append(f"{rate:,.1f}/s")
    if rate > 0 and left > 0 and figures.ingested and not figures.counts_rows:
        parts.append(f"about {in_words(left / rate)} left")
    if spent := figures.whole.spent:
        parts.append(f"${canonical.to_usd(spent):.2f}")
    parts += _dead(figures)
    if figures.looking:
        parts.append(figures.looking)
    if figures.paused:
        parts.append(f"{', '.join(figures.paused)} paused")
    if figures.careful:
        parts.append(figures.careful)
    return ", ".join(parts)


def stage_sentences(figures: Figures) -> Iterator[str]:
    """Yield the figures of every stage as a part of a line, if the pipeline has several."""
    shown = shown_stages(figures, STAGES_SHOWN)
    for stage in shown:
        yield f"{stage.name} {', '.join(_stage_facts(stage))}"
    if shown and len(shown) < len(figures.stages):
        yield f"and {len(figures.stages) - len(shown):,} more stages"


def shown_stages(figures: Figures, most: int) -> list[StageFigures]:
    """Return the stages to show, in their order: all, or the `most` with the most items at them."""
    stages = figures.stages
    if len(stages) < 2 or figures.counts_rows:
        return []
    if len(stages) <= most:
        return list(stages)
    busiest = sorted(range(len(stages)), key=lambda n: (-stages[n].running - stages[n].waiting, -n))[:most]
    return [stages[n] for n in sorted(busiest)]


def _stage_facts(stage: StageFigures) -> list[str]:
    about = "~" if stage.is_estimate else ""
    facts = [f"{about}{stage.passed:,} passed", f"{stage.running:,} running", f"{about}{stage.waiting:,} waiting",
             per_second(stage.rate)]  # fmt: skip
    return [*facts, f"{in_words(stage.seconds_left)} left"] if stage.seconds_left else facts


def per_second(rate: float) -> str:
    """Return a rate with the digits that matter."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


def _dead(figures: Figures) -> list[str]:
    """Return how many died; for a scan, partitions and rows separately."""
    dead, rows = figures.whole.dead, figures.letters.dead
    if not figures.counts_rows:
        return [f"{dead:,} dead"] if dead else []
    told = [f"{many(dead - rows, 'partition')} dead"] if dead > rows else []
    return [*told, *([f"{many(rows, 'row')} dead"] if rows else [])]


def _rows(figures: Figures) -> list[str]:
    """Return how far a scan is, in rows."""
    rate = figures.rows / figures.seconds if figures.seconds > 0 else 0.0
    before = [f"{many(figures.rows_before, 'row')} before"] if figures.rows_before else []
    return [*before, f"{many(figures.rows, 'row')} now", f"{rate:,.0f} rows/s", *_rows_left(figures, rate)]


def _rows_left(figures: Figures, rate: float) -> list[str]:
    """Return how many rows are left if the scan counts them, and how long they take at this rate."""
    if figures.rows_expected is None:
        return []
    left = figures.rows_expected - figures.rows_before - figures.rows
    if left <= 0:
        return []
    return [f"{left:,} left", *([f"about {in_words(left / rate)}"] if rate > 0 else [])]


class _Lines:
    """A line on standard error now and then, for logs."""

    def __init__(self, batch: str) -> None:
        self.batch = batch

    def __call__(self, figures: Figures, last: bool) -> None:
        line = "; ".join([sentence(self.batch, figures), *stage_sentences(figures)])
        sys.stderr.write(f"holdfast: {printable(line)}\n")
        sys.stderr.flush()


class _Terminal:
    """A progress bar, and a line per stage below it, that stay in place."""

    def __init__(self, batch: str, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.batch = batch
        console = Console(stderr=True, highlight=False) if console is None else console
        self.picture = Picture(batch)
        self.live = Live(self.picture, console=console, auto_refresh=False, transient=False)
        self.live.start()
        self.recent: deque[tuple[float, int]] = deque(maxlen=SAMPLES)

    def __call__(self, figures: Figures, last: bool) -> None:
        done = min(figures.whole.settled, figures.admitted)
        self.recent.append((time.monotonic(), figures.now.settled + figures.elsewhere.settled))
        total = figures.admitted if figures.ingested or last else max(figures.admitted, done + 1)
        rows = figures.letters
        facts, count = self._facts(figures, total - done), f"{done - rows.settled:,} of {total - rows.count:,}"
        if figures.counts_rows:
            count += " partitions"
        if figures.rows_expected is not None:  # a bar of five partitions has five steps; they have a million rows
            done, total = min(figures.rows_before + figures.rows, figures.rows_expected), figures.rows_expected
        self.picture.update(done, total, count, facts, figures)
        self.live.refresh()
        if last:
            self.live.stop()

    def _facts(self, figures: Figures, left: int) -> list[tuple[str, str]]:
        """Return the facts beside the bar, each with its style."""
        (first_at, first), (last_at, latest) = self.recent[0], self.recent[-1]
        rate = (latest - first) / (last_at - first_at) if last_at > first_at else 0.0
        if figures.counts_rows:
            parts = _rows(figures)
        else:
            before = f"{figures.before.done:,} before" if figures.before.done else ""
            others = f"{figures.elsewhere.done:,} by others" if figures.elsewhere.done else ""
            parts = [before, others, per_second(rate)]
        if rate > 0 and left > 0 and not figures.counts_rows:
            parts.append(f"{in_words(left / rate)} left" if figures.ingested else "still reading")
        spent = figures.whole.spent
        parts += [f"${canonical.to_usd(spent):.2f}" if spent else "", figures.looking]
        paused = f"{', '.join(figures.paused)} paused" if figures.paused else ""
        styled = [*((each, "") for each in parts), *((each, BAD) for each in _dead(figures))]
        return [(text, style) for text, style in [*styled, (paused, CARE), (figures.careful, CARE)] if text]


class Picture:
    """The bar, the facts beside or below it, and the stages, for a screen of any width."""

    def __init__(self, batch: str) -> None:
        self.batch = one_line(printable(batch), NAME_WIDTH)
        self.done, self.total, self.count = 0, 0, ""
        self.facts: list[tuple[str, str]] = []
        self.figures: Figures | None = None
        self.began = time.monotonic()

    def update(self, done: int, total: int, count: str, facts: list[tuple[str, str]], figures: Figures) -> None:
        self.done, self.total, self.count, self.facts, self.figures = done, total, count, facts, figures

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        facts = Text(" · ").join(Text(printable(text), style=style) for text, style in self.facts)
        clock = _clock(time.monotonic() - self.began)
        fixed = len(self.batch) + len(self.count) + len(clock) + 6
        is_wide = fixed + BAR_WIDTH + facts.cell_len + 2 <= options.max_width
        bar = ProgressBar(total=max(1, self.total), completed=self.done, complete_style=GOOD, finished_style=GOOD,
                          width=max(4, min(BAR_WIDTH, options.max_width - fixed)), style=FAINT)  # fmt: skip
        cells: list[RenderableType] = [Text(self.batch, style=HEAD), bar, Text(self.count)]
        cells += [*([facts] if is_wide else []), Text(clock, FAINT)]
        line = Table.grid(padding=(0, 2))
        for _ in cells:
            line.add_column(no_wrap=True)
        line.add_row(*cells)
        yield line
        if not is_wide and facts:
            yield Text("  ") + facts
        if self.figures is not None:
            yield from self._stages(self.figures, max(1, min(STAGES_SHOWN, options.size.height - 4)))

    def _stages(self, figures: Figures, most: int) -> "Iterator[Table | Text]":
        from rich.table import Table
        from rich.text import Text

        shown = shown_stages(figures, most)
        if not shown:
            return
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
        for _ in range(5):
            table.add_column(justify="right", no_wrap=True)
        for stage in shown:
            passed, running, waiting, rate, *left = _stage_facts(stage)
            style = CARE if stage.name in figures.paused else ""
            name = Text(f"  {printable(stage.name)}", style=style)
            table.add_row(name, passed, running, waiting, rate, *(left or [""]))
        yield table
        if len(shown) < len(figures.stages):
            yield Text(f"  … and {len(figures.stages) - len(shown):,} more stages", style=FAINT)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class _Notebook:
    """One line that is rewritten in place."""

    def __init__(self, batch: str) -> None:
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        self.batch = batch
        self.handle = display({"text/plain": f"{batch}: starting"}, raw=True, display_id=True)

    def __call__(self, figures: Figures, last: bool) -> None:
        lines = [sentence(self.batch, figures), *(f"  {each}" for each in stage_sentences(figures))]
        self.handle.update({"text/plain": "\n".join(lines)}, raw=True)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return type(running).__name__ == "ZMQInteractiveShell"
