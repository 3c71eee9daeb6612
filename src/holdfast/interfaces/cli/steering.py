"""`holdfast pause` and `holdfast cancel`: how a batch continues, decided by a person."""

from dataclasses import replace
from typing import Annotated

import typer

from holdfast.core.model import Batch
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import BatchArgument, Manner, agreed, goes_on, opened, say_result, with_manner
from holdfast.runtime import lookup
from holdfast.runtime.commands import unpause
from holdfast.runtime.ending import steering


@with_manner(dry_run=False)
def pause(
    batch: BatchArgument,
    off: Annotated[bool, typer.Option("--off", help="Let it continue: the next run does.")] = False,
    *,
    manner: Manner,
) -> None:
    """Pause a batch: workers stop at their next checkpoint, and no run continues before `--off`. Nothing is lost."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        # It can be taken back, so nobody is asked; --yes is taken as everywhere.
        by = agreed(f"Let {batch} continue" if off else f"Pause {batch}", replace(manner, yes=True))
        steered = (steering.resume if off else steering.pause)(there, found, by)
        if manner.as_json:
            render.document({"batch": batch, "course": steered.course.value, "changed": steered.seq != found.seq})
            return
        render.say(_said(found, steered, off), render.GOOD if steered.seq != found.seq else "")


def _said(before: Batch, after: Batch, off: bool) -> str:
    if before.seq == after.seq:
        return f"{after.name} is {after.course} already: nothing was changed."
    if off:
        return f"{after.name} may continue: run it again."
    return (
        f"{after.name} is paused: workers stop at their next checkpoint. To continue: "
        f"{unpause(after.name)}, then run it again."
    )


@with_manner()
def cancel(
    batch: BatchArgument,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Fence owners at work off: what they do is not committed.")
    ] = False,
    *,
    manner: Manner,
) -> None:
    """Call a batch off, for good: what is pending is cancelled, what is in flight is finished or left."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        shown = steering.preview_cancel(there, found, at_once=at_once)
        finished = steering.is_finished(there, found)
        if not goes_on(manner, shown.as_dict(), lambda: _show(shown, finished)):
            return
        by = agreed(f"Cancel {batch}", manner, nothing_to_do=finished)
        say_result(steering.cancel(there, found, by, at_once=at_once), manner.as_json)


def _show(shown: steering.CancelPreview, finished: bool) -> None:
    if finished:
        render.say(f"{shown.batch} is finished: there is nothing that would be cancelled.")
        return
    render.say(f"{render.many(shown.items, 'item')} of {shown.batch} would be cancelled, for good:", render.HEAD)
    rows = [("now", f"{render.many(shown.free, 'item')} that nobody works on")]
    if shown.in_flight:
        who = ", ".join(shown.owners)
        then = (
            "taken from them at once: what they are doing is thrown away, and may have cost something"
            if shown.at_once
            else "those they have begun are finished or left at the next checkpoint, the rest is cancelled"
        )
        rows.append(("in flight", f"{render.many(shown.in_flight, 'item')} held by {who}: {then}"))
    rows.append(("kept", f"{render.many(shown.settled, 'item')} that are settled, with their outputs"))
    render.show(render.facts(rows))
