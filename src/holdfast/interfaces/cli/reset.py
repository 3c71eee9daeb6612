"""`holdfast reset`: start items again; resume partitions at their checkpoint, start them again, or settle them."""

from pathlib import Path
from typing import Annotated

import typer

import holdfast as hf
from holdfast import Preview, UsageError
from holdfast.interfaces.cli.common import ActOptions, BatchArgument, decide, with_manner
from holdfast.runtime.handles.cursors import read


@with_manner()
def reset(
    batch: BatchArgument,
    item: Annotated[
        str | None, typer.Argument(metavar="ITEM", help="One item: its key, or #N. Default: the whole batch.")
    ] = None,
    to_stage: Annotated[str, typer.Option("--to-stage", help="Start again at this stage: its name or index.")] = "0",
    from_start: Annotated[
        bool, typer.Option("--from-start", help="For a scan: start at the first row, not at the checkpoint.")
    ] = False,
    complete_with: Annotated[
        Path | None,
        typer.Option(
            "--complete-with",
            metavar="FILE",
            help="For a scan: settle the partition as done, with the result in this JSON file.",
        ),
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="For a scan: settle the partition as skipped, without a result.")
    ] = False,
    resolve: Annotated[bool, typer.Option("--resolve", hidden=True, help="The old name of --skip.")] = False,
    blame: Annotated[
        bool, typer.Option("--blame", help="Only lift the blame left by owners that died before a commit.")
    ] = False,
    *,
    manner: ActOptions,
) -> None:
    """Start an item, or a whole batch, again at a stage, in a new epoch with all attempts; owners are fenced off.
    A partition of a scan resumes at its checkpoint."""
    of_a_scan = sum((from_start, complete_with is not None, skip or resolve))
    if blame and (item is not None or to_stage != "0" or of_a_scan):
        raise UsageError("--blame is for a whole batch and starts no item again: pass it alone")
    if of_a_scan > 1:
        raise UsageError("--from-start, --complete-with and --skip: pass one of them; nothing was changed")
    with hf.open(manner.store) as store:
        found = store[batch]
        shown: Preview
        if blame:
            shown = found.lift_blame(dry_run=True)
        elif not of_a_scan:
            shown = found.reset(item, to_stage=to_stage, dry_run=True)
        elif not found.has_partitions(item):
            raise UsageError(
                f"--from-start, --complete-with and --skip are for partitions of a scan, which {batch!r} does not "
                "have there; see `holdfast dead resolve`; nothing was changed"
            )
        elif from_start:
            shown = found.cursors.resume(item, from_start=True, dry_run=True)
        elif item is None:
            raise UsageError("name the partition that is settled by hand; nothing was changed")
        else:
            result = None if complete_with is None else read(complete_with)
            shown = found.cursors.settle(item, result=result, dry_run=True)
        decide(shown, manner)
