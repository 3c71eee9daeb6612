"""Scans that continue where another program stopped: its cursor as ours, its token respected, its history noted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical, cursor, cursors, foreign, journal
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import Checkpoint, ItemNo
from holdfast.runtime import definition
from holdfast.runtime.cursors.planting import IMPORTED, Plan, Seed, check_free
from holdfast.runtime.durations import when
from holdfast.runtime.operating.operations import By
from holdfast.runtime.scan import Scan
from holdfast.runtime.scans.handler import Shape
from holdfast.runtime.scans.stage import RangeStage, payload_of
from holdfast.runtime.schema import Invalid
from holdfast.runtime.sources.base import Readable, Span

FOLLOW = "follow"
"""The key of the one range of a scan that follows its source."""
HISTORY_AT_ONCE = 1_000
"""Steps of a history in one entry of the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What is imported: the batch to be made, and what to tell about it."""

    plan: Plan
    history: tuple[dict[str, Any], ...]
    """Steps that were made elsewhere, for the journal."""
    told: tuple[str, ...]

    def notes(self, by: By) -> Iterator[bytes]:
        """The history as bodies of journal entries."""
        for start in range(0, len(self.history), HISTORY_AT_ONCE):
            some = {"history": self.history[start : start + HISTORY_AT_ONCE], "from": start}
            yield journal.encode_body(journal.Acted(reason=by.reason, note=canonical.encode(some)))

    def as_dict(self) -> dict[str, Any]:
        parts = [
            {"partition": seed.key, "rows": seed.checkpoint.rows,
             "cursor": cursor.to_plain(cursor.decode(seed.checkpoint.cursor)) if seed.checkpoint.cursor else None}
            for seed in self.plan.seeds
        ]  # fmt: skip
        return {"act": IMPORTED, "batch": self.plan.name, "fence_above": self.plan.fence, "partitions": parts,
                "history": len(self.history), **self.plan.origin}  # fmt: skip


def from_poller(scan: Scan, batch: str, data: bytes, name: str, *, now: float) -> Arrival:
    """The state of a poller: one cursor, and a lease whose token every fence of ours is above."""
    state = foreign.read_poller(data, name)
    expires = state.expires
    if expires is not None and expires > now:
        raise Refused(
            f"{name}: {state.lease.owner_id} holds the lease until {when(expires)}, and may still deliver: stop that "
            "poller, and import the state it leaves behind; nothing was changed"
        )
    spans = ranges_of(scan)
    if len(spans) != 1:
        raise UsageError(f"{name} has one cursor, scan {scan.name!r} has {len(spans)} partitions: define it with one")
    key, span = spans[0]
    at = foreign.poller_cursor(state.checkpoint.cursor, sample(scan.source, span, name), name)
    _check_within(span, key, at)
    seed = _seed(key, span, Checkpoint(ItemNo(0), 0, cursor.encode(at)))
    said = state.checkpoint
    origin = {
        "format": "poller state", "file": name, "digest": _digest(data), "poller": state.poller_name,
        "source_fingerprint": state.source_fingerprint, "last_batch": said.last_successful_batch_id,
        "updated_at": said.updated_at, "row_count": said.metadata.get("row_count"), "fence": state.lease.fence,
    }  # fmt: skip
    told = ("rows are counted from here: the state does not say how many came before",)
    return _arrival(scan, batch, [seed], state.lease.fence, origin, (), told)


def from_checkpoints(
    scan: Scan, batch: str, files: Sequence[tuple[str | None, bytes, str]], *, by_rows: bool = False
) -> Arrival:
    """Checkpoints with their history: (partition, content, name) of each. Partitions without one begin at the start."""
    spans = ranges_of(scan)
    found: dict[str, Checkpoint] = {}
    history: list[dict[str, Any]] = []
    for partition, data, name in files:
        key, span = _chosen(scan, spans, partition, name)
        if canonical.key_text(key) in found:
            raise UsageError(f"{name}: there is a checkpoint for partition {key!r} already; nothing was changed")
        said = foreign.read_checkpoint(data, name)
        found[canonical.key_text(key)] = _checkpoint(scan, said, span, key, name, by_rows)
        history += [{"partition": key, "cursor": each.cursor, "at": each.timestamp} for each in said.history]
    seeds = [_seed(key, span, found.get(canonical.key_text(key))) for key, span in spans]
    origin = {"format": "checkpoint with history", "files": [name for _, _, name in files],
              "digests": [_digest(data) for _, data, _ in files]}  # fmt: skip
    fresh = [str(key) for key, _ in spans if canonical.key_text(key) not in found]
    told = (f"partitions {', '.join(fresh)} begin at their start",) if fresh else ()
    return _arrival(scan, batch, seeds, 0, origin, tuple(history), told)


def ranges_of(scan: Scan) -> list[tuple[str | int, Span]]:
    """The partitions that the scan has."""
    if getattr(scan, "follow", False):
        return [(FOLLOW, Span())]
    return list(enumerate(scan.source.split(scan.partitions)))


def sample(source: Readable, span: Span, what: str) -> Cursor:
    """A cursor of this source, which tells its kind and types: that of the first row."""
    for page in source.read(span.after, span.until):
        if len(page.rows):
            return page.after(1)
    like = span.until if span.until is not None else span.after
    if like is None:
        raise UsageError(
            f"{what}: the source has no row that would tell what its cursors are like; nothing was changed"
        )
    return like


def after_rows(source: Readable, span: Span, rows: int, what: str) -> Cursor | None:
    """The cursor after so many rows of a range, found by reading them."""
    if rows == 0:
        return None
    left = rows
    for page in source.read(span.after, span.until):
        if left <= len(page.rows):
            return page.after(left)
        left -= len(page.rows)
    raise UsageError(f"{what} speaks of {rows:,} rows, the partition has {rows - left:,}; nothing was changed")


def _checkpoint(scan: Scan, said: foreign.OldCheckpoint, span: Span, key: Any, name: str, by_rows: bool) -> Checkpoint:
    if by_rows:
        if type(said.cursor) is not int:
            raise UsageError(f"{name}: its cursor {said.cursor!r} counts no rows; nothing was changed")
        at = after_rows(scan.source, span, said.items_processed, name)
    else:
        try:
            at = foreign.like_cursor(said.cursor, None, sample(scan.source, span, name), name)
        except UsageError as error:
            raise UsageError(f"{error}; where it counts rows, pass --by-rows, and its row is looked up") from None
        _check_within(span, key, at)
    where = b"" if at is None else cursor.encode(at)
    return Checkpoint(ItemNo(0), said.items_processed, where, _accumulated(scan, said.accumulated_results, name))


def _accumulated(scan: Scan, value: Any, name: str) -> bytes | None:
    """What was accumulated, if the handler can go on with it."""
    handler = stage_of(scan).handler
    if value is None:
        return None
    if handler.shape is Shape.ROWS:
        raise UsageError(f"{name} has accumulated results, and {handler.what} takes none: define it as (rows, acc)")
    try:
        return handler.encode(value)
    except Invalid as error:
        raise UsageError(f"{name}: {error}; nothing was changed") from None


def stage_of(scan: Scan) -> RangeStage:
    stage = scan.pipeline.stages[0] if scan.pipeline.stages else None
    if not isinstance(stage, RangeStage):
        raise UsageError(f"scan {scan.name!r} has no handler: define one with @{scan.name}.handler")
    return stage


def _chosen(scan: Scan, spans: list[tuple[str | int, Span]], partition: str | None, name: str) -> tuple[Any, Span]:
    if partition is None and len(spans) == 1:
        return spans[0]
    for key, span in spans:
        if partition is not None and canonical.key_text(key) == partition:
            return key, span
    keys = ", ".join(str(key) for key, _ in spans)
    raise UsageError(f"{name}: scan {scan.name!r} has the partitions {keys}: name one, as PARTITION={name}")


def _check_within(span: Span, key: Any, at: Cursor) -> None:
    low, high = cursors.compare(at, span.after), cursors.compare(at, span.until)
    if (span.after is not None and low == -1) or (span.until is not None and high == 1):
        raise UsageError(f"{at} lies outside of partition {key!r}, which is after {span.after} up to {span.until}")


def _seed(key: str | int, span: Span, at: Checkpoint | None) -> Seed:
    payload = canonical.encode({"range": key, **payload_of(span)})
    return Seed(key=key, payload=payload, checkpoint=at if at is not None else Checkpoint(ItemNo(0), 0, b""))


def _arrival(scan: Scan, batch: str, seeds: list[Seed], fence: int, origin: dict[str, Any],
             history: tuple[dict[str, Any], ...], told: tuple[str, ...]) -> Arrival:  # fmt: skip
    pipeline = scan.pipeline
    stage_of(scan)
    described = definition.describe(
        pipeline.name, pipeline.stages, definition.keyed_by("range", "key"), pipeline.patience
    )
    plan = Plan(name=batch, pipeline=pipeline.name, definition=described, seeds=tuple(seeds), fence=fence,
                kind=IMPORTED, origin=origin)  # fmt: skip
    there = pipeline.store_if_there()
    if there is not None:
        check_free(there, plan)
    return Arrival(plan=plan, history=history, told=told)


def _digest(data: bytes) -> str:
    return f"sha256:{canonical.digest(b'', data).hex()}"
