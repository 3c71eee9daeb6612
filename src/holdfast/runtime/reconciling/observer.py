"""Looks at what a batch has recorded and at what is really there, range by range, in flat memory.

Where all items of a range are done, its outputs are there and their files pass a glance, nothing else is read. Only
where something is off, and where everything shall be read, it is looked at item by item, and the core judges.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from holdfast.core import canonical
from holdfast.core.errors import SinkError
from holdfast.core.limits import LOAD_BYTES
from holdfast.core.model import Batch, Chunk, Output, State, StoredItem
from holdfast.core.reconcile import GONE, Finding, How, What, judge
from holdfast.core.states import keeps_outputs
from holdfast.runtime import lookup
from holdfast.runtime.reconciling.digests import recorded_digests
from holdfast.runtime.sinks.base import Evidence, Sink, TakenOver
from holdfast.runtime.sinks.files import Files
from holdfast.stores.base import Store

PAGE = 1_000
"""Items looked at together while nothing is off."""
FIRST_PAGE = 64
"""And where outputs come along that may be large, at first."""
GROUP = 250
"""Items looked at together one by one."""

Span = tuple[int, int, bool]
"""From one item to before another, and whether all of them are done."""


class Observer:
    """One look at a batch; what it saw stands in its attributes once `findings` came to its end."""

    def __init__(
        self, store: Store, batch: Batch, chunks: Sequence[Chunk], sinks: Mapping[int, Sink], how: How
    ) -> None:
        self._store, self._batch, self._chunks, self._sinks, self._how = store, batch, chunks, sinks, how
        self._names = lookup.stage_names(batch)
        self._last = len(self._names) - 1
        self._moving = any(chunk.owner is not None for chunk in chunks)
        self._page = PAGE if how == "files" or self._last in sinks else FIRST_PAGE
        self.states: Counter[State] = Counter()
        self.outputs = self.files = self.published = self.superseded = 0
        self.in_place: Counter[int] = Counter()
        """Files that are recorded and stand where the sink's files stand, by stage."""
        self.partly = False
        """Of some items that are done, only the last output and the files were looked at."""
        self.at_second_glance = 0
        """Files that were not, at a glance, the ones that were recorded."""

    def findings(self) -> Iterator[Finding]:
        """What is wrong with recorded outputs, in the order of the items."""
        if self._how == "full":
            for chunk in self._chunks:
                digests = recorded_digests(self._store, self._chunks, chunk)
                yield from self._closely(chunk.lo, chunk.hi, digests)
            return
        for lo, hi, all_done in spans(self._chunks):
            yield from self._quickly(lo, hi) if all_done else self._closely(lo, hi)

    # -- where all are done ---------------------------------------------------------------------------------------

    def _quickly(self, lo: int, hi: int) -> Iterator[Finding]:
        while lo < hi:
            upto = min(hi, lo + self._page)
            if self._is_plain(lo, upto):
                self.states[State.DONE] += upto - lo
            else:
                yield from self._closely(lo, upto, counted_as_done=True)
            lo = upto

    def _is_plain(self, lo: int, hi: int) -> bool:
        """Whether every item of the range has its outputs, and nothing is to be said about them."""
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
        return all(sink.check(Evidence.decode(file), full=False) is None for file in files)

    # -- one by one -----------------------------------------------------------------------------------------------

    def _closely(
        self,
        lo: int,
        hi: int,
        digests: Mapping[tuple[int, int], bytes] | None = None,
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
                    why = f"its chunk counts it as done, and it is {item.place.state}: the store has lost its output"
                    yield Finding(what=What.MISCOUNTED, why=why, n=item.n, key=item.key)
                yield from self._of(item, rows.get(item.n, []), digests)

    def _of(
        self, item: StoredItem, rows: Sequence[Output], digests: Mapping[tuple[int, int], bytes] | None
    ) -> Iterator[Finding]:
        seen = {row.stage: self._counted(item, row, self._look(item, row, digests)) for row in rows}
        found = list(judge(item.place, len(self._names), seen))
        if found and self._moving:
            item, rows = self._as_it_is_now(item)
            seen = {row.stage: _unless_taken(self._why(item, row, digests)) for row in rows}
            found = list(judge(item.place, len(self._names), seen))
        files = {row.stage: Evidence.decode(row.file).final for row in rows if row.file is not None}
        for stage, what, why in found:
            text = f"the output of {self._names[stage]!r}: {why}"
            yield Finding(what=what, why=text, n=item.n, key=item.key, stage=stage, file=files.get(stage, ""))

    def _as_it_is_now(self, item: StoredItem) -> tuple[StoredItem, Sequence[Output]]:
        """Somebody works on the batch: perhaps the item went on while we looked."""
        (fresh,) = self._store.items(self._batch.id, lo=item.n, hi=item.n + 1, limit=1)
        return fresh, self._store.outputs(self._batch.id, lo=item.n, hi=item.n + 1)

    def _counted(self, item: StoredItem, row: Output, why: str | None) -> str | None:
        """Count an output that was looked at and was there; those whose names a newer batch has are counted apart."""
        if isinstance(why, TakenOver):
            self.superseded += 1
            return None
        if why != GONE and _is_kept(item, row):
            self.outputs += 1
            self.files += row.file is not None and row.stage in self._sinks
        return why

    def _look(self, item: StoredItem, row: Output, digests: Mapping[tuple[int, int], bytes] | None) -> str | None:
        """Why an output does not count, or None."""
        sink = self._sinks.get(row.stage)
        if row.file is None or not isinstance(sink, Files):
            return self._why(item, row, digests)
        final, stage = Evidence.decode(row.file).final, self._names[row.stage]
        at_a_glance = not sink.changed([row.file], batch=self._batch.name, stage=stage)
        self.at_second_glance += not at_a_glance
        why = None if at_a_glance and self._how != "full" else self._why(item, row, digests)
        if not at_a_glance and why is None:
            self.published += not sink.changed([row.file], batch=self._batch.name, stage=stage)
        below = final.startswith(sink.pattern(self._batch.name, stage).prefix)
        self.in_place[row.stage] += below and sink.has(final)
        return why

    def _why(self, item: StoredItem, row: Output, digests: Mapping[tuple[int, int], bytes] | None) -> str | None:
        if not _is_kept(item, row):
            return None  # nothing rests on it: it is left as it is, and above all gets no final name now
        sink = self._sinks.get(row.stage)
        if row.file is not None and sink is None:
            return "it is in a file, and the pipeline has no sink at this stage any more that could read it"
        if row.file is None and row.data is None:
            return GONE
        if row.file is not None and sink is not None:
            why = sink.check(Evidence.decode(row.file), full=self._how == "full")
            if why is not None or digests is None:
                return why
        return None if digests is None else self._content(item, row, digests)

    def _content(self, item: StoredItem, row: Output, digests: Mapping[tuple[int, int], bytes]) -> str | None:
        sink = self._sinks.get(row.stage)
        try:
            data = sink.read(Evidence.decode(row.file)) if row.file is not None and sink is not None else row.data
        except SinkError as error:
            return str(error)
        told = digests.get((item.n, row.stage))
        assert data is not None
        if told is not None and canonical.digest(item.salt, data) != told:
            return "it is not what the journal recorded"
        return None


def _is_kept(item: StoredItem, row: Output) -> bool:
    return row.stage < item.place.stage and keeps_outputs(item.place)


def _unless_taken(why: str | None) -> str | None:
    return None if isinstance(why, TakenOver) else why


def spans(chunks: Sequence[Chunk]) -> Iterator[Span]:
    """The ranges of the chunks; neighbours of which all items are done are one."""
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
