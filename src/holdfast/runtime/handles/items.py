"""Items of a batch, for operators: one by one, as dead letters, and as orphans."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import msgspec
from pydantic_core import to_jsonable_python

from holdfast.core import canonical
from holdfast.core.acts import OrphanKind
from holdfast.core.course import stage_names
from holdfast.core.envelope import Envelope
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, Key, Kind, State, StoredItem
from holdfast.core.plain import Plain
from holdfast.runtime import lookup
from holdfast.runtime.acts import ActResult, Preview, act, actor_named
from holdfast.runtime.handles.checks import check_kind
from holdfast.runtime.partitions import kind_by_number, standing_of
from holdfast.runtime.report import overview
from holdfast.runtime.report.orphans import Orphan
from holdfast.runtime.report.overview import PartitionStatus
from holdfast.stores.base import Store, chunk_of, each_item

if TYPE_CHECKING:
    from holdfast.runtime.define.stage import Stage
    from holdfast.runtime.pipeline import Pipeline
    from holdfast.runtime.report.why import ItemStory


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRevision(Plain):
    """One of the payloads that an item has had."""

    number: int
    """Its number: 0 for the payload that was admitted."""
    payload: Any
    """The payload; a text if it is not JSON."""
    salt: str
    """The salt of the commitment to it, in hexadecimal: hand it over with the payload to prove it to an auditor."""
    envelope: Envelope
    """How it came."""


class ItemHandle(Plain):
    """One item, as it was when it was read."""

    _tells: ClassVar[str] = "key n=number state stage code reason attempts epoch"

    def __init__(self, store: Store, batch: Batch, item: StoredItem, kind: Kind | None = None) -> None:
        self._store, self._batch, self._item = store, batch, item
        self._kind = kind

    def __repr__(self) -> str:
        return f"<item {self.key!r} of {self._batch.name!r}: {self.state} at {self.stage!r}>"

    @property
    def key(self) -> Key:
        """Its key."""
        return self._item.key

    @property
    def number(self) -> int:
        """Its number in the batch, from 0."""
        return self._item.n

    @property
    def batch(self) -> str:
        """The name of its batch."""
        return self._batch.name

    @property
    def state(self) -> State:
        """Its state."""
        return self._item.place.state

    @property
    def stage(self) -> str:
        """The stage it is at; `end` after the last."""
        return lookup.stage_title(stage_names(self._batch), self._item.place.stage)

    @property
    def epoch(self) -> int:
        """How often it was started again."""
        return self._item.place.epoch

    @property
    def attempts(self) -> int:
        """How many attempts it has used at its stage."""
        return self._item.place.attempt

    @property
    def due(self) -> float:
        """When it may run again, in seconds since 1970; 0 if it need not wait."""
        return self._item.place.due

    @property
    def code(self) -> str:
        """The code of its last error or decision; empty if there is none."""
        return self._item.place.code

    @property
    def reason(self) -> str:
        """Its last error or decision, in words."""
        return self._item.place.reason

    @property
    def kind(self) -> Kind:
        """What it is: an item of a pipeline, a partition of a scan, or a buried row of a scan."""
        if self._kind is None:
            self._kind = chunk_of(self._store, self._batch.id, self._item.n).kind
        return self._kind

    @property
    def payload(self) -> Any:
        """Its validated payload; a text if it is not JSON."""
        return _decoded(self._item.payload)

    @property
    def raw_payload(self) -> bytes:
        """Its payload as it is stored."""
        return self._item.payload

    @property
    def digest(self) -> str:
        """The commitment to its key and payload, as in the journal."""
        return self.envelope.mapped_digest

    def revisions(self) -> "list[ItemRevision]":
        """Return all payloads it has had, the admitted one first, each with its envelope and the salt of the commitment
        to it."""
        from holdfast.runtime.envelopes import EnvelopeReader

        reader = EnvelopeReader(self._store, self._batch.name)
        return [
            ItemRevision(number=row.revision, payload=_decoded(row.payload), salt=row.salt.hex(),
                         envelope=reader.of(row.n, row.revision))
            for row in self._store.revisions(self._batch.id, self._item.n)
        ]  # fmt: skip

    @property
    def envelope(self) -> Envelope:
        """How it came: when, from which source, validated by which schema, with which commitments."""
        from holdfast.runtime.envelopes import EnvelopeReader

        return EnvelopeReader(self._store, self._batch.name).of(self._item.n, self._item.revision)

    def outputs(self) -> dict[str, dict[str, Any]]:
        """Return what is recorded for each stage it has passed: the epoch, and the output or the name of its file."""
        from holdfast.runtime.verify.inspector import OutputReader, sinks_of

        names, reader = stage_names(self._batch), OutputReader(sinks_of(self._batch))
        found: dict[str, dict[str, Any]] = {}
        if self.state is State.PENDING and self.kind is Kind.PARTITIONS:
            return found  # a reset cleared its output
        for output in self._store.outputs(self._batch.id, lo=self._item.n, hi=self._item.n + 1):
            location = reader.location(output)
            data = output.data if output.data is not None else b"null"
            made = {"file": location} if location is not None else _decoded(data)
            found[lookup.stage_title(names, output.stage)] = {"epoch": output.epoch, "output": made}
        return found

    def partition(self) -> PartitionStatus | None:
        """Return its progress, if it is a partition of a scan."""
        return overview.of_item(self._store, self._batch, self._item)

    def checkpoint(self) -> str:
        """Return its position in the source in words, if it is a partition; else an empty text."""
        at = standing_of(self._store, self._batch, self._item)
        return "" if at is None else overview.partition_in_words(at)

    def row_fields(self) -> list[tuple[str, str]]:
        """Return its fields, if it is a buried row of a scan; else nothing."""
        from holdfast.runtime.report.why import row_fields

        return row_fields(self._item) if self.kind is Kind.ROWS else []

    def why(self) -> "ItemStory":
        """Return its whole story: what happened to it, why it is in its state, and what can be done."""
        from holdfast.runtime.report.why import tell

        return tell(self._store, self._batch, self._item)


def _decoded(data: bytes) -> Any:
    try:
        return canonical.decode(data)
    except msgspec.DecodeError:
        return data.decode("utf-8", "replace")


def handles_of(store: Store, batch: Batch, *, state: State | None = None, stage: int | None = None,
               code: str | None = None) -> Iterator[ItemHandle]:  # fmt: skip
    """Yield items of a batch in order, read in pages."""
    kind_of = kind_by_number(store.chunks(batch.id))
    for item in each_item(store, batch.id, state=state):
        if stage in (None, item.place.stage) and code in (None, item.place.code):
            yield ItemHandle(store, batch, item, kind_of(item.n))


class DeadLetters:
    """Dead letters of a batch: all of them, those that were named, or those with one code. Iterate over them for an
    `hf.ItemHandle` each."""

    def __init__(self, store: Store, batch: Batch, keys: Sequence[Key] | None, code: str | None) -> None:
        self._store, self._batch, self._code = store, batch, code
        self._keys = None if keys is None else [canonical.key_text(key) for key in keys]

    def __iter__(self) -> Iterator[ItemHandle]:
        """Yield them in the order of the items; of those that were named, the ones that are dead."""
        if self._keys is None:
            yield from handles_of(self._store, self._batch, state=State.DEAD, code=self._code)
            return
        for key in self._keys:
            found = lookup.item_named(self._store, self._batch, key)
            if found.place.state is State.DEAD:
                yield ItemHandle(self._store, self._batch, found)

    def __repr__(self) -> str:
        return f"<dead letters of {self._batch.name!r}>"

    @overload
    def redrive(self, *, reason: str = "", actor: str = "", dry_run: Literal[True]) -> Preview: ...
    @overload
    def redrive(self, *, reason: str, actor: str = "", dry_run: Literal[False] = False) -> ActResult: ...
    def redrive(self, *, reason: str = "", actor: str = "", dry_run: bool = False) -> Preview | ActResult:
        """Try them again at the stage where they failed, with all their attempts."""
        from holdfast.runtime.operate.operations import preview_redrive

        return act(lambda: preview_redrive(self._store, self._batch, self._keys, code=self._code),
                   reason, actor, dry_run)  # fmt: skip

    @overload
    def discard(self, *, reason: str = "", actor: str = "", dry_run: Literal[True]) -> Preview: ...
    @overload
    def discard(self, *, reason: str, actor: str = "", dry_run: Literal[False] = False) -> ActResult: ...
    def discard(self, *, reason: str = "", actor: str = "", dry_run: bool = False) -> Preview | ActResult:
        """Give them up: from now on they count as cancelled."""
        from holdfast.runtime.operate.operations import preview_discard

        return act(lambda: preview_discard(self._store, self._batch, self._keys, code=self._code),
                   reason, actor, dry_run)  # fmt: skip


def resolve(
    store: Store, batch: Batch, key: Key, output: Any, raw: bytes | None, pipeline: "Pipeline | None",
    reason: str, actor: str, dry_run: bool,
) -> Preview | ActResult:  # fmt: skip
    """Settle one dead letter by hand."""
    from holdfast.runtime.operate.operations import preview_resolve

    if raw is not None and output is not None:
        raise UsageError("pass output or raw_output, not both; nothing was changed")
    if raw is not None:
        check_kind(raw, bytes, "raw_output", "JSON as bytes, such as b'5'")
    stage = None if pipeline is None else last_stage(batch, pipeline)
    data = raw if output is None else _encoded(output)
    return act(lambda: preview_resolve(store, batch, canonical.key_text(key), output=data, stage=stage),
               reason, actor, dry_run)  # fmt: skip


def _encoded(output: Any) -> bytes:
    """Return an output as that of a handler is encoded: a model by its fields, under their names."""
    try:
        plain = to_jsonable_python(output, by_alias=False, round_trip=True, inf_nan_mode="constants")
        return json.dumps(plain, allow_nan=False).encode()
    except ValueError as error:  # NaN and Infinity among them, which would become null
        raise UsageError(f"the output cannot be written as JSON: {error}; nothing was changed") from None


class FoundOrphans(Plain):
    """Orphans of one or all batches: how many there are of each kind, and the first of them."""

    _tells: ClassVar[str] = "orphans=total kinds batches=by_batch items=first"

    def __init__(self, first: Sequence[Orphan], by_batch: Mapping[str, Counter[str]], now: float) -> None:
        self.first, self.now = tuple(first), now
        self.by_batch = {
            name: {kind.value: found[kind.value] for kind in OrphanKind} for name, found in by_batch.items()
        }

    @property
    def kinds(self) -> dict[str, int]:
        """How many there are of each kind."""
        return {kind.value: sum(each[kind.value] for each in self.by_batch.values()) for kind in OrphanKind}

    @property
    def total(self) -> int:
        """How many orphans there are."""
        return sum(self.kinds.values())

    def __iter__(self) -> Iterator[Orphan]:
        return iter(self.first)

    def __repr__(self) -> str:
        return f"<{self.total:,} orphans>"


def look_for_orphans(store: Store, batches: Sequence[Batch], limit: int, actor: str) -> FoundOrphans:
    """Find orphans, and announce new ones as events."""
    from holdfast.runtime.operate import resolution

    first: list[Orphan] = []
    found: dict[str, Counter[str]] = {}
    who = actor_named(actor)
    for batch in batches:
        seen = resolution.look_for_orphans(store, batch, limit=limit - len(first))
        resolution.announce(store, batch, seen, actor=who)
        first += seen.first
        if seen.total:
            found[batch.name] = seen.kinds
    return FoundOrphans(first, found, store.now())


def resolve_orphans(
    store: Store, batch: Batch, strategy: str, keys: Sequence[Key] | None, reason: str, actor: str, dry_run: bool
) -> Preview | ActResult:
    """Resolve orphans of one batch."""
    from holdfast.runtime.operate import resolution

    chosen = resolution.check_strategy(strategy)
    named = None if keys is None else [canonical.key_text(key) for key in keys]
    return act(lambda: resolution.preview_resolution(store, batch, chosen, named), reason, actor, dry_run)


def last_stage(batch: Batch, pipeline: "Pipeline") -> "Stage":
    """Return the last stage of the pipeline in code; refuse a pipeline that the batch does not belong to."""
    if pipeline.name != batch.pipeline or not pipeline.stages:
        raise UsageError(
            f"batch {batch.name!r} belongs to pipeline {batch.pipeline!r}, not to {pipeline.name!r}; nothing was "
            "changed"
        )
    return pipeline.stages[-1]
