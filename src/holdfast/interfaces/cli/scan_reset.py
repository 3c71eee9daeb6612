"""`holdfast reset` of a scan: resume at the checkpoint, begin again, or settle by hand."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import UsageError
from holdfast.core.model import Batch
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import Manner, agreed, goes_on, read_file, say_result, warn_of_end
from holdfast.interfaces.cli.cursor import show_plan
from holdfast.runtime.cursors import acts, retrying
from holdfast.runtime.cursors.glance import in_words
from holdfast.runtime.cursors.standing import standings
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


def reset(there: Store, batch: Batch, partition: str | None, wish: Wish, to_stage: str, manner: Manner) -> None:
    """Show what would be done, ask, do it, and say what happened."""
    if to_stage not in ("0", "scan"):
        raise UsageError(f"--to-stage {to_stage}: a scan has one stage; nothing was changed")
    if sum((wish.from_start, wish.complete_with is not None, wish.resolve)) > 1:
        raise UsageError("--from-start, --complete-with and --resolve: pass one of them; nothing was changed")
    if wish.settles:
        _settle(there, batch, partition, wish, manner)
        return
    plan = retrying.plan_retry(there, batch, partition, from_start=wish.from_start)

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
        done = retrying.retry(there, batch, plan, by, named=partition is not None)
    say_result(done, manner.as_json, "partition")


def _settle(there: Store, batch: Batch, partition: str | None, wish: Wish, manner: Manner) -> None:
    if partition is None:
        raise UsageError("name the partition that is settled by hand; nothing was changed")
    file = wish.complete_with
    result = None if file is None else retrying.check_result(read_file(file), str(file))
    (at,) = standings(there, batch, partition)
    retrying.check_unsettled(batch, at.place.state, partition)
    word = "skipped, without a result" if result is None else f"done with {render.one_line(result.decode(), 60)}"

    def show() -> None:
        render.say(f"partition {partition} of {batch.name} ({at.place.state}) would count as {word}.")
        render.say(f"It stands {in_words(at)}; no further row of it would be read.")
        if result is not None and (doubt := retrying.unlike(at, result)):
            render.say(f"Mind: {doubt}", render.CARE)

    plan = {"act": "resolve", "batch": batch.name, "partition": at.key, "state": at.place.state.value, "rows": at.rows}
    if not goes_on(manner, plan, show):
        return
    by = agreed(f"Settle partition {partition} of {batch.name}", manner)
    say_result(retrying.settle(there, batch, by, partition, result), manner.as_json, "partition")
