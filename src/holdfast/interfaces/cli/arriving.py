"""`holdfast import` of what other programs kept: a poller's state, checkpoints with history, a file of pages."""

import contextlib
import copy
import sys
from pathlib import Path

from holdfast.core import cursor
from holdfast.core.errors import UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import Manner, agreed, goes_on, read_file, say_result
from holdfast.interfaces.cli.loading import load, load_scan
from holdfast.runtime.cursors import acts, arriving
from holdfast.runtime.cursors.arriving import Arrival
from holdfast.runtime.operating.operations import By
from holdfast.runtime.pipeline import check_name
from holdfast.runtime.records import pages
from holdfast.runtime.scan import Scan
from holdfast.stores.memory import MemoryStore


def import_state(target: str, file: Path, batch: str | None, manner: Manner) -> None:
    """A poller's state."""
    scan = _scan(target, manner)
    now = (scan.pipeline.store_if_there() or MemoryStore()).now()
    _plant(scan, arriving.from_poller(scan, _name(scan, batch), read_file(file), str(file), now=now), manner)


def import_checkpoints(target: str, said: list[str], by_rows: bool, batch: str | None, manner: Manner) -> None:
    """Checkpoints with their history, each `FILE` or `PARTITION=FILE`."""
    scan = _scan(target, manner)
    files = [_named(each) for each in said]
    read = [(partition, read_file(file), str(file)) for partition, file in files]
    _plant(scan, arriving.from_checkpoints(scan, _name(scan, batch), read, by_rows=by_rows), manner)


def _named(said: str) -> tuple[str | None, Path]:
    partition, equals, file = said.partition("=")
    if equals and not Path(said).exists():
        return partition, Path(file)
    return None, Path(said)


def _scan(target: str, manner: Manner) -> Scan:
    with contextlib.redirect_stdout(sys.stderr) if manner.as_json else contextlib.nullcontext():
        scan = load_scan(target)
    if manner.store is not None:
        scan.pipeline.use_store(manner.store)
    return scan


def _name(scan: Scan, batch: str | None) -> str:
    return check_name(batch if batch is not None else scan.name, "batch")


def _plant(scan: Scan, found: Arrival, manner: Manner) -> None:
    plan = found.plan

    def show() -> None:
        render.say(f"A new batch {plan.name} would continue there, under fences above {plan.fence}:", render.HEAD)
        rows = [
            (
                str(seed.key),
                str(cursor.decode(seed.checkpoint.cursor)) if seed.checkpoint.cursor else "its beginning",
                f"{seed.checkpoint.rows:,}",
                "nothing" if seed.checkpoint.acc is None else render.one_line(seed.checkpoint.acc.decode(), 60),
            )
            for seed in plan.seeds
        ]
        render.show(render.table(["partition", "resumes after", "rows before", "accumulated"], rows))
        if found.history:
            render.say(f"The journal keeps {render.many(len(found.history), 'checkpoint')} that were made elsewhere.")
        for told in found.told:
            render.say(told, render.CARE)

    if not goes_on(manner, found.as_dict(), show):
        return
    by = agreed(f"Make batch {plan.name}", manner)
    say_result(acts.make(scan.pipeline.store, plan, by, list(found.notes(by))), manner.as_json, "partition")


def import_pages(target: str, file: Path, batch: str | None, key: str | None, manner: Manner) -> None:
    """A file of pages with its folder."""
    with contextlib.redirect_stdout(sys.stderr) if manner.as_json else contextlib.nullcontext():
        pipeline = load(target)
    if not pipeline.has_source:
        raise UsageError(f"pipeline {pipeline.name!r} has no source: it says which pages there are")
    if manner.store is not None:
        pipeline.use_store(manner.store)
    name = check_name(batch if batch is not None else pipeline.name, "batch")
    data = read_file(file)
    if manner.dry_run:
        pipeline = copy.copy(pipeline)
        pipeline.use_store(MemoryStore())
        _tell(pages.take_over(pipeline, file, data, By(actor=manner.who, reason="a dry run"), batch=name, key=key),
              manner, "would count")  # fmt: skip
        return
    said = pages.read(pipeline, file, data)
    if not manner.as_json:
        render.say(f"{file}: {len(said.page_metrics):,} of {said.total_pages:,} pages are called done.")
    by = agreed(f"Make batch {name} from {file} and the outputs beside it", manner)
    _tell(pages.take_over(pipeline, file, data, by, batch=name, key=key), manner, "count")


def _tell(made: pages.Arrived, manner: Manner, counts: str) -> None:
    if manner.as_json:
        render.document(made.as_dict())
        return
    whole = sum(made.recovery.recovered.values())
    render.say(
        f"{whole:,} of {made.recovery.items:,} pages {counts} as done, {made.recovery.pending:,} run.", render.GOOD
    )
    rows = [("called done", f"{made.noted:,}, for ${made.usd}; the journal keeps what each cost")]
    if made.lost:
        rows.append(("run again", f"{', '.join(made.lost[:20])}: called done, without a valid output"))
    if made.found:
        rows.append(("found", f"{', '.join(made.found[:20])}: not called done, with a valid output"))
    rows += [(f"page {name}", why) for name, why in made.recovery.invalid[:20]]
    render.show(render.facts(rows))
