"""How far a run is: a live line in a terminal, lines in a log, a line that rewrites itself in a notebook."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from holdfast.core import canonical
from holdfast.core.errors import HoldfastError
from holdfast.core.model import Chunk
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.report.status import Figures
from holdfast.runtime.text import in_words, many

log = logging.getLogger("holdfast.progress")

LIVE_SECONDS = 0.1
LOG_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How often a run looks at what others do beside it, at most."""


class Progress:
    """Shows the figures of a ledger from a thread of its own, until it is stopped."""

    def __init__(self, batch: str, ledger: Ledger, shown: "bool | Callable[[Any], None] | None",
                 chunks: Callable[[], Sequence[Chunk]], *, dear: bool) -> None:  # fmt: skip
        self._ledger = ledger
        self._chunks = chunks
        self._dear = dear
        """Whether a look at the store costs money: then only the last figures are those of the whole batch."""
        self._look_at = 0.0
        self._stop = threading.Event()
        self._show, every = _choose(batch, shown)
        self._thread = threading.Thread(target=self._run, args=(every,), name="holdfast-progress", daemon=True)

    def start(self) -> None:
        if self._show is not None:
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
                self._show(self._ledger.figures(), False)
            self._look(is_last=True)
            self._show(self._ledger.figures(), True)
        except Exception as error:  # noqa: BLE001 - a function of the user's, or a terminal that went away; the work goes on
            log.warning("progress is no longer shown: %s: %s", type(error).__name__, error)

    def _look(self, *, is_last: bool = False) -> None:
        """Take in what others do beside this run; a look takes a twentieth of the time at most."""
        began = time.monotonic()
        with suppress(HoldfastError):  # the run itself tells what is wrong with the store
            self._ledger.see(self._chunks, is_last=is_last)
        self._look_at = time.monotonic() + max(LOOK_SECONDS, 20 * (time.monotonic() - began))


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
    """Return the figures in one line."""
    before, now = figures.before, figures.now
    rate = (now.settled + figures.elsewhere.settled) / figures.seconds if figures.seconds > 0 else 0.0
    done = min(figures.whole.settled, figures.admitted)
    left = figures.admitted - done
    if figures.counts_rows and not figures.admitted and not figures.ingested:
        return f"{batch}: nothing is known of its source yet"
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


def _dead(figures: Figures) -> list[str]:
    """Return what died: of a scan, partitions and rows apart."""
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
    """Return what is left of a scan whose rows are counted, and for how long at this rate."""
    if figures.rows_expected is None:
        return []
    left = figures.rows_expected - figures.rows_before - figures.rows
    if left <= 0:
        return []
    return [f"{left:,} left", *([f"about {in_words(left / rate)}"] if rate > 0 else [])]


class _Lines:
    """A line now and then, on standard error, for logs."""

    def __init__(self, batch: str) -> None:
        self.batch = batch

    def __call__(self, figures: Figures, last: bool) -> None:
        sys.stderr.write(f"holdfast: {sentence(self.batch, figures)}\n")
        sys.stderr.flush()


class _Terminal:
    """A progress bar that stays on its line."""

    def __init__(self, batch: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=False,
        )
        self.line = self.bar.add_task(escape(batch), total=None, facts="", count="")
        self.bar.start()
        self.recent: list[tuple[float, int]] = []

    def __call__(self, figures: Figures, last: bool) -> None:
        done = min(figures.whole.settled, figures.admitted)
        self.recent = [*self.recent[-50:], (time.monotonic(), figures.now.settled + figures.elsewhere.settled)]
        total = figures.admitted if figures.ingested or last else max(figures.admitted, done + 1)
        rows = figures.letters
        facts, count = self._facts(figures, total - done), f"{done - rows.settled:,} of {total - rows.count:,}"
        if figures.counts_rows:
            count += " partitions"
        if figures.rows_expected is not None:  # of five ranges a bar would show five steps; it has a million rows
            done, total = min(figures.rows_before + figures.rows, figures.rows_expected), figures.rows_expected
        self.bar.update(self.line, completed=done, total=total, facts=facts, count=count)
        if last:
            self.bar.stop()

    def _facts(self, figures: Figures, left: int) -> str:
        from rich.markup import escape

        (first_at, first), (last_at, latest) = self.recent[0], self.recent[-1]
        rate = (latest - first) / (last_at - first_at) if last_at > first_at else 0.0
        if figures.counts_rows:
            parts = _rows(figures)
        else:
            before = f"{figures.before.done:,} before" if figures.before.done else ""
            others = f"{figures.elsewhere.done:,} by others" if figures.elsewhere.done else ""
            parts = [before, others, f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"]
        if rate > 0 and left > 0 and not figures.counts_rows:
            parts.append(f"{in_words(left / rate)} left" if figures.ingested else "still reading")
        spent = figures.whole.spent
        parts.append(f"${canonical.to_usd(spent):.2f}" if spent else "")
        parts += [f"[red]{each}[/red]" for each in _dead(figures)]
        parts.append(figures.looking)
        parts.append(f"[yellow]{escape(', '.join(figures.paused))} paused[/yellow]" if figures.paused else "")
        parts.append(f"[yellow]{figures.careful}[/yellow]" if figures.careful else "")
        return " · ".join(part for part in parts if part)


class _Notebook:
    """One line that is rewritten in place."""

    def __init__(self, batch: str) -> None:
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        self.batch = batch
        self.handle = display({"text/plain": f"{batch}: starting"}, raw=True, display_id=True)

    def __call__(self, figures: Figures, last: bool) -> None:
        self.handle.update({"text/plain": sentence(self.batch, figures)}, raw=True)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return type(running).__name__ == "ZMQInteractiveShell"
