"""`holdfast reset`: begin again, after showing what that throws away."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.core.errors import UsageError
from holdfast.core.model import Batch
from holdfast.interfaces.cli import render, scan_reset
from holdfast.interfaces.cli.common import (
    BatchArgument,
    Manner,
    agreed,
    goes_on,
    opened,
    say_result,
    warn_of_end,
    with_manner,
)
from holdfast.runtime import lookup
from holdfast.runtime.cursors.standing import borders, is_scan
from holdfast.runtime.durations import brief
from holdfast.runtime.ending import sealing
from holdfast.runtime.operating import operations, preview
from holdfast.runtime.stuck import acquittal
from holdfast.stores.base import Store


@with_manner()
def reset(
    batch: BatchArgument,
    item: Annotated[str | None, typer.Argument(metavar="ITEM", help="One item; without it, the whole batch.")] = None,
    to_stage: Annotated[str, typer.Option("--to-stage", help="Begin at this stage: its name or index.")] = "0",
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Of a scan: from the first row, not from the checkpoint.")
    ] = False,
    complete_with: Annotated[
        Path | None, typer.Option("--complete-with", metavar="FILE", help="Of a scan: done, with this JSON as result.")
    ] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="Of a scan: settled by hand, without a result.")] = False,
    blame: Annotated[
        bool, typer.Option("--blame", help="Only lift the blame that owners left who died before a commit.")
    ] = False,
    *,
    manner: Manner,
) -> None:
    """Begin an item, or a whole batch, again at a stage: a new epoch, no attempts used, owners at work fenced off.
    A partition of a scan resumes at its checkpoint."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        if blame:
            if item is not None or to_stage != "0" or from_start or complete_with is not None or resolve:
                raise UsageError("--blame is about a whole batch and begins no item again: pass it alone")
            _lift(there, found, manner)
            return
        if is_range(there, found, item):
            scan_reset.reset(there, found, item, scan_reset.Wish(from_start, complete_with, resolve), to_stage, manner)
            return
        if from_start or complete_with is not None or resolve:
            raise UsageError(
                f"--from-start, --complete-with and --resolve are for partitions of a scan, which {batch!r} does not "
                "have there; see `holdfast dead resolve`; nothing was changed"
            )
        sealing.check_goes_on(there, found)
        shown = preview.preview_reset(there, found, item, to_stage=to_stage)

        def show() -> None:
            _show(shown)
            warn_of_end(there, found)

        if not goes_on(manner, shown.as_dict(), show):
            return
        what = f"Reset item {item} of {batch}" if item is not None else f"Reset all of {batch}"
        by = agreed(what, manner, nothing_to_do=shown.items == 0)
        say_result(operations.reset(there, found, by, item, to_stage=to_stage), manner.as_json)


def _lift(there: Store, batch: Batch, manner: Manner) -> None:
    """Show whose blame would be lifted, ask, do it, and tell what happened."""
    sealing.check_goes_on(there, batch)
    found = acquittal.preview(there, batch)

    def show() -> None:
        if found is None:
            render.say(f"No part of {batch.name} that nobody holds carries blame.")
            return
        owners = "owner" if found.deaths == 1 else f"{found.deaths:,} owners"
        render.say(
            f"{render.many(found.items, 'item')} of {batch.name} in {render.many(found.parts, 'part')} would be handed "
            f"out as if the last {owners} had not died; nothing becomes of the items."
        )

    told = {"batch": batch.name, **(found.as_dict() if found is not None else {"parts": 0, "items": 0})}
    if not goes_on(manner, told, show):
        return
    by = agreed(f"Lift the blame in {batch.name}", manner, nothing_to_do=found is None)
    say_result(acquittal.lift(there, batch, by), manner.as_json, noun="part")


def is_range(there: Store, batch: Batch, item: str | None) -> bool:
    """Whether a partition of a scan is meant, or all of them; not a row that was buried."""
    return is_scan(batch) and (item is None or borders(lookup.item_named(there, batch, item)) is not None)


def _show(shown: preview.ResetPreview) -> None:
    whose = (
        f"item {shown.item} of {shown.batch}" if shown.item is not None else f"{shown.items:,} items of {shown.batch}"
    )
    render.say(f"{whose} would begin again at {shown.to_stage!r}, in a new epoch:", render.HEAD)
    states = {name: getattr(shown, name) for name in ("done", "skipped", "dead", "cancelled", "pending")}
    rows = [("items", ", ".join(f"{count:,} {name}" for name, count in states.items() if count))]
    rows.append(("thrown away", f"work that took {brief(shown.seconds)} and cost {render.usd(shown.usd)}"))
    if shown.in_flight:
        rows.append(
            (
                "in flight",
                f"{shown.in_flight:,} items, held by {', '.join(shown.owners)}: their attempts will not count",
            )
        )
    render.show(render.facts(rows))
