"""Imports of work that was begun elsewhere: states of other programs, and output files whose record was lost."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from holdfast.core import cursor
from holdfast.core.errors import UsageError
from holdfast.core.model import Key
from holdfast.runtime import importers, recover
from holdfast.runtime.acts import Actor, ActResult, Preview, act, actor_named
from holdfast.runtime.define.pipeline import check_name
from holdfast.runtime.handles.checks import check_kind
from holdfast.runtime.handles.cursors import key_named, read
from holdfast.runtime.importers import ImportedPages, ImportPlan
from holdfast.runtime.operate import clones
from holdfast.runtime.pipeline import Pipeline
from holdfast.runtime.recover import Recovery
from holdfast.runtime.scan.scan import SourceWalk
from holdfast.runtime.text import many, one_line
from holdfast.stores.memory import MemoryStore

COLUMNS = ("partition", "resumes after", "rows before", "accumulated")
SHOWN_PARTITIONS = 50
NOBODY = Actor(name="nobody", reason="a dry run")


@overload
def import_poller(scan: SourceWalk, file: str | Path, *, batch: str | None = None, reason: str = "", actor: str = "",
                  dry_run: Literal[True]) -> Preview: ...  # fmt: skip
@overload
def import_poller(scan: SourceWalk, file: str | Path, *, batch: str | None = None, reason: str, actor: str = "",
                  dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
def import_poller(scan: SourceWalk, file: str | Path, *, batch: str | None = None, reason: str = "", actor: str = "",
                  dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
    """Continue where another poller stopped, from a document with its cursor and its lease."""

    name = _name(scan, SourceWalk, batch)

    def look() -> Preview:
        now = (scan.pipeline.store_if_there() or MemoryStore()).now()
        return _shown(scan, importers.from_poller(scan, name, read(file), str(file), now=now))

    return act(look, reason, actor, dry_run)


@overload
def import_checkpoints(scan: SourceWalk, files: Sequence[tuple[Key | None, str | Path]], *, by_rows: bool = False,
                       batch: str | None = None, reason: str = "", actor: str = "",
                       dry_run: Literal[True]) -> Preview: ...  # fmt: skip
@overload
def import_checkpoints(scan: SourceWalk, files: Sequence[tuple[Key | None, str | Path]], *, by_rows: bool = False,
                       batch: str | None = None, reason: str, actor: str = "",
                       dry_run: Literal[False] = False) -> ActResult: ...  # fmt: skip
def import_checkpoints(scan: SourceWalk, files: Sequence[tuple[Key | None, str | Path]], *, by_rows: bool = False,
                       batch: str | None = None, reason: str = "", actor: str = "",
                       dry_run: bool = False) -> Preview | ActResult:  # fmt: skip
    """Continue a scan from checkpoint files with their history, given as pairs (partition, file). Pass `by_rows` if
    they contain a number of rows instead of a cursor."""

    name = _name(scan, SourceWalk, batch)

    def look() -> Preview:
        data = [(key_named(partition), read(file), str(file)) for partition, file in files]
        return _shown(scan, importers.from_checkpoints(scan, name, data, by_rows=by_rows))

    return act(look, reason, actor, dry_run)


def _shown(scan: SourceWalk, found: ImportPlan) -> Preview:
    plan, facts = found.plan, found.as_dict()
    first = [
        dict(zip(COLUMNS, (
            str(seed.key), str(cursor.decode(seed.checkpoint.cursor)) if seed.checkpoint.cursor else "its beginning",
            f"{seed.checkpoint.rows:,}",
            "nothing" if seed.checkpoint.acc is None else one_line(seed.checkpoint.acc.decode(), 60),
        ), strict=True))
        for seed in plan.seeds[:SHOWN_PARTITIONS]
    ]  # fmt: skip
    kept = f"The journal keeps {many(len(found.history), 'checkpoint')} made elsewhere."
    return Preview(
        batch=plan.name, keys=" ".join(facts), items=len(plan.seeds), counts={}, facts=facts, columns=COLUMNS,
        first=tuple(first), more=len(plan.seeds) - len(first), nothing_to_do=False,
        titles=(f"A new batch {plan.name} would continue from these cursors, under fences above {plan.fence}:",),
        remark=kept if found.history else "", warning="; ".join(found.told), question=f"Make batch {plan.name}",
        perform=lambda by, _: clones.make(scan.pipeline.store, plan, by, list(found.notes(by))),
    )  # fmt: skip


def _name(defined: SourceWalk | Pipeline, kind: type, batch: str | None) -> str:
    """Return the name of the batch to import into, of a scan or of a pipeline."""
    is_scan = kind is SourceWalk
    check_kind(defined, kind, *(("scan", "a scan or a follower") if is_scan else ("pipeline", "a pipeline")))
    return check_name(batch if batch is not None else defined.name, "batch")


# -- pages, and output files ------------------------------------------------------------------------------------------


def import_pages(
    pipeline: Pipeline, file: str | Path, *, batch: str | None = None, key: str | None = None, reason: str = "",
    actor: str = "", dry_run: bool = False,
) -> ImportedPages:  # fmt: skip
    """Continue from a `.checkpoint` file of pages and the outputs beside it. Valid outputs count as done; other pages
    run again. A dry run tries this in memory."""
    name, place = _name(pipeline, Pipeline, batch), Path(file)
    check_pages(pipeline, file)
    if dry_run:
        recover.check_absent(pipeline.store_if_there(), name)
        pipeline = copy.copy(pipeline)
        pipeline.use_store(MemoryStore())
    by = NOBODY if dry_run else Actor(name=actor_named(actor), reason=reason)
    return importers.take_over_pages(pipeline, place, read(place), by, batch=name, key=key)


def check_pages(pipeline: Pipeline, file: str | Path) -> tuple[int, int]:
    """Return how many pages a file marks as done, and of how many; refuse a file of another pipeline."""
    if not pipeline.has_source:
        raise UsageError(f"pipeline {pipeline.name!r} has no source, which is needed to list the pages: define one")
    found = importers.read_page_file(pipeline, Path(file), read(file))
    return len(found.page_metrics), found.total_pages


@dataclass(frozen=True, slots=True)
class StoreFile:
    """The file of a pipeline's store, and whether it is usable."""

    path: Path | None
    """None if the store is not a file."""
    damage: str | None
    """Why it cannot be used; None if it can, or if there is none."""


def look_at_file(pipeline: Pipeline) -> StoreFile:
    """Check whether the file of a pipeline's store can be used."""
    path = pipeline.store_path
    return StoreFile(path, recover.is_damaged(path) if path is not None else None)


def import_outputs(
    pipeline: Pipeline, *, batch: str | None = None, key: str | None = None, reason: str = "", actor: str = "",
    dry_run: bool = False,
) -> Recovery:  # fmt: skip
    """Rebuild the record of a batch from its output files: items with valid outputs count as done. A damaged store is
    moved to another name; if the call fails, it is moved back."""
    name, found = _name(pipeline, Pipeline, batch), look_at_file(pipeline)
    if dry_run:
        return pipeline.recover(by=NOBODY, batch=name, key=key, dry_run=True)
    by = Actor(name=actor_named(actor), reason=reason)
    return pipeline.recover(by=by, batch=name, key=key, damaged=None if found.damage is None else found.path)
