"""`holdfast reset`: begin again, after showing what that throws away."""

from typing import Annotated

import typer

from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    ActorOption,
    BatchArgument,
    DryRunOption,
    JsonOption,
    Manner,
    ReasonOption,
    StoreOption,
    YesOption,
    agreed,
    opened,
    say_result,
    warn_of_end,
)
from holdfast.runtime import lookup, operations, preview, sealing
from holdfast.runtime.durations import brief


def reset(
    batch: BatchArgument,
    item: Annotated[str | None, typer.Argument(metavar="ITEM", help="One item; without it, the whole batch.")] = None,
    to_stage: Annotated[str, typer.Option("--to-stage", help="Begin at this stage: its name or index.")] = "0",
    reason: ReasonOption = "",
    actor: ActorOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin an item, or a whole batch, again at a stage: a new epoch, no attempts used, owners at work fenced off."""
    with opened(store) as there:
        found = lookup.batch_named(there, batch)
        sealing.check_goes_on(there, found)
        shown = preview.preview_reset(there, found, item, to_stage=to_stage)
        if dry_run and as_json:
            render.document(shown.as_dict())
            return
        if not as_json:
            _show(shown)
            warn_of_end(there, found)
        if dry_run:
            return
        what = f"Reset item {item} of {batch}" if item is not None else f"Reset all of {batch}"
        manner = Manner(yes=yes, reason=reason, actor=actor, dry_run=dry_run, as_json=as_json)
        by = agreed(what, manner, nothing_to_do=shown.items == 0)
        say_result(operations.reset(there, found, by, item, to_stage=to_stage), as_json)


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
