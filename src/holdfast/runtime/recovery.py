"""A record that is lost, made anew from what its outputs show.

The damaged file is set aside, never overwritten. The source says which items there are; every item whose output file is
there, is whole and is valid counts as having come so far, and is recorded as recovered. How often it was tried, what it
cost and when it was made stood in the lost record only: that is said, not invented. Outputs are never changed.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical
from holdfast.core.errors import Damaged, Permanent, Refused, SinkError, UsageError
from holdfast.core.model import Batch, Change, Output, State, StoredItem
from holdfast.core.states import Transition, move
from holdfast.runtime import definition, operations
from holdfast.runtime.control import Control
from holdfast.runtime.ingester import Identity, Ingester, KeyFrom
from holdfast.runtime.ledger import Ledger
from holdfast.runtime.schema import Invalid
from holdfast.runtime.sinks.base import Evidence, Provenance, Sink
from holdfast.runtime.stage import Stage
from holdfast.stores.base import each_item
from holdfast.stores.open import open_store

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline

SHOWN = 1000
"""So many items are named in a result; the others are counted."""
UNKNOWN = ("attempts and errors", "money, tokens and times", "outputs of stages that keep none in files")
"""What nobody can tell any more about an item that was recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was found."""

    batch: str
    items: int
    recovered: dict[str, int]
    """Stage -> how many items have an output of it, and of no later one."""
    pending: int
    """Items without a valid output: they run again."""
    invalid: tuple[tuple[str, str], ...]
    """(key, why) of items whose output is there and does not count; at most a thousand are named."""
    invalid_count: int
    set_aside: tuple[str, ...]
    """Files of the damaged store, under their new names."""
    unknown: tuple[str, ...] = UNKNOWN

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def is_damaged(path: Path) -> str | None:
    """Why the store at a path cannot be used, or None if it can, or if there is none."""
    if not path.exists() and not Path(f"{path}-wal").exists():
        return None
    try:
        store = open_store(path)
        try:
            for batch in store.batches():
                store.chunks(batch.id)
        finally:
            store.close()
    except Damaged as error:
        return str(error)
    return None


def set_aside(path: Path) -> tuple[str, ...]:
    """Give the files of a store other names, so that a new one can be made and nothing of the old one is lost. The
    note of its fences stays: no fence is ever given out twice."""
    mark = datetime.now(UTC).strftime("damaged-%Y%m%dT%H%M%S.%fZ")
    moved = []
    for suffix in ("", "-wal", "-shm"):
        old = Path(f"{path}{suffix}")
        if old.exists():
            new = Path(f"{path}.{mark}{suffix}")
            old.rename(new)
            moved.append(str(new))
    return tuple(moved)


def recover(
    pipeline: "Pipeline",
    items: Iterable[Any],
    by: operations.By,
    *,
    batch: str,
    key: KeyFrom,
    identity: Identity = "key",
    moved: tuple[str, ...] = (),
) -> Recovery:
    """Admit the items of the source, and record how far each has come by the outputs that are there."""
    store, stages = pipeline.store, pipeline.stages
    if not any(stage.sink is not None for stage in stages):
        raise UsageError(
            f"no stage of pipeline {pipeline.name!r} keeps its outputs in files: there is nothing to rebuild from; "
            "put back a backup, or run it again"
        )
    found = store.batch(batch)
    if found is not None and found.admitted:
        raise Refused(
            f"batch {batch!r} is in the store with {found.admitted:,} items, and can be read: there is nothing to "
            "rebuild; run it to go on, or give another batch name"
        )
    described = definition.describe(pipeline.name, stages, definition.keyed_by(key, identity), pipeline.patience)
    opened = store.open_batch(batch, pipeline.name, described, actor=by.actor)
    ingester = Ingester(store, opened, stages[0].input, key=key, identity=identity, changed="keep", owner=by.actor,
                        rerun=lambda _n, _item: None)  # fmt: skip
    ingester.read(items, Control(1), Ledger([]), lambda: None)
    finder = _Finder(pipeline.name, opened, stages)
    operations.act_on(
        store, opened, each_item(store, opened.id, state=State.PENDING), finder.decide, kind="recovered", by=by
    )
    fresh = store.batch(batch)
    assert fresh is not None
    return Recovery(
        batch=batch, items=fresh.admitted, recovered=dict(finder.recovered), pending=finder.pending,
        invalid=tuple(finder.invalid), invalid_count=finder.invalid_count, set_aside=moved,
    )  # fmt: skip


class _Finder:
    """Decides how far an item has come."""

    def __init__(self, pipeline: str, batch: Batch, stages: list[Stage]) -> None:
        self._pipeline, self._batch, self._stages = pipeline, batch, stages
        self.recovered = Counter[str]()
        self.pending = self.invalid_count = 0
        self.invalid: list[tuple[str, str]] = []

    def decide(self, item: StoredItem) -> Change | str:
        why = "no output is there"
        for index in reversed(range(len(self._stages))):
            found = self._look(item, index)
            if isinstance(found, Change):
                self.recovered[self._stages[index].name] += 1
                return found
            why = found if found is not None else why
        self.pending += 1
        if why != "no output is there":
            self.invalid_count += 1
            if len(self.invalid) < SHOWN:
                self.invalid.append((canonical.key_text(item.key), why))
        return why

    def _look(self, item: StoredItem, index: int) -> Change | str | None:
        """The change that records an output of a stage; why it does not count; None where there is none."""
        stage = self._stages[index]
        if stage.sink is None:
            return None
        place = Provenance(
            pipeline=self._pipeline, batch=self._batch.name, stage=stage.name, n=item.n, epoch=item.place.epoch,
            fence=0, input_digest=b"", key=item.key,
        )  # fmt: skip
        why: str | None = None
        for is_text in (False, True):
            try:
                evidence = stage.sink.observe(place, is_text=is_text)
                if evidence is None:
                    return None
                data = _read(stage.sink, evidence)
                value = stage.output.decode(data)
                if stage.verifier is None or stage.verifier.wants_item or stage.verifier.holds(value, None, None):
                    return self._change(item, index, evidence, data)
                why = "the verifier does not accept it"
            except (Invalid, SinkError, Permanent, UnicodeDecodeError) as error:
                why = why if why is not None else str(error)
            except Exception as error:  # noqa: BLE001 - a verifier of the user's may raise anything
                why = f"the verifier raised {type(error).__name__}: {error}"
        return f"the output of stage {stage.name!r}: {why}"

    def _change(self, item: StoredItem, index: int, evidence: Evidence, data: bytes) -> Change:
        stages, reached = len(self._stages), index + 1
        to = State.DONE if reached == stages else State.PENDING
        after = move(
            item.place, Transition.RECOVER, to=to, stage=reached, stages=stages, code=operations.RECOVERED,
            reason="found by its output",
        )  # fmt: skip
        made = Output(item.n, index, after.epoch, None, evidence.encode())
        return Change(
            n=item.n, state=item.place.state, epoch=item.place.epoch, place=after, output=made,
            output_digest=canonical.digest(item.salt, data),
        )  # fmt: skip


def _read(sink: Sink, evidence: Evidence) -> bytes:
    try:
        return sink.read(evidence)
    except OSError as error:
        raise SinkError(f"{evidence.final}: it cannot be read ({os.strerror(error.errno or 0)})") from None
