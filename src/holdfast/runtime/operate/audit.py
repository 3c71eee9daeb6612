"""The audit of a batch: whether its journal is unbroken, and the store agrees with it.

Every chain is checked from its start to the head in the store: the batch's own from its first entry, an ingested
chunk's from the entry that admitted it, a child's from where it was cut from its parent. Then the journal is replayed
and compared with the store: payloads, outputs, places, totals, ranges, owners and words. Every key must lead to its
item. A finding names the entry, the item or the chunk. Words that were removed are counted, not found.

Every digest is compared by the formula of the format that its entry has.

A batch that is running can be audited: a group that changes meanwhile is read again.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from holdfast.core import canonical, commitments, course, journal, record, sections
from holdfast.core.errors import ChainBroken, Damaged, SinkError, Superseded, UsageError
from holdfast.core.model import Batch, BatchMode, Checkpoint, Chunk, Entry, Output, StoredItem
from holdfast.core.plain import Plain
from holdfast.runtime import lookup
from holdfast.runtime.acts import grouped
from holdfast.runtime.operate.replay import AdmittedGroup, Inconsistent, Projection, ReplayedPosition, moment
from holdfast.runtime.report import status
from holdfast.runtime.verify.inspector import OutputInspector, RecordedDigest, sinks_of
from holdfast.stores.base import (
    Store,
    TellsHistory,
    each_checkpoint,
    each_entry,
    each_item,
    each_output,
    find_batch,
    find_items,
)

TRIES = 3
FINDINGS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One discrepancy that an audit found."""

    kind: str
    """batch, chain, checkpoint, chunk, key, output, payload, place, range, seal, text, totals"""
    where: str
    """The entry, item or chunk."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(Plain):
    """The result of an audit."""

    _tells: ClassVar[str] = "* holds"

    batch: str
    chains: int
    entries: int
    items: int
    outputs: int
    files_unread: int
    """Outputs in files that were not read; `full` reads them."""
    busy: int
    """Groups that kept changing while they were checked; audit again when the batch is less busy."""
    findings: tuple[AuditFinding, ...]
    superseded: int = 0
    """Outputs whose files a newer batch has replaced."""
    more_findings: bool = False
    set_back: str = ""
    """A note if the store was set back since the batch was opened: entries may be missing that no chain shows."""
    removed: int = 0
    """Words in the journal that were removed: the commitments to them are there, and the chains hold without them."""

    def __str__(self) -> str:
        checked = f"{self.chains:,} chains, {self.entries:,} entries, {self.items:,} items, {self.outputs:,} outputs"
        if self.removed:
            checked += f"; words were removed in {self.removed:,} places"
        found = [f"  {each.kind}: {each.where}: {each.message}" for each in self.findings]
        return "\n".join([f"{self.batch}: {'it holds' if self.holds else 'it does not hold'}. {checked}", *found])

    @property
    def holds(self) -> bool:
        return not self.findings


Progress = Callable[[int, int], None]
"""Called with (items checked, items in all)."""


def verify(store: Store, batch: Batch, *, full: bool = False, progress: Progress | None = None) -> Audit:
    """Check everything that the journal of a batch can prove. `full` also reads outputs in files."""
    try:
        return _Auditor(store, batch, full, progress).audit()
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise Damaged(
            f"{store.url} is damaged: it holds data that Holdfast never writes ({error}); restore a backup"
        ) from error


def flaws(store: Store) -> tuple[AuditFinding, ...]:
    """Return flaws in the rows of batches that no chain shows: a batch that is gone, or has other stages."""
    found = store.flaws() if isinstance(store, TellsHistory) else []
    return tuple(
        AuditFinding(kind="batch", where=f"batch number {number}", message=f"{what}; restore a backup")
        for number, what in found
    )


@dataclass(slots=True)
class _AuditTally:
    """The counts and findings of one part of the audit."""

    chains: int = 0
    entries: int = 0
    items: int = 0
    outputs: int = 0
    files_unread: int = 0
    superseded: int = 0
    removed: int = 0
    findings: list[AuditFinding] = field(default_factory=list)

    def find(self, kind: str, where: str, message: str) -> None:
        self.findings.append(AuditFinding(kind=kind, where=where, message=message))

    def add(self, other: "_AuditTally") -> None:
        for name in ("chains", "entries", "items", "outputs", "files_unread", "superseded", "removed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.findings += other.findings[: FINDINGS + 1 - len(self.findings)]


class _ToldBatch:
    """A batch as its own chain has it."""

    def __init__(self) -> None:
        self.form = 0
        """The format of the last entry."""
        self.opened: journal.Opened | None = None
        self.admitted, self.is_read = 0, False
        self.way = journal.Steered(BatchMode.OPEN, "")
        self.seal: journal.Sealed | None = None

    def follow(self, header: journal.Header, body: journal.Body) -> None:
        """Replay one entry."""
        self.form = header.format
        match body:
            case journal.Opened():
                self.opened = body
            case journal.Steered():
                self.is_read = course.is_read(self.is_read, self.way.expected, body, self.admitted)
                self.way = body
            case journal.Ingested():
                self.admitted, self.is_read = body.hi, self.is_read or body.ended
            case journal.Sealed():
                self.seal = body
            case journal.Reopened():
                self.seal = None
            case _:
                pass


class _Auditor:
    def __init__(self, store: Store, batch: Batch, full: bool, progress: Progress | None) -> None:
        self._store, self._batch, self._full, self._progress = store, batch, full, progress

    def audit(self) -> Audit:
        total, busy = _AuditTally(), 0
        is_readable = self._read_definition(total)
        chunks = self._read_chunks()
        self._check_ranges([chunk for chunk in chunks if not self._is_newer(chunk)], total)
        if is_readable:
            self._check_nothing_beyond(total)
        for group in self._groups(total):
            if not is_readable:
                continue
            seen, was_busy = self._settled_group(group, _within(chunks, group.body))
            total.add(seen)
            busy += was_busy
            if self._progress is not None:
                self._progress(total.items, self._batch.admitted)
        return Audit(
            batch=self._batch.name,
            chains=total.chains,
            entries=total.entries,
            items=total.items,
            outputs=total.outputs,
            files_unread=total.files_unread,
            superseded=total.superseded,
            removed=total.removed,
            busy=busy,
            findings=tuple(total.findings[:FINDINGS]),
            more_findings=len(total.findings) > FINDINGS,
            set_back=status.set_back_note(self._store, self._batch),
        )

    def _read_definition(self, total: _AuditTally) -> bool:
        try:
            self._stages = course.stage_names(self._batch)
            self._inspector = OutputInspector(batch=self._batch.name, uid=self._batch.uid, names=self._stages,
                                              sinks=sinks_of(self._batch))  # fmt: skip
        except (msgspec.DecodeError, TypeError, ValueError, LookupError, UsageError) as error:
            total.find("batch", f"batch {self._batch.name!r}", f"its definition cannot be read ({error})")
            return False
        return True

    def _read_chunks(self) -> list[Chunk]:
        """Return the chunks of the batch, and remember their numbers."""
        chunks = self._store.chunks(self._batch.id)
        self._numbers = {int(chunk.id): chunk.number for chunk in chunks}
        return chunks

    # -- chains -------------------------------------------------------------------------------------------------

    def _groups(self, total: _AuditTally) -> Iterator[AdmittedGroup]:
        """Check the batch's own chain, and yield every ingested group with the hash that its chunk starts at."""
        row, told = self._batch, _ToldBatch()
        for entry, header, body in self._chain(journal.chain_of(row), journal.GENESIS, row.head, row.seq, total):
            where = journal.name(entry.chain, entry.seq)
            if told.form == 1 and header.format != 1 and not isinstance(body, journal.Formatted):
                total.find("chain", where, "it has format 2, but no entry says where that format begins")
            if isinstance(body, journal.Formatted):
                self._check_formatted(where, body, total)
            told.follow(header, body)
            if isinstance(body, journal.Ingested) and body.hi > body.lo:
                wrong = _incomplete(body, header.format)
                if wrong is not None:
                    total.find("chain", where, wrong)
                    continue
                number = self._numbers.get(body.chunk, -body.chunk) if header.format == 1 else body.chunk
                yield AdmittedGroup(body, number, header.format, entry.seq, entry.hash)
        self._compare_batch(told, total)

    def _compare_batch(self, told: "_ToldBatch", total: _AuditTally) -> None:
        """Compare the row of the batch with its chain."""
        row, where = self._batch, f"batch {self._batch.name!r}"
        if journal.Opened(row.name, row.pipeline, row.definition) != told.opened:
            total.find("batch", where, "its name, pipeline or definition is not the one in its journal")
        facts = (
            ("it has", f"{row.admitted:,} items", f"{told.admitted:,} items"),
            ("its source was", _read(row.ingested_at is not None), _read(told.is_read)),
            ("it is", _way(row.course, row.ends_at), _way(told.way.course, told.way.ends_at)),
            ("it is expected to have", _total(row.expected), _total(told.way.expected)),
            ("it is", _closed(row.closed_at is not None), _closed(told.way.closed)),
            ("it is", _sealed(row.sealed_at is not None), _sealed(told.seal is not None)),
        )
        for what, held, said in facts:
            if held != said:
                total.find("batch", where, f"{what} {held}, but its journal says {said}")
        if told.seal is not None and told.seal.heads != course.cover(self._store.chunks(row.id)):
            total.find("seal", where, "its chains do not end where they did when it was sealed")

    def _check_formatted(self, where: str, body: journal.Formatted, total: _AuditTally) -> None:
        """Compare the entry at which format 2 begins with the numbers of batch and chunks in the store."""
        if body.batch != self._batch.id:
            total.find("batch", where, f"it names batch number {body.batch}, but the store has number {self._batch.id}")
        for id_, number in body.chunks:
            held = self._numbers.get(id_)
            if held != number:
                what = "the store does not have it" if held is None else f"the store says {held}"
                total.find("chunk", f"chunk {id_}", f"{where} gives it the number {number}, but {what}")

    def _chain(
        self, chain: journal.Chain, start: bytes, head: bytes, seq: int, seen: _AuditTally
    ) -> Iterator[tuple[Entry, journal.Header, journal.Body]]:
        """Yield every entry of a chain up to `seq` whose link, header and body are valid; the others become
        findings."""
        seen.chains += 1
        at, prev, expected, last = chain.id, start, 1, None
        for entry in each_entry(self._store, at):
            if entry.seq > seq:
                break
            if entry.seq != expected:
                seen.find(
                    "chain",
                    journal.name(at, expected),
                    f"it is missing: entry {entry.seq} follows entry {expected - 1}",
                )
                prev = b""
            seen.entries += 1
            try:
                header = journal.check(entry, prev if prev else None, chain, self._batch.id)
                body = self._read_body(entry, header, seen)
            except ChainBroken as broken:
                where, _, message = str(broken).partition(": ")
                seen.find("chain", where, message)
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                seen.find("chain", journal.name(at, entry.seq), f"its body cannot be read ({error})")
            else:
                where = journal.name(at, entry.seq)
                self._check_header(where, header, last, isinstance(body, journal.Claimed), seen)
                last = header
                yield entry, header, body
            prev, expected = entry.hash, entry.seq + 1
        if expected - 1 != seq or prev != head:
            message = (
                f"the chain ends at entry {expected - 1}, but the store's head is entry {seq}: the chain was truncated "
                "or changed"
            )
            seen.find("chain", journal.name(at, seq), message)

    def _read_body(self, entry: Entry, header: journal.Header, seen: _AuditTally) -> journal.Body:
        """Return the body of an entry; words that differ from their commitment are not read."""
        words = sections.check_texts(entry, header)
        seen.removed += words.removed
        if words.changed:
            where = journal.name(entry.chain, entry.seq)
            seen.find("text", where, f"{words.changed} were changed, exchanged or added")
            entry = msgspec.structs.replace(entry, texts=())
        return sections.decode(entry, header)

    def _check_header(
        self, where: str, header: journal.Header, last: journal.Header | None, is_grant: bool, seen: _AuditTally
    ) -> None:
        last_fence = 0 if last is None else last.fence
        if last is not None and header.format < last.format:
            seen.find("chain", where, f"it has format {header.format} after {last.format}: a format never goes back")
        if header.fence < last_fence or (is_grant and header.fence == last_fence):
            seen.find(
                "chain", where, f"its fence is {header.fence} after {last_fence}: a fence never goes back or repeats"
            )

    def _check_ranges(self, chunks: Sequence[Chunk], total: _AuditTally) -> None:
        """Check that chunks cover every item exactly once."""
        upto = 0
        for chunk in chunks:
            if chunk.lo != upto:
                total.find(
                    "range", f"chunk {chunk.id}", f"it begins at item {chunk.lo}, but the one before ends at {upto}"
                )
            upto = chunk.hi
            if chunk.lo >= self._batch.admitted or chunk.hi > self._batch.admitted:
                total.find("range", f"chunk {chunk.id}", "it has items that were never admitted")
        if upto < self._batch.admitted:
            total.find(
                "range", f"item {upto}", f"no chunk has it, although {self._batch.admitted:,} items were admitted"
            )

    def _is_newer(self, chunk: Chunk) -> bool:
        """Return whether a chunk was admitted after the batch was read: its origin is a later entry."""
        return chunk.origin > self._batch.seq

    def _check_nothing_beyond(self, total: _AuditTally) -> None:
        """Check that nothing belongs to an item that was never admitted."""
        store, batch, upto = self._store, self._batch.id, self._batch.admitted
        beyond = {
            "payload": [item.n for item in store.items(batch, lo=upto, limit=1)],
            "output": [output.n for output in store.outputs(batch, lo=upto, limit=1)],
            "checkpoint": [at.n for at in store.checkpoints(batch, lo=upto, limit=1)],
        }
        admitted = find_batch(store, self._batch.name)
        if admitted is not None and admitted.admitted == upto:  # else it has grown since
            for kind, numbers in beyond.items():
                for n in numbers:
                    total.find(kind, f"item {n}", "it is in the store, but was never admitted")

    # -- one group ----------------------------------------------------------------------------------------------

    def _settled_group(self, group: AdmittedGroup, family: list[Chunk]) -> tuple[_AuditTally, bool]:
        """Check a group; before reporting a finding, make sure that the group did not change while it was read."""
        for _ in range(TRIES):
            seen = self._group(group, family)
            if not seen.findings:
                return seen, False
            before = {chunk.id: chunk.seq for chunk in family}
            family = _within(self._read_chunks(), group.body)
            if before == {chunk.id: chunk.seq for chunk in family}:
                return seen, False
        seen.findings = [finding for finding in seen.findings if finding.kind in ("chain", "text")]
        return seen, True

    def _group(self, group: AdmittedGroup, family: list[Chunk]) -> _AuditTally:
        seen = _AuditTally()
        projection = Projection(group, len(self._stages), self._batch.uid, self._numbers)
        starts = {group.number: group.start}
        for chunk in family:
            begin = starts.pop(chunk.number, None)
            if begin is None:
                seen.find(
                    "chain",
                    f"chunk {chunk.id}",
                    "no entry records where it was cut from its parent or succeeds it, so its chain has no start",
                )
                continue
            prev, chain = begin, journal.chain_of(self._batch, chunk)
            for entry, header, body in self._chain(chain, begin, chunk.head, chunk.seq, seen):
                if isinstance(body, journal.Claimed) and body.child is not None:
                    starts[projection.number_of(header, body.child[0])] = prev
                if isinstance(body, journal.ChainEnded):
                    starts[body.successor] = entry.hash
                self._replay(projection, chunk.number, entry, header, body, seen)
                prev = entry.hash
        for missing in starts:
            named = f"chunk {-missing}" if missing < 0 else f"chunk number {missing} of the batch"
            seen.find("chain", named, "it is in the journal, but not in the store")
        if all(finding.kind == "text" for finding in seen.findings):
            self._compare(projection, family, seen)
        return seen

    def _replay(
        self, projection: Projection, number: int, entry: Entry, header: journal.Header, body: journal.Body,
        seen: _AuditTally,
    ) -> None:  # fmt: skip
        where = journal.name(entry.chain, entry.seq)
        try:
            projection.replay(number, entry, header, body)
        except Inconsistent as error:
            seen.find("chain", where, str(error))
        except (IndexError, ValueError) as error:
            seen.find("chain", where, f"it refers to items that its group does not have ({error})")

    def _compare(self, projection: Projection, family: list[Chunk], seen: _AuditTally) -> None:
        """Compare the store with the replayed journal."""
        for chunk in family:
            wrong = projection.count_difference(chunk)
            if wrong is not None:
                seen.find("totals", f"chunk {chunk.id}", f"its totals differ from its journal: {wrong}")
            wrong = projection.chunk_difference(chunk)
            if wrong is not None:
                seen.find("chunk", f"chunk {chunk.id}", wrong)
        self._compare_checkpoints(projection, seen)
        lo, hi = projection.lo, projection.hi
        outputs = iter(each_output(self._store, self._batch.id, lo=lo, hi=hi))
        waiting = next(outputs, None)
        expected = lo
        for item, leads_to in self._with_keys(lo, hi):
            if item.n != expected:
                seen.find("payload", f"item {expected}", "the journal admitted it, but it is not in the store")
            expected = item.n + 1
            mine: list[Output] = []
            while waiting is not None and waiting.n <= item.n:
                mine += [waiting] if waiting.n == item.n else []
                waiting = next(outputs, None)
            self._compare_item(projection, item, leads_to, mine, seen)
        if expected != hi:
            seen.find("payload", f"item {expected}", "the journal admitted it, but it is not in the store")

    def _with_keys(self, lo: int, hi: int) -> Iterator[tuple[StoredItem, int | None]]:
        """Yield every item, and the number of the item that its key leads to."""
        for group in grouped(each_item(self._store, self._batch.id, lo=lo, hi=hi)):
            keys = [canonical.key_text(item.key) for item in group]
            yield from zip(group, find_items(self._store, self._batch.id, keys), strict=True)

    def _compare_checkpoints(self, projection: Projection, seen: _AuditTally) -> None:
        """Compare the checkpoint of every partition: its rows, its cursor and its accumulator."""
        left = dict(projection.positions)
        for held in each_checkpoint(self._store, self._batch.id, lo=projection.lo, hi=projection.hi):
            where, told = f"item {held.n}", left.pop(held.n, None)
            if told is None:
                seen.find("checkpoint", where, "its checkpoint is in the store, but not in the journal")
            elif told.cursor is None:
                seen.find("checkpoint", where, "its cursor cannot be checked: it was removed from the journal")
            elif (told.at.rows, told.cursor) != (held.rows, held.cursor):
                seen.find(
                    "checkpoint",
                    where,
                    f"its checkpoint is after {held.rows:,} rows, but the journal's is after {told.at.rows:,}",
                )
            elif not self._has_accumulator(told, held):
                seen.find("checkpoint", where, "its accumulator is not the recorded one")
        for n in left:
            seen.find("checkpoint", f"item {n}", "its checkpoint is in the journal, but not in the store")

    def _has_accumulator(self, told: ReplayedPosition, held: Checkpoint) -> bool:
        """Return whether the accumulator of a checkpoint is the recorded one."""
        now = record.of_accumulator(self._batch.uid, held)
        if told.restated and told.restated != now:
            return False
        if told.form == 1:
            now = b"" if held.acc is None else commitments.first_format(held.salt, held.acc)
        return told.at.digest == now

    def _has_payload(self, told: RecordedDigest, item: StoredItem) -> bool:
        """Return whether key and payload of an item are those of a recorded digest."""
        if told.format == 1:
            key = canonical.key_text(item.key)
            return commitments.first_format_item(item.salt, key, item.payload) == told.digest
        uid = self._batch.uid
        return commitments.payload(uid, item.key, item.revision, item.salt, item.payload) == told.digest

    def _compare_revisions(self, projection: Projection, item: StoredItem, where: str, seen: _AuditTally) -> None:
        """Compare the payloads that later ones replaced: they stay in the store."""
        told = projection.superseded_digests(item.n)
        held = self._store.revisions(self._batch.id, item.n)[:-1] if told or item.revision else []
        if len(held) != len(told) or not all(map(self._has_payload, told, held)):
            seen.find("payload", where, "an earlier revision of its payload is not the one that was recorded")

    def _compare_item(
        self, projection: Projection, item: StoredItem, leads_to: int | None, outputs: list[Output], seen: _AuditTally
    ) -> None:
        seen.items += 1
        where = f"item {item.n} ({item.key!r})"
        if not all(self._has_payload(told, item) for told in projection.payload_digests(item.n)):
            seen.find("payload", where, "its key or payload is not the one that was admitted")
        self._compare_revisions(projection, item, where, seen)
        wrong = projection.origin_difference(item)
        if wrong is not None:
            seen.find("payload", where, wrong)
        if leads_to != item.n:
            seen.find("key", where, "its key does not lead to it: the key, or the index of keys, was changed")
        wrong = projection.difference(item)
        if wrong is not None:
            seen.find("place", where, wrong)
        for stage in set(projection.outputs(item.n)) - {output.stage for output in outputs}:
            seen.find("output", where, f"its output of {self._name(stage)!r} is in the journal, but not in the store")
        for output in outputs:
            self._compare_output(projection, item, output, where, seen)

    def _compare_output(
        self, projection: Projection, item: StoredItem, output: Output, where: str, seen: _AuditTally
    ) -> None:
        told = projection.output_digests(item.n, output.stage)
        name = self._name(output.stage)
        if told is None:
            seen.find("output", where, f"its output of {name!r} is in the store, but not in the journal")
            return
        epoch, digests = told
        if epoch < 0:
            return
        if epoch != min(output.epoch, 0xFFFF):
            seen.find(
                "output",
                where,
                f"its output of {name!r} is of epoch {output.epoch}, but the journal's is of epoch {epoch}",
            )
            return
        other, uid = f"its output of {name!r} is not the one that was recorded", self._batch.uid
        of_content = [digest for digest in digests if digest.format == 1]
        if not all(digest.format == 1 or digest.proves(uid, output, b"") for digest in digests):
            seen.find("output", where, other)
            return
        if output.file is None and not of_content:
            seen.outputs += 1
            return
        if output.file is not None and not self._full:
            seen.files_unread += 1
            return
        try:
            data = self._inspector.read(output)
            seen.outputs += 1
        except Superseded:
            seen.superseded += 1
            return
        except (SinkError, OSError) as error:
            seen.find("output", where, f"its output of {name!r} cannot be read: {error}")
            return
        if not all(digest.proves(uid, output, data) for digest in of_content):
            seen.find("output", where, other)

    def _name(self, stage: int) -> str:
        return lookup.stage_title(self._stages, stage)


def _read(to_its_end: bool) -> str:
    return "read to its end" if to_its_end else "not read to its end"


def _way(course_: str, ends_at: float | None) -> str:
    end = "without an end" if ends_at is None else f"with its end at {moment(ends_at)}"
    return f"{course_}, {end}"


def _total(expected: int | None) -> str:
    return "any number of items" if expected is None else f"{expected:,} items"


def _closed(is_closed: bool) -> str:
    return "closed" if is_closed else "not closed"


def _sealed(is_sealed: bool) -> str:
    return "sealed" if is_sealed else "not sealed"


def _incomplete(body: journal.Ingested, form: int) -> str | None:
    """Return which facts about its items an entry lacks, or None."""
    refused = [n for n, _ in body.invalid]
    if len(body.digests) != commitments.DIGEST_BYTES * (body.hi - body.lo):
        return "it does not have one digest for every item"
    if len(body.raws) != commitments.DIGEST_BYTES * len(body.raw_items or ()):
        return "it does not have one digest for every item that validation changed"
    if form != 1 and [each.n for each in body.refusals] != refused:
        return "it does not say of every refused item why"
    named = [*refused, *(n for n, _ in body.parents), *(body.raw_items or ())]
    return None if all(body.lo <= n < body.hi for n in named) else "it refers to items that it does not admit"


def _within(chunks: Sequence[Chunk], group: journal.Ingested) -> list[Chunk]:
    """Return the chunks of a group, parents before their children; `chunks` is in the order of items. A chunk whose
    chain has ended is where its items begin."""
    first = bisect_left(chunks, group.lo, key=lambda chunk: chunk.lo)
    last = bisect_left(chunks, group.hi, key=lambda chunk: chunk.lo)
    return sorted(chunks[first:last], key=lambda chunk: chunk.number)
