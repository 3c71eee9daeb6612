"""Progress that other programs kept, read without guessing: a poller's state, a checkpoint with its history, a file of
finished pages.

A document that is cut off, of another shape, of an unknown version, or contradictory is refused, with the reason. A
cursor is read as the type of the source's own cursors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from holdfast.core import canonical, cursor, journal
from holdfast.core.course import to_note
from holdfast.core.cursor import Cursor, check_like, type_name, value_of
from holdfast.core.errors import NotOurs, Refused, UsageError
from holdfast.core.model import Checkpoint, ItemNo, State
from holdfast.core.plain import Plain
from holdfast.runtime.acts import Actor
from holdfast.runtime.define import definition
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.operate.clones import ClonedPartition, ClonePlan, check_free
from holdfast.runtime.operate.state_document import check_version, plain_object
from holdfast.runtime.partitions import IMPORTED, payload_of
from holdfast.runtime.pipeline import Pipeline
from holdfast.runtime.recover import Recovery
from holdfast.runtime.scan.partition import PartitionStage
from holdfast.runtime.scan.rows import Shape
from holdfast.runtime.scan.scan import SourceWalk
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.sources.base import Readable, Span
from holdfast.runtime.text import when
from holdfast.stores.base import each_item

POLLER_VERSION = 1
KINDS = {
    "timestamp": "timestamp", "date": "date", "integer": "integer", "int": "integer", "decimal": "decimal",
    "string": "text", "text": "text", "uuid": "uuid",
}  # fmt: skip
"""Kinds of cursors in a poller's state, with or without `+pk`, and the type of each."""
WITH_KEY = "+pk"
AS_TEXT = ("timestamp", "date", "decimal", "uuid")
"""Types that are texts in JSON."""
FENCES = 1 << 62
"""A fence is always lower than this."""
_T = TypeVar("_T")


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document in which unknown fields are refused, not ignored."""


class PollerCursor(Strict, frozen=True, kw_only=True):
    kind: str
    value: Any
    tiebreaker: Any = None


class PollerCheckpoint(Strict, frozen=True, kw_only=True):
    cursor: PollerCursor
    last_successful_batch_id: str | None = None
    updated_at: str | None = None
    metadata: dict[str, Any] = {}


class PollerLease(Strict, frozen=True, kw_only=True):
    owner_id: str | None = None
    fence: int = msgspec.field(name="fencing_token")
    acquired_at: str | None = None
    heartbeat_at: str | None = None
    expires_at: str | None = None


class Poller(Strict, frozen=True, kw_only=True):
    """The state of a poller: its checkpoint and its lease in one document."""

    version: int
    poller_name: str
    checkpoint: PollerCheckpoint
    lease: PollerLease
    source_fingerprint: str = ""

    @property
    def expires(self) -> float | None:
        """When its lease ends; None if there is no lease."""
        said = self.lease
        if said.owner_id is None or said.expires_at is None:
            return None
        return moment_of(said.expires_at, "the end of the lease")


class HistoryEntry(Strict, frozen=True, kw_only=True):
    cursor: Any
    timestamp: str


class OldCheckpoint(Strict, frozen=True, kw_only=True):
    """How far a worker had come, with its accumulator and every earlier position."""

    cursor: Any
    items_processed: int
    timestamp: str | None = None
    accumulated_results: Any = None
    history: list[HistoryEntry] = []


class PageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages of a stage are done, and the cost of each."""

    stage_name: str
    total_pages: int
    status: str
    page_metrics: dict[str, dict[str, Any]]
    metadata: dict[str, Any] = {}


def read_poller(data: bytes, what: str) -> Poller:
    """Read a poller's state."""
    plain = plain_object(data, what)
    if not {"poller_name", "checkpoint", "lease"} <= plain.keys():
        raise NotOurs(f"{what} is not the state of a poller: it lacks poller_name, checkpoint or lease")
    check_version(plain, POLLER_VERSION, what)
    found = _convert(plain, Poller, what)
    if not 0 <= found.lease.fence < FENCES:
        raise NotOurs(f"{what}: its fencing token {found.lease.fence} is not valid")
    return found


def read_checkpoint(data: bytes, what: str) -> OldCheckpoint:
    """Read a checkpoint with its history, which must not contradict each other."""
    plain = plain_object(data, what)
    if not {"cursor", "items_processed"} <= plain.keys():
        raise NotOurs(f"{what} is not a checkpoint: it lacks cursor or items_processed")
    found = _convert(plain, OldCheckpoint, what)
    if found.items_processed < 0:
        raise NotOurs(f"{what}: {found.items_processed} items processed is not a number of items")
    if found.history and found.history[-1].cursor != found.cursor:
        raise Refused(
            f"{what} contradicts itself: its cursor is {found.cursor!r}, but the last of its history is "
            f"{found.history[-1].cursor!r}; find out which one was handled, and correct the document"
        )
    return found


def read_pages(data: bytes, what: str) -> PageMetrics:
    """Read a file of finished pages."""
    plain = plain_object(data, what)
    if not {"stage_name", "total_pages", "page_metrics"} <= plain.keys():
        raise NotOurs(f"{what} is not a checkpoint of pages: it lacks stage_name, total_pages or page_metrics")
    found = _convert(plain, PageMetrics, what)
    for key, metrics in found.page_metrics.items():
        if not key.isdigit() or metrics.get("page_num", int(key)) != int(key):
            raise NotOurs(f"{what}: the metrics under {key!r} are those of page {metrics.get('page_num')!r}")
        if not 1 <= int(key) <= found.total_pages:
            raise Refused(f"{what} contradicts itself: it has metrics of page {key}, but {found.total_pages} pages")
    return found


def _convert(plain: dict[str, Any], to: type[_T], what: str) -> _T:
    try:
        return msgspec.convert(plain, to, strict=True)
    except msgspec.ValidationError as error:
        raise NotOurs(f"{what} does not have the known shape: {error}; nothing was changed") from None


def moment_of(text: str, what: str) -> float:
    """Return a time in seconds since 1970; a time without a zone is refused."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise NotOurs(f"{what}: {text!r} is not a time") from None
    if at.tzinfo is None:
        raise NotOurs(f"{what}: {text!r} has no time zone")
    return at.astimezone(UTC).timestamp()


# -- cursors --------------------------------------------------------------------------------------------------------


def poller_cursor(said: PollerCursor, like: Cursor, what: str) -> Cursor:
    """Return the cursor of a poller as a cursor of the source: by its kind, and of the type of the source's cursors."""
    base = said.kind.removesuffix(WITH_KEY)
    if base not in KINDS:
        known = ", ".join(f"{each}{WITH_KEY}" for each in KINDS)
        raise UsageError(f"{what}: cursors of the kind {said.kind!r} are not known; known are {known}")
    theirs = type_name(like.value)
    if theirs != KINDS[base]:
        raise UsageError(
            f"{what}: its cursor is a {KINDS[base]}, but cursors of this source are "
            f"{theirs or type(like.value).__name__}, such as {like}"
        )
    if said.kind.endswith(WITH_KEY) and said.tiebreaker is None:
        raise UsageError(f"{what}: its cursor is of the kind {said.kind!r} but has no key: rows could be skipped")
    return like_cursor(said.value, said.tiebreaker, like, what)


def like_cursor(value: Any, tiebreaker: Any, like: Cursor, what: str) -> Cursor:
    """Return a cursor from plain JSON, of the kind that the source has."""
    tie: Any = tiebreaker
    if isinstance(tie, dict) and not isinstance(like.tiebreaker, dict) and len(tie) == 1:
        tie = next(iter(tie.values()))
    if isinstance(tie, dict) and isinstance(like.tiebreaker, dict):
        tie = {name: _typed(each, like.tiebreaker.get(name), what) for name, each in tie.items()}
    else:
        tie = _typed(tie, like.tiebreaker, what)
    found = Cursor(like.kind, _typed(value, like.value, what), tie)
    check_like(found, like, what)
    return found


def _typed(value: Any, like: Any, what: str) -> Any:
    """Return a value as the wanted type, or refuse it: JSON has texts for types that it lacks."""
    name = type_name(like)
    if isinstance(value, str) and name in AS_TEXT:
        return value_of(value, name, what)
    return value


PAGES_IMPORTED = "imported"
SHOWN = 1000
"""So many pages are named; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPages(Plain):
    """The result of importing pages."""

    _tells: ClassVar[str] = "act recovery stage noted usd lost found"

    recovery: Recovery
    stage: str
    noted: int
    """Pages that are done according to the file."""
    usd: Decimal
    """Their cost according to the file."""
    lost: tuple[str, ...]
    """Finished pages without a valid output: they run again."""
    found: tuple[str, ...]
    """Pages that are not done according to the file but have a valid output: they count."""
    act: str = PAGES_IMPORTED


def read_page_file(pipeline: Pipeline, file: Path, data: bytes) -> PageMetrics:
    """Return the file of pages, if it belongs to this pipeline: the same stage, folder, and number of pages."""
    pages = read_pages(data, str(file))
    stage = next((each for each in pipeline.stages if each.name == pages.stage_name), None)
    if stage is None:
        names = ", ".join(each.name for each in pipeline.stages)
        raise UsageError(f"{file} belongs to stage {pages.stage_name!r}, but pipeline {pipeline.name!r} has {names}")
    if not isinstance(stage.sink, Files) or stage.sink.folder.resolve() != file.parent.resolve():
        where = stage.sink.folder if isinstance(stage.sink, Files) else "no files"
        raise UsageError(f"{file} is for outputs beside it, but stage {stage.name!r} keeps its outputs in {where}")
    there = sum(1 for _ in pipeline.items())
    if there != pages.total_pages:
        raise Refused(
            f"{file} has {pages.total_pages:,} pages, but the source of {pipeline.name!r} has {there:,}: the file "
            "belongs to another source, or the source changed; nothing was changed"
        )
    return pages


def take_over_pages(
    pipeline: Pipeline, file: Path, data: bytes, by: Actor, *, batch: str, key: str | None
) -> ImportedPages:
    """Admit the pages, record those whose outputs count, and store the content of the file."""
    pages = read_page_file(pipeline, file, data)
    recovery = pipeline.recover(by=by, batch=batch, key=key)
    (made,) = pipeline.store.batches(batch)
    lost, found = _compare(pipeline, pages, batch)
    usd = sum((Decimal(str(each.get("cost_usd", 0))) for each in pages.page_metrics.values()), Decimal(0))
    note = {"format": "pages", "file": str(file), "digest": f"sha256:{canonical.digest(data).hex()}",
            "status": pages.status, "cost_usd": format(usd, "f"), "page_metrics": pages.page_metrics}  # fmt: skip
    body = journal.Acted(reason=by.reason, note=canonical.encode(note))
    pipeline.store.amend(made.id, to_note(PAGES_IMPORTED, body, once=True), actor=by.name)
    return ImportedPages(recovery=recovery, stage=pages.stage_name, noted=len(pages.page_metrics), usd=usd, lost=lost,
                   found=found)  # fmt: skip


def _compare(pipeline: Pipeline, pages: PageMetrics, batch: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    (made,) = pipeline.store.batches(batch)
    lost, found = [], []
    reached = [each.name for each in pipeline.stages].index(pages.stage_name) + 1
    for item in each_item(pipeline.store, made.id):
        name = canonical.key_text(item.key)
        counts = item.place.state is State.DONE or item.place.stage >= reached
        if name in pages.page_metrics and not counts:
            lost.append(name)
        elif counts and name not in pages.page_metrics:
            found.append(name)
    return tuple(lost[:SHOWN]), tuple(found[:SHOWN])


FOLLOW = "follow"
"""The key of the one partition of a scan that follows its source."""
HISTORY_AT_ONCE = 1_000
"""Positions of a history in one entry of the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """An import: the batch to be made, and notes about it."""

    plan: ClonePlan
    history: tuple[dict[str, Any], ...]
    """Positions that were reached elsewhere, for the journal."""
    told: tuple[str, ...]

    def notes(self, by: Actor) -> Iterator[journal.Acted]:
        """Yield the history as bodies of journal entries."""
        for start in range(0, len(self.history), HISTORY_AT_ONCE):
            some = {"history": self.history[start : start + HISTORY_AT_ONCE], "from": start}
            yield journal.Acted(reason=by.reason, note=canonical.encode(some))

    def as_dict(self) -> dict[str, Any]:
        parts = [
            {"partition": seed.key, "rows": seed.checkpoint.rows,
             "cursor": cursor.to_plain(cursor.decode(seed.checkpoint.cursor)) if seed.checkpoint.cursor else None}
            for seed in self.plan.seeds
        ]  # fmt: skip
        return {"act": IMPORTED, "batch": self.plan.name, "fence_above": self.plan.fence, "partitions": parts,
                "history": len(self.history), **self.plan.origin}  # fmt: skip


def from_poller(scan: SourceWalk, batch: str, data: bytes, name: str, *, now: float) -> ImportPlan:
    """Return the import of a poller's state: one cursor, and a lease whose token is below every new fence."""
    state = read_poller(data, name)
    expires = state.expires
    if expires is not None and expires > now:
        raise Refused(
            f"{name}: {state.lease.owner_id} holds the lease until {when(expires)}, and may still deliver: stop that "
            "poller, and import the state it leaves behind; nothing was changed"
        )
    spans = ranges_of(scan)
    if len(spans) != 1:
        raise UsageError(f"{name} has one cursor, but scan {scan.name!r} has {len(spans)} partitions: define it with 1")
    key, span = spans[0]
    at = poller_cursor(state.checkpoint.cursor, sample(scan.source, span, name), name)
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
    scan: SourceWalk, batch: str, files: Sequence[tuple[str | None, bytes, str]], *, by_rows: bool = False
) -> ImportPlan:
    """Return the import of checkpoints with their history: (partition, content, name) of each. Partitions without a
    checkpoint begin at the start."""
    spans = ranges_of(scan)
    found: dict[str, Checkpoint] = {}
    history: list[dict[str, Any]] = []
    for partition, data, name in files:
        key, span = _chosen(scan, spans, partition, name)
        if canonical.key_text(key) in found:
            raise UsageError(f"{name}: there already is a checkpoint for partition {key!r}; nothing was changed")
        said = read_checkpoint(data, name)
        found[canonical.key_text(key)] = _checkpoint(scan, said, span, key, name, by_rows)
        history += [{"partition": key, "cursor": each.cursor, "at": each.timestamp} for each in said.history]
    seeds = [_seed(key, span, found.get(canonical.key_text(key))) for key, span in spans]
    origin = {"format": "checkpoint with history", "files": [name for _, _, name in files],
              "digests": [_digest(data) for _, data, _ in files]}  # fmt: skip
    fresh = [str(key) for key, _ in spans if canonical.key_text(key) not in found]
    told = (f"partitions {', '.join(fresh)} begin at their start",) if fresh else ()
    return _arrival(scan, batch, seeds, 0, origin, tuple(history), told)


def ranges_of(scan: SourceWalk) -> list[tuple[str | int, Span]]:
    """Return the partitions of the scan."""
    if getattr(scan, "follow", False):
        return [(FOLLOW, Span())]
    return list(enumerate(scan.source.split(scan.partitions)))


def sample(source: Readable, span: Span, what: str) -> Cursor:
    """Return a cursor of this source, which shows its kind and types: that of the first row."""
    for page in source.read(span.after, span.until):
        if len(page.rows):
            return page.after(1)
    like = span.until if span.until is not None else span.after
    if like is None:
        raise UsageError(f"{what}: the source has no row that shows the type of its cursors; nothing was changed")
    return like


def after_rows(source: Readable, span: Span, rows: int, what: str) -> Cursor | None:
    """Return the cursor after so many rows of a partition, found by reading them."""
    if rows == 0:
        return None
    left = rows
    for page in source.read(span.after, span.until):
        if left <= len(page.rows):
            return page.after(left)
        left -= len(page.rows)
    raise UsageError(f"{what} has {rows:,} rows, but the partition has {rows - left:,}; nothing was changed")


def _checkpoint(scan: SourceWalk, said: OldCheckpoint, span: Span, key: Any, name: str, by_rows: bool) -> Checkpoint:
    if by_rows:
        if type(said.cursor) is not int:
            raise UsageError(f"{name}: its cursor {said.cursor!r} is not a number of rows; nothing was changed")
        at = after_rows(scan.source, span, said.items_processed, name)
    else:
        try:
            at = like_cursor(said.cursor, None, sample(scan.source, span, name), name)
        except UsageError as error:
            raise UsageError(f"{error}; if it is a number of rows, pass --by-rows, and the row is looked up") from None
        _check_within(span, key, at)
    where = b"" if at is None else cursor.encode(at)
    return Checkpoint(ItemNo(0), said.items_processed, where, _accumulated(scan, said.accumulated_results, name))


def _accumulated(scan: SourceWalk, value: Any, name: str) -> bytes | None:
    """Return the accumulator, if the handler can continue with it."""
    handler = stage_of(scan).handler
    if value is None:
        return None
    if handler.shape is Shape.ROWS:
        raise UsageError(f"{name} has an accumulator, but {handler.what} takes none: define it as (rows, acc)")
    try:
        return handler.encode(value)
    except Invalid as error:
        raise UsageError(f"{name}: {error}; nothing was changed") from None


def stage_of(scan: SourceWalk) -> PartitionStage:
    stage = scan.pipeline.stages[0] if scan.pipeline.stages else None
    if not isinstance(stage, PartitionStage):
        raise UsageError(f"scan {scan.name!r} has no handler: define one with @{scan.name}.handler")
    return stage


def _chosen(
    scan: SourceWalk, spans: list[tuple[str | int, Span]], partition: str | None, name: str
) -> tuple[Any, Span]:
    if partition is None and len(spans) == 1:
        return spans[0]
    for key, span in spans:
        if partition is not None and canonical.key_text(key) == partition:
            return key, span
    keys = ", ".join(str(key) for key, _ in spans)
    raise UsageError(f"{name}: scan {scan.name!r} has the partitions {keys}: name one, as PARTITION={name}")


def _check_within(span: Span, key: Any, at: Cursor) -> None:
    low, high = cursor.compare(at, span.after), cursor.compare(at, span.until)
    if (span.after is not None and low == -1) or (span.until is not None and high == 1):
        raise UsageError(f"{at} is outside of partition {key!r}, which is after {span.after} up to {span.until}")


def _seed(key: str | int, span: Span, at: Checkpoint | None) -> ClonedPartition:
    payload = canonical.encode({"range": key, **payload_of(span)})
    return ClonedPartition(key=key, payload=payload, checkpoint=at if at is not None else Checkpoint(ItemNo(0), 0, b""))


def _arrival(scan: SourceWalk, batch: str, seeds: list[ClonedPartition], fence: int, origin: dict[str, Any],
             history: tuple[dict[str, Any], ...], told: tuple[str, ...]) -> ImportPlan:  # fmt: skip
    pipeline = scan.pipeline
    stage_of(scan)
    described = definition.describe(
        pipeline.name, pipeline.stages, definition.keyed_by("range", "key"), pipeline.patience
    )
    plan = ClonePlan(name=batch, pipeline=pipeline.name, definition=described, seeds=tuple(seeds), fence=fence,
                kind=IMPORTED, origin=origin)  # fmt: skip
    there = pipeline.store_if_there()
    if there is not None:
        check_free(there, plan)
    return ImportPlan(plan=plan, history=history, told=told)


def _digest(data: bytes) -> str:
    return f"sha256:{canonical.digest(data).hex()}"
