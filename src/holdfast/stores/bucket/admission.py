"""Admitting items to a batch on a bucket: a group of items and its chunk are written, then the batch takes them in."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core import course, ingest, journal
from holdfast.core.errors import UsageError
from holdfast.core.limits import BUCKET_CHUNK_ITEMS, BUCKET_ITEMS
from holdfast.core.model import Admitted, Batch, BatchId, Chunk, Counts, Entry, ItemNo, NewItem, State
from holdfast.stores import faults
from holdfast.stores.bucket import names
from holdfast.stores.bucket.batches import TURNS
from holdfast.stores.bucket.documents import BatchDocument, ChunkDocument, Group, row_of
from holdfast.stores.bucket.patience import patient
from holdfast.stores.bucket.seal import BucketSeal
from holdfast.stores.bucket.shelf import Held, Raced

replace = msgspec.structs.replace


class BucketAdmission(BucketSeal):
    """Items in."""

    def add_items(self, batch: BatchId, items: Sequence[NewItem], *, ended: bool = False, actor: str = "") -> Admitted:
        """As the contract says, for `BUCKET_CHUNK_ITEMS` at a time; several groups are admitted one after the other."""
        answers = [
            self._add_group(batch, group, ended=ended and is_last, actor=actor) for group, is_last in _groups(items)
        ]
        return answers[0] if len(answers) == 1 else _together(answers)

    @patient
    def _add_group(self, batch: BatchId, items: Sequence[NewItem], *, ended: bool, actor: str) -> Admitted:
        for turn in range(TURNS):
            held = self._known_batch(batch)
            found = held.document.batch
            fresh, answer = ingest.sort_out(items, self._known_items(held, items), found.admitted)
            if not fresh and not (ended and found.ingested_at is None):
                return answer
            course.check_open_to_items(found)
            course.check_takes_new(found, len(fresh))
            if found.admitted + len(fresh) > BUCKET_ITEMS:
                raise UsageError(
                    f"batch {found.name!r} would have more than {BUCKET_ITEMS:,} items, the most that a bucket takes: "
                    "split it, or keep its state in a database"
                )
            if turn == 0:
                faults.reach("add_items.before")
            try:
                self._admit(held, fresh, ended=ended or course.is_last(found, len(fresh)), actor=actor)
            except Raced:
                continue
            return answer
        raise self._crowded(f"batch {batch}")

    def _admit(self, held: Held[BatchDocument], fresh: Sequence[NewItem], *, ended: bool, actor: str) -> None:
        """The group, its chunk, the entry, and then the document of the batch that names them."""
        document, batch = held.document, held.document.batch
        grown = replace(
            batch, admitted=batch.admitted + len(fresh), ingested_at=self.now() if ended else batch.ingested_at
        )
        if not fresh:
            body = journal.Ingested(lo=batch.admitted, hi=batch.admitted, ended=ended)
            entry = self._entry_of_batch(batch, "ingested", journal.encode_body(body), actor, self.now())
            self._write_batch(held, replace(document, batch=grown), entry, "add_items")
            return
        group = self._items.write(batch.id, batch.admitted, fresh)
        chunk, entry = self._make_chunk(batch, fresh, ended=ended, actor=actor)
        number = names.number_of(chunk.document.chunk.id)
        grouped = [*document.groups, Group(batch.admitted, grown.admitted, number, group)]
        self._write_batch(held, replace(document, batch=grown, groups=grouped), entry, "add_items")
        self._sight.saw(chunk)

    def _make_chunk(
        self, batch: Batch, fresh: Sequence[NewItem], *, ended: bool, actor: str
    ) -> tuple[Held[ChunkDocument], Entry]:
        """The document of a chunk under a number that nobody has; its chain begins where that of the batch will be."""
        lo = batch.admitted
        dead = {n: item.place for n, item in enumerate(fresh, start=lo) if item.place.state is State.DEAD}
        digests = b"".join([item.digest for item in fresh])
        number = self._next_number(batch.id)
        while True:
            identity = names.chunk_id(batch.id, number)
            body = journal.Ingested(lo=lo, hi=lo + len(fresh), digests=digests, chunk=identity, ended=ended,
                                    invalid=[(n, place.code) for n, place in dead.items()])  # fmt: skip
            entry = self._entry_of_batch(batch, "ingested", journal.encode_body(body), actor, self.now())
            chunk = Chunk(id=identity, batch=batch.id, lo=ItemNo(lo), hi=ItemNo(lo + len(fresh)),
                          fence=self._shelf.epoch, head=entry.hash, counts=Counts(dead=len(dead)),
                          touched_at=self.now())  # fmt: skip
            made = ChunkDocument(chunk=chunk, places={n: row_of(place) for n, place in dead.items()})
            held = self._shelf.create(names.chunk(batch.id, number), made)
            if held is not None:
                return held, entry
            number = self._next_number(batch.id, taken=number)

    def _next_number(self, batch: BatchId, taken: int = 0) -> int:
        """A number that no chunk of the batch has, as far as this process knows. Who takes it may find it taken."""
        return self._sight.highest(batch, taken) + 1


def _groups(items: Sequence[NewItem]) -> Iterator[tuple[Sequence[NewItem], bool]]:
    """Parts of a size that a document can hold, each with whether it is the last."""
    for at in range(0, max(1, len(items)), BUCKET_CHUNK_ITEMS):
        yield items[at : at + BUCKET_CHUNK_ITEMS], at + BUCKET_CHUNK_ITEMS >= len(items)


def _together(answers: Sequence[Admitted]) -> Admitted:
    return Admitted(
        added=sum(answer.added for answer in answers),
        lo=answers[0].lo,
        known=sum(answer.known for answer in answers),
        dead=tuple(n for answer in answers for n in answer.dead),
        changed=tuple(
            (at * BUCKET_CHUNK_ITEMS + index, n) for at, answer in enumerate(answers) for index, n in answer.changed
        ),
    )
