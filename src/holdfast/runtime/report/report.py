"""The report of a batch: the outcome of its items in this run and before, its state, and what to do next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.core import canonical
from holdfast.core.counts import StateCounts, Totals
from holdfast.core.course import EMPTY, FINDINGS, OVER_TOLERANCE, BatchState, End, StopReason, word_of
from holdfast.core.errors import Incomplete, UsageError
from holdfast.core.model import Batch, BatchMode, Chunk, Key, Kind, State
from holdfast.core.plain import Plain
from holdfast.core.verify import Finding, Reconciliation
from holdfast.runtime import lookup
from holdfast.runtime.define.context import DeadLetter
from holdfast.runtime.define.options import allowed as allowed_dead
from holdfast.runtime.report import lifecycle, statistics, status
from holdfast.runtime.report.forecast import Forecast, PastAttempts, recent_commits
from holdfast.runtime.report.orphans import Blame
from holdfast.runtime.report.reconcile import reconcile
from holdfast.runtime.report.statistics import read_savings
from holdfast.runtime.report.status import STATES, Figures
from holdfast.runtime.text import command, in_words, many, naming_store, one_line, printable, unpause_command, usd, when
from holdfast.runtime.verify.inspector import Findings, value_of
from holdfast.stores.base import Store, each_item, find_batch

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


@dataclass(frozen=True, slots=True)
class Kinds:
    """The items of a batch, counted by state."""

    items: Mapping[str, int]
    """Items, or the partitions of a scan."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of a scan that were buried."""
    noun: str = "item"

    @property
    def count(self) -> int:
        return sum(self.items.values())

    def all(self) -> str:
        """Return `All 5 items are`."""
        return f"All {self.count:,} {self.noun}s are" if self.count != 1 else f"Its one {self.noun} is"

    def died(self) -> str:
        """Return how many died, of how many."""
        mine, rows = self.items.get("dead", 0), self.rows.get("dead", 0)
        if not rows:
            return f"{mine:,} of {many(self.count, self.noun)}"
        return f"{mine:,} of {many(self.count, self.noun)} and {many(rows, 'row')}" if mine else many(rows, "row")

    def pending(self) -> str:
        """Return how many are left, in words."""
        mine, rows = self.items.get("pending", 0), self.rows.get("pending", 0)
        told = [many(mine, self.noun)] if mine or not rows else []
        return " and ".join([*told, *([many(rows, "buried row")] if rows else [])])

    def lines(self) -> list[str]:
        """Return the lines for the report."""
        sums = " + ".join(f"{self.items.get(name, 0):,} {name}" for name in STATES)
        found = [f"  items    {f'{self.count:,}' if self.noun == 'item' else many(self.count, self.noun)} = {sums}"]
        if self.rows:
            told = " + ".join(f"{count:,} {name}" for name, count in self.rows.items())
            found.append(f"  buried   {many(sum(self.rows.values()), 'row')} = {told}")
        return found


def kinds_of(now: status.Status) -> Kinds:
    """Return the items of a batch by state; of a scan, buried rows separately from its partitions."""
    mine = {name: getattr(now.counts, name) for name in STATES}
    if now.kind is not Kind.PARTITIONS:
        return Kinds(mine)
    return Kinds({name: count - now.rows.get(name, 0) for name, count in mine.items()}, now.rows, "partition")


@dataclass(frozen=True, slots=True)
class Result:
    """One finished item."""

    key: Key
    """Its key."""
    output: Any
    """The output of the last stage, validated."""
    number: int
    """Its number in the batch, from 0."""


def results(pipeline: "PipelineDefinition", name: str) -> Iterator[Result]:
    """Yield every result, validated against the annotation of the last stage; read in pages, so memory stays flat."""
    store = pipeline.store
    batch = find_batch(store, name)
    if batch is None:
        raise UsageError(f"there is no batch {name!r} in {store.url}")
    last = len(pipeline.stages) - 1
    stage = pipeline.stages[last]
    for record in each_item(store, batch.id, state=State.DONE):
        outputs = store.outputs(batch.id, lo=record.n, hi=record.n + 1, stage=last, limit=1)
        if not outputs:
            continue
        yield Result(record.key, value_of(stage, outputs[0], name, record), record.n)


DEAD_SHOWN, REASON_SHOWN, NOTE_SHOWN = 20, 400, 4_000
"""Dead letters in a report; characters of a reason, and of a finding or a note, in one line of its text."""
SAVED_ENTRIES, SAVED_ITEMS = 2_000, 20_000
"""The most entries and items that are read to sum up exactly what a run did not have to do again."""


@dataclass(frozen=True, slots=True)
class ThisRun:
    """The work of this run, as opposed to earlier ones."""

    _tells: ClassVar[str] = "* rate"

    done_before: int
    done: int
    dead: int
    skipped: int
    admitted: int
    usd: Decimal
    seconds: float
    rewound: int = 0
    adopted: int = 0
    """Outputs that an earlier attempt had made but not recorded: found valid, and neither made nor paid for again."""
    rows: int = 0
    """Rows of a scan that this run handled."""
    rows_before: int = 0
    redriven: int = 0
    """Rows of a scan that had been buried, among `done`."""

    def __str__(self) -> str:
        return f"{self.done:,} done in {in_words(self.seconds)} ({self.rate:,.1f}/s), {self.done_before:,} before"

    def of_rows(self) -> str:
        """Return the same for a scan, which counts rows."""
        rate = self.rows / self.seconds if self.seconds > 0 else 0.0
        parts = self.done - self.redriven
        done = f"{many(parts, 'partition')} done, " if parts else ""
        done += f"{many(self.redriven, 'buried row')} done, " if self.redriven else ""
        now = f"{many(self.rows, 'row')} in {in_words(self.seconds)} ({rate:,.0f} rows/s)"
        return f"{done}{now}, {many(self.rows_before, 'row')} before"

    @property
    def rate(self) -> float:
        return self.done / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Saved:
    """Work of earlier runs that a resume did not have to do again."""

    items: int
    usd: Decimal
    seconds: float
    about: bool = False
    """Money and seconds are estimated from the average item, because there are too many to add up."""


@dataclass(frozen=True, slots=True)
class Report(Plain):
    """The state of a batch when a run of it ended. `print(report)` shows it; `as_dict()` has it as data."""

    _tells: ClassVar[str] = (
        "pipeline batch state why reason exit_code run_again sealed_at counts totals left=_told_left "
        "this_run saved dead stages warnings failed_hooks unverified findings reconciliation"
    )

    pipeline: str
    """The name of the pipeline."""
    batch: str
    """The name of the batch."""
    state: BatchState
    """How the batch is: at its end complete, complete with dead letters, finished with findings, stopped or cancelled;
    before that empty, interrupted, paused, over tolerance, or open if nothing ran."""
    why: str
    """The state in a sentence, and what to do next."""
    counts: StateCounts
    """Items by state: `done`, `skipped`, `dead`, `cancelled` and `pending` add up to `expected`; `ready`, `running`,
    `waiting` and `orphaned` add up to `pending`."""
    totals: Totals
    """Sums over all runs: `attempts`, `usd`, `tokens`, `seconds`, `settled`, `mean_usd`, `mean_seconds`."""
    forecast: Forecast
    """Time and money that the rest will take: `left`, `rate`, `seconds`, `work_seconds`, `usd`."""
    this_run: ThisRun
    """What this run did: `done_before`, `done`, `dead`, `skipped`, `admitted`, `usd`, `seconds`, `rewound`, `adopted`,
    `rate`."""
    saved: Saved
    """Work of earlier runs that was not done again: `items`, `seconds`, `usd`. In large batches it is estimated from
    means, and `about` is True."""
    dead: tuple[DeadLetter, ...]
    """The first 20 dead letters; `holdfast dead list` shows all of them."""
    stages: Mapping[str, Mapping[str, Any]]
    """By stage: what its `after` hooks returned, and when it was complete."""
    tolerated: int
    """How many dead letters are acceptable."""
    warnings: tuple[str, ...] = ()
    """Things to know that did not stop the run."""
    findings: tuple[Finding, ...] = ()
    """The first recorded outputs that could not be verified. Their items are left as they are."""
    unverified: int = 0
    """How many outputs could not be verified."""
    reconciliation: Reconciliation | None = None
    """The comparison of what should be there, what is recorded and what is there; None until the batch has ended."""
    reason: StopReason = StopReason.NONE
    """What ended the run before the batch was complete."""
    failed_hooks: tuple[str, ...] = ()
    """Errors of `after` hooks. The work is recorded, the exit code is 1, and the next run calls the hooks again."""
    sealed_at: float | None = None
    """When the batch was sealed, in seconds since 1970; None while it is open."""
    kinds: Kinds = field(default_factory=lambda: Kinds({}))
    """What the items are: items, or the partitions and buried rows of a scan."""
    _pipeline: "PipelineDefinition | None" = field(default=None, repr=False, compare=False)
    _store: str | None = field(default=None, repr=False, compare=False)
    """The store as the code names it."""

    @property
    def is_complete(self) -> bool:
        """Whether every item is accounted for, no more are dead than tolerated, and every output was verified."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0: complete and reconciled. 1: ended in part, with findings, or with more dead letters than tolerated. 75:
        run again to continue."""
        if self.state in (FINDINGS, EMPTY) or self.state in FINAL:
            return 1
        if not self.state.startswith("complete"):
            return 75
        fine = self.counts.dead <= self.tolerated and not self.unverified and not self.failed_hooks
        return 0 if fine else 1

    @property
    def run_again(self) -> bool:
        """Whether work is left that this run stopped before: the next one continues with it."""
        return self.exit_code == 75 and bool(self.reason or self.counts.pending)

    @property
    def metrics(self) -> statistics.Statistics:
        """Count, min, max, sum, mean, p50 and p95 of seconds, money, tokens and metrics, by stage."""
        pipeline = self._needed()
        (batch,) = pipeline.store.batches(self.batch)
        return statistics.collect(pipeline.store, batch)

    def results(self) -> Iterator[Result]:
        """Yield every result, in the order of the items, with its key and its validated output."""
        return results(self._needed(), self.batch)

    @property
    def _told_left(self) -> dict[str, Any]:
        return {"items": self.forecast.left, "seconds": self.forecast.seconds, "usd": self.forecast.usd}

    def raise_unless_complete(self) -> "Report":
        """Raise Incomplete, with what is missing, unless the batch is complete."""
        if not self.is_complete:
            raise Incomplete(f"batch {self.batch!r} is {self.state}: {self.why}", self)
        return self

    def __str__(self) -> str:
        c, run = self.counts, self.this_run
        lines = [
            f"{self.batch}: {self.state}. {self.why}".rstrip(),
            *self.kinds.lines(),
            f"  this run {run if self.kinds.noun == 'item' else run.of_rows()}",
        ]
        if run.rewound:
            lines.append(f"  rewound  {many(run.rewound, 'item')} whose output no longer held")
        if run.adopted:
            there = "that was there already" if run.adopted == 1 else "that were there already"
            lines.append(f"  adopted  {many(run.adopted, 'output')} {there}: not made or paid for again")
        if self.totals.usd:
            lines.append(
                f"  money    {usd(self.totals.usd)} in all, {usd(run.usd)} in this run, {self.totals.tokens:,} tokens"
            )
        if self.saved.items:
            money = f"{usd(self.saved.usd)} and " if self.saved.usd else ""
            lines.append(
                f"  saved    {many(self.saved.items, self.kinds.noun)} not done again: "
                f"{'about ' * self.saved.about}{money}{in_words(self.saved.seconds)} of work"
            )
        if self.sealed_at is not None:
            lines.append(f"  sealed   at {when(self.sealed_at)}: it takes no more items, commits or acts")
        if c.pending:
            lines.append("  left     " + ", ".join(self._left()))
        lines += [
            f"  dead     {d.key!r} at {d.stage}: {d.code}: {one_line(d.reason, REASON_SHOWN)}" for d in self.dead[:5]
        ]
        if c.dead > 5:
            lines.append(f"  dead     … and {c.dead - 5:,} more: {command('dead list', self.batch)}")
        findings = self.reconciliation.findings if self.reconciliation is not None else ()
        lines += [f"  finding  {one_line(_about(f) + f.why, NOTE_SHOWN)}" for f in findings[:5]]
        lines += [f"  hook     {one_line(failed, NOTE_SHOWN)}" for failed in self.failed_hooks]
        lines += [f"  note     {one_line(warning, NOTE_SHOWN)}" for warning in self.warnings]
        return printable(self._pasteable("\n".join(lines)))

    def _pasteable(self, text: str) -> str:
        return text if self._store is None else naming_store(text, self._store)

    def _left(self) -> list[str]:
        parts = [self.kinds.pending()]
        if self.forecast.work_seconds:
            parts.append(f"about {in_words(self.forecast.work_seconds)} of work")
        if self.forecast.usd:
            parts.append(f"about {usd(self.forecast.usd)}")
        return parts

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle or copy the report without its store."""
        facts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "_pipeline"}
        return _restore, ({**facts, "stages": {name: dict(told) for name, told in self.stages.items()}},)

    def _needed(self) -> "PipelineDefinition":
        if self._pipeline is None:
            raise UsageError(
                "this report was unpickled or copied and has no store: open the store and ask for a new one"
            )
        return self._pipeline

    @staticmethod
    def of(pipeline: "PipelineDefinition", batch: str) -> "Report":
        """Return the report of a batch, without a run."""
        named = lookup.batch_named(pipeline.store, batch)
        return make(pipeline, pipeline.store, named, run=None, reason="", tolerated=0)


def _restore(facts: dict[str, Any]) -> Report:
    return Report(**{**facts, "stages": _frozen(facts["stages"])})


def make(pipeline: "PipelineDefinition", store: Store, batch: Batch, *, run: Figures | None, reason: str,
         tolerated: int | float, rewound: int = 0,
         warnings: tuple[str, ...] = (), findings: Findings | None = None,
         compared: Reconciliation | None = None, began_with: Sequence[Chunk] = (),
         failed_hooks: tuple[str, ...] = ()) -> Report:  # fmt: skip
    """Return the report of a batch as it is in the store; `batch` was just read."""
    now, named = status.snapshot(store, batch, brief=True), pipeline.store_name
    if not reason and now.end is None and not now.is_empty:
        reason = "paused" if now.mode is BatchMode.PAUSED else now.halted
    allowed = allowed_dead(tolerated, now.counts.expected)
    if compared is None and run is None and now.is_complete:
        compared = reconcile(store, batch, sinks={}, how="sums")
    kinds = kinds_of(now)
    unverified = findings.count if findings is not None else 0
    state, why = _state(now, reason, allowed, read=run is None or run.ingested, kinds=kinds,
                        has_source=pipeline.has_source,
                        unexplained=_unexplained(now, compared, unverified))  # fmt: skip
    if unverified and "could not be verified" not in why:
        why = f"{why} {many(unverified, 'output')} could not be verified."
    return Report(
        pipeline=pipeline.name,
        batch=batch.name,
        state=BatchState(state),
        why=why if named is None else naming_store(why, named),
        counts=now.counts,
        totals=now.totals,
        forecast=now.forecast,
        this_run=_this_run(run, rewound, now.counts.done),
        saved=_saved(store, run, store.chunks(batch.id) if began_with else (), began_with, len(now.stages)),
        dead=_dead(store, batch.id, now.stages) if now.counts.dead else (),
        stages=_frozen(_completed(pipeline, store, batch)),
        tolerated=allowed,
        warnings=(
            *_told_once(warnings, now.blame),
            *filter(None, [status.set_back_note(store, batch)]),
            *(findings.warnings() if findings is not None else ()),
        ),
        findings=tuple(findings.listed) if findings is not None else (),
        unverified=unverified,
        reconciliation=compared,
        failed_hooks=failed_hooks,
        sealed_at=batch.sealed_at,
        kinds=kinds,
        reason=StopReason("" if state.startswith("complete") or reason == "ended" else reason),
        _pipeline=pipeline,
        _store=named,
    )


def _completed(pipeline: "PipelineDefinition", store: Store, batch: Batch) -> Mapping[str, Mapping[str, Any]]:
    """Return what is recorded about complete stages, which is only written for stages with hooks."""
    has_hooks = any(stage.hooks.after.functions for stage in pipeline.stages)
    return lifecycle.completed_stages(store, batch) if has_hooks else {}


def _told_once(warnings: tuple[str, ...], blame: Blame | None) -> Iterator[str]:
    """Yield the warnings of a run, with the blame at its end instead of the warning about it during the run."""
    yield from (each for each in warnings if blame is None or each != blame.note)
    if blame is not None:
        yield str(blame)


def _nothing(now: status.Status) -> str:
    """Return the sentence for a batch whose source was empty: most often a wrong path, pattern or filter."""
    return (
        f"The source gave no {'row' if now.counts.expected else 'item'}: check its path, pattern or filter. If that is "
        "intended, pass allow_empty=True."
    )


def _about(finding: Finding) -> str:
    where = finding.file if finding.file or finding.key is None else canonical.key_text(finding.key)
    return f"{finding.what}: {where}: " if where else f"{finding.what}: "


STOPPED_BY = {
    "interrupted": "A signal ended the run",
    "deadline": "Its time was up",
    "trouble": "It met trouble",
    "away": "Its source is away",
}


def _state(
    now: status.Status, reason: str, tolerated: int, *, read: bool, unexplained: str, kinds: Kinds, has_source: bool
) -> tuple[str, str]:
    """Return the state of the batch, and its sentence. `read`: this run read its source, if it has one, to its end;
    `unexplained`: the discrepancies."""
    counts = now.counts
    left = f"{kinds.pending()} left to do" if counts.pending else _to_come(now)
    state = _word(now, reason, read=read, findings=bool(unexplained))
    if state == EMPTY:
        return state, _nothing(now)
    if state == End.COMPLETE:
        return state, f"{kinds.all()} accounted for."
    if state == End.WITH_DEAD:
        see = f"; see `{command('dead list', now.batch)}`, then redrive, resolve or discard them"
        return state, f"{kinds.died()} died{see if counts.dead > tolerated else ''}."
    if state:
        return state, _sentence(state, now, reason, left, unexplained)
    return _unfinished(now, reason, left, has_source=has_source)


FINAL = frozenset({End.STOPPED, End.CANCELLED, OVER_TOLERANCE})
"""States in which another run alone changes nothing."""


def _word(now: status.Status, reason: str, *, read: bool, findings: bool) -> str:
    """Return the state of the batch by the common rule (`word_of`); empty while it may continue. `read`: this run read
    its source, if it has one, to its end; `findings`: there are discrepancies, or outputs that could not be
    verified."""
    end, is_over = now.end, now.is_complete and read
    if end not in (End.CANCELLED, End.STOPPED) and not is_over:
        end = End.STOPPED if reason == "until" else None
    paused = now.mode is BatchMode.PAUSED or reason == "paused"
    return str(word_of(end, empty=now.is_empty, findings=findings, paused=paused, halted=reason))


def _sentence(word: str, now: status.Status, reason: str, left: str, unexplained: str) -> str:
    """Return the sentence for a batch in that state, with what to do next. `unexplained`: the discrepancies."""
    see = f"{unexplained}: see `{command('reconcile', now.batch)}`."
    if word in (End.CANCELLED, End.STOPPED):
        told = _cancelled(now) if word == End.CANCELLED else _stopped(now)
        return f"{told} Also, {see}" if unexplained else told
    if word == FINDINGS:
        return f"Nothing is left to do, but {see}"
    if word == OVER_TOLERANCE:
        return _over_tolerance(now, left)
    if now.mode is BatchMode.PAUSED or reason == "paused":
        return f"A person paused it, {left}: `{unpause_command(now.batch)}`, then run again."
    if reason == "breaker":
        return f"A service did not answer for too long, {left}: see the notes, then run again to continue."
    return f"The budget is used up, {left}: raise it and run again."


def _cancelled(now: status.Status) -> str:
    counts = now.counts
    if counts.running:
        return f"{many(counts.running, 'item')} still in flight: their owners finish or leave them."
    if counts.pending:
        return f"{many(counts.pending, 'item')} left by an owner that is gone: run or cancel the batch again."
    return (
        f"{_of(counts.cancelled, counts.expected)} cancelled, the others stay as they are; choose another batch name."
    )


def _stopped(now: status.Status) -> str:
    counts = now.counts
    if now.is_complete and now.expected is not None and now.expected > counts.expected:
        return (
            f"{now.expected - counts.expected:,} of {many(now.expected, 'expected item')} never came: see "
            f"`{command('reconcile', now.batch)}`; if the number was wrong, "
            f"`{command('expect', now.batch, 'N', '--reason …')}`."
        )
    if now.end in (End.COMPLETE, End.WITH_DEAD):
        return (
            f"Its end came before its source was read to the end: {many(counts.expected, 'item')} that came before "
            f"{'is' if counts.expected == 1 else 'are'} settled, new ones were not read. Pass a later `until`, or run "
            "the new ones in another batch."
        )
    unread = "" if now.ingested_at is not None else " before all of its items were read"
    flight = f", {counts.pending:,} still in flight" if counts.pending else ""
    return (
        f"Its end came{unread}: {counts.done:,} of {many(counts.expected, 'item')} done, {counts.cancelled:,} "
        f"cancelled{flight}. Cancelled items stay cancelled unless you reset them and give the batch a later end."
    )


def _over_tolerance(now: status.Status, left: str) -> str:
    codes = ", ".join(f"{code} ({count:,})" for code, count in list(now.dead_codes.items())[:5])
    return (
        f"{_of(now.counts.dead, now.counts.expected)} dead, more than is tolerated: {codes}; {left}. Redrive, resolve "
        f"or discard them (`{command('dead list', now.batch)}`), or raise the tolerance; then run again."
    )


def _of(some: int, of_all: int) -> str:
    return f"{some:,} of {many(of_all, 'item')} {'is' if some == 1 else 'are'}"


def _unexplained(now: status.Status, found: Reconciliation | None, unverified: int) -> str:
    """Return the discrepancies in words. Fewer items than expected are not one: there is an end for that."""
    told = found.unexplained if found is not None and found.is_ended and not found.is_told else ()
    surplus = [f"{now.surplus:,} unexpected"] if now.surplus and found is None else []
    others = [f"{many(unverified, 'output')} could not be verified"] if unverified else []
    return ", ".join([*told, *surplus, *others])


def _unfinished(now: status.Status, reason: str, left: str, *, has_source: bool) -> tuple[str, str]:
    """Return the state and the sentence of a batch that may continue."""
    word = STOPPED_BY.get(reason)
    if word is not None:
        return "interrupted", f"{word}, {left}: run again to continue."
    if now.counts.pending or (has_source and now.expected is None):
        return "open", f"{left[0].upper()}{left[1:]}: run it to continue."
    if now.expected is not None:
        return "open", f"{left[0].upper()}{left[1:]}: wait for them, or `{command('close', now.batch)}`."
    return "open", (
        "More items may come: run it with its source to read the rest; if messages bring them, "
        f"`{command('expect', now.batch, 'N')}` records how many there are, and `{command('close', now.batch)}` that "
        "there are no more."
    )


def _to_come(now: status.Status) -> str:
    if now.expected is None or now.expected <= now.counts.expected:
        return "the source was not read to its end"
    return f"{now.expected - now.counts.expected:,} of {many(now.expected, 'expected item')} have not come"


def _this_run(run: Figures | None, rewound: int, done: int) -> ThisRun:
    """Return the work of this run; `done` is the number of done items, used if nothing ran."""
    if run is None:
        return ThisRun(done, 0, 0, 0, 0, Decimal(0), 0.0)
    now = run.now
    return ThisRun(
        run.before.done, now.done, now.dead, now.skipped, run.added, canonical.to_usd(now.spent), run.seconds,
        rewound + run.rewound, run.adopted, run.rows, run.rows_before, run.letters.done_now,
    )  # fmt: skip


def _saved(
    store: Store, run: Figures | None, chunks: Sequence[Chunk], began_with: Sequence[Chunk], stages: int
) -> Saved:
    """Return the work of earlier runs that is not done again; if there are many items, its cost is an estimate."""
    if run is None or run.before.done <= 0:
        return Saved(0, Decimal(0), 0.0)
    if run.admitted <= SAVED_ITEMS and sum(chunk.seq for chunk in chunks) <= SAVED_ENTRIES:
        kept = read_savings(store, chunks, {chunk.id: chunk.seq for chunk in began_with})
        seconds, spent = kept.sum()
        return Saved(run.before.done, canonical.to_usd(spent), seconds, kept.items != run.before.done)
    past = PastAttempts.of(each.body for each in recent_commits(store, began_with, SAVED_ENTRIES))
    seconds, spent = past.cost({stage: run.before.done for stage in range(stages) if stage in past.costs}) or (0.0, 0)
    return Saved(run.before.done, canonical.to_usd(spent), seconds, about=True)


def _dead(store: Store, batch: Any, stages: tuple[str, ...]) -> tuple[DeadLetter, ...]:
    found = []
    for record in each_item(store, batch, state=State.DEAD):
        place = record.place
        stage = stages[place.stage] if place.stage < len(stages) else "?"
        found.append(DeadLetter(record.key, record.n, stage, place.code, place.reason, place.attempt))
        if len(found) == DEAD_SHOWN:
            break
    return tuple(found)


def _frozen(stages: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType({name: MappingProxyType(dict(facts)) for name, facts in stages.items()})
