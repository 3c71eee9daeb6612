"""A store in a plain bucket: one document for each chunk, replaced by compare-and-swap; no other service is needed.

Read the verbs in the order of an item's life: add_items, claim, load, renew, commit, act; before them come those of a
batch as a whole. Each first writes immutable objects (items, outputs, the entry), then swaps one document, which puts
all of them into effect at once. A verb that loses the race reads and decides again: a conflict does not mean a lost
lease, only another owner or fence does. A batch is sealed chunk by chunk: see `batches`.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from itertools import groupby, islice

import msgspec

from holdfast.core import acts, course, ingest, journal, lease, record, settle
from holdfast.core.commitments import Draw
from holdfast.core.errors import CommitUnknown, Refused, StoreError, StoreUnavailable, UsageError
from holdfast.core.ingest import Known
from holdfast.core.limits import BUCKET_ITEMS
from holdfast.core.model import (
    LANDED,
    Act,
    Admitted,
    Batch,
    BatchId,
    Change,
    Checkpoint,
    Chunk,
    ChunkId,
    Claim,
    ClaimRequest,
    Commit,
    CommitRefusal,
    Entry,
    Event,
    Item,
    ItemNo,
    ItemOrigin,
    Kind,
    Lease,
    NewItem,
    Output,
    Receipt,
    State,
    StoredItem,
)
from holdfast.stores import faults, owners
from holdfast.stores.base import (
    NOWHERE,
    BatchCopy,
    Capabilities,
    Idle,
    check_installable,
    find_batch,
    lineage,
    random_bytes,
    unwritten,
)
from holdfast.stores.bucket import chunks, names
from holdfast.stores.bucket.batches import TURNS, BatchDocuments, amended, mark_of
from holdfast.stores.bucket.cache import ChunkCache, chunk_with
from holdfast.stores.bucket.cas import DocumentStore, HeldDocument, Raced, StillUnknown, StoreIndex, open_root, patient
from holdfast.stores.bucket.copies import Copies, check_fits
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument, ItemGroup, Root
from holdfast.stores.bucket.grants import ChunkGrants
from holdfast.stores.bucket.items import Chains, Items, groups_of, together
from holdfast.stores.bucket.upgrade import digest_of
from holdfast.stores.bucket.writer import ChunkWriter
from holdfast.stores.buckets.base import Bucket

replace = msgspec.structs.replace
CAPABILITIES = Capabilities(budget=False, events=False, one_clock=False, items=BUCKET_ITEMS)
AT_ONCE = 8
"""Requests in progress at the same time."""


class BucketStore:
    """Batches, items, outputs and the journal in a bucket."""

    capabilities = CAPABILITIES

    def __init__(self, bucket: Bucket, *, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic, is_dead: Callable[[str], bool] = owners.is_dead,
                 at_once: int = AT_ONCE, pause: Callable[[float], None] = time.sleep,
                 draw: Draw = random_bytes) -> None:  # fmt: skip
        self.url = bucket.url
        self._bucket = bucket
        self.now = clock
        self._draw = draw
        self._documents = DocumentStore(bucket, pause)
        self._index = StoreIndex(self._documents, open_root(self._documents, draw).document.index_key, draw)
        self._chunks = ChunkCache(self._documents, monotonic, at_once, is_dead, self._upgraded)
        self._chains = Chains(self._documents)
        self._items = Items(self._documents, self._chains, self._chunks, self._index)
        self._batches = BatchDocuments(self._documents, self._chains, clock, draw)
        self._writer = ChunkWriter(self._documents, self._chains, self._items, self._chunks)
        self._grants = ChunkGrants(self._documents, self._chains, self._items, self._chunks, self._index, self._writer,
                                   clock, draw)  # fmt: skip
        self._copies = Copies(self._documents, self._batches, self._chains, self._items, self._chunks, self._index)

    def _upgraded(self, document: ChunkDocument) -> ChunkDocument:
        return self._items.upgraded(document, lambda: self._batches.known(document.chunk.batch).document)

    def mark(self, batch: BatchId) -> int | None:
        """Return None: a bucket does not report writes, and checking would be a request."""
        return None

    def close(self) -> None:
        self._chunks.close()
        self._bucket.close()

    @patient
    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        found = find_batch(self, name)
        if found is None:
            faults.reach("open_batch.before")
            found = self._batches.make(name, pipeline, definition, actor)
        if (found.pipeline, found.definition) == (pipeline, definition):
            return found
        return self._amend(found.id, course.to_redefine(pipeline, definition), actor).batch

    def install(self, copy: BatchCopy) -> Batch:
        """Write everything under a number that nobody else uses; the name in the root, which is last, puts it into
        effect."""
        check_installable(self, copy)
        check_fits(copy, self.url)
        faults.reach("open_batch.before")
        return self._copies.install(copy, lambda: check_installable(self, copy))

    @patient
    def amend(self, batch: BatchId, decide: course.Decide, *, actor: str) -> course.Amended:
        faults.reach("amend.before")
        return self._amend(batch, decide, actor)

    def _amend(self, batch: BatchId, decide: course.Decide, actor: str) -> course.Amended:
        """Decide, write the entry, swap the document; start over if another process was first."""
        for _ in range(TURNS):
            held = self._batches.known(batch)
            document = held.document
            facts = course.BatchFacts(  # the time is taken before chunks are read
                document.batch, self.now(), lambda: self._swept(self._batches.known(batch)),
                lambda kind, body, at=document: self._is_noted(at, kind, body),  # type: ignore[misc]
            )  # fmt: skip
            change = decide(facts)
            if change is None:
                return course.Amended(batch=document.batch, written=False)
            if not document.batch.uid:
                self._with_uid(held)
                continue
            marks = [mark_of(self._index(), change.kind, change.body)] if change.once else []
            entry = record.link_batch(document.batch, change.kind, change.body, actor, facts.now, self._draw)
            point = faults.AMENDMENTS.get(change.kind, faults.NOTE)
            try:
                written = self._batches.write(held, amended(document, change, marks), entry, point)
            except Raced:
                continue
            return course.Amended(batch=written.document.batch, written=True)
        raise self._batches.crowded(str(batch))

    def _is_noted(self, document: BatchDocument, kind: str, body: journal.Body) -> bool:
        if digest_of(kind, body) in document.noted:
            return True
        has_marks = bool(document.noted and document.batch.uid)
        return has_marks and mark_of(self._index(), kind, body) in document.noted

    def _swept(self, held: HeldDocument[BatchDocument]) -> list[Chunk]:
        return [seen.chunk for seen in self._chunks.sweep(held)]

    def _with_uid(self, held: HeldDocument[BatchDocument]) -> HeldDocument[BatchDocument]:
        """Return a batch that can be written to: of an earlier format, it is given what it lacks. The store has its key
        before a batch has a uid, so a reader of the marks of a batch finds the key."""
        if not held.document.batch.uid:
            self._index()
        return self._batches.with_uid(held, self._swept)

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        faults.reach("seal.before")
        held = self._batches.known(batch)
        course.check_sealable(held.document.batch, self._swept(held), reconciliation, now=self.now())
        held, word = self._with_uid(held), secrets.token_hex(8)
        found = held.document.batch
        try:
            held = self._documents.swap(held, replace(held.document, seal=word))
            faults.reach("bucket.sealing")
            marked = [self._chunks.mark(seen, word) for seen in self._chunks.sweep(held)]
            now, to_seal = self.now(), course.to_seal(reconciliation, reason=reason, events=events)
            change = to_seal(course.BatchFacts(found, now, lambda: marked, lambda _kind, _body: False))
            assert change is not None
            entry = record.link_batch(found, change.kind, change.body, actor, now, self._draw)
            return self._batches.write(held, replace(held.document, batch=change.batch), entry, "seal").document.batch
        except Raced:
            name = held.document.batch.name
            raise Refused(f"batch {name!r} cannot be sealed: it changed while it was sealed: try again") from None

    def add_items(
        self, batch: BatchId, items: Sequence[NewItem], *, kind: Kind = Kind.ITEMS, ended: bool = False,
        actor: str = "", origin: ItemOrigin = NOWHERE,
    ) -> Admitted:  # fmt: skip
        """Admit items as the contract requires, `BUCKET_CHUNK_ITEMS` at a time; several groups are admitted one after
        the other."""
        answers = [
            self._add_group(batch, group, kind, ended=ended and is_last, actor=actor, origin=origin)
            for group, is_last in groups_of(items)
        ]
        return answers[0] if len(answers) == 1 else together(answers)

    @patient
    def _add_group(self, batch: BatchId, items: Sequence[NewItem], kind: Kind, *, ended: bool, actor: str,
                   origin: ItemOrigin) -> Admitted:  # fmt: skip
        for turn in range(TURNS):
            held = self._batches.known(batch)
            found = held.document.batch
            fresh, answer = ingest.sort_out(items, self._items.known(held, items), found.admitted)
            if not fresh and not (ended and found.ingested_at is None):
                return answer
            course.check_takes_items(found, len(fresh))
            if found.admitted + len(fresh) > BUCKET_ITEMS:
                raise UsageError(
                    f"batch {found.name!r} would have more than {BUCKET_ITEMS:,} items, the most on a bucket: "
                    "split it, or keep its state in a database"
                )
            if turn == 0:
                faults.reach("add_items.before")
            held, is_last = self._with_uid(held), ended or course.is_last(found, len(fresh))
            try:
                self._admit(held, fresh, kind, ended=is_last, actor=actor, origin=origin)
            except Raced:
                continue
            return answer
        raise self._batches.crowded(f"batch {batch}")

    def _admit(self, held: HeldDocument[BatchDocument], fresh: Sequence[NewItem], kind: Kind, *, ended: bool,
               actor: str, origin: ItemOrigin) -> None:  # fmt: skip
        """Write the group, its chunk and the entry, then the document of the batch that names them."""
        document, batch = held.document, held.document.batch
        number = self._chunks.next_number(batch.id) if fresh else 0
        admission = record.of_items(batch, fresh, number=number, kind=kind, ended=ended, origin=origin,
                                    end=course.stage_count(batch.definition), draw=self._draw)  # fmt: skip
        grown = replace(batch, admitted=admission.body.hi, ingested_at=self.now() if ended else batch.ingested_at)
        if not fresh:
            entry = record.link_batch(batch, "ingested", admission.body, actor, self.now(), self._draw)
            self._batches.write(held, replace(document, batch=grown), entry, "add_items")
            return
        group = self._items.write(batch.id, fresh, admission)
        chunk, entry = self._make_chunk(batch, fresh, admission.body, actor)
        grouped = [*document.groups, ItemGroup(batch.admitted, grown.admitted, chunk.document.chunk.number, group)]
        self._batches.write(held, replace(document, batch=grown, groups=grouped), entry, "add_items")
        self._chunks.saw(chunk)

    def _make_chunk(
        self, batch: Batch, fresh: Sequence[NewItem], body: journal.Ingested, actor: str
    ) -> tuple[HeldDocument[ChunkDocument], Entry]:
        """Return the document of a chunk, under another number if its own is taken; its chain begins at the next entry
        of the batch."""
        while True:
            made, entry = chunks.new_chunk(batch, fresh, body, epoch=self._documents.epoch, actor=actor,
                                              now=self.now(), draw=self._draw)  # fmt: skip
            held = self._documents.create(names.chunk(batch.id, body.chunk), made)
            if held is not None:
                return held, entry
            body = replace(body, chunk=self._chunks.next_number(batch.id, taken=body.chunk))

    @patient
    def claim(self, want: ClaimRequest) -> Claim | Idle:
        if want.cap is not None:
            raise UsageError(f"{self.url}: a bucket cannot enforce a budget: keep its state in a database")
        for turn in range(TURNS):
            batch = self._batches.known(want.batch)
            seen = self._chunks.sweep(batch, *_asked(want))
            offer = self._grants.offer(batch.document, seen, want, is_crowded=turn > 0)
            if isinstance(offer, Idle):
                return offer
            if turn == 0:
                faults.reach("claim.before")
            try:
                return self._grants.grant(self._with_uid(batch).document, offer, want)
            except Raced:
                continue
            except StillUnknown as error:
                raise StoreUnavailable(f"{error}; if a chunk was granted, its lease ends by itself") from error
        raise self._batches.crowded(f"the chunks of batch {want.batch}")

    # -- holding ------------------------------------------------------------------------------------------------

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        faults.reach("renew.before")
        answers = self._chunks.each(lambda held: self._renew_one(held, seconds), leases)
        return [renewed for renewed in answers if renewed is not None]

    def _renew_one(self, given: Lease, seconds: float) -> Lease | None:
        batch, number = names.batch_of(given.chunk), names.number_of(given.chunk)
        held = self._chunks.known(batch, number)
        for _ in range(TURNS):
            if held is None or not lease.is_held_by(held.document.chunk, given):
                held = self._chunks.fresh(batch, number)  # the known document may be old, which is not a lost lease
                if held is None or not lease.is_held_by(held.document.chunk, given):
                    return None
            expires = self.now() + seconds
            faults.reach("renew.written")
            try:
                written = self._documents.swap(held, chunks.renewed(held.document, expires, seconds))
            except Raced:
                held = self._chunks.fresh(batch, number)
                continue
            self._chunks.saw(written)
            faults.reach("renew.after")
            return replace(given, expires=expires)
        raise self._batches.crowded(f"chunk {given.chunk}")

    # -- loading ------------------------------------------------------------------------------------------------

    @patient
    def load(self, claim: Claim, after: ItemNo | None, limit: int, max_bytes: int) -> list[Item]:
        batch = self._batches.known(claim.batch)
        lo, found = claim.lo if after is None else after + 1, list[Item]()
        for document in self._held_or_cut(batch, claim):
            places = document.places_between(lo, claim.hi)
            pending = [(n, place) for n, place in places if place.state is State.PENDING]
            for item in self._items.loaded(batch.document, document, pending[: limit - len(found)], max_bytes):
                found.append(item)
                max_bytes -= len(item.input)
                if len(found) >= limit or max_bytes <= 0:
                    return found
        return found

    def _held_or_cut(self, batch: HeldDocument[BatchDocument], claim: Claim) -> Sequence[ChunkDocument]:
        """Return the document of a claim; if the claim was lost, the documents that cover its items now."""
        held = self._chunks.known(claim.batch, names.number_of(claim.lease.chunk))
        granted = (claim.lease.fence, claim.lease.grant, claim.hi)
        if (
            held is not None
            and (held.document.chunk.fence, held.document.chunk.grant, held.document.chunk.hi) == granted
        ):
            return [held.document]
        return list(self._chunks.covering(batch, claim.lo, claim.hi))

    @patient
    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        """Write commits of several chunks in parallel; those of one chunk, one after the other."""
        faults.reach("commit.before")
        for commit in commits:
            self._check(commit)
        ordered = sorted(enumerate(commits), key=lambda pair: pair[1].chunk)
        by_chunk = [list(group) for _, group in groupby(ordered, key=lambda pair: pair[1].chunk)]
        answers: dict[int, Receipt | StoreError] = {}
        for told in self._chunks.each(self._commit_some, by_chunk):
            answers |= told
        failed = [answer for answer in answers.values() if isinstance(answer, StoreError)]
        if failed:
            some_landed = any(isinstance(answer, Receipt) and answer.landed for answer in answers.values())
            unknown = next((error for error in failed if isinstance(error, CommitUnknown)), None)
            if some_landed and unknown is None:
                raise CommitUnknown(f"{failed[0]}; other commits of its group landed")
            raise unknown if unknown is not None else failed[0]
        return [answer for _, answer in sorted(answers.items()) if isinstance(answer, Receipt)]

    def _commit_some(self, commits: Sequence[tuple[int, Commit]]) -> dict[int, Receipt | StoreError]:
        told: dict[int, Receipt | StoreError] = {}
        for at, commit in commits:
            try:
                told[at] = self._commit_one(commit)
            except StoreError as error:
                told[at] = error
        return told

    def _check(self, commit: Commit) -> None:
        """Refuse an invalid commit before anything is written."""
        held = self._of(commit)
        if held is not None and _is_guarded(held, commit):
            commit.check_range(held.document.chunk.lo, held.document.chunk.hi)
            chunks.committed(held.document, commit, self.now())

    def _commit_one(self, commit: Commit) -> Receipt:
        held, written = self._of(commit), record.of_commit(commit, self._draw, self._index().mark)
        commit = chunks.salted_commit(written)
        for turn in range(TURNS):
            if turn or held is None or not _is_guarded(held, commit) or held.document.seal:
                held = self._chunks.fresh(names.batch_of(commit.chunk), names.number_of(commit.chunk))
                if held is None:
                    self._batches.find(names.batch_of(commit.chunk))  # raises if its batch is gone as well
                    return Receipt(landed=False, reason=CommitRefusal.LOST)
                is_sealed = self._batches.is_sealed(held)
                if is_sealed or not _is_guarded(held, commit):
                    return self._refusal(held, commit, is_sealed=is_sealed)
            now, chunk = self.now(), held.document.chunk
            assert chunk.owner is not None
            assert commit.number == chunk.number, f"a commit for chunk {commit.chunk} names another"
            entry = record.link_chunk(commit.uid, chunk, commit.kind, written.encoded, chunk.owner, now,
                                      fence=commit.fence, grant=commit.grant, commit_id=commit.id)  # fmt: skip
            faults.reach("commit.begun")
            try:
                after = chunks.committed(held.document, commit, now)
                self._writer.write(held, after, entry, "commit", chunks.data_of_commit(commit))
            except Raced:
                continue
            return LANDED
        raise self._batches.crowded(f"chunk {commit.chunk}")

    def _refusal(self, held: HeldDocument[ChunkDocument], commit: Commit, *, is_sealed: bool) -> Receipt:
        """Return why a commit does not land now, or that it landed before: the chain is checked before owner and
        fence."""
        if self._chains.has(held.document.chunk, commit.id):
            return unwritten(settle.Judged(commit))
        chunk = held.document.chunk
        sealed = is_sealed or self._batches.known(chunk.batch).document.batch.sealed_at is not None
        return Receipt(landed=False, reason=settle.guard_of(chunk, sealed=sealed).refusal(commit))

    def _of(self, commit: Commit) -> HeldDocument[ChunkDocument] | None:
        return self._chunks.known(names.batch_of(commit.chunk), names.number_of(commit.chunk))

    # -- operators ----------------------------------------------------------------------------------------------

    def act(self, act: Act) -> list[ItemNo]:
        """Act as the contract requires, chunk by chunk: an act on several chunks is done one after the other."""
        faults.reach("act.before")
        held = self._batches.known(act.batch)
        if held.document.batch.sealed_at is not None:
            raise Refused(f"batch {held.document.batch.name!r} is sealed: reopen it before changing its items")
        seen = self._chunks.sweep(held)
        for change in act.at_items:
            chunk_with(seen, change.n, held.document.batch)
        if any(change.renewed is not None for change in act.at_items):
            self._with_uid(held)
            self._batches.expect_renewals(act.batch)
        changed: list[ItemNo] = []
        written: set[ChunkId] = set()
        left = sorted(act.at_items, key=lambda change: change.n)
        for _ in range(TURNS + len(left)):
            if not left:
                return changed
            try:
                done, some = self._act_on_first(act, left, written)
            except Raced:
                continue
            changed += some
            left = left[done:]
        raise self._batches.crowded(f"batch {act.batch}")

    def _act_on_first(self, act: Act, left: Sequence[Change], written: set[ChunkId]) -> tuple[int, list[ItemNo]]:
        """Change the items of the first chunk; return the number of changes and the items that changed. `written` are
        the chunks to whose chains this call has added the act."""
        batch = self._batches.known(act.batch)
        seen = self._chunks.sweep(batch)
        held = self._chunks.document(chunk_with(seen, left[0].n, batch.document.batch))
        document, now = held.document, self.now()
        changes = [change for change in left if document.chunk.lo <= change.n < document.chunk.hi]
        if not changes:
            raise Raced  # it was cut between two reads
        if self._batches.is_sealed(held):
            raise Refused(f"batch {batch.document.batch.name!r} is sealed: reopen it before changing its items")
        others = [chunk for chunk in lineage([each.chunk for each in seen], left[0].n) if chunk.id not in written]
        if acts.may_come_again(act) and any(self._chains.has(chunk, act.id) for chunk in others):
            return len(changes), []
        places = chunks.places_of(document)
        effect = acts.apply(act, document.chunk, changes, {change.n: places[change.n] for change in changes})
        if effect.changes:
            self._write_act(self._with_uid(batch).document.batch.uid, held, act, effect, now)
            written.add(document.chunk.id)
        return len(changes), [change.n for change in effect.changes]

    def _write_act(
        self, uid: bytes, held: HeldDocument[ChunkDocument], act: Act, effect: acts.Effect, now: float
    ) -> None:
        document, chunk = held.document, held.document.chunk
        made = record.of_act(effect, uid, chunk, act.id, self._draw, document.newest, self._index().mark)
        entry = record.link_chunk(uid, chunk, act.kind, made.encoded, act.actor, now, fence=effect.fence,
                                  commit_id=act.id)  # fmt: skip
        after = chunks.acted(document, chunks.salted_effect(effect, made), now)
        after = chunks.revised(after, chunk, made.revisions, self._index)
        self._writer.write(held, after, entry, "act", chunks.data_of_act(made))

    # -- batches and chunks -------------------------------------------------------------------------------------

    @patient
    def batches(self, name: str | None = None) -> list[Batch]:
        root = self._documents.need(Root, names.ROOT).document
        numbers = sorted(number for number, known in root.names if name in (None, known))
        return self._chunks.each(self._batches.number, numbers)

    @patient
    def chunks(
        self, batch: BatchId, *, of: ItemNo | None = None, pending: bool = False, limit: int | None = None
    ) -> list[Chunk]:
        held = self._batches.find(batch)
        span = (0, None) if of is None else (of, of + 1)
        found = [self._chunks.told(seen, self.now()) for seen in self._chunks.sweep(held, *span)] if held else []
        return [chunk for chunk in found if chunk.pending or not pending][:limit]

    # -- items --------------------------------------------------------------------------------------------------

    @patient
    def items(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, state: State | None = None,
                limit: int = 1000) -> list[StoredItem]:  # fmt: skip
        held = self._batches.known(batch)
        found: list[StoredItem] = []
        for document in self._chunks.covering(held, lo, hi):
            wanted = [(n, place) for n, place in document.places_between(lo, hi)
                      if state is None or place.state is state]  # fmt: skip
            found += self._items.stored(held.document, document, wanted[: limit - len(found)])
            if len(found) >= limit:
                break
        return found

    @patient
    def revisions(self, batch: BatchId, n: ItemNo) -> list[StoredItem]:
        held = self._batches.known(batch)
        return [
            item
            for document in self._chunks.covering(held, n, n + 1)
            for _, place in document.places_between(n, n + 1)
            for item in self._items.revisions(held.document, document, n, place)
        ]

    @patient
    def known(self, batch: BatchId, items: Sequence[NewItem]) -> Known:
        return self._items.known(self._batches.known(batch), items)

    @patient
    def outputs(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, stage: int | None = None,
                limit: int = 1000) -> list[Output]:  # fmt: skip
        held = self._batches.find(batch)
        found: list[Output] = []
        if held is None:
            return found
        for document in self._chunks.covering(held, lo, hi):
            found += islice(self._items.outputs(held.document, document, lo, hi, stage), limit - len(found))
            if len(found) >= limit:
                break
        return found

    @patient
    def checkpoints(self, batch: BatchId, *, lo: int = 0, hi: int | None = None, limit: int = 1000) -> list[Checkpoint]:
        held = self._batches.known(batch)
        found: list[Checkpoint] = []
        for document in self._chunks.covering(held, lo, hi):
            found += islice(self._items.checkpoints(held.document, document, lo, hi), limit - len(found))
        return found

    # -- the journal --------------------------------------------------------------------------------------------

    @patient
    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        if chain < 0:
            batch, number = BatchId(-chain), 0
            held = self._batches.find(batch)
            facts = None if held is None else (held.document.batch.seq, held.document.batch.head)
        else:
            batch, number = names.batch_of(chain), names.number_of(chain)
            found = self._chunks.fresh(batch, number)
            facts = None if found is None else (found.document.chunk.seq, found.document.chunk.head)
        if facts is None:
            self._batches.find(batch)
            return []
        wanted = self._chains.follow(batch, number, *facts)[after : after + limit]
        return self._chunks.each(lambda name: self._chains.read(batch, number, name), wanted)


def _asked(want: ClaimRequest) -> tuple[int, int | None]:
    """Return the range of items whose chunks must be read: all, if dead letters are counted."""
    return (0, None) if want.only is None or want.tolerance is not None else (want.only, want.only + 1)


def _is_guarded(held: HeldDocument[ChunkDocument], commit: Commit) -> bool:
    return settle.guard_of(held.document.chunk, sealed=False).lets_through(commit)
