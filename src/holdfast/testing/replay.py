"""A replay of a batch from its journal alone, checking every rule.

`replay(store, batch)` reads the chain of the batch, then the chains of its chunks, each after the chunk it was cut
from. It uses only the entries: what happened to every item, which owner held which chunk under which fence, what was
spent. `compare` then compares the result with the items, chunks and outputs in the store. A change without an entry, an
entry without a change, a missing link and a broken rule all raise `Violation`.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core import commitments, course, journal, record, sections
from holdfast.core.canonical import decode
from holdfast.core.journal import FLOAT32, UINT16, unpack
from holdfast.core.limits import REQUEUES, REWINDS, SUSPECT
from holdfast.core.model import (
    Batch,
    BatchId,
    BatchMode,
    Chunk,
    Counts,
    Entry,
    State,
    StoredItem,
    chain_of_batch,
)
from holdfast.core.retry import Policy
from holdfast.stores.base import Store
from holdfast.testing.story import Link, Story, Told, Violation

__all__ = ["EVERYTHING", "Story", "Violation", "compare", "replay"]
EVERYTHING = 1 << 30
OF_BATCH = ("ingested", "steered", "sealed", "reopened")
"""Kinds of entries that change a batch as a whole; other notes in its chain are ignored."""


def replay(store: Store, batch: BatchId, policies: Sequence[Policy] | None = None) -> Story:
    """Return the story of a batch; raise Violation or ChainBroken if it is inconsistent."""
    return _Teller(store, _batch(store, batch), policies).tell()


def compare(store: Store, batch: BatchId, story: Story) -> None:
    """Compare the story with the content of the store."""
    uid = _batch(store, batch).uid
    for row in store.items(batch, limit=EVERYTHING):
        told, place = story.items[row.n], row.place
        _compare_payload(uid, row, told)
        same = (told.stage, told.state, told.epoch, told.attempt, told.requeues) == (
            place.stage,
            place.state,
            place.epoch,
            place.attempt,
            place.requeues,
        ) and told.rewinds in (None, place.rewinds)
        if not same:
            raise Violation(f"item {row.n} is at {place}, but its journal says {told}")
    if len(story.items) != _batch(store, batch).admitted:
        raise Violation("the journal does not cover every item")
    chunks = store.chunks(batch)
    _check_ranges(chunks, len(story.items))
    for chunk in chunks:
        _compare_chunk(chunk, story)
    _compare_checkpoints(store, batch, story)
    for output in store.outputs(batch, limit=EVERYTHING):
        told_of = (output.n, output.stage, output.epoch) in story.advanced or (output.n, output.epoch) in story.given
        if not told_of:
            raise Violation(
                f"item {output.n} has an output of stage {output.stage} in epoch {output.epoch} without an entry"
            )
        if story.made[output.n, output.stage] != record.of_output(uid, output):
            raise Violation(f"the output of item {output.n} at stage {output.stage} is not the one in the journal")


def _compare_payload(uid: bytes, row: StoredItem, told: Told) -> None:
    digest = commitments.payload(uid, row.key, row.revision, row.salt, row.payload)
    if (told.payload, told.revision, told.parent) != (digest, row.revision, row.parent):
        raise Violation(f"the payload of item {row.n}, its revision or its parent is not the one in the journal")


def _compare_checkpoints(store: Store, batch: BatchId, story: Story) -> None:
    told = {n: item.position for n, item in story.items.items() if item.position is not None}
    held = {}
    uid = _batch(store, batch).uid
    for at in store.checkpoints(batch, limit=EVERYTHING):
        held[at.n] = journal.Position(at.n, at.rows, at.cursor, record.of_accumulator(uid, at))
    if {n: msgspec.structs.replace(position, seconds=0.0, mark=b"") for n, position in told.items()} != held:
        raise Violation(f"checkpoints are at {held}, but the journal says {told}")


def _compare_chunk(chunk: Chunk, story: Story) -> None:
    link, held = story.links[chunk.id], chunk.counts
    states = [story.items[n].state for n in range(chunk.lo, chunk.hi)]
    told = Counts(
        done=states.count(State.DONE), skipped=states.count(State.SKIPPED), dead=states.count(State.DEAD),
        cancelled=states.count(State.CANCELLED), attempts=link.attempts, spent=link.spent, tokens=link.tokens,
        seconds=held.seconds,
    )  # fmt: skip
    if told != held:
        raise Violation(f"chunk {chunk.id} counts {held}, but its items and entries give {told}")
    close = abs(link.seconds - held.seconds) < 1e-3 + 1e-6 * held.seconds
    if not close:
        raise Violation(f"chunk {chunk.id} counts {held.seconds} s, but its entries give {link.seconds}")
    if chunk.fence != link.fence:
        raise Violation(f"chunk {chunk.id} has fence {chunk.fence}, but its last entry has fence {link.fence}")
    if chunk.owner != link.owner:
        raise Violation(f"chunk {chunk.id} is held by {chunk.owner}, but its journal says {link.owner}")
    if (chunk.lo, chunk.hi) != (link.lo, link.hi):
        raise Violation(f"chunk {chunk.id} covers a different range from the one in its journal")
    if chunk.kind is not link.kind:
        raise Violation(f"chunk {chunk.id} is of the kind {chunk.kind}, but its journal says {link.kind}")
    if chunk.owner is not None and chunk.grant != link.grant:
        raise Violation(f"chunk {chunk.id} was granted under {chunk.grant.hex()}, its journal says {link.grant.hex()}")
    if ((chunk.leg, chunk.first, chunk.end), chunk.origin) != (link.window, link.origin):
        raise Violation(f"chunk {chunk.id} has another window or origin than the one in its journal")


def _check_ranges(chunks: Sequence[Chunk], admitted: int) -> None:
    at = 0
    for chunk in chunks:
        if chunk.lo != at or chunk.hi < at:
            raise Violation(f"chunk {chunk.id} begins at item {chunk.lo}, but the previous one ends at {at}")
        at = chunk.hi
    if at != admitted:
        raise Violation(f"the chunks end at item {at}, but {admitted} items were admitted")


def _batch(store: Store, batch: BatchId) -> Batch:
    return next(found for found in store.batches() if found.id == batch)


class _Teller:
    """A reader of entries in order, which collects the story."""

    def __init__(self, store: Store, batch: Batch, policies: Sequence[Policy] | None) -> None:
        self.store, self.batch = store, batch
        self.policies = policies
        self.stages = len(decode(batch.definition)["stages"])
        self.course = BatchMode.OPEN
        self.ends_at: float | None = None
        self.total: tuple[int | None, bool] = (None, False)
        self.is_read = False
        self.seal: journal.Sealed | None = None
        self.chunks = {chunk.number: chunk for chunk in store.chunks(batch.id)}
        self.ended: dict[int, tuple[int, Entry, bytes, Counts]] = {}
        """By the successor: the chain that ended, its last entry, the digest of its state, its totals."""
        self.story = Story(items={}, links={}, advanced={}, attempts={}, spends=[], given=set(), made={}, waits=[],
                           adopted=set(), buried=[], acted=[], positions=[])  # fmt: skip

    def tell(self) -> Story:
        chain = chain_of_batch(self.batch.id)
        entries = self.store.entries(chain, limit=EVERYTHING)
        start, head, seq = journal.GENESIS, self.batch.head, self.batch.seq
        chain_id = journal.chain_of(self.batch)
        for entry, header in journal.check_chain(entries, chain_id, self.batch.id, start=start, head=head, seq=seq):
            self._check_texts(entry, header)
            if header.kind in OF_BATCH:
                self._of_batch(entry, header, sections.decode(entry, header))
        self._check_course()
        chunks = {int(chunk.id): chunk for chunk in self.chunks.values()}
        told: set[int] = set()
        while len(told) < len(self.story.links):
            for chunk_id in [i for i in self.story.links if i not in told]:
                if chunk_id not in chunks:
                    raise Violation(f"chunk {chunk_id} is in the journal but not in the store")
                self._chunk(chunks[chunk_id], self.story.links[chunk_id])
                told.add(chunk_id)
        if told != chunks.keys():
            raise Violation(f"no entry creates chunks {sorted(chunks.keys() - told)}")
        return self.story

    def _check_texts(self, entry: Entry, header: journal.Header) -> None:
        """Check that the words of an entry are those it commits to; nothing was removed yet."""
        found = sections.check_texts(entry, header)
        if found.changed or found.removed:
            raise Violation(f"{journal.name(entry.chain, entry.seq)}: {found.changed or 'words are missing'}")

    def _id(self, number: int) -> int:
        """Return the number that the store gave to the chunk with a number within the batch."""
        if number not in self.chunks:
            raise Violation(f"chunk number {number} of the batch is in the journal but not in the store")
        return self.chunks[number].id

    def _of_batch(self, entry: Entry, header: journal.Header, body: journal.Body) -> None:
        """Apply an entry of the chain of the batch: items, course, seals."""
        where = f"entry {entry.seq} of the batch"
        if isinstance(body, journal.Steered | journal.Ingested) and self.seal is not None:
            raise Violation(f"{where} comes after the seal")
        match body:
            case journal.Ingested():
                if body.lo != body.hi and (self.course is BatchMode.CANCELLED or self.total[1]):
                    raise Violation(f"{where} admits to a batch that was cancelled or closed")
                self._ingested(entry, body)
                self.is_read = self.is_read or body.ended
            case journal.Steered():
                allowed = self.course is not BatchMode.CANCELLED or body.course == BatchMode.CANCELLED
                if not allowed:
                    raise Violation(f"{where} lets a cancelled batch continue")
                self.course, self.ends_at = BatchMode(body.course), body.ends_at
                self.is_read = course.is_read(self.is_read, self.total[0], body, len(self.story.items))
                self.total = (body.expected, body.closed)
            case journal.Sealed():
                if self.seal is not None:
                    raise Violation(f"{where} seals a sealed batch")
                self.seal = body
                self.story.seals += 1
            case journal.Reopened():
                if self.seal is None:
                    raise Violation(f"{where} reopens an open batch")
                if not (header.actor and body.reason):
                    raise Violation(f"{where} does not say who reopened the batch, and why")
                self.seal = None

    def _check_course(self) -> None:
        """Check the row of the batch, and what its seal covers, against its chain."""
        row, told = self.batch, (self.course, self.ends_at, self.seal is not None, *self.total, self.is_read)
        held = (row.course, row.ends_at, row.sealed_at is not None, row.expected, row.closed_at is not None,
                row.ingested_at is not None)  # fmt: skip
        if held != told:
            raise Violation(
                f"the batch is (course, end, sealed, expected, closed, read) {held}, but its journal says {told}"
            )
        if self.seal is None:
            return
        chunks = self.store.chunks(row.id)
        now = course.seal(chunks, self.seal.reconciliation, self.seal.reason)
        if now != self.seal:
            raise Violation("the batch changed after it was sealed")
        if sum(chunk.pending for chunk in chunks):
            raise Violation("a batch with pending items is sealed")

    def _ingested(self, entry: Entry, body: journal.Ingested) -> None:
        if body.lo != len(self.story.items):
            raise Violation(f"entry {entry.seq} admits items starting at {body.lo}, not at {len(self.story.items)}")
        if len(body.digests) != 32 * (body.hi - body.lo):
            raise Violation(f"entry {entry.seq} does not have one digest for each item")
        if body.refusals and [each.n for each in body.refusals] != [n for n, _ in body.invalid]:
            raise Violation(f"entry {entry.seq} does not say of every refused item why")
        parents = dict(body.parents)
        for at, n in enumerate(range(body.lo, body.hi)):
            digest = body.digests[32 * at : 32 * at + 32]
            self.story.items[n] = Told(stage=body.first, payload=digest, parent=parents.get(n))
        for n, _ in body.invalid:
            self.story.items[n].state = State.DEAD
            self.story.items[n].stage = 0
            self.story.buried.append(n)
        if body.hi > body.lo:
            id_ = self._id(body.chunk)
            self.story.links[id_] = Link(id=id_, lo=body.lo, hi=body.hi, start=entry.hash, kind=body.kind,
                                         window=(body.leg, body.first, body.end), origin=entry.seq)  # fmt: skip

    def _chunk(self, chunk: Chunk, link: Link) -> None:
        entries = self.store.entries(chunk.id, limit=EVERYTHING)
        before, chain = link.start, journal.chain_of(self.batch, chunk)
        for entry, header in journal.check_chain(
            entries, chain, self.batch.id, start=link.start, head=chunk.head, seq=chunk.seq
        ):
            self._check_texts(entry, header)
            body = sections.decode(entry, header)
            match body:
                case journal.Claimed():
                    self._claimed(link, header, body, before)
                case journal.Checkpointed():
                    self._checkpointed(link, header, body)
                case journal.Acted():
                    self._acted(link, header, body)
                case journal.ChainEnded():
                    self._ended(chunk, link, entry, body)
                case journal.Continued():
                    self._continued(chunk, link, entry, body)
                case _:
                    raise Violation(f"{journal.name(entry.chain, entry.seq)} does not belong in the chain of a chunk")
            before = entry.hash

    def _ended(self, chunk: Chunk, link: Link, entry: Entry, body: journal.ChainEnded) -> None:
        """Apply the end of a chain: everything goes to the successor."""
        id_ = self._id(body.successor)
        if entry.seq != chunk.seq or id_ in self.story.links:
            raise Violation(f"the chain of chunk {link.id} ends twice, or before its last entry")
        states = [self.story.items[n].state for n in range(link.lo, link.hi)]
        counts = Counts(
            done=states.count(State.DONE), skipped=states.count(State.SKIPPED), dead=states.count(State.DEAD),
            cancelled=states.count(State.CANCELLED), attempts=link.attempts, spent=link.spent, tokens=link.tokens,
            seconds=link.seconds,
        )  # fmt: skip
        self.story.links[id_] = msgspec.structs.replace(link, id=id_, start=entry.hash)
        self.ended[id_] = (chunk.number, entry, body.state, counts)
        link.hi, link.attempts, link.spent, link.tokens, link.seconds = link.lo, 0, 0, 0, 0.0
        link.blame, link.progressed, link.owner = 0, True, None

    def _continued(self, chunk: Chunk, link: Link, entry: Entry, body: journal.Continued) -> None:
        """Check what a successor takes over against what is known of its items."""
        where = f"the first entry of chunk {link.id}"
        if link.id not in self.ended or entry.seq != 1:
            raise Violation(f"{where} continues a chain that did not end")
        number, last, state, c = self.ended[link.id]
        if (body.predecessor, body.seq, body.head, body.state) != (number, last.seq, last.hash, state):
            raise Violation(f"{where} names another chain than the one before it")
        if state != record.state_of(self.batch.uid, number, body.items, body.counts):
            raise Violation(f"{where} takes over something else than the chain before it left")
        if body.counts != [c.done, c.skipped, c.dead, c.cancelled, c.attempts, c.spent, c.tokens]:
            raise Violation(f"{where} takes over other totals")
        for item in body.items:
            told = self.story.items[item.n]
            outputs = {stage: digest for stage, _, digest in item.outputs}
            made = {stage: digest for (n, stage), digest in self.story.made.items() if n == item.n}
            here = (item.state, item.stage, item.epoch, item.payload, item.revision, outputs)
            if here != (told.state, told.stage, told.epoch, told.payload, told.revision, made):
                raise Violation(f"{where} takes over item {item.n} in another state")
            before = None if told.position is None else msgspec.structs.replace(told.position, seconds=0.0)
            if item.position != before:
                raise Violation(f"{where} takes over another checkpoint of item {item.n}")

    def _claimed(self, link: Link, header: journal.Header, body: journal.Claimed, before: bytes) -> None:
        where = f"the grant of fence {header.fence} on chunk {link.id}"
        if header.fence <= link.fence:
            raise Violation(f"{where} does not raise the fence, which was {link.fence}")
        if body.taken_from != (link.owner or ""):
            raise Violation(f"{where} was taken from {body.taken_from!r}, not from {link.owner!r}")
        blame = self._blame(link)
        if body.blame != blame:
            raise Violation(f"{where} records blame {body.blame}, but it is {blame}")
        ends = body.hi if body.child is None else body.child[2]
        if (body.lo, ends) != (link.lo, link.hi):
            raise Violation(f"{where} covers items {body.lo} to {ends}, but the chunk has {link.lo} to {link.hi}")
        if body.child is not None:
            number, lo, hi = body.child
            child = self._id(number)
            if not (lo == body.hi and child not in self.story.links):
                raise Violation(f"{where} cuts off chunk {child} in the wrong place")
            self.story.links[child] = Link(
                id=child,
                lo=lo,
                hi=hi,
                start=before,
                fence=link.fence,
                blame=blame,
                progressed=not blame,
                kind=link.kind,
                window=link.window,
                origin=link.origin,
            )
        self._check_snapshots(where, body)
        if len(header.grant) != commitments.GRANT_BYTES or header.grant == link.grant:
            raise Violation(f"{where} has no id of its own")
        link.hi, link.fence, link.owner, link.grant = body.hi, header.fence, header.actor, header.grant
        link.blame, link.progressed = blame, False

    def _blame(self, link: Link) -> int:
        """Return the blame that a grant must record: deaths in a row, up to SUSPECT; for a single item, its strikes."""
        if link.progressed:
            return 0
        pending = sum(self.story.items[n].state is State.PENDING for n in range(link.lo, link.hi))
        if pending == 1 and link.blame > SUSPECT:
            return link.blame
        return min(link.blame + (link.owner is not None), SUSPECT)

    def _check_snapshots(self, where: str, body: journal.Claimed) -> None:
        said = sorted((s.n, s.stage, s.epoch, s.attempt) for s in body.snapshots)
        items = ((n, self.story.items[n]) for n in range(body.lo, body.hi))
        due = [
            (n, t.stage, t.epoch, t.attempt) for n, t in items if t.state is State.PENDING and (t.attempt or t.epoch)
        ]
        if said != due:
            raise Violation(f"{where} has snapshots of {said}, but its items are at {due}")

    def _checkpointed(self, link: Link, header: journal.Header, body: journal.Checkpointed) -> None:
        where = f"entry {header.seq} of chunk {link.id}"
        if link.owner != header.actor:
            raise Violation(f"{where} is by {header.actor!r}, but the chunk is held by {link.owner!r}")
        if link.fence != header.fence:
            raise Violation(f"{where} is under fence {header.fence}, but the grant has fence {link.fence}")
        if link.grant != header.grant:
            raise Violation(f"{where} is under grant {header.grant.hex()}, but the chunk was granted as another")
        if header.kind == journal.STARTED:
            if body != journal.Checkpointed():
                raise Violation(f"{where} is a start, but has other content")
            link.blame += 1
            return
        for _, spend in body.spends:
            link.spent += spend.usd
            link.tokens += spend.tokens
            self.story.items[spend.n].spent += spend.usd
            self.story.spends.append(spend)
        finished = {n for advanced in body.advanced for n in advanced.items}
        for position in body.positions:
            self._reached(where, link, position, at_end=position.n in finished)
        for advanced in body.advanced:
            self._advanced(where, link, advanced)
        for attempt in body.attempts:
            self._attempted(where, link, attempt, header.at)
        link.progressed, link.blame = True, 0
        if body.released:
            link.owner = None

    def _reached(self, where: str, link: Link, position: journal.Position, *, at_end: bool) -> None:
        """Apply a checkpoint: earlier attempts no longer count, except that the checkpoint at the end of a partition
        belongs to the attempt that reached it."""
        told = self._pending(where, link, position.n)
        before = told.position.rows if told.position is not None else 0
        if position.rows < before:
            raise Violation(f"{where} takes item {position.n} back from row {before} to {position.rows}")
        told.position = position
        link.seconds += position.seconds
        self.story.positions.append((position.n, told.epoch, position.rows))
        if not at_end:
            told.attempt, told.due, told.used, told.requeues = 0, 0.0, 0.0, 0

    def _advanced(self, where: str, link: Link, body: journal.Advanced) -> None:
        count = len(body.items)
        attempts, epochs = (unpack(UINT16, column or bytes(2 * count)) for column in (body.attempts, body.epochs))
        if not (len(body.digests) == 32 * count and len(attempts) == len(epochs) == count):
            raise Violation(f"{where} has columns of unequal length")
        if body.finished != (body.stage + 1 == link.window[2]):
            raise Violation(f"{where} is wrong about being the last stage")
        for index, n in enumerate(body.items):
            told = self._pending(where, link, n)
            at = (n, body.stage, epochs[index])
            self.story.made[n, body.stage] = body.digests[32 * index : 32 * index + 32]
            if (told.stage, told.epoch) != at[1:]:
                raise Violation(f"{where} advances item {n} from {at[1:]}, but it is at {told}")
            if attempts[index] not in (told.attempt + 1, 0 if not told.attempt else -1):
                raise Violation(f"{where} miscounts the attempts of item {n}")
            self.story.advanced[at] = self.story.advanced.get(at, 0) + 1
            if self.story.advanced[at] != 1:
                raise Violation(f"{where} records a second time that item {n} passed stage {body.stage}")
            if body.adopted:
                self.story.adopted.add(at)
            else:
                self._count(link, at)
            told.stage += 1
            told.attempt, told.due, told.used, told.spent, told.requeues = 0, 0.0, 0.0, 0, 0
            told.state = State.DONE if body.finished else State.PENDING
        if not body.adopted:
            link.seconds += sum(unpack(FLOAT32, body.seconds))

    def _attempted(self, where: str, link: Link, a: journal.Attempted, at: float) -> None:
        told = self._pending(where, link, a.n)
        if (a.stage, a.epoch) != (told.stage, told.epoch):
            raise Violation(f"{where} has item {a.n} at {a.stage, a.epoch}, but it is at {told}")
        if a.code == "lost":
            if a.to_stage > told.stage:
                raise Violation(f"{where} rewinds item {a.n} forward")
            if a.outcome == "bury":
                self.story.items[a.n] = self._back(told, a.to_stage, told.rewinds)
                self._bury(a.n)
            else:
                rewinds = self._one_more(where, a.n, told.rewinds)
                self.story.items[a.n] = self._back(told, a.to_stage, rewinds)
            return
        if a.attempt != told.attempt + 1:
            raise Violation(f"{where} is attempt {a.attempt} of item {a.n}, but there were {told.attempt} before")
        self._count(link, (a.n, a.stage, a.epoch))
        link.seconds += a.seconds
        if a.outcome in ("retry", "bury"):
            self._check_budget(where, a, told)
            told.attempt += 1
        if a.outcome in ("retry", "defer"):
            self.story.waits.append((link.id, a, at))
            told.due = a.due
        elif a.outcome == "bury":
            self._bury(a.n)
        else:
            if a.outcome != "skip":
                raise Violation(f"{where}: item {a.n} has the unknown outcome {a.outcome!r}")
            told.state = State.SKIPPED

    def _back(self, told: Told, stage: int, rewinds: int | None) -> Told:
        return Told(stage=stage, epoch=told.epoch + 1, rewinds=rewinds, position=told.position, payload=told.payload,
                    revision=told.revision, parent=told.parent)  # fmt: skip

    def _bury(self, n: int) -> None:
        self.story.items[n].state = State.DEAD
        self.story.buried.append(n)

    def _one_more(self, where: str, n: int, rewinds: int | None) -> int | None:
        """Return the number of rewinds of an item after one more; check that there are not too many."""
        if rewinds is not None and rewinds >= REWINDS:
            raise Violation(f"{where} rewinds item {n} after it was rewound {rewinds} times")
        return None if rewinds is None else rewinds + 1

    def _check_budget(self, where: str, a: journal.Attempted, told: Told) -> None:
        if self.policies is None:
            return
        policy = self.policies[a.stage]
        if a.attempt > policy.attempts:
            raise Violation(f"{where} is attempt {a.attempt} of item {a.n}, but at most {policy.attempts} are allowed")
        if a.outcome == "retry":
            if a.attempt >= policy.attempts:
                raise Violation(f"{where} retries item {a.n} after its last attempt")
            if a.used > policy.within:
                raise Violation(f"{where} retries item {a.n} after its time budget is used up")
            if a.used < told.used + a.seconds:
                raise Violation(f"{where} gives item {a.n} time back: {a.used} after {told.used}")
            in_time = a.due <= a.deadline or not a.used  # while nothing is used, no deadline is recorded
            if not in_time:
                raise Violation(f"{where} retries item {a.n} beyond its recorded deadline")
            affordable = policy.money is None or told.spent < policy.money
            if not affordable:
                raise Violation(
                    f"{where} retries item {a.n} after {told.spent} of {policy.money} units were spent on it"
                )
            told.used = a.used

    def _acted(self, link: Link, header: journal.Header, body: journal.Acted) -> None:
        where = f"entry {header.seq} of chunk {link.id}"
        says = header.actor and body.reason and (body.items or header.kind == journal.LIFTED)
        if not says:
            raise Violation(f"{where} lacks its actor, items or reason")
        rises = header.fence > link.fence if body.seized else header.fence == link.fence
        if not rises:
            raise Violation(f"{where} has fence {header.fence}, but the chunk had {link.fence}")
        for moved in body.items:
            told = self.story.items[moved.n]
            before = (moved.before, moved.stage_before)
            if not (link.lo <= moved.n < link.hi):
                raise Violation(f"{where} touches item {moved.n}, which is not in the chunk")
            if before != (told.state, told.stage):
                raise Violation(f"{where} moves item {moved.n} from {before}, but it is at {told}")
            least = told.stage if moved.epoch == told.epoch else 0
            if moved.epoch - told.epoch not in (0, 1):
                raise Violation(f"{where} takes item {moved.n} from epoch {told.epoch} to {moved.epoch}")
            if moved.stage_after < least:
                raise Violation(f"{where} takes item {moved.n} back within its epoch")
            in_flight = told.state is State.PENDING and link.owner is not None
            if not body.seized and in_flight:
                raise Violation(f"{where} changes item {moved.n} while {link.owner} holds it")
            if moved.output_digest:
                self.story.given.add((moved.n, moved.epoch))
                self.story.made[moved.n, moved.stage_after - 1] = moved.output_digest
            self.story.acted.append((header.kind, header.commit_id, moved.n))
            self.story.items[moved.n] = self._after(where, header.kind, told, moved)
            if moved.after == State.DEAD:
                self._bury(moved.n)
        if body.seized:
            link.fence, link.owner, link.progressed = header.fence, None, True

    def _after(self, where: str, kind: str, told: Told, moved: journal.Moved) -> Told:
        """Return the item after an act. An item that begins again has no attempts; a requeued one keeps them."""
        rewinds, requeues, attempt = told.rewinds, told.requeues, told.attempt
        if moved.epoch != told.epoch:
            rewinds, requeues = {"reset": 0, "rewound": rewinds}.get(kind), 0
            if kind == "rewound" and moved.after == State.PENDING:
                rewinds = self._one_more(where, moved.n, told.rewinds)
        if moved.after == State.PENDING:
            is_requeued = (moved.before, moved.stage_after, moved.epoch) == (State.PENDING, told.stage, told.epoch)
            attempt, requeues = (attempt, requeues + 1) if is_requeued else (0, 0)
            if requeues > REQUEUES:
                raise Violation(f"{where} requeues item {moved.n} for the {requeues}th time")
        elif moved.epoch != told.epoch:
            attempt = 0
        position = told.position if moved.position is None else moved.position
        payload, revision = (moved.digest, moved.revision) if moved.digest else (told.payload, told.revision)
        if revision - told.revision != bool(moved.digest):
            raise Violation(f"{where} gives item {moved.n} revision {revision} after {told.revision}")
        return Told(stage=moved.stage_after, state=State(moved.after), epoch=moved.epoch, attempt=attempt,
                    rewinds=rewinds, requeues=requeues, position=position, payload=payload, revision=revision,
                    parent=told.parent)  # fmt: skip

    def _pending(self, where: str, link: Link, n: int) -> Told:
        if not (link.lo <= n < link.hi):
            raise Violation(f"{where} touches item {n}, which is not in the chunk")
        told = self.story.items[n]
        if told.state is not State.PENDING:
            raise Violation(f"{where} works on item {n}, which is {told.state}")
        return told

    def _count(self, link: Link, at: tuple[int, int, int]) -> None:
        link.attempts += 1
        self.story.attempts[at] = self.story.attempts.get(at, 0) + 1
