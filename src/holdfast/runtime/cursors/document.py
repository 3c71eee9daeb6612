"""The whole state of a scan as one document: what `cursor show` prints and `cursor export` writes."""

from datetime import UTC, datetime
from typing import Any

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor, Standing, fingerprint
from holdfast.core.model import Batch, Chunk
from holdfast.core.state_document import FORMAT, VERSION, seal
from holdfast.runtime.cursors.history import last_two
from holdfast.runtime.cursors.standing import Lease, chunk_of, identity_of, lease_of, source_of, standings
from holdfast.stores.base import Store


def document(store: Store, batch: Batch, partition: str | None = None) -> dict[str, Any]:
    """The state of a scan, with a digest over all of it; or of one partition, which is no state to be put back."""
    source, chunks = source_of(batch), store.chunks(batch.id)
    return seal({
        "format": FORMAT if partition is None else f"{FORMAT}, one partition of it",
        "version": VERSION,
        "name": batch.name,
        "pipeline": batch.pipeline,
        "source": source,
        "source_fingerprint": fingerprint(source),
        "definition": canonical.decode(batch.definition),
        "at": moment(store.now()),
        "partitions": [_part(store, chunks, at) for at in standings(store, batch, partition)],
    })  # fmt: skip


def moment(at: float | None) -> str | None:
    """A time as people and machines read it; None where there is none."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


def _part(store: Store, chunks: list[Chunk], at: Standing) -> dict[str, Any]:
    identity = identity_of(at)
    return {
        "key": at.key,
        "after": _plain(at.after),
        "until": _plain(at.until),
        "expected_rows": at.expected,
        "state": at.place.state.value,
        "epoch": at.place.epoch,
        "checkpoint": _checkpoint(store, chunks, at),
        "lease": _lease(lease_of(store, chunk_of(chunks, at.n))),
        **({} if identity is None else {"identity": identity}),
    }


def _checkpoint(store: Store, chunks: list[Chunk], at: Standing) -> dict[str, Any] | None:
    """How far it has come, with the commit that said so and how many rows that covered."""
    found = at.checkpoint
    if found is None:
        return None
    past = last_two(store, chunks, at.n)
    before = past[1].rows if len(past) > 1 else 0
    last = past[0] if past else None
    is_commit = last is not None and last.kind == "checkpoint"
    return {
        "cursor": _plain(at.cursor),
        "rows": found.rows,
        "acc": None if found.acc is None else canonical.to_plain(canonical.decode_typed(found.acc)),
        "updated_at": moment(found.at),
        "last_commit_id": last.commit_id if last is not None else None,
        "last_commit_rows": found.rows - before if is_commit else 0,
        "last_commit_kind": last.kind if last is not None else None,
    }


def _lease(held: Lease) -> dict[str, Any]:
    return {
        "owner": held.owner,
        "fence": held.fence,
        "acquired_at": moment(held.acquired_at),
        "heartbeat_at": moment(held.heartbeat_at),
        "expires_at": moment(held.expires_at),
        "is_live": held.is_live,
        "by_its_clock": held.by_its_clock,
    }


def _plain(at: Cursor | None) -> Any:
    return None if at is None else cursor.to_plain(at)
