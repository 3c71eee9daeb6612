"""The facts beside its counts that the word for a batch rests on: that its source gave nothing, and that its last run
ended in a way which running again does not change by itself."""

from collections.abc import Sequence

from holdfast.core import canonical, course, journal
from holdfast.core.ending import HALTS
from holdfast.core.model import Batch, Chunk, Course, State, Tolerance, chain_of_batch
from holdfast.runtime import lookup
from holdfast.stores.base import Store, each_checkpoint, each_entry, each_item, newest_entries

HALTED = "halted"
RECONCILED = "reconciled"
TOLERANCE = "tolerance"


def is_empty(store: Store, batch: Batch) -> bool:
    """Return whether the source of a batch was read to its end and gave no item, or of a scan no row, and nobody said
    that this is fine: a run that was told so notes an end, and so does a person by a number or a close."""
    if batch.ingested_at is None or batch.expected is not None or batch.closed_at is not None:
        return False
    if batch.course is Course.CANCELLED or batch.sealed_at is not None or _has_any(store, batch):
        return False
    return not any(
        journal.decode_header(e.head).kind == RECONCILED for e in each_entry(store, chain_of_batch(batch.id))
    )


def _has_any(store: Store, batch: Batch) -> bool:
    # Here, because both rooms stand on the status of a batch, which stands on this file.
    from holdfast.runtime.cursors.standing import is_scan
    from holdfast.runtime.scans.burial import is_row

    if not batch.admitted or not is_scan(batch):
        return bool(batch.admitted)
    if any(at.rows for at in each_checkpoint(store, batch.id)):
        return True
    return any(is_row(item.key) or item.place.state is not State.DONE for item in each_item(store, batch.id))


def halted_by(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> str:
    """Return why the last run ended, where it put that on record and nothing has come further since; else nothing, as
    where nothing is left to do, or no more are dead than were tolerated."""
    halt = _last_halt(store, batch, chunks)
    return "" if halt is None or not _holds(halt, batch, chunks) else halt.reason


def _last_halt(store: Store, batch: Batch, chunks: Sequence[Chunk]) -> journal.Acted | None:
    if not _goes_on(store, batch):
        return None
    touched = max((chunk.touched_at for chunk in chunks), default=0.0)
    for entry in newest_entries(store, chain_of_batch(batch.id), batch.seq):
        header = journal.decode_header(entry.head)
        if header.kind in ("ingested", "steered") or header.at < touched:
            return None
        if header.kind == HALTED:
            body = journal.decode_body(entry.body)
            return body if isinstance(body, journal.Acted) else None
    return None


def _holds(halt: journal.Acted, batch: Batch, chunks: Sequence[Chunk]) -> bool:
    """Return whether the reason is still one: people may have dealt with dead letters since."""
    if halt.reason != TOLERANCE:
        return True
    dead = sum(chunk.counts.dead for chunk in chunks)
    if not halt.note:
        return dead > 0
    count, share, window = canonical.decode(halt.note)
    return course.may_be_exceeded(Tolerance(count=count, share=share, window=window), dead, batch)


def _goes_on(store: Store, batch: Batch) -> bool:
    """Return whether there is something left to do, or may still come."""
    return batch.sealed_at is None and (batch.ingested_at is None or not store.is_settled(batch.id))


def note_halt(store: Store, batch: Batch, reason: str, *, actor: str, tolerance: Tolerance | None = None) -> None:
    """Put on record how a run ended, where a status shall tell it, or would tell another reason from before. Not twice
    the same in a row, and not once nothing is left to do: the journal of a batch that has ended stays as it is."""
    now = lookup.batch_named(store, batch.name)
    if not reason or not _goes_on(store, now):
        return
    before, note = _last_halt(store, now, store.chunks(batch.id)), b""
    if reason == TOLERANCE and tolerance is not None:
        note = canonical.encode([tolerance.count, tolerance.share, tolerance.window])
    halt = journal.Acted(reason=reason, note=note)
    if before != halt and (before is not None or reason in HALTS):
        store.note(batch.id, HALTED, journal.encode_body(halt), actor=actor)
