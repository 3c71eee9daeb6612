"""The observation of a batch: its recorded outputs and files, compared with the digests in the journal."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import PurePath

from holdfast.core import journal
from holdfast.core.commitments import DIGEST_BYTES
from holdfast.core.course import stage_names
from holdfast.core.limits import LOAD_BYTES, NAMES_HELD
from holdfast.core.model import Batch, Chunk, Output, State, StoredItem
from holdfast.core.states import keeps_outputs
from holdfast.core.verify import GONE, Depth, Finding, How, Inspection, Verdict, What, judge
from holdfast.runtime import lookup
from holdfast.runtime.journal import forward_of
from holdfast.runtime.sinks import files, names
from holdfast.runtime.sinks.base import Evidence, Provenance, Sink
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.verify import ownership
from holdfast.runtime.verify.inspector import OutputInspector, RecordedDigest, RecordedItem, sinks_of
from holdfast.stores.base import Store, each_output

Digests = dict[tuple[int, int], RecordedDigest]
"""(item, stage) -> digest of the output, with the format of the entry that recorded it."""


def recorded_digests(store: Store, chunks: Sequence[Chunk], chunk: Chunk) -> Digests:
    """Return the newest digest of every output, made by a stage or given by a person. The chains of the chunks from
    which this one was cut are read as well."""
    found: Digests = {}
    size = DIGEST_BYTES
    for entry in () if chunk.is_ended else forward_of(store, chunks, chunk.lo):
        body, form = entry.body, entry.header.format
        if isinstance(body, journal.Checkpointed):
            for group in body.advanced:
                for index, n in enumerate(group.items):
                    if chunk.lo <= n < chunk.hi:
                        digest = group.digests[index * size : index * size + size]
                        found[n, group.stage] = RecordedDigest(form, digest)
        elif isinstance(body, journal.Acted):
            given = [moved for moved in body.items if moved.output_digest]
            found |= {(moved.n, moved.stage_after - 1): RecordedDigest(form, moved.output_digest) for moved in given}
    return found


PAGE = 1_000
"""Items that are checked together as long as nothing is wrong."""
FIRST_PAGE = 64
"""The same at first, if outputs are read that may be large."""
GROUP = 250
"""Items that are read together and checked one by one."""

Span = tuple[int, int, bool]
"""From one item to before another, and whether all of these items are done."""


class Observer:
    """One pass over a batch; its attributes hold the counts once `findings` is exhausted."""

    def __init__(
        self, store: Store, batch: Batch, chunks: Sequence[Chunk], sinks: Mapping[int, Sink], how: How
    ) -> None:
        self._store, self._batch, self._chunks, self._sinks, self._how = store, batch, chunks, sinks, how
        self._names = stage_names(batch)
        self._last = len(self._names) - 1
        self._moving = any(chunk.owner is not None for chunk in chunks)
        self._page = PAGE if how == "files" or self._last in sinks else FIRST_PAGE
        self.states: Counter[State] = Counter()
        self.outputs = self.files = self.published = self.superseded = 0
        self.in_place: Counter[int] = Counter()
        """Recorded files that are in the sink's folder, by stage."""
        self.partly = False
        """True if only the last output and the files of some done items were checked."""
        self.at_second_glance = 0
        """Files whose size or time was not the recorded one, so that they were inspected."""

    @cached_property
    def _inspector(self) -> OutputInspector:
        return OutputInspector(batch=self._batch.name, uid=self._batch.uid, names=self._names, sinks=self._sinks)

    def findings(self) -> Iterator[Finding]:
        """Yield the flaws of recorded outputs, in the order of the items."""
        if self._how == "full":
            for chunk in self._chunks:
                digests = recorded_digests(self._store, self._chunks, chunk)
                yield from self._closely(chunk.lo, chunk.hi, digests)
            return
        for lo, hi, all_done in spans(self._chunks):
            yield from self._quickly(lo, hi) if all_done else self._closely(lo, hi)

    # -- ranges in which all items are done -----------------------------------------------------------------------

    def _quickly(self, lo: int, hi: int) -> Iterator[Finding]:
        while lo < hi:
            upto = min(hi, lo + self._page)
            if self._is_plain(lo, upto):
                self.states[State.DONE] += upto - lo
            else:
                yield from self._closely(lo, upto, counted_as_done=True)
            lo = upto

    def _is_plain(self, lo: int, hi: int) -> bool:
        """Return whether every item of the range has its outputs, and none has a flaw."""
        wanted = sorted(self._sinks if self._how == "files" else {*self._sinks, self._last})
        seen: dict[int, int] = {}
        for stage in wanted:
            rows = self._store.outputs(self._batch.id, lo=lo, hi=hi, stage=stage, limit=hi - lo)
            if len(rows) != hi - lo or not self._are_there(stage, rows):
                return False
            seen[stage] = len(rows)
        self.partly = self.partly or len(wanted) < len(self._names)
        for stage, count in seen.items():
            self.outputs += count
            if stage in self._sinks:
                self.files += count
                self.in_place[stage] += count
        return True

    def _are_there(self, stage: int, rows: Sequence[Output]) -> bool:
        sink = self._sinks.get(stage)
        if sink is None:
            weight = sum([len(row.data) if row.data is not None else 0 for row in rows])
            self._page = max(1, min(PAGE, self._page * 2, LOAD_BYTES * len(rows) // (4 * weight + 1)))
            return all(row.data is not None for row in rows)
        files = [row.file for row in rows if row.file is not None]
        if len(files) != len(rows):
            return False
        if isinstance(sink, Files):
            return not sink.changed(files, batch=self._batch.name, stage=self._names[stage])
        return all(self._inspector.is_there(row) for row in rows)

    # -- one by one -----------------------------------------------------------------------------------------------

    def _closely(
        self,
        lo: int,
        hi: int,
        digests: Digests | None = None,
        *,
        counted_as_done: bool = False,
    ) -> Iterator[Finding]:
        for start in range(lo, hi, GROUP):
            end = min(hi, start + GROUP)
            rows: dict[int, list[Output]] = {}
            for row in self._store.outputs(self._batch.id, lo=start, hi=end, limit=GROUP * len(self._names)):
                rows.setdefault(row.n, []).append(row)
            for item in self._store.items(self._batch.id, lo=start, hi=end, limit=GROUP):
                self.states[item.place.state] += 1
                if counted_as_done and item.place.state is not State.DONE:
                    why = f"its chunk counts it as done, but it is {item.place.state}: the store has lost its output"
                    yield Finding(what=What.MISCOUNTED, why=why, n=item.n, key=item.key)
                yield from self._of(item, rows.get(item.n, []), digests)

    def _of(self, item: StoredItem, rows: Sequence[Output], digests: Digests | None) -> Iterator[Finding]:
        past = RecordedItem.of(item, rows)
        seen = {row.stage: self._counted(item, row, self._look(past, item, row, digests)) for row in rows}
        found = list(judge(item.place, len(self._names), seen))
        if found and self._moving:
            item, rows = self._as_it_is_now(item)
            past = RecordedItem.of(item, rows)
            seen = {row.stage: self._inspect(past, item, row, digests) for row in rows}
            found = list(judge(item.place, len(self._names), seen))
        files = {row.stage: Evidence.decode(row.file).final for row in rows if row.file is not None}
        for stage, what, why in found:
            text = f"the output of {self._names[stage]!r}: {why}"
            yield Finding(what=what, why=text, n=item.n, key=item.key, stage=stage, file=files.get(stage, ""))

    def _as_it_is_now(self, item: StoredItem) -> tuple[StoredItem, Sequence[Output]]:
        """Return the item and its outputs again: an owner may have moved it since it was read."""
        (fresh,) = self._store.items(self._batch.id, lo=item.n, hi=item.n + 1, limit=1)
        return fresh, self._store.outputs(self._batch.id, lo=item.n, hi=item.n + 1)

    def _counted(self, item: StoredItem, row: Output, seen: Inspection) -> Inspection:
        """Count an output that is there; outputs whose names a newer batch has are counted separately."""
        if seen.superseded:
            self.superseded += 1
        elif seen.reason != GONE and _is_kept(item, row):
            self.outputs += 1
            self.files += row.file is not None and row.stage in self._sinks
        return seen

    def _look(self, past: RecordedItem, item: StoredItem, row: Output, digests: Digests | None) -> Inspection:
        """Inspect an output; a file with unchanged size and time is only inspected if it is read."""
        sink = self._sinks.get(row.stage)
        if row.file is None or not isinstance(sink, Files):
            return self._inspect(past, item, row, digests)
        final, stage = Evidence.decode(row.file).final, self._names[row.stage]
        at_a_glance = not sink.changed([row.file], batch=self._batch.name, stage=stage)
        self.at_second_glance += not at_a_glance
        is_fine = at_a_glance and self._how != "full"
        seen = Inspection(row.stage, Verdict.HOLDS) if is_fine else self._inspect(past, item, row, digests)
        if not at_a_glance and seen.verdict is Verdict.HOLDS and not seen.superseded:
            self.published += not sink.changed([row.file], batch=self._batch.name, stage=stage)
        below = final.startswith(sink.pattern(self._batch.name, stage).prefix)
        self.in_place[row.stage] += below and sink.has(final)
        return seen

    def _inspect(self, past: RecordedItem, item: StoredItem, row: Output, digests: Digests | None) -> Inspection:
        if not _is_kept(item, row):  # nothing depends on it: it stays as it is, and must not get a final name now
            return Inspection(row.stage, Verdict.HOLDS)
        if digests is None:
            return self._inspector.inspect(past, row.stage, Depth.QUICK)
        return self._inspector.inspect(past, row.stage, Depth.FULL, digest=digests.get((item.n, row.stage)))


def _is_kept(item: StoredItem, row: Output) -> bool:
    return row.stage < item.place.stage and keeps_outputs(item.place)


def spans(chunks: Sequence[Chunk]) -> Iterator[Span]:
    """Yield the ranges of the chunks; adjacent chunks with only done items are joined."""
    lo = hi = 0
    for chunk in chunks:
        all_done = chunk.counts.done == chunk.size
        if all_done and lo < hi == chunk.lo:
            hi = chunk.hi
            continue
        if lo < hi:
            yield lo, hi, True
        lo, hi = (chunk.lo, chunk.hi) if all_done else (chunk.hi, chunk.hi)
        if not all_done:
            yield chunk.lo, chunk.hi, False
    if lo < hi:
        yield lo, hi, True


NOT_NAMED = "no item of any batch in this store names it"


class Extras:
    """The files of the sinks of one batch."""

    def __init__(self, store: Store, batch: Batch, sinks: Mapping[int, Files], seen: Observer) -> None:
        self._store, self._batch, self._seen = store, batch, seen
        self._stages = stage_names(batch)
        self._sinks = {stage: sink for stage, sink in sinks.items() if not self._is_taken(stage, sink)}
        self.leftovers = 0
        """Staged files of items whose output at that stage is recorded, mostly by an owner that was fenced off."""

    def _is_taken(self, stage: int, sink: Files) -> bool:
        """Return whether the names of a stage belong to a newer batch: then its files are not judged here."""
        names_of_stage = sink.names_of(self._stages[stage], self._batch.name)
        return names_of_stage.taken_from(ownership.holder_of(self._store, self._batch)) is not None

    def findings(self) -> Iterator[Finding]:
        """Yield extra and duplicated files."""
        yield from self._staged()
        if self._differ():
            yield from self._identify()

    def _differ(self) -> bool:
        """Return whether there are, or may be, more files than are recorded. A name that two items share has a file
        that differs from what one of them recorded, so that it was inspected."""
        if self._seen.at_second_glance:
            return True
        expected: dict[tuple[str, bool], int] = {}
        there: dict[tuple[str, bool], int] = {}
        for stage, sink in self._sinks.items():
            pattern = sink.pattern(self._batch.name, self._stages[stage])
            where = (pattern.root, pattern.is_flat)
            expected[where] = expected.get(where, 0) + self._seen.in_place[stage]
            there[where] = sink.count(self._batch.name, self._stages[stage])
        return expected != there

    # -- names ----------------------------------------------------------------------------------------------------

    def _identify(self) -> Iterator[Finding]:
        sharing = [each for each in self._store.batches() if each.id != self._batch.id and self._shares(each)]
        named = sum(batch.admitted * len(sinks_of(batch)) for batch in (self._batch, *sharing))
        parts = -(-named // NAMES_HELD) if named else 1
        for part in range(parts):
            own = self._names([self._batch], part, parts)
            others = self._names(sharing, part, parts)
            yield from self._shared({name for name, other in pairwise(own) if name == other})
            for path in self._candidates():
                name = hash(path)
                if name % parts == part and not _holds(own, name) and not _holds(others, name):
                    yield Finding(what=What.EXTRA, why=NOT_NAMED, file=path)

    def _names(self, batches: list[Batch], part: int, parts: int) -> "array[int]":
        found = array("q")
        for batch in batches:
            for output in self._outputs(batch):
                assert output.file is not None
                name = hash(files.final_of(output.file))
                if name % parts == part:
                    found.append(name)
        return array("q", sorted(found)) if len(found) > 1 else found

    def _outputs(self, batch: Batch) -> Iterator[Output]:
        for stage in self._sinks if batch is self._batch else sinks_of(batch):
            yield from (each for each in each_output(self._store, batch.id, stage=stage) if each.file is not None)

    def _candidates(self) -> Iterator[str]:
        """Yield once every file whose name fits a stage; if it fits two, the first stage counts."""
        found = [sink.pattern(self._batch.name, self._stages[stage]) for stage, sink in self._sinks.items()]
        for index, (stage, sink) in enumerate(self._sinks.items()):
            before = [each for each in found[:index] if each.root == found[index].root and each.is_flat]
            for path in sink.named_alike(self._batch.name, self._stages[stage]):
                name = path.removeprefix(found[index].prefix)
                if not any(each.names[0].fullmatch(name) for each in before):
                    yield path

    def _shares(self, other: Batch) -> bool:
        """Return whether files of another batch are in the same folders."""
        ours = {sink.template.folder for sink in self._sinks.values()}
        return any(sink.template.folder in ours for sink in sinks_of(other).values())

    def _shared(self, shared: set[int]) -> Iterator[Finding]:
        """Yield the items whose files have the same name."""
        for output in self._outputs(self._batch) if shared else ():
            assert output.file is not None
            final = files.final_of(output.file)
            if hash(final) in shared:
                (item,) = self._store.items(self._batch.id, lo=output.n, hi=output.n + 1, limit=1)
                why = "the output of another item has the same name, and only one of the two can exist"
                yield Finding(what=What.DUPLICATED, why=why, n=item.n, key=item.key, stage=output.stage, file=final)

    # -- staged files ---------------------------------------------------------------------------------------------

    def _staged(self) -> Iterator[Finding]:
        """Yield outputs of this batch that were staged but never recorded, of items that are settled."""
        for stage, sink in self._sinks.items():
            place = Provenance(pipeline=self._batch.pipeline, batch=self._batch.name, stage=self._stages[stage], n=0,
                               epoch=0, fence=0, input_digest=b"", key="")  # fmt: skip
            whose = names.origin(place).rsplit(".", 3)[0]
            for left in sink.leftovers():
                said = names.parse_staged(PurePath(left.path).name)
                if said is not None and said.origin.rsplit(".", 3)[0] == whose:
                    yield from self._left(stage, left.path, said)

    def _left(self, stage: int, path: str, said: names.StagedName) -> Iterator[Finding]:
        n = int(said.origin.rsplit(".", 3)[1])
        item = lookup.item_of(self._store, self._batch, n)
        if item is None or item.place.state is State.PENDING:
            return  # it is of an earlier batch, or the next run of the item adopts it
        rows = self._store.outputs(self._batch.id, lo=n, hi=n + 1, stage=stage)
        if not rows:
            why = "an output of the item that was staged but never recorded"
            yield Finding(what=What.EXTRA, why=why, n=n, key=item.key, stage=stage, file=path)
        elif rows[0].file is None or Evidence.decode(rows[0].file).staged != path:
            self.leftovers += 1


def _holds(sorted_names: "array[int]", name: int) -> bool:
    at = bisect_left(sorted_names, name)
    return at < len(sorted_names) and sorted_names[at] == name
