"""A lost store, rebuilt from the outputs of its items.

The damaged file is set aside, never overwritten. The source gives the items; an item counts as having reached a stage
if that stage's output file exists, is whole and is valid, and is recorded as recovered. The number of attempts, the
cost and the times were only in the lost store: they are reported as unknown, not invented. Outputs are never changed. A
verifier that raises or hangs proves nothing about an output: the output counts, and the item is named.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical
from holdfast.core.errors import Damaged, NotOurs, Permanent, Refused, SinkError, UsageError
from holdfast.core.model import Batch, Change, Output, State, StoredItem
from holdfast.core.plain import Plain
from holdfast.core.states import Transition, move
from holdfast.core.verify import Depth, Inspection, Verdict
from holdfast.runtime.acts import Actor
from holdfast.runtime.define import definition
from holdfast.runtime.define.calls import CheckFailed, no_answer
from holdfast.runtime.define.options import Identity, KeyFrom
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.ingester import Ingester
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.operate import operations
from holdfast.runtime.sinks.base import Evidence, Provenance, Sink
from holdfast.runtime.verify import ownership
from holdfast.runtime.verify.inspector import OutputInspector, RecordedItem
from holdfast.stores import filesystem
from holdfast.stores.base import Store, each_item, find_batch
from holdfast.stores.open import open_store

if TYPE_CHECKING:
    from holdfast.runtime.define.pipeline import PipelineDefinition


HEADER = b"SQLite format 3\0"
SHOWN = 1000
"""So many items are named in a result; the others are counted."""
UNKNOWN = ("attempts and errors", "money, tokens and times", "outputs of stages that keep none in files")
"""What is lost for good about a recovered item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery(Plain):
    """The result of a recovery."""

    batch: str
    items: int
    recovered: dict[str, int]
    """Stage -> how many items have its output as their last one."""
    pending: int
    """Items without a valid output: they run again."""
    invalid: tuple[tuple[str, str], ...]
    """(key, why) of items whose output exists and does not count; at most a thousand are named."""
    invalid_count: int
    unverified: tuple[tuple[str, str], ...]
    """(key, why) of recovered items whose verifier gave no answer; at most a thousand are named."""
    unverified_count: int
    set_aside: tuple[str, ...]
    """Files of the damaged store, under their new names."""
    unknown: tuple[str, ...] = UNKNOWN


def is_damaged(path: Path) -> str | None:
    """Return why the store at a path cannot be used; None if it can, or if there is none."""
    if not path.exists() and not Path(f"{filesystem.behind(path)}-wal").exists():
        return None
    try:
        store = open_store(path)
        try:
            for batch in store.batches():
                store.chunks(batch.id)
        finally:
            store.close()
    except Damaged as error:
        _check_ours(path)
        return str(error)
    return None


def _check_ours(path: Path) -> None:
    """Refuse a file that may never have been a store: it has content, no header of SQLite, and no note of fences."""
    real = filesystem.behind(path)
    with suppress(FileNotFoundError), real.open("rb") as file:
        if file.read(len(HEADER)) not in (b"", HEADER) and not Path(f"{real}-fence").exists():
            raise NotOurs(
                f"{path} does not begin like a store, and is left where it is: name the store with --store; if this "
                "was it, move it away, then import again"
            )


@contextmanager
def set_aside(path: Path) -> Iterator[tuple[str, ...]]:
    """Rename the files of a store, so that a new one can be made and nothing of the old one is lost; if that fails,
    rename them back. The note of its fences stays, so that no fence is issued twice. A link to the store also stays,
    and leads to the new one."""
    path = filesystem.behind(path)
    mark = datetime.now(UTC).strftime("damaged-%Y%m%dT%H%M%S.%fZ")
    names = {Path(f"{path}{suffix}"): Path(f"{path}.{mark}{suffix}") for suffix in ("", "-wal", "-shm")}
    moved = {old: old.rename(new) for old, new in names.items() if old.exists()}
    try:
        yield tuple(map(str, moved.values()))
    except BaseException:
        for old in names:
            old.unlink(missing_ok=True)
        for old, new in moved.items():
            new.rename(old)
        raise


def recover(
    pipeline: "PipelineDefinition",
    items: Iterable[Any],
    by: Actor,
    *,
    batch: str,
    key: KeyFrom,
    identity: Identity = "key",
    damaged: Path | None = None,
    store: Store | None = None,
) -> Recovery:
    """Admit the items of the source, and record how far each has come by its existing outputs; in the pipeline's own
    store, unless another is passed. A damaged store is renamed first."""
    if not any(stage.sink is not None for stage in pipeline.stages):
        raise UsageError(
            f"no stage of pipeline {pipeline.name!r} keeps its outputs in files: there is nothing to rebuild from; "
            "restore a backup, or run it again"
        )
    again = partial(_rebuild, pipeline, items, by, batch=batch, key=key, identity=identity)
    if damaged is None:
        return again(pipeline.store if store is None else store, is_preview=store is not None)
    with set_aside(damaged) as moved, closing(open_store(damaged)) as new:
        found = replace(again(new), set_aside=moved)
    pipeline.use_store(pipeline.store_name)  # what it had open is the damaged one
    return found


def _rebuild(
    pipeline: "PipelineDefinition", items: Iterable[Any], by: Actor, store: Store, *, batch: str, key: KeyFrom,
    identity: Identity, is_preview: bool = False,
) -> Recovery:  # fmt: skip
    stages = pipeline.stages
    check_absent(store, batch)
    described = definition.describe(pipeline.name, stages, definition.keyed_by(key, identity), pipeline.patience)
    owned = ownership.adopt(store, pipeline.name, batch, stages) if not is_preview else ownership.Ownership()
    try:
        opened = store.open_batch(batch, pipeline.name, described, actor=by.name)
        owned.settle(opened)
    finally:
        owned.close()
    ingester = Ingester(store, opened, stages[0].input, key=key, identity=identity, changed="keep", owner=by.name,
                        rerun=lambda n, item, origin: None)  # fmt: skip
    ingester.read(items, Control(1), Ledger([]), lambda: None)
    finder = _Finder(pipeline.name, opened, stages)
    try:
        operations.act_on(
            store, opened, each_item(store, opened.id, state=State.PENDING), finder.decide, kind="recovered", by=by
        )
    finally:
        finder.close()
    (fresh,) = store.batches(batch)
    return Recovery(
        batch=batch, items=fresh.admitted, recovered=dict(finder.recovered), pending=finder.pending,
        invalid=tuple(finder.invalid), invalid_count=finder.invalid_count, unverified=tuple(finder.unverified),
        unverified_count=finder.unverified_count, set_aside=(),
    )  # fmt: skip


def preview(
    pipeline: "PipelineDefinition", items: Iterable[Any], *, batch: str, key: KeyFrom, identity: Identity = "key"
) -> Recovery:
    """Return what `recover` would find. It uses a temporary store: nothing else is written."""
    path = pipeline.store_path
    if path is None or is_damaged(path) is None:
        check_absent(pipeline.store_if_there(), batch)
    with TemporaryDirectory(prefix="holdfast-") as place:
        store = open_store(Path(place) / "state.db")
        try:
            by = Actor(name="preview", reason="a dry run")
            return recover(pipeline, items, by, batch=batch, key=key, identity=identity, store=store)
        finally:
            store.close()


def check_absent(store: Store | None, batch: str) -> None:
    """Refuse a batch that the store has already."""
    found = None if store is None else find_batch(store, batch)
    if found is not None and found.admitted:
        raise Refused(
            f"batch {batch!r} is in the store with {found.admitted:,} items, and can be read: there is nothing to "
            "rebuild; run it to continue, or pass another batch name"
        )


class _Finder:
    """Decides how far an item has come."""

    def __init__(self, pipeline: str, batch: Batch, stages: list[Stage]) -> None:
        self._pipeline, self._batch, self._stages = pipeline, batch, stages
        self._inspector = OutputInspector(stages, pipeline=pipeline, batch=batch.name, uid=batch.uid,
                                          knows_inputs=False)  # fmt: skip
        self.recovered = Counter[str]()
        self.pending = self.invalid_count = self.unverified_count = 0
        self.invalid: list[tuple[str, str]] = []
        self.unverified: list[tuple[str, str]] = []

    def close(self) -> None:
        self._inspector.close()

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
        """Return the change that records an output of a stage; or why it does not count; None if there is none."""
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
                seen = self._inspector.content(RecordedItem.of(item, ()), index, data, Depth.VERIFIED)
            except (Invalid, SinkError, Permanent, UnicodeDecodeError) as error:
                why = why if why is not None else str(error)
                continue
            if seen is None or seen.verdict is Verdict.UNKNOWN:
                self._note(item, seen)
                return self._change(item, index, evidence, data)
            why = seen.reason
        return f"the output of stage {stage.name!r}: {why}"

    def _note(self, item: StoredItem, seen: Inspection | None) -> None:
        """Count an output whose verifier gave no answer: there is no objection to it."""
        if seen is None or not isinstance(seen.error, CheckFailed):
            return
        self.unverified_count += 1
        if len(self.unverified) < SHOWN:
            told = f"{seen.error.what}: {no_answer(seen.error.error)}"
            self.unverified.append((canonical.key_text(item.key), told))

    def _change(self, item: StoredItem, index: int, evidence: Evidence, data: bytes) -> Change:
        stages, reached = len(self._stages), index + 1
        to = State.DONE if reached == stages else State.PENDING
        after = move(
            item.place, Transition.RECOVER, to=to, stage=reached, stages=stages, code=operations.RECOVERED,
            reason="found by its output",
        )  # fmt: skip
        made = Output(item.n, index, after.epoch, None, evidence.encode())
        return Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=after, output=made)


def _read(sink: Sink, evidence: Evidence) -> bytes:
    try:
        return sink.read(evidence)
    except OSError as error:
        raise SinkError(f"{evidence.final}: it cannot be read ({os.strerror(error.errno or 0)})") from None
