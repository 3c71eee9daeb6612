"""A file of pages that are done, with the folder of their outputs, as a batch that resumes there.

The files are the facts: a page counts if its output is there, whole and valid, whatever the file of pages says. What a
page cost stood in that file only; the journal keeps it as it was told.
"""

from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast.core import canonical, foreign, journal
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import State
from holdfast.runtime.operating.operations import By
from holdfast.runtime.pipeline import Pipeline
from holdfast.runtime.records.recovery import Recovery
from holdfast.runtime.sinks.files import Files
from holdfast.stores.base import each_item

IMPORTED = "imported"
SHOWN = 1000
"""So many pages are named; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What became of the pages."""

    recovery: Recovery
    stage: str
    noted: int
    """Pages that the file calls done."""
    usd: Decimal
    """What they cost, as it says."""
    lost: tuple[str, ...]
    """Of them, those without a valid output: they run again."""
    found: tuple[str, ...]
    """Pages that it does not call done and that have a valid output: they count."""

    def as_dict(self) -> dict[str, Any]:
        return {"act": IMPORTED, **asdict(self), "usd": format(self.usd, "f"), "recovery": self.recovery.as_dict()}


def read(pipeline: Pipeline, file: Path, data: bytes) -> foreign.Pages:
    """The file of pages, if it belongs to this pipeline: the stage, the folder, and the number of pages."""
    pages = foreign.read_pages(data, str(file))
    stage = next((each for each in pipeline.stages if each.name == pages.stage_name), None)
    if stage is None:
        names = ", ".join(each.name for each in pipeline.stages)
        raise UsageError(f"{file} is of stage {pages.stage_name!r}, pipeline {pipeline.name!r} has {names}")
    if not isinstance(stage.sink, Files) or stage.sink.folder.resolve() != file.parent.resolve():
        where = stage.sink.folder if isinstance(stage.sink, Files) else "no files"
        raise UsageError(f"{file} speaks of outputs beside it, stage {stage.name!r} keeps its outputs in {where}")
    there = sum(1 for _ in pipeline.items())
    if there != pages.total_pages:
        raise Refused(
            f"{file} speaks of {pages.total_pages:,} pages, the source of {pipeline.name!r} gives {there:,}: it is of "
            "another source, or that changed; nothing was changed"
        )
    return pages


def take_over(pipeline: Pipeline, file: Path, data: bytes, by: By, *, batch: str, key: str | None) -> Arrived:
    """Admit the pages, record those whose outputs count, and keep what the file told."""
    pages = read(pipeline, file, data)
    recovery = pipeline.recover(by=by, batch=batch, key=key)
    made = pipeline.store.batch(batch)
    assert made is not None
    lost, found = _compare(pipeline, pages, batch)
    usd = sum((Decimal(str(each.get("cost_usd", 0))) for each in pages.page_metrics.values()), Decimal(0))
    note = {"format": "pages", "file": str(file), "digest": f"sha256:{canonical.digest(b'', data).hex()}",
            "status": pages.status, "cost_usd": format(usd, "f"), "page_metrics": pages.page_metrics}  # fmt: skip
    body = journal.encode_body(journal.Acted(reason=by.reason, note=canonical.encode(note)))
    pipeline.store.note(made.id, IMPORTED, body, actor=by.actor, once=True)
    return Arrived(recovery=recovery, stage=pages.stage_name, noted=len(pages.page_metrics), usd=usd, lost=lost,
                   found=found)  # fmt: skip


def _compare(pipeline: Pipeline, pages: foreign.Pages, batch: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    made = pipeline.store.batch(batch)
    assert made is not None
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
