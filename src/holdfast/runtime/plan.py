"""The plan of a run: what it would do with every item and why, with a forecast; nothing is changed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.core import canonical, changes, course
from holdfast.core.changes import (
    PlannedFate,
    PlannedItem,
    Reason,
    StoredFacts,
    begins_at,
    outlook,
    outlook_of_changed,
    outlook_of_new,
)
from holdfast.core.errors import DefinitionChanged, Permanent, SinkError, UsageError
from holdfast.core.model import (
    Batch,
    BatchMode,
    Chunk,
    ItemNo,
    ItemOrigin,
    ItemState,
    Key,
    NewItem,
    Output,
    State,
    StoredItem,
)
from holdfast.core.plain import Plain
from holdfast.core.states import keeps_outputs
from holdfast.core.verify import Decision, GoesBack, Unclear, Verdict, is_too_much, may_have_been_tried
from holdfast.runtime.define import definition
from holdfast.runtime.define.options import Options
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.engine.ingester import Ingester, none_given
from holdfast.runtime.operate import changed_code
from holdfast.runtime.report.forecast import PastAttempts, RunForecast, forecast, teacher
from holdfast.runtime.sinks.base import Provenance
from holdfast.runtime.text import brief, many, printable, reopen, unpause_command, usd, when
from holdfast.runtime.verify import ownership, recheck
from holdfast.runtime.verify.inspector import Findings, OutputInspector
from holdfast.runtime.verify.observe import Digests, recorded_digests
from holdfast.stores import owners
from holdfast.stores.base import Store, find_batch
from holdfast.stores.memory import MemoryStore
from holdfast.stores.seen_keys import SeenKeys

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


EXAMPLES = 3
"""Keys that are shown for each row."""
ORDER = list(PlannedFate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Items that would be treated the same, for the same reason."""

    fate: PlannedFate
    stage: str
    """The stage at which they would begin, or at which they are if they are left alone; empty if they are at the
    end."""
    reason: Reason
    count: int
    examples: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Plain):
    """What a run would do with every item, and why."""

    _tells: ClassVar[str] = "pipeline batch new=is_new verify read counts rows forecast obstacles notes"

    pipeline: str
    """The name of the pipeline."""
    batch: str
    """The name of the batch."""
    is_new: bool
    """Whether the batch does not exist yet."""
    verify: str
    """How much was checked: `none`, `quick` or `full`."""
    rows: tuple[Row, ...]
    """Groups of items with the same `fate`, `stage` and `reason`, each with a `count` and `examples`."""
    read: int
    """How many items of the source were read; 0 without a source."""
    forecast: RunForecast
    """Time and money that the run would take: `seconds`, `work_seconds`, `usd`, `workers`, `learned_from`, `unknown`,
    `stages`."""
    obstacles: tuple[str, ...] = ()
    """Why a run would be refused, or would do nothing."""
    does_nothing: bool = False
    """Whether a run would end at once without an error: the batch is paused, cancelled or at its end."""
    notes: tuple[str, ...] = ()
    """Other things to know."""
    so_far: str = ""
    """The time and cost of a scan's rows so far, if it is not known how many are left."""

    @property
    def counts(self) -> dict[str, int]:
        """How many items have each fate: run, rewind, adopt, bury, skip, or refuse the run."""
        found: Counter[PlannedFate] = Counter()
        for row in self.rows:
            found[row.fate] += row.count
        return {str(fate): found[fate] for fate in PlannedFate}

    def count(self, fate: str, reason: str | None = None) -> int:
        """Return how many items have that fate, for that reason."""
        return sum(row.count for row in self.rows if row.fate == fate and reason in (None, row.reason))

    @property
    def is_idle(self) -> bool:
        """Whether a run would have nothing to do."""
        return not any(row.count for row in self.rows if row.fate is not PlannedFate.SKIP)

    def __str__(self) -> str:
        lines = [f"{self.batch}: {self.headline}"]
        for row in self.rows:
            at = f" at {row.stage}" if row.stage else ""
            keys = ", ".join(map(str, row.examples)) + (", …" if row.count > len(row.examples) else "")
            lines.append(f"  {row.fate:<7} {row.count:>9,}  {row.reason}{at} ({keys})")
        lines += [f"  {line}" for line in self.outlook]
        barred = "barred " if self.does_nothing else "refused"
        lines += [f"  {barred}  {text}" for text in self.obstacles] + [f"  note     {text}" for text in self.notes]
        return printable("\n".join(lines))

    @property
    def headline(self) -> str:
        """The plan in a sentence."""
        if self.obstacles:
            return "a run would do nothing." if self.does_nothing else "a run would be refused."
        if self.is_idle:
            return "nothing to do: everything is settled, or held by another process."
        said = {
            "run": "would run",
            "rewind": "would be rewound",
            "adopt": "would be adopted",
            "bury": "would be buried",
            "skip": "would be left alone",
        }
        return ", ".join(f"{self.counts[fate]:,} {text}" for fate, text in said.items() if self.counts[fate]) + "."

    @property
    def outlook(self) -> Sequence[str]:
        """The forecast in a sentence."""
        told = self.forecast
        if not any(each.items for each in told.stages):
            return ()
        if told.learned_from is None and self.so_far:
            return (f"forecast {self.so_far}",)
        if told.learned_from is None:
            return ("forecast the time and the cost of an item are not known yet",)
        source = "" if told.learned_from == self.batch else f", as in batch {told.learned_from}"
        line = (
            f"forecast about {brief(told.seconds)} with {many(told.workers, 'worker')} "
            f"({brief(told.work_seconds)} of work) and {usd(told.usd)}{source}"
        )
        rest = f"; nothing is known of {', '.join(told.unknown)}" if told.unknown else ""
        return (line + rest,)


class PlanTally:
    """Counts planned items, with a few keys of each kind."""

    def __init__(self) -> None:
        self._counts: Counter[PlannedItem] = Counter()
        self._examples: dict[PlannedItem, list[Key]] = {}

    def add(self, outlook: PlannedItem, key: Key) -> None:
        self._counts[outlook] += 1
        some = self._examples.setdefault(outlook, [])
        if len(some) < EXAMPLES:
            some.append(key)

    def add_many(self, outlook: PlannedItem, count: int) -> None:
        self._counts[outlook] += count

    def lacks_examples(self, outlook: PlannedItem) -> int:
        """Return how many more keys may be shown."""
        return EXAMPLES - len(self._examples.get(outlook, ()))

    def show(self, outlook: PlannedItem, keys: Sequence[Key]) -> None:
        self._examples.setdefault(outlook, []).extend(keys)

    def take_back(self, outlook: PlannedItem, key: Key) -> None:
        self._counts[outlook] -= 1
        if key in self._examples.get(outlook, ()):
            self._examples[outlook].remove(key)

    def work(self, stages: int) -> dict[int, int]:
        """Return how many items would run at each stage."""
        found: Counter[int] = Counter()
        for seen, count in self._counts.items():
            if seen.fate in (PlannedFate.RUN, PlannedFate.REWIND, PlannedFate.ADOPT):
                for stage in range(seen.stage + (seen.fate is PlannedFate.ADOPT), stages):
                    found[stage] += count
        return dict(found)

    def rows(self, stages: Sequence[str]) -> Iterator[Row]:
        found = [(seen, count) for seen, count in self._counts.items() if count]
        for seen, count in sorted(found, key=lambda pair: (ORDER.index(pair[0].fate), pair[0].stage, pair[0].reason)):
            stage = stages[seen.stage] if seen.stage < len(stages) else ""
            yield Row(fate=seen.fate, stage=stage, reason=seen.reason, count=count,
                      examples=tuple(self._examples.get(seen, ())))  # fmt: skip


PAGE = 500
GROUP = 2_000


def make_plan(pipeline: "PipelineDefinition", options: Options, items: Iterable[Any] | None) -> Plan:
    """Return the plan of a run with these options and items."""
    store = pipeline.store_if_there()
    known = find_batch(store, options.batch) if store is not None else None
    if known is None and items is None:
        raise UsageError(
            f"batch {options.batch!r} does not exist yet and pipeline {pipeline.name!r} has no source: pass "
            "items to plan()"
        )
    key, described = definition.for_run(pipeline, known, options.key, options.identity, reads_items=items is not None)
    if known is not None:
        definition.check(known, pipeline.name, described, reads_items=items is not None)
    stand_in = MemoryStore()
    batch = known if known is not None else stand_in.open_batch(options.batch, pipeline.name, described, actor="plan")
    planner = _Planner(pipeline, options, stand_in if known is None or store is None else store, batch, described)
    planner.obstacles += ownership.obstacles(planner.store if store is None else store, pipeline.name, options.batch,
                                             pipeline.stages)  # fmt: skip
    if store is not None and known is not None:
        ownership.introduce(store, known, {n: stage.sink for n, stage in enumerate(pipeline.stages)})
    try:
        planner.look_at_what_is_stored()
        if items is not None:
            planner.read(items, key)
    finally:
        planner.inspector.close()
    past, learned_from = planner.past, options.batch
    if not past.costs and store is not None and (other := teacher(store, batch)) is not None:
        past, learned_from = PastAttempts.read(store, store.chunks(other.id)), other.name
    return planner.plan(past, learned_from, is_new=known is None)


class _Planner:
    """Counts what would become of every item."""

    def __init__(
        self, pipeline: "PipelineDefinition", options: Options, store: Store, batch: Batch, described: bytes
    ) -> None:
        self.pipeline, self.options, self.store, self.batch = pipeline, options, store, batch
        self.stages = pipeline.stages
        self.tally = PlanTally()
        self.chunks = store.chunks(batch.id)
        self.past = PastAttempts.read(store, self.chunks)
        self.obstacles: list[str] = _obstacles(batch)
        self.notes: list[str] = []
        self.unclear = Findings([stage.name for stage in self.stages])
        self.now = store.now()
        self.done = PlannedItem(PlannedFate.SKIP, len(self.stages), Reason.DONE)
        self.read_count = self.kept = self.twice = self.passed = self.looked_at = self.undone = 0
        self.reads = False
        self.example: tuple[Key, str] | None = None
        """An example of an item that a run would undo."""
        self.change = self._look_at_code(described)
        with_files = any(stage.sink is not None for stage in self.stages)
        self.verifies = options.verify == "full" or (options.verify == "quick" and with_files)
        self.inspector = OutputInspector(self.stages, pipeline=pipeline.name, batch=batch.name, uid=batch.uid,
                                         publishes=False)  # fmt: skip
        self.staged = [_has_staged(stage.sink) for stage in self.stages]

    def _look_at_code(self, described: bytes) -> changes.StageChange | None:
        """Return the first stage that changed, if that matters: its items run again, or the plan says how many passed
        it."""
        self.reruns = False
        self.makers: changed_code.Makers | None = None
        try:
            found = changed_code.look(self.store, self.batch, described, self.options.on_code_change)
        except DefinitionChanged as error:
            self.obstacles.append(str(error))
            return None
        if found is None or not found.changes:
            return None
        self.reruns = found.rerun is not None
        self.makers = changed_code.read_makers(self.store, self.batch, found.changes, found.definition, self.chunks)
        return found.changes[0]

    def _goes_back_to(self, item: StoredItem) -> int | None:
        """Return the stage that changed since an item passed it, if that stage runs again."""
        other = self.makers.other(item) if self.makers is not None and self.reruns else None
        return None if other is None else other.index

    # -- what is stored -----------------------------------------------------------------------------------------

    def look_at_what_is_stored(self) -> None:
        for chunk in self.chunks:
            if self._is_plainly_done(chunk):
                self._take_as_done(chunk, self._with_bad_files(chunk) if self.verifies else set())
                continue
            held = owners.is_live(chunk, self.now)
            digests = recorded_digests(self.store, self.chunks, chunk) if self.options.verify == "full" else {}
            for item, outputs in self._pages(chunk):
                self.tally.add(self._outlook(item, outputs, digests, held, resumed=chunk.fence > 0), item.key)
                self.passed += self.makers is not None and self.makers.other(item) is not None

    def _is_plainly_done(self, chunk: Chunk) -> bool:
        """Return whether all of it is done, so that only files must be inspected."""
        return chunk.counts.done == chunk.size and self.options.verify != "full" and self.change is None

    def _with_bad_files(self, chunk: Chunk) -> set[ItemNo]:
        """Return items with a missing or changed file: the quick way for finished items, which are most."""
        bad: set[ItemNo] = set()
        for lo in range(chunk.lo, chunk.hi, PAGE):
            outputs = self.store.outputs(self.batch.id, lo=lo, hi=min(lo + PAGE, chunk.hi), limit=PAGE * 64)
            bad.update(output.n for output in outputs if not self.inspector.is_there(output))
        return bad

    def _take_as_done(self, chunk: Chunk, bad: set[ItemNo]) -> None:
        self.tally.add_many(self.done, chunk.size - len(bad))
        for n in sorted(bad):
            (item,) = self.store.items(self.batch.id, lo=n, hi=n + 1, limit=1)
            outputs = self.store.outputs(self.batch.id, lo=n, hi=n + 1)
            self.tally.add(self._outlook(item, outputs, {}, held=False), item.key)
        if wanted := self.tally.lacks_examples(self.done):
            some = self.store.items(self.batch.id, lo=chunk.lo, hi=chunk.hi, limit=wanted + len(bad))
            self.tally.show(self.done, [item.key for item in some if item.n not in bad][:wanted])

    def _pages(self, chunk: Chunk) -> Iterator[tuple[StoredItem, list[Output]]]:
        """Yield every item with its outputs, as far as those are needed."""
        wanted = self.verifies or any(self.staged)
        for lo in range(chunk.lo, chunk.hi, PAGE):
            hi = min(lo + PAGE, chunk.hi)
            outputs: dict[int, list[Output]] = {}
            for output in self.store.outputs(self.batch.id, lo=lo, hi=hi, limit=PAGE * 64) if wanted else ():
                outputs.setdefault(output.n, []).append(output)
            for item in self.store.items(self.batch.id, lo=lo, hi=hi, limit=PAGE):
                yield item, outputs.get(item.n, [])

    def _outlook(
        self, item: StoredItem, outputs: list[Output], digests: Digests, held: bool, *, resumed: bool = False
    ) -> PlannedItem:
        place = item.place
        rerun = self._goes_back_to(item)
        stage = begins_at(place, rerun)
        valid = [output for output in outputs if output.stage < stage]
        bad = None
        if self.verifies and valid and (keeps_outputs(place) or stage != place.stage):
            bad = self._bad(item, valid, digests)
        if bad is None and place.state is State.DONE and rerun is None:
            return self.done
        goes_on = place.state is State.PENDING and bad is None and stage == place.stage
        waits = goes_on and self._waits(item, valid)
        found = goes_on and not (waits or held) and self._finds(item, valid, resumed=resumed)
        return outlook(
            StoredFacts(
                place=place, now=self.now, rerun=rerun, bad=bad, held=held,
                staged=waits, found=found, redriven=self.past.was_redriven(item.n, place.stage),
            )
        )  # fmt: skip

    def _bad(self, item: StoredItem, valid: list[Output], digests: Digests) -> int | None:
        """Return the stage that an item would go back to. A dead letter stays where it is; what is wrong with it, or
        could not be checked, is noted once, before the source is read."""
        seen = recheck.past_of(item, valid, fence=0)
        decision = self.inspector.look_over(seen, full=self.options.verify == "full", digests=digests)
        self._count_looked_at(item, decision)
        is_dead = item.place.state is State.DEAD
        if isinstance(decision, GoesBack) and not is_dead:
            return decision.stage
        if self.read_count:
            return None
        if isinstance(decision, Unclear):
            self.unclear.add(item.key, item.n, decision.seen.stage, decision.seen.why)
        elif isinstance(decision, GoesBack):
            self.unclear.add(item.key, item.n, decision.stage, f"{decision.why}; {recheck.left_alone(self.batch.name)}")
        return None

    def _count_looked_at(self, item: StoredItem, decision: Decision) -> None:
        """Count, as a run does, what it would undo: all that is recorded, once, before the source is read."""
        if self.read_count:
            return
        self.looked_at += 1
        if isinstance(decision, GoesBack) and item.place.state is not State.DEAD:
            self.undone += 1
            self.example = self.example or (item.key, decision.why)

    def _waits(self, item: StoredItem, outputs: Sequence[Output]) -> bool:
        """Return whether a run that could not record it made an output of its next stage."""
        at = item.place.stage
        sink = self.stages[at].sink
        if sink is None or not self.staged[at]:
            return False
        try:
            given = self.inspector.input_of(recheck.past_of(item, outputs, fence=0), at)
            found = sink.find(self._provenance(item, item.place, given))
            if found is not None:
                self.stages[at].output.decode(sink.read(found))
        except (SinkError, Invalid, Permanent, OSError):
            return False
        return found is not None

    def _finds(self, item: StoredItem, outputs: Sequence[Output], *, resumed: bool) -> bool:
        """Return whether the adopter of its next stage finds an output that counts. It is called where a run would call
        it, and only for a full inspection: it is user code, and may be slow."""
        at = item.place.stage
        asks = self.options.verify == "full" and self.stages[at].adopter is not None
        if not asks or not may_have_been_tried(item.place, resumed=resumed):
            return False
        seen = self.inspector.search(recheck.past_of(item, outputs, fence=0), at)
        if seen.verdict is Verdict.UNKNOWN and not self.read_count:
            self.unclear.add(item.key, item.n, at, seen.why)
        return seen.verdict is Verdict.HOLDS

    def _provenance(self, item: StoredItem, place: ItemState, given: bytes) -> Provenance:
        return Provenance(
            pipeline=self.pipeline.name, batch=self.batch.name, stage=self.stages[place.stage].name, n=item.n,
            epoch=place.epoch, fence=0, input_digest=canonical.digest(given), key=item.key,
        )  # fmt: skip

    # -- what the source has ------------------------------------------------------------------------------------

    def read(self, source: Iterable[Any], key: Any) -> None:
        """Compare the items of a source with the stored ones, group by group."""
        options = self.options
        ingester = Ingester(self.store, self.batch, self.stages[0].input, key=key, identity=options.identity,
                            changed=options.changed, owner="plan", rerun=_never)  # fmt: skip
        self.reads, seen = True, SeenKeys()
        try:
            for group in ingester.groups(source, GROUP):
                self.read_count += len(group)
                self._sort_out(group, ingester, seen)
        finally:
            seen.close()

    def _sort_out(self, group: list[NewItem], ingester: Ingester, seen: SeenKeys) -> None:
        known = self.store.known(self.batch.id, group)
        fresh = [item for index, item in enumerate(group) if index not in known]
        for item, sight in zip(fresh, seen.look(fresh), strict=True):
            if sight == "new":
                self.tally.add(outlook_of_new(item), item.key)
            elif sight == "same" or self.options.changed == "keep":
                self.twice += 1
            else:
                self.tally.add(outlook_of_changed(item, outlook_of_new(item), self.options.changed), item.key)
        changed = [(n, group[index]) for index, (n, same) in known.items() if not same]
        changed = [(n, item) for n, item in changed if ingester.differs(n, item)]
        for (n, item), sight in zip(changed, seen.look([item for _, item in changed]), strict=True):
            if sight == "new":
                self._count_changed(n, item)

    def _count_changed(self, n: ItemNo, item: NewItem) -> None:
        (stored,) = self.store.items(self.batch.id, lo=n, hi=n + 1, limit=1)
        chunk = next(chunk for chunk in self.chunks if chunk.lo <= n < chunk.hi)
        outputs = self.store.outputs(self.batch.id, lo=n, hi=n + 1)
        digests = recorded_digests(self.store, self.chunks, chunk) if self.options.verify == "full" else {}
        before = self._outlook(stored, outputs, digests, owners.is_live(chunk, self.now), resumed=chunk.fence > 0)
        after = outlook_of_changed(item, before, self.options.changed)
        if after == before:
            self.kept += 1
            return
        self.tally.take_back(before, stored.key)
        self.tally.add(after, stored.key)

    # -- the plan -----------------------------------------------------------------------------------------------

    def plan(self, past: PastAttempts, learned_from: str, *, is_new: bool) -> Plan:
        names = [stage.name for stage in self.stages]
        rows = tuple(self.tally.rows(names))
        refused, ends = self.obstacles != _barred(self.batch), bool(_barred(self.batch))
        self._tell(sum(row.count for row in rows if row.fate is PlannedFate.REFUSE))
        if self.example is not None and is_too_much(self.undone, self.looked_at, self.options.undo):
            self.obstacles.append(str(recheck.refusal(self.batch.name, self.undone, self.looked_at, *self.example)))
        if any(row.fate in (PlannedFate.RUN, PlannedFate.REWIND, PlannedFate.ADOPT) for row in rows):
            at_end = _end_in_the_way(self.batch, self.now)
            self.obstacles += at_end
            ends = ends or bool(at_end)
        if self.batch.closed_at is not None and any(row.reason is Reason.NEW for row in rows):
            self.obstacles.append(f"batch {self.batch.name!r} was closed: it takes no new items")
        told = forecast(
            names, self.tally.work(len(names)), past, workers=self.options.workers, learned_from=learned_from,
            together=[stage.concurrency for stage in self.stages],
        )  # fmt: skip
        return Plan(
            pipeline=self.pipeline.name, batch=self.batch.name, is_new=is_new, verify=self.options.verify, rows=rows,
            read=self.read_count, forecast=told, obstacles=tuple(self.obstacles), notes=tuple(self.notes),
            does_nothing=ends and not refused,
        )  # fmt: skip

    def _tell(self, refused: int) -> None:
        if refused:
            self.obstacles.append(
                f"{many(refused, 'item')} came with another payload under a known key: "
                'pass changed="rerun" to handle them again, or changed="keep" to keep the stored items'
            )
        if not self.batch.admitted and not self.read_count and not self.pipeline.allow_empty:
            self.notes.append("the source gives no items: a run would end with 1, unless you pass allow_empty=True")
        elif self.reads and not self.read_count and not self.obstacles and not self.pipeline.allow_empty:
            self.notes.append(none_given(self.batch.admitted))
        self.notes += self.unclear.warnings()
        if self.kept:
            who = "item" if self.options.changed == "keep" else "dead letter"
            self.notes.append(f"{many(self.kept, who)} came with another payload, and would be kept as stored")
        if self.twice:
            self.notes.append(f"{many(self.twice, 'item')} came more than once")
        if self.change is not None and not self.reruns and self.passed:
            self.notes.append(
                f"{self.change}: {many(self.passed, 'item')} passed it, and would be kept as they are; with "
                'on_code_change="rerun" they would run again from there'
            )


def _obstacles(batch: Batch) -> list[str]:
    if batch.sealed_at is not None:
        again = f"`{reopen(batch.name)}`"
        return [f"batch {batch.name!r} is sealed: it is finished; to continue anyway, {again}"]
    return _barred(batch)


def _barred(batch: Batch) -> list[str]:
    """Return why a run would end at once, without an error."""
    if batch.course is BatchMode.CANCELLED:
        return [f"batch {batch.name!r} was cancelled: choose another batch name"]
    if batch.course is BatchMode.PAUSED:
        return [f"batch {batch.name!r} is paused: run `{unpause_command(batch.name)}` first"]
    return []


def _end_in_the_way(batch: Batch, now: float) -> list[str]:
    if batch.course is BatchMode.CANCELLED or not course.has_ended(batch, now):
        return []
    text = (
        f"batch {batch.name!r} ended at {when(batch.ends_at or 0.0)}: nothing runs unless you pass a later end "
        "(until=…), and pending items would be cancelled"
    )
    return [text]


def _has_staged(sink: Any) -> bool:
    return sink is not None and any(left.kind == "staged" for left in sink.leftovers())


def _never(_n: ItemNo, _item: NewItem, _origin: ItemOrigin) -> None:
    raise AssertionError("a plan changes nothing")
