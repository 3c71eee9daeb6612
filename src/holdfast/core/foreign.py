"""Progress that other programs kept, read without a guess: a poller's state, a checkpoint with its history, a file of
pages that are done.

What is cut off, of another shape, of an unknown version, or contradicts itself is refused, and says why. A cursor is
read as the type that the source's own cursors have.
"""

from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from holdfast.core.cursor import Cursor
from holdfast.core.cursors import check_like
from holdfast.core.errors import NotOurs, Refused, UsageError
from holdfast.core.spelling import type_name, value_of
from holdfast.core.state_document import check_version, plain_object

POLLER_VERSION = 1
KINDS = {
    "timestamp": "timestamp", "date": "date", "integer": "integer", "int": "integer", "decimal": "decimal",
    "string": "text", "text": "text", "uuid": "uuid",
}  # fmt: skip
"""Kinds of cursors in a poller's state, with or without `+pk`, and the type that each names."""
WITH_KEY = "+pk"
AS_TEXT = ("timestamp", "date", "decimal", "uuid")
"""Types that stand in JSON as texts."""
FENCES = 1 << 62
"""No fence is so high."""
_T = TypeVar("_T")


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is not known is not read over."""


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
        """When its lease ends; None where nobody has one."""
        said = self.lease
        if said.owner_id is None or said.expires_at is None:
            return None
        return moment_of(said.expires_at, "the end of the lease")


class HistoryEntry(Strict, frozen=True, kw_only=True):
    cursor: Any
    timestamp: str


class OldCheckpoint(Strict, frozen=True, kw_only=True):
    """How far a worker had come, with what it had accumulated and every step before."""

    cursor: Any
    items_processed: int
    timestamp: str | None = None
    accumulated_results: Any = None
    history: list[HistoryEntry] = []


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages of a stage are done, and what each cost."""

    stage_name: str
    total_pages: int
    status: str
    page_metrics: dict[str, dict[str, Any]]
    metadata: dict[str, Any] = {}


def read_poller(data: bytes, what: str) -> Poller:
    """A poller's state."""
    plain = plain_object(data, what)
    if not {"poller_name", "checkpoint", "lease"} <= plain.keys():
        raise NotOurs(f"{what} is not a state of a poller: it has no poller_name, checkpoint and lease")
    check_version(plain, POLLER_VERSION, what)
    found = _convert(plain, Poller, what)
    if not 0 <= found.lease.fence < FENCES:
        raise NotOurs(f"{what}: its fencing token {found.lease.fence} is none")
    return found


def read_checkpoint(data: bytes, what: str) -> OldCheckpoint:
    """A checkpoint with its history, which must not contradict each other."""
    plain = plain_object(data, what)
    if not {"cursor", "items_processed"} <= plain.keys():
        raise NotOurs(f"{what} is not a checkpoint: it has no cursor and items_processed")
    found = _convert(plain, OldCheckpoint, what)
    if found.items_processed < 0:
        raise NotOurs(f"{what}: {found.items_processed} items processed is not a number of items")
    if found.history and found.history[-1].cursor != found.cursor:
        raise Refused(
            f"{what} contradicts itself: its cursor is {found.cursor!r}, the last of its history "
            f"{found.history[-1].cursor!r}; find out which of them was handled, and correct the document"
        )
    return found


def read_pages(data: bytes, what: str) -> Pages:
    """A file of pages that are done."""
    plain = plain_object(data, what)
    if not {"stage_name", "total_pages", "page_metrics"} <= plain.keys():
        raise NotOurs(f"{what} is not a checkpoint of pages: it has no stage_name, total_pages and page_metrics")
    found = _convert(plain, Pages, what)
    for key, metrics in found.page_metrics.items():
        if not key.isdigit() or metrics.get("page_num", int(key)) != int(key):
            raise NotOurs(f"{what}: the metrics under {key!r} are those of page {metrics.get('page_num')!r}")
        if not 1 <= int(key) <= found.total_pages:
            raise Refused(f"{what} contradicts itself: it has metrics of page {key}, and {found.total_pages} pages")
    return found


def _convert(plain: dict[str, Any], to: type[_T], what: str) -> _T:
    try:
        return msgspec.convert(plain, to, strict=True)
    except msgspec.ValidationError as error:
        raise NotOurs(f"{what} has not the shape that is known: {error}; nothing was changed") from None


def moment_of(text: str, what: str) -> float:
    """Seconds since 1970 of a time; one that does not say its zone is refused."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise NotOurs(f"{what}: {text!r} is not a time") from None
    if at.tzinfo is None:
        raise NotOurs(f"{what}: {text!r} does not say its zone")
    return at.astimezone(UTC).timestamp()


# -- cursors --------------------------------------------------------------------------------------------------------


def poller_cursor(said: PollerCursor, like: Cursor, what: str) -> Cursor:
    """The cursor of a poller as one of the source: by its kind, and of the type that the source's cursors have."""
    base = said.kind.removesuffix(WITH_KEY)
    if base not in KINDS:
        known = ", ".join(f"{each}{WITH_KEY}" for each in KINDS)
        raise UsageError(f"{what}: nobody knows cursors of the kind {said.kind!r}; known are {known}")
    theirs = type_name(like.value)
    if theirs != KINDS[base]:
        raise UsageError(
            f"{what}: its cursor is a {KINDS[base]}, cursors of this source are {theirs or type(like.value).__name__}, "
            f"such as {like}"
        )
    if said.kind.endswith(WITH_KEY) and said.tiebreaker is None:
        raise UsageError(f"{what}: its cursor is of the kind {said.kind!r} and has no key: rows could be skipped")
    return like_cursor(said.value, said.tiebreaker, like, what)


def like_cursor(value: Any, tiebreaker: Any, like: Cursor, what: str) -> Cursor:
    """A cursor from plain JSON, of the sort that the source has."""
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
    """JSON has texts for what it has no type for; they are read as the type that is wanted, or refused."""
    name = type_name(like)
    if isinstance(value, str) and name in AS_TEXT:
        return value_of(value, name, what)
    return value
