"""`holdfast pause`, `unpause`, `cancel`, `expect` and `close`: a person decides how a batch continues."""

from typing import Annotated

import typer

import holdfast as hf
from holdfast import BatchChange
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import ActOptions, BatchArgument, agreed, check_reason, decide, with_manner
from holdfast.runtime.text import command, unpause_command


@with_manner(dry_run=False)
def pause(batch: BatchArgument, *, manner: ActOptions) -> None:
    """Pause a batch: workers stop at their next checkpoint, and no run continues before `unpause`. Nothing is lost."""
    with hf.open(manner.store) as store:
        found = store[batch]
        by = agreed(f"Pause {batch}", manner, confirms=False)
        done = found.pause(reason=by.reason, actor=by.name)
    _answer(done, manner, f"{batch} is paused: workers stop at their next checkpoint. To continue: "
                          f"{unpause_command(batch)}, then run it again")  # fmt: skip


@with_manner(dry_run=False)
def unpause(batch: BatchArgument, *, manner: ActOptions) -> None:
    """Let a paused batch continue with the next run."""
    with hf.open(manner.store) as store:
        found = store[batch]
        by = agreed(f"Unpause {batch}", manner, confirms=False)
        done = found.unpause(reason=by.reason, actor=by.name)
    _answer(done, manner, f"{batch} may continue: run it again")


@with_manner()
def cancel(
    batch: BatchArgument,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Fence off the workers: work in flight is not committed.")
    ] = False,
    *,
    manner: ActOptions,
) -> None:
    """Cancel a batch for good: pending items are cancelled, items in flight are finished or left to their owners."""
    with hf.open(manner.store) as store:
        decide(store[batch].cancel(at_once=at_once, dry_run=True), manner)


@with_manner()
def expect(
    batch: BatchArgument,
    expected: Annotated[int, typer.Argument(metavar="N", help="The number of items in all, counted by their keys.")],
    *,
    manner: ActOptions,
) -> None:
    """Set how many items a batch has in all: the last one ends it. Changing the number needs a reason."""
    with hf.open(manner.store) as store:
        found, seen = store[batch], store[batch].status()
        came = seen.counts.expected
        if manner.dry_run:
            before = "" if seen.expected is None else f" instead of {seen.expected:,}"
            text = f"{batch} would be expected to have {render.many(expected, 'item')}{before}; {came:,} came so far"
            plan = {"batch": batch, "expected": expected, "before": seen.expected, "admitted": came}
            render.document(plan) if manner.as_json else render.say(text)
            return
        reason, actor = manner.reason, manner.who
        if seen.expected not in (None, expected):
            if not manner.as_json:
                render.say(
                    f"{batch} was expected to have {render.many(seen.expected or 0, 'item')}; {came:,} came so far."
                )
            reason, actor = agreed(f"Expect {expected:,} items of {batch}", manner, confirms=False)[::-1]
        done = found.expect(expected, reason=reason, actor=actor)
    _answer(done, manner, f"{batch} is expected to have {render.many(expected, 'item')}")


@with_manner()
def close(batch: BatchArgument, *, manner: ActOptions) -> None:
    """Close a batch: it takes no new items, and ends when the items it has are settled. This cannot be undone."""
    with hf.open(manner.store) as store:
        found, seen = store[batch], store[batch].status()
        came, missing = seen.counts.expected, max(0, (seen.expected or 0) - seen.counts.expected)
        is_closed = seen.closed_at is not None
        if not manner.dry_run and not is_closed:
            check_reason(f"Close {batch} for good", manner)
        if manner.as_json and manner.dry_run:
            render.document({"batch": batch, "admitted": came, "expected": seen.expected, "never_created": missing})
        elif not manner.as_json and not is_closed:
            never = f"; {missing:,} of {seen.expected:,} expected never came" if missing else ""
            render.say(
                f"{batch} has {render.many(came, 'item')}{never}. It would take no new ones from now on, for good: a "
                "close cannot be undone, and what comes later needs another batch."
            )
        if manner.dry_run:
            return
        by = agreed(f"Close {batch} for good", manner, nothing_to_do=is_closed)
        done = found.close(reason=by.reason, actor=by.name)
    _answer(done, manner, f"{batch} is closed: it takes no new items")


def _answer(done: BatchChange, manner: ActOptions, sentence: str) -> None:
    """Print what was done, and the end of the batch if it came; exit with 1 if the end leaves items unexplained."""
    if manner.as_json:
        render.document(done.as_dict())
    else:
        already = "" if done.changed else " already: nothing was changed"
        sentence = sentence if done.changed else f"{done.batch} is {done.act}"
        render.say(f"{sentence}{already}.", render.GOOD if done.changed else "")
        if done.end is not None:
            why = f": {', '.join(done.unexplained)}; see {command('reconcile', done.batch)}" if done.unexplained else ""
            render.say(f"{done.batch} has come to its end: {done.end}{why}.", render.BAD if why else render.GOOD)
    if done.unexplained:
        raise typer.Exit(1)
