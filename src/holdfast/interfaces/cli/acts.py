"""`holdfast reset`: begin again, after showing what that throws away."""

from typing import Annotated

import typer

from holdfast.interfaces.cli import render
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
from holdfast.runtime import lookup, operations, preview, sealing
from holdfast.runtime.durations import brief


@with_manner()
def reset(
    batch: BatchArgument,
    item: Annotated[str | None, typer.Argument(metavar="ITEM", help="One item; without it, the whole batch.")] = None,
    to_stage: Annotated[str, typer.Option("--to-stage", help="Begin at this stage: its name or index.")] = "0",
    *,
    manner: Manner,
) -> None:
    """Begin an item, or a whole batch, again at a stage: a new epoch, no attempts used, owners at work fenced off."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
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
