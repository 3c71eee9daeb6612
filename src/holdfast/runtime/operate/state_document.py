"""The whole state of a scan as one document, which can be shown, exported and imported."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor, Standing, fingerprint
from holdfast.core.errors import Damaged, NotOurs, Refused, SchemaTooNew, UsageError
from holdfast.core.model import Batch, Checkpoint, Chunk, ItemNo, Key
from holdfast.runtime.partitions import PartitionLease, chunk_of, identity_of, last_two, lease_of, source_of, standings
from holdfast.stores.base import Store

FORMAT = "holdfast cursor state"
VERSION = 1


class PartitionDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One partition in a document."""

    key: Key
    after: Any
    until: Any
    expected_rows: int | None
    state: str
    epoch: int
    checkpoint: dict[str, Any] | None
    lease: dict[str, Any]
    identity: Any = None
    """The identity of the source when it was divided, if the source has one."""

    def checkpoint_for(self, n: ItemNo) -> Checkpoint:
        """Return its checkpoint as the checkpoint of an item."""
        said = self.checkpoint
        if said is None:
            return Checkpoint(n, 0, b"")
        what = f"the state of partition {self.key!r}"
        if type(said.get("rows")) is not int or said["rows"] < 0 or not {"cursor", "acc"} <= said.keys():
            raise NotOurs(f"{what} lacks rows, cursor or acc: it was not written by `holdfast cursor export`")
        at = b"" if said["cursor"] is None else cursor.encode(cursor.from_plain(said["cursor"], what))
        acc = None if said["acc"] is None else canonical.encode_typed(canonical.from_plain(said["acc"], what), what)
        return Checkpoint(n, said["rows"], at, acc)

    @property
    def fence(self) -> int:
        fence = self.lease.get("fence")
        if type(fence) is not int or fence < 0:
            raise NotOurs(f"the state of partition {self.key!r} has {fence!r} as its fence, which is not a valid fence")
        return fence


class StateDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a whole scan."""

    format: str
    version: int
    name: str
    pipeline: str
    source: Any
    source_fingerprint: str
    definition: dict[str, Any]
    at: str
    partitions: list[PartitionDocument]
    digest: str = ""

    @property
    def fence(self) -> int:
        """The highest fence that was given out."""
        return max((part.fence for part in self.partitions), default=0)


def seal(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the document with its digest, by which a reader can see that it is complete and unchanged."""
    return {**plain, "digest": digest_of(plain)}


def digest_of(plain: dict[str, Any]) -> str:
    rest = {name: value for name, value in plain.items() if name != "digest"}
    return f"sha256:{canonical.digest(canonical.encode(rest)).hex()}"


def read(data: bytes, what: str) -> StateDocument:
    """Return the state in a document. Raises Damaged if it is truncated or changed, NotOurs if it is something else,
    and SchemaTooNew if a later version wrote it."""
    plain = plain_object(data, what)
    if plain.get("format") != FORMAT:
        raise NotOurs(
            f"{what} is not the state of a whole scan, as `holdfast cursor export` writes it; nothing was changed"
        )
    check_version(plain, VERSION, what)
    try:
        state = msgspec.convert(plain, StateDocument, strict=True)
    except msgspec.ValidationError as error:
        raise NotOurs(f"{what} is not a state that this version can read: {error}; nothing was changed") from None
    if state.digest != digest_of(plain):
        raise Damaged(f"{what} was changed or damaged after it was exported: export it again; nothing was changed")
    for part in state.partitions:
        part.checkpoint_for(ItemNo(0))
        assert part.fence >= 0
    return state


def plain_object(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in some bytes."""
    if not data.strip():
        raise Damaged(f"{what} is empty; nothing was changed")
    try:
        plain = canonical.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Damaged(f"{what} is truncated, damaged or not JSON ({error}); nothing was changed") from None
    if not isinstance(plain, dict):
        raise NotOurs(f"{what} is not a state: it is JSON, but not an object; nothing was changed")
    return plain


def check_version(plain: dict[str, Any], known: int, what: str) -> None:
    """Refuse every version but the known one."""
    version = plain.get("version")
    if type(version) is not int:
        raise NotOurs(f"{what} is not a state: its version is not a number; nothing was changed")
    if version > known:
        raise SchemaTooNew(
            f"{what} has version {version}, but this Holdfast reads version {known}: update Holdfast; nothing was "
            "changed"
        )
    if version != known:
        raise Refused(f"{what} has version {version}, which never existed: export it again; nothing was changed")


def check_source(state: StateDocument, source: Any, name: str, what: str) -> None:
    """Refuse a state of another source, and name the differences."""
    if state.source != source:
        raise Refused(
            f"{what} is the state of a different source than that of {name!r}: {_differences(state.source, source)}; "
            "its cursors have no meaning there; nothing was changed"
        )


def _differences(old: Any, new: Any) -> str:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{old!r} in the state, {new!r} here"
    if old.get("kind") != new.get("kind"):
        return f"a {old.get('kind')} in the state, a {new.get('kind')} here"
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return ", ".join(f"{name} is {old.get(name)!r} in the state and {new.get(name)!r} here" for name in names)


def check_key(parts: list[PartitionDocument], what: str) -> None:
    """Refuse a state that lists a partition twice."""
    keys = [canonical.key_text(part.key) for part in parts]
    if len(set(keys)) != len(keys):
        raise UsageError(f"{what} lists a partition twice: it is not the state of a scan")


def document(store: Store, batch: Batch, partition: str | None = None) -> dict[str, Any]:
    """Return the state of a scan, with a digest over all of it; or of one partition, which cannot be imported."""
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
    """Return a time in ISO 8601; None for None."""
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
    """Return the checkpoint with the commit that wrote it, and how many rows that commit covered."""
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


def _lease(held: PartitionLease) -> dict[str, Any]:
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
