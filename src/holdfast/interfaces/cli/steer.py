"""`holdfast pause` and `holdfast cancel`: how a batch continues, decided by a person."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from holdfast.core.model import Batch
from holdfast.core.verify import Reconciliation
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    BatchArgument,
    Manner,
    agreed,
    goes_on,
    opened,
    say_result,
    show_preview,
    with_manner,
)
from holdfast.runtime import lookup
from holdfast.runtime.operate import steer
from holdfast.runtime.text import command, unpause


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
        steered = (steer.resume if off else steer.pause)(there, found, by)
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
        shown = steer.preview_cancel(there, found, at_once=at_once)
        finished = steer.is_finished(there, found)
        if not goes_on(manner, shown.as_dict(), lambda: show_preview(shown)):
            return
        by = agreed(f"Cancel {batch}", manner, nothing_to_do=finished)
        say_result(steer.cancel(there, found, by, at_once=at_once), manner.as_json)


@with_manner()
def expect(
    batch: BatchArgument,
    expected: Annotated[int, typer.Argument(metavar="N", help="How many items it has in all, counted by their keys.")],
    *,
    manner: Manner,
) -> None:
    """Say how many items a batch has in all: the last of them ends it. Another number than before needs a reason."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        is_other = found.expected not in (None, steer.check_total(expected))
        before = "" if found.expected is None else f" instead of {found.expected:,}"
        say = (
            f"{batch} would be expected to have {render.many(expected, 'item')}{before}; {found.admitted:,} came so far"
        )
        plan = {"batch": batch, "expected": expected, "before": found.expected, "admitted": found.admitted}
        if not goes_on(manner, plan, _shows(manner, say)):
            return
        # It can be taken back, so nobody is asked; --yes is taken as everywhere.
        told = agreed(f"Expect {expected:,} items of {batch}", replace(manner, yes=True)) if is_other else None
        now, end = steer.expect(
            there, found, expected, actor=manner.who, reason=manner.reason if told is None else told.reason
        )
    _answer(found, now, end, manner, f"{now.name} is expected to have {render.many(expected, 'item')}")


@with_manner()
def close(
    batch: BatchArgument,
    *,
    manner: Manner,
) -> None:
    """Take no new items from now on: those that are there may come again, and once they are settled the batch ends. It
    cannot be undone."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        missing = max(0, (found.expected or 0) - found.admitted)
        never = f"; {missing:,} of {found.expected:,} expected never came" if missing else ""
        say = (
            f"{batch} has {render.many(found.admitted, 'item')}{never}. It would take no new ones from now on, for "
            "good: a close cannot be undone, and what comes later needs another batch."
        )
        plan = {"batch": batch, "admitted": found.admitted, "expected": found.expected, "never_created": missing}
        is_closed = found.closed_at is not None
        if not goes_on(manner, plan, lambda: None if is_closed else render.say(say)):
            return
        by = agreed(f"Close {batch} for good", manner, nothing_to_do=is_closed)
        now, end = steer.close(there, found, actor=by.actor, reason=by.reason)
    _answer(found, now, end, manner, f"{now.name} is closed: it takes no new items")


def _shows(manner: Manner, say: str) -> Callable[[], None]:
    return lambda: render.say(say) if manner.dry_run else None


def _answer(before: Batch, now: Batch, end: Reconciliation | None, manner: Manner, done: str) -> None:
    """Tell what was done, and the end if that was it; ends with 1 where the batch is not explained at its end."""
    if manner.as_json:
        render.document({"batch": now.name, "expected": now.expected, "closed_at": now.closed_at,
                         "admitted": now.admitted, "changed": now.seq != before.seq,
                         "end": None if end is None else str(end.state),
                         "unexplained": [] if end is None else list(end.unexplained)})  # fmt: skip
    else:
        already = "" if now.seq != before.seq else " already: nothing was changed"
        render.say(f"{done}{already}.", render.GOOD if not already else "")
        if end is not None:
            why = f": {', '.join(end.unexplained)}; see {command('reconcile', now.name)}" if end.unexplained else ""
            render.say(f"{now.name} has come to its end: {end.state}{why}.", render.BAD if why else render.GOOD)
    if end is not None and end.unexplained:
        raise typer.Exit(1)
