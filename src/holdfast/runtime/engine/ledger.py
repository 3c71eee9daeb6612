"""The figures of a run so far, behind its progress and its report."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.core.model import Admitted, Chunk, Counts, ItemNo, State
from holdfast.core.settle import Settled
from holdfast.runtime.engine.stage_counts import PendingByStage, StageCounts
from holdfast.runtime.report.status import Figures, Letters, StageFigures


class Ledger:
    """The sum of everything that has landed. Written by the worker and the ingester, read by any thread."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.began_with = chunks
        """The chunks as they were before the run."""
        self.before = Counts()
        """The counts from before the run, minus the items that this run sent back."""
        for chunk in chunks:
            self.before = self.before.plus(chunk.counts)
        self.now = Counts()
        self._new_from = max((chunk.hi for chunk in chunks), default=0)
        """The number of the first item that did not exist before the run."""
        self.admitted = sum(chunk.size for chunk in chunks)
        self.added = 0
        self.known = 0
        self.ingested = False
        self.rewound = 0
        self.adopted = 0
        self.elsewhere = Counts()
        self.looking = ""
        self.began = time.monotonic()
        self.buried: list[ItemNo] = []
        """Items that this run buried and whose hooks were not called yet."""
        self.late = 0
        """Items whose outcome came after the batch was sealed."""
        self.paused: tuple[str, ...] = ()
        self.careful = ""
        self.rows_before = 0
        self.rows = 0
        self.counts_rows = False
        self.letters = Letters()
        self._redriven: frozenset[int] = frozenset()
        self._expected: Callable[[], int | None] = lambda: None
        self._rows_expected: int | None = None
        self._asked = False
        self.notes: list[str] = []
        """Notes for the report."""
        self._stages: tuple[str, ...] = ()
        self._in_handlers: Callable[[], Sequence[int]] = tuple
        self._by_stage: StageCounts | None = None
        """Pending items by stage, if progress is shown and there are several stages."""
        self._read_at = 0
        """Attempts of other processes when these were read from the store."""
        self._begun = self._ended = 0
        """The number of writes that this run has begun, and of those it has added up."""
        self._lock = threading.Lock()

    def add(self, settled: Settled) -> None:
        """Add outcomes that are durable."""
        with self._lock:
            self.now = self.now.plus(settled.counts)
            if self._by_stage is not None:
                self._by_stage.add(settled)
        for group in settled.advanced:
            self.adopted += len(group.items) if group.adopted else 0
        if self._redriven:
            self._settle_rows(settled)
        for a in settled.attempts:
            self.rewound += a.outcome == "rewind"
            if a.outcome == "bury":
                self.buried.append(ItemNo(a.n))

    def count_stages(self, names: Sequence[str], in_handlers: Callable[[], Sequence[int]],
                     pending: PendingByStage | None = None) -> None:  # fmt: skip
        """Count by stage as well. `in_handlers` returns how many items are in the handlers of each stage; `pending` has
        the items that were pending before the run."""
        self._stages, self._in_handlers = tuple(names), in_handlers
        self._by_stage = StageCounts()
        if pending is not None:
            self._by_stage.replace(pending)
        elif any(chunk.pending for chunk in self.began_with):
            self._by_stage.is_estimate = True

    def count_rows(self, before: int, expected: Callable[[], int | None] = lambda: None,
                   letters: Letters | None = None, redriven: frozenset[int] = frozenset()) -> None:  # fmt: skip
        """Count in rows: the items are partitions of a source, of which so many rows were handled before. `expected` is
        called once, when all partitions are known. Some items are rows that were buried; `redriven` ones are to be
        tried again."""
        self.rows_before, self.counts_rows, self._expected = before, True, expected
        self.letters, self._redriven = letters if letters is not None else Letters(), redriven

    def _settle_rows(self, settled: Settled) -> None:
        """Count redriven rows that are settled now."""
        done = sum(n in self._redriven for group in settled.advanced if group.finished for n in group.items)
        ends = [a.outcome for a in settled.attempts if a.n in self._redriven and a.outcome in ("skip", "bury")]
        self.letters = self.letters.plus(0, done + len(ends), ends.count("bury"), done)

    def read(self, rows: int) -> None:
        """Count rows that are handled durably."""
        with self._lock:
            self.rows += rows

    def admit(self, group: Admitted) -> None:
        """Count a group of items that was admitted."""
        with self._lock:
            self.admitted += group.added
            self.added += group.added
            self.known += group.known
            if group.dead:
                self.now = self.now.plus(Counts(dead=len(group.dead)))
                if self.counts_rows:
                    self.letters = self.letters.plus(len(group.dead), len(group.dead), len(group.dead))
                self.buried += group.dead

    def bury(self, items: Sequence[ItemNo]) -> None:
        """Count items that this run buried without an attempt: their input was gone once too often, or they came again
        with a payload that is refused."""
        with self._lock:
            self.now = self.now.plus(Counts(dead=len(items)))
            self.buried += items

    def send_back(self, state: State, count: int = 1, *, lo: ItemNo | None = None) -> None:
        """Count items in that state that must be done again. From `lo` on, if this run admitted them, they are
        subtracted from its own work; others are subtracted from the counts before it."""
        if state is State.PENDING or not count:
            return
        gone = Counts(**{state.value: count})
        with self._lock:
            if lo is not None and lo >= self._new_from:
                self.now = _at_least_nothing(self.now.minus(gone))
            else:
                self.before = _at_least_nothing(self.before.minus(gone))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wrap a write and the addition of its result: in between, the store has more than the ledger."""
        with self._lock:
            self._begun += 1
        yield
        with self._lock:
            self._ended += 1

    def see(self, look: Callable[[], Sequence[Chunk]], *, is_last: bool = False,
            read_pending: Callable[[Sequence[Chunk]], PendingByStage] | None = None) -> None:  # fmt: skip
        """Take over the batch as the store has it: everything that was neither there before nor done by this run was
        done by other processes. Nothing is taken over if this run wrote meanwhile, because its own write would be
        counted as theirs."""
        ended = self._ended
        chunks = look()
        whole = Counts()
        for chunk in chunks:
            whole = whole.plus(chunk.counts)
        by_others = whole.attempts - self.before.attempts - self.now.attempts
        is_alone = not self.began_with and not by_others
        has_news = not is_alone if is_last else by_others != self._read_at and self._begun == ended
        pending = read_pending(chunks) if read_pending is not None and has_news else None
        with self._lock:
            if self._begun != ended and not is_last:
                return
            self.elsewhere = _at_least_nothing(whole.minus(self.before).minus(self.now))
            self.admitted = max(self.admitted, sum(chunk.size for chunk in chunks))
            if pending is not None and self._by_stage is not None and not (is_alone and pending.is_estimate):
                self._by_stage.replace(pending)
                self._read_at = by_others

    def figures(self) -> Figures:
        self._ask_for_rows()
        with self._lock:
            return Figures(
                self.before,
                self.now,
                self.admitted,
                self.added,
                self.known,
                time.monotonic() - self.began,
                self.ingested,
                self.rewound,
                self.elsewhere,
                self.looking,
                self.paused,
                self.adopted,
                self.rows_before,
                self.rows,
                self.counts_rows,
                self._rows_expected,
                self.letters,
                self.careful,
                self._stage_figures(),
            )

    def _stage_figures(self) -> tuple[StageFigures, ...]:
        """Return the figures of every stage; the lock is held."""
        if self._by_stage is None:
            return ()
        whole = self.before.plus(self.now).plus(self.elsewhere)
        pending = self.admitted - whole.settled
        at, is_estimate = self._by_stage.of(pending, len(self._stages)), self._by_stage.is_estimate and pending > 0
        found, passed = list[StageFigures](), self.admitted
        for name, here, begun in zip(self._stages, at, self._in_handlers(), strict=True):
            passed -= here
            found.append(StageFigures(name, passed, min(here, begun), max(0, here - begun), is_estimate=is_estimate))
        return tuple(found)

    def _ask_for_rows(self) -> None:
        if self.counts_rows and self.ingested and not self._asked:
            self._asked, self._rows_expected = True, self._expected()


def _at_least_nothing(counts: Counts) -> Counts:
    """Return the counts without negative numbers: other processes may have sent items back."""
    return Counts(**{name: max(0, getattr(counts, name)) for name in Counts.__struct_fields__})
