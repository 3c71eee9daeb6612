"""The check that a source is still what it was when a scan of it began. It is made before another row is read, and
before a finished scan is reported as complete again."""

from collections.abc import Collection, Iterator
from contextlib import suppress

import msgspec

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor, Standing, go_on_from
from holdfast.core.errors import HoldfastError, SourceChanged
from holdfast.core.ingest import admit
from holdfast.core.model import Batch, BatchMode, Change, Kind, State
from holdfast.runtime.acts import Actor, Acts
from holdfast.runtime.partitions import identity_of, rows_by_state, rows_handled, span_of, standings
from holdfast.runtime.sources.base import Identified, Inventoried, NotThereError, Readable, Since, Span
from holdfast.runtime.sources.text_file import LineFile
from holdfast.runtime.text import command, many
from holdfast.stores.base import Store, each_item


def refuse_changed(source: Readable, span: Span, what: str) -> None:
    """Raise SourceChanged, with the difference, if a half-done scan would resume in a changed source."""
    if span.identity is None or not isinstance(source, Identified):
        return
    difference = source.changed(span.identity)
    if difference is not None:
        raise SourceChanged(
            f"{what}: {source!r} changed after the scan began: {difference}. The checkpoints have no meaning in a "
            f"changed file: put the old one back, or scan the new one under a new batch name{_corrected(source)}"
        )


def _corrected(source: Readable) -> str:
    """Return what to do if only rows that were not handled yet were changed."""
    if not isinstance(source, LineFile) or not source.can_be_sought:
        return ""
    return (
        ". If you corrected rows that were not handled yet, and nothing before them, run it again with "
        'accept_source="what you corrected"'
    )


def refuse_changed_batch(source: Readable, store: Store, batch: Batch) -> tuple[str, ...]:
    """Check the source of a whole batch, before anything is claimed. For a finished batch, return a warning about added
    rows."""
    span = _span_now(source, store, batch)
    if span is None or span.identity is None or batch.course is BatchMode.CANCELLED:
        return ()
    if _has_open_ranges(store, batch):
        refuse_changed(source, span, f"batch {batch.name!r}")
        return ()
    found = _since(source, store, batch, span)
    if found.changed:
        states = rows_by_state(store.chunks(batch.id)).keys()
        if _only_buried_rows_changed(source, store, batch, span, states):
            return ()
        buried = (
            ". If you corrected buried rows, each must have as many bytes as before (pad it with blanks), and must be "
            f"redriven first: {command('dead redrive', batch.name)}. To settle a row by hand instead, put the old file "
            f"back: {command('dead resolve', batch.name, 'ROW')}"
        )
        dead = _dead_range(store, batch) if not states and _corrected(source) else ""
        raise SourceChanged(
            f"batch {batch.name!r} is finished, and {source!r} has changed since: {found.changed}. The results of the "
            "batch were made from the old one: put that back, or scan the new one under its own batch name "
            '(batch="NAME")'
            f"{buried if states else _redrive_first(batch, dead) if dead else ''}"
        )
    return (grown_by(source, batch, found),) if found.more else ()


def _only_buried_rows_changed(
    source: Readable, store: Store, batch: Batch, span: Span, states: Collection[str]
) -> bool:
    """Return whether nothing but buried rows that were redriven or settled since can have changed. In a file each of
    them must have as many bytes as before: otherwise rows behind it are not where the record says. A file that cannot
    be compared in parts is accepted only while redriven rows are about to be read."""
    if not set(states) - {State.DEAD.value}:
        return False
    if not isinstance(source, LineFile) or not source.can_be_sought:
        return State.PENDING.value in states or not isinstance(source, Identified)
    before = span.identity
    with suppress(NotThereError):
        if isinstance(before, dict) and source.identity()["size"] == before["size"]:
            rows = each_item(store, batch.id, kind=Kind.ROWS)
            return source.changed_beside(before, [source.bytes_of(span_of(row.payload).after) for row in rows]) is None
    return False


def _redrive_first(batch: Batch, dead: str) -> str:
    redrive = command("dead redrive", batch.name, dead, "--reason …")
    return (
        f". If you corrected rows of partition {dead}, which died, and nothing before them, redrive it ({redrive}), "
        'then run it again with accept_source="what you corrected"'
    )


def grown_by(source: Readable, batch: Batch, found: Since) -> str:
    """Return the warning about a source that has grown."""
    way = "" if isinstance(source, LineFile) else "follow it (hf.Follow(…)), or "
    return (
        f"{source!r} has grown by {many(found.more, found.noun)} since batch {batch.name!r} began, and these are in "
        f"none of its partitions; to read them, {way}scan it under a new batch name"
    )


def _since(source: Readable, store: Store, batch: Batch, span: Span) -> Since:
    """Return how the source of a finished scan has changed. A scan by an older version, or of a source without an
    identity, has nothing to compare with."""
    assert span.identity is not None
    try:
        if isinstance(source, Identified):
            changed = source.changed(span.identity)
            return Since(changed if changed is not None else "")
        if isinstance(source, Inventoried):
            return source.since(span.identity, rows_handled(store, batch, store.chunks(batch.id)))
    except NotThereError as error:
        return Since(f"{error}")
    return Since()


def _dead_range(store: Store, batch: Batch) -> str:
    dead = each_item(store, batch.id, state=State.DEAD, kind=Kind.PARTITIONS)
    return next((canonical.key_text(item.key) for item in dead), "")


def _span_now(source: Readable, store: Store, batch: Batch) -> Span | None:
    """Return the partition with the latest identity of the source that the batch knows: the first, unless corrections
    were accepted since it ended. Then it is one that is open, or was when they were accepted."""
    first = _first_span(store, batch)
    if first is None or first.identity is None or not isinstance(source, LineFile):
        return first
    with suppress(NotThereError):
        if source.changed(first.identity) is None:
            return first
        for item in each_item(store, batch.id, kind=Kind.PARTITIONS):
            span = span_of(item.payload) if item.payload else None
            if span is None or span.identity is None or span.identity == first.identity:
                continue
            if item.place.state is State.PENDING or source.changed(span.identity) is None:
                return span
    return first


def _first_span(store: Store, batch: Batch) -> Span | None:
    """Return the first partition: all have the same identity."""
    item = next(iter(store.items(batch.id, limit=1)), None)
    return span_of(item.payload) if item is not None and item.payload else None


def _has_open_ranges(store: Store, batch: Batch) -> bool:
    chunks = store.chunks(batch.id)
    return batch.ingested_at is None or any(chunk.pending for chunk in chunks if chunk.kind is Kind.PARTITIONS)


def grown(source: Readable, store: Store, batch: Batch) -> Iterator[str]:
    """Yield a warning if a file has grown since it was divided into partitions that end: no partition has the new
    rows."""
    span = _span_now(source, store, batch)
    if span is None or span.until is None or not isinstance(span.identity, dict) or not isinstance(source, Identified):
        return
    try:
        changed, more = source.changed(span.identity), source.identity()["size"] - span.identity["size"]
    except (HoldfastError, KeyError, TypeError):
        return  # the file is gone, or has no size
    if more > 0 and changed is None:
        yield grown_by(source, batch, Since(more=more, noun="byte"))


def accept_corrected(source: Readable, store: Store, batch: Batch, reason: str, actor: str) -> None:
    """Let unfinished partitions continue in the file as it is now; the journal keeps the reason. Dead letters are left
    alone: redrive them first."""
    if not isinstance(source, LineFile) or not source.can_be_sought:
        return
    parts = [at for at in standings(store, batch) if isinstance(identity_of(at), dict)]
    waiting = [at for at in parts if at.place.state is State.PENDING and source.changed(identity_of(at)) is not None]
    if not waiting:
        return
    known, now = identity_of(parts[-1]), source.identity()
    more = now["size"] - known["size"]
    if more and waiting != parts[-1:]:
        raise SourceChanged(_moved(source, batch, waiting, more))
    if (beside := source.changed_beside(known, [_left(source, at) for at in waiting])) is not None:
        raise SourceChanged(
            f"batch {batch.name!r}: {source!r} changed after the scan began: {beside}, and the rows there were already "
            "handled. Put the old file back, or scan the new one under its own batch name "
            '(batch="NAME")'
        )
    changes = [_renewed(at, now, more, reason) for at in waiting]
    Acts(store, batch, Actor(name=actor, reason=reason)).write("renewed", changes, seize=True)


def _left(source: LineFile, at: Standing) -> tuple[int, int | None]:
    """Return the first and the last byte that a partition has left to read."""
    begin = source.byte_after(at.cursor if at.cursor is not None else at.after)
    return begin, at.until.value if at.until is not None and at.until.kind == "byte" else None


def _renewed(at: Standing, now: dict[str, object], more: int, reason: str) -> Change:
    """Return the change that lets a partition resume at its checkpoint, in the file as it is now."""
    plain = canonical.decode(at.payload)
    until = at.until
    if until is not None and until.kind == "byte" and more:
        until = Cursor("byte", until.value + more, until.tiebreaker)
    plain |= {"identity": now, "until": None if until is None else cursor.to_plain(until)}
    change = go_on_from(at, None, 1, reason=reason, even_so=True)
    assert isinstance(change, Change)
    return msgspec.structs.replace(change, renewed=admit(at.key, canonical.encode(plain)))


def _moved(source: LineFile, batch: Batch, waiting: list[Standing], more: int) -> str:
    keys = ", ".join(canonical.key_text(at.key) for at in waiting)
    return (
        f"batch {batch.name!r}: {source!r} has {many(abs(more), 'byte')} {'more' if more > 0 else 'fewer'} than when "
        f"the scan began, and partition {keys} is followed by others, whose borders are byte positions in the old "
        "file: correct the row so that it has as many bytes as before (pad it with spaces), put the old file back, or "
        "scan the new "
        'one under its own batch name (batch="NAME")'
    )
