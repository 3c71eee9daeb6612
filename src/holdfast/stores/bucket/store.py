"""A store on a bare bucket: one document for each chunk, replaced by compare-and-swap; nothing else has to be running.

Read the verbs in the order of an item's life: add_items (`admission`), claim, load, renew (`claims`),
commit, act (here); those of a batch as a whole stand in `batches` and `seal`. Each writes first what
never changes (items, outputs, the entry), then swaps one document, which makes all of it true at once. A verb that
loses the race reads again and decides again: a conflict is no lost lease, only another owner or fence is.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from holdfast.core import acts, settle
from holdfast.core.course import stage_count
from holdfast.core.errors import CommitUnknown, Refused, StoreError, UsageError
from holdfast.core.model import Act, Change, Chunk, ChunkId, Commit, ItemNo
from holdfast.stores import faults
from holdfast.stores.base import LANDED, Receipt, lineage, receipt_of
from holdfast.stores.bucket import chunks, names
from holdfast.stores.bucket.batches import TURNS
from holdfast.stores.bucket.claims import BucketClaims
from holdfast.stores.bucket.documents import ChunkDocument
from holdfast.stores.bucket.patience import patient
from holdfast.stores.bucket.shelf import Held, Raced

replace = msgspec.structs.replace


class BucketStore(BucketClaims):
    """Batches, items, outputs and the journal in a bucket."""

    @patient
    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        """Commits of several chunks are written side by side; those of one chunk, one after the other."""
        faults.reach("commit.before")
        for commit in commits:
            self._check(commit)
        ordered = sorted(enumerate(commits), key=lambda pair: pair[1].chunk)
        by_chunk = [list(group) for _, group in groupby(ordered, key=lambda pair: pair[1].chunk)]
        answers: dict[int, Receipt | StoreError] = {}
        for told in self._sight.each(self._commit_some, by_chunk):
            answers |= told
        failed = [answer for answer in answers.values() if isinstance(answer, StoreError)]
        if failed:
            some_landed = any(isinstance(answer, Receipt) and answer.landed for answer in answers.values())
            unknown = next((error for error in failed if isinstance(error, CommitUnknown)), None)
            if some_landed and unknown is None:
                raise CommitUnknown(f"{failed[0]}; others of its group landed")
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
        """Refuse what makes no sense before anything is written."""
        held = self._of(commit)
        if held is None:
            self._find_batch(names.batch_of(commit.chunk))
            raise UsageError(f"chunk {commit.chunk} does not exist")
        if _is_guarded(held, commit):
            commit.check_range(held.document.chunk.lo, held.document.chunk.hi)
            chunks.committed(held.document, commit, self.now())

    def _commit_one(self, commit: Commit) -> Receipt:
        held = self._of(commit)
        for turn in range(TURNS):
            if turn or held is None or not _is_guarded(held, commit) or held.document.seal:
                held = self._sight.fresh(names.batch_of(commit.chunk), names.number_of(commit.chunk))
                if held is None:
                    raise self._shelf.missing(names.chunk(names.batch_of(commit.chunk), names.number_of(commit.chunk)))
                is_sealed = self._is_sealed(held)
                if is_sealed or not _is_guarded(held, commit):
                    return self._refusal(held, commit, is_sealed=is_sealed)
            now, chunk = self.now(), held.document.chunk
            assert chunk.owner is not None
            entry = self._entry_of_chunk(chunk, commit.kind, commit.body, chunk.owner, commit.fence, commit.id, now)
            faults.reach("commit.begun")
            try:
                after = chunks.committed(held.document, commit, now)
                self._write_chunk(held, after, entry, "commit", chunks.data_of_commit(commit))
            except Raced:
                continue
            return LANDED
        raise self._crowded(f"chunk {commit.chunk}")

    def _refusal(self, held: Held[ChunkDocument], commit: Commit, *, is_sealed: bool) -> Receipt:
        """Why a commit does not land now, or that it did before: the chain is asked before owner and fence are."""
        if self._is_in_chain(held, commit):
            return receipt_of(settle.Judged(commit))
        chunk = held.document.chunk
        sealed = is_sealed or self._known_batch(chunk.batch).document.batch.sealed_at is not None
        return Receipt(landed=False, reason=settle.guard_of(chunk, sealed=sealed).refusal(commit))

    def _is_in_chain(self, held: Held[ChunkDocument], commit: Commit) -> bool:
        chunk, said = held.document.chunk, names.commit(commit.id)
        followed = self._chains.follow(chunk.batch, names.number_of(chunk.id), chunk.seq, chunk.head)
        return any(name.commit == said for name in reversed(followed))

    def _of(self, commit: Commit) -> Held[ChunkDocument] | None:
        return self._sight.known(names.batch_of(commit.chunk), names.number_of(commit.chunk))

    # -- operators ----------------------------------------------------------------------------------------------

    def act(self, act: Act) -> list[ItemNo]:
        """As the contract says, for every chunk: an act on several chunks is done one after the other."""
        faults.reach("act.before")
        held = self._known_batch(act.batch)
        if held.document.batch.sealed_at is not None:
            raise Refused(f"batch {held.document.batch.name!r} is sealed: reopen it before changing its items")
        seen = self._sight.sweep(held)
        for change in act.at_items:
            self._chunk_of(held.document, seen, change.n)
        if any(change.renewed is not None for change in act.at_items):
            self._expect_renewals(act)
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
        raise self._crowded(f"batch {act.batch}")

    def _expect_renewals(self, act: Act) -> None:
        """Say in the batch that payloads were replaced, before one is: who compares them looks at the chunks, too."""
        for _ in range(TURNS):
            held = self._known_batch(act.batch)
            if held.document.renewed:
                return
            try:
                self._shelf.swap(held, replace(held.document, renewed=True))
            except Raced:
                continue
            return
        raise self._crowded(f"batch {act.batch}")

    def _act_on_first(self, act: Act, left: Sequence[Change], written: set[ChunkId]) -> tuple[int, list[ItemNo]]:
        """Change the items of the first chunk: how many changes that were, and which came true. `written` are the
        chunks in whose chains this call has put the act."""
        batch = self._known_batch(act.batch)
        seen = self._sight.sweep(batch)
        held = self._sight.document(self._chunk_of(batch.document, seen, left[0].n))
        document, now = held.document, self.now()
        changes = [change for change in left if document.chunk.lo <= change.n < document.chunk.hi]
        if not changes:
            raise Raced  # it was cut between two looks
        if self._is_sealed(held):
            raise Refused(f"batch {batch.document.batch.name!r} is sealed: reopen it before changing its items")
        others = [chunk for chunk in lineage([each.chunk for each in seen], left[0].n) if chunk.id not in written]
        if acts.may_come_again(act) and self._was_done(act, others):
            return len(changes), []
        places = chunks.places_of(document, stage_count(batch.document.batch.definition))
        effect = acts.apply(act, document.chunk, changes, {change.n: places[change.n] for change in changes})
        if effect.changes:
            entry = self._entry_of_chunk(document.chunk, act.kind, effect.body, act.actor, effect.fence, act.id, now)
            after = chunks.acted(document, effect, now)
            self._write_chunk(held, after, entry, "act", chunks.data_of_act(effect))
            written.add(document.chunk.id)
        return len(changes), [change.n for change in effect.changes]

    def _was_done(self, act: Act, lineage: Sequence[Chunk]) -> bool:
        """Whether its id is in the chain of a chunk, or of one that it was cut from."""
        said = names.commit(act.id)
        return bool(act.id) and any(
            name.commit == said
            for chunk in lineage
            for name in self._chains.follow(chunk.batch, names.number_of(chunk.id), chunk.seq, chunk.head)
        )


def _is_guarded(held: Held[ChunkDocument], commit: Commit) -> bool:
    return settle.guard_of(held.document.chunk, sealed=False).lets_through(commit)
