"""`holdfast reset`: items begin again; partitions resume at their checkpoint, begin again, or are settled by hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.core.course import kind_of
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, Kind
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    BatchArgument,
    Manner,
    agreed,
    goes_on,
    opened,
    read_file,
    say_result,
    show_preview,
    warn_of_end,
    with_manner,
)
from holdfast.interfaces.cli.cursor import show_plan
from holdfast.runtime import lookup
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.operate import operations, resolution
from holdfast.runtime.partitions import is_partition, standings
from holdfast.runtime.report import lifecycle
from holdfast.runtime.report.overview import partition_in_words
from holdfast.stores.base import Store


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person wants instead of resuming at the checkpoint."""

    from_start: bool
    complete_with: Path | None
    resolve: bool

    @property
    def settles(self) -> bool:
        return self.complete_with is not None or self.resolve


def reset_scan(there: Store, batch: Batch, partition: str | None, wish: Wish, to_stage: str, manner: Manner) -> None:
    """Show what would be done, ask, do it, and say what happened."""
    if to_stage not in ("0", "scan"):
        raise UsageError(f"--to-stage {to_stage}: a scan has one stage; nothing was changed")
    if sum((wish.from_start, wish.complete_with is not None, wish.resolve)) > 1:
        raise UsageError("--from-start, --complete-with and --resolve: pass one of them; nothing was changed")
    if wish.settles:
        _settle(there, batch, partition, wish, manner)
        return
    plan = acts.plan_retry(there, batch, partition, from_start=wish.from_start)

    def show() -> None:
        if wish.from_start:
            will = "is" if manner.yes and not manner.dry_run else "would be"
            render.say(f"Every row up to the checkpoint {will} handled again:", render.HEAD)
        else:
            render.say("Each resumes at its checkpoint, with no attempts used:", render.HEAD)
        show_plan(plan, agreed=manner.yes and not manner.dry_run)
        warn_of_end(there, batch)

    if not goes_on(manner, plan.as_dict(), show):
        return
    whose = (
        f"partition {partition}"
        if partition is not None
        else render.many(sum(not turn.left for turn in plan.parts), "partition")
    )
    nothing = all(turn.left for turn in plan.parts)
    by = agreed(f"Reset {whose} of {batch.name}", manner, nothing_to_do=nothing)
    if wish.from_start:
        done = acts.carry_out(there, batch, plan, by)
    else:
        done = acts.retry(there, batch, plan, by, named=partition is not None)
    say_result(done, manner.as_json, "partition")


def _settle(there: Store, batch: Batch, partition: str | None, wish: Wish, manner: Manner) -> None:
    if partition is None:
        raise UsageError("name the partition that is settled by hand; nothing was changed")
    file = wish.complete_with
    result = None if file is None else acts.check_result(read_file(file), str(file))
    (at,) = standings(there, batch, partition)
    acts.check_unsettled(batch, at.place.state, partition)
    word = "skipped, without a result" if result is None else f"done with {render.one_line(result.decode(), 60)}"

    def show() -> None:
        render.say(f"partition {partition} of {batch.name} ({at.place.state}) would count as {word}.")
        render.say(f"It stands {partition_in_words(at)}; no further row of it would be read.")
        if result is not None and (doubt := acts.unlike(at, result)):
            render.say(f"Mind: {doubt}", render.CARE)

    plan = {"act": "resolve", "batch": batch.name, "partition": at.key, "state": at.place.state.value, "rows": at.rows}
    if not goes_on(manner, plan, show):
        return
    by = agreed(f"Settle partition {partition} of {batch.name}", manner)
    say_result(acts.settle(there, batch, by, partition, result), manner.as_json, "partition")


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
            reset_scan(there, found, item, Wish(from_start, complete_with, resolve), to_stage, manner)
            return
        if from_start or complete_with is not None or resolve:
            raise UsageError(
                f"--from-start, --complete-with and --resolve are for partitions of a scan, which {batch!r} does not "
                "have there; see `holdfast dead resolve`; nothing was changed"
            )
        lifecycle.check_goes_on(there, found)
        shown = operations.preview_reset(there, found, item, to_stage=to_stage)
        if not goes_on(manner, shown.as_dict(), lambda: show_preview(shown)):
            return
        what = f"Reset item {item} of {batch}" if item is not None else f"Reset all of {batch}"
        by = agreed(what, manner, nothing_to_do=shown.items == 0)
        say_result(operations.reset(there, found, by, item, to_stage=to_stage), manner.as_json)


def _lift(there: Store, batch: Batch, manner: Manner) -> None:
    """Show whose blame would be lifted, ask, do it, and tell what happened."""
    lifecycle.check_goes_on(there, batch)
    found = resolution.preview_lift(there, batch)

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
    say_result(resolution.lift_blame(there, batch, by), manner.as_json, noun="part")


def is_range(there: Store, batch: Batch, item: str | None) -> bool:
    """Whether a partition of a scan is meant, or all of them; not a row that was buried."""
    if item is not None:
        return is_partition(there, batch, lookup.item_named(there, batch, item))
    return kind_of(batch, there.chunks(batch.id)) is Kind.PARTITIONS
