"""Steering a batch: pause, unpause, cancel, set its end; and cancel the items that an ended batch leaves over.

Steering itself is one entry, after which nothing more is claimed. Items that no owner holds are then cancelled in
groups, one act per group, so repeating the call after a crash cancels the rest. A live owner finishes its items, or
leaves them at its next checkpoint; items of a dead owner are taken from it.
"""

import logging
from collections.abc import Iterable, Mapping

from holdfast.core import canonical, course, journal
from holdfast.core.acts import change_of
from holdfast.core.course import CANCELLED, ENDED, to_course, to_end, to_note, to_steer
from holdfast.core.errors import UsageError
from holdfast.core.limits import ITEMS
from holdfast.core.model import Batch, BatchMode, Change, State, StoredItem
from holdfast.core.states import Transition, move
from holdfast.core.verify import Reconciliation
from holdfast.runtime.acts import Actor, ActResult, Acts, Preview
from holdfast.runtime.define.options import Until
from holdfast.runtime.journal import backward
from holdfast.runtime.report import reconcile
from holdfast.runtime.report.reconcile import NO_SINKS, look_for_end
from holdfast.runtime.sinks.base import Sink
from holdfast.runtime.text import command, in_utc, many
from holdfast.stores import owners
from holdfast.stores.base import Store, each_item

IN_FLIGHT = "in flight: their owners finish them, or leave them at the next checkpoint"
THROWN_AWAY = "taken from them at once: their unfinished work is thrown away, and may have cost something"
FINISHED_FIRST = "items they have begun are finished or left at the next checkpoint, the rest are cancelled"


# -- pause, unpause, cancel ------------------------------------------------------------------------------------------


def pause(store: Store, batch: Batch, by: Actor) -> Batch:
    """Pause a batch: nothing more is claimed until `unpause`, and workers stop at their next checkpoint."""
    return store.amend(batch.id, to_course(BatchMode.PAUSED, reason=by.reason), actor=by.name).batch


def unpause(store: Store, batch: Batch, by: Actor) -> Batch:
    """Let a paused batch continue with the next run."""
    return store.amend(batch.id, to_course(BatchMode.OPEN, reason=by.reason), actor=by.name).batch


def cancel(store: Store, batch: Batch, by: Actor, *, at_once: bool = False) -> ActResult:
    """Cancel a batch for good: free items are cancelled now, items in flight are not begun again. With `at_once`, live
    owners are fenced off, and their unfinished work is not committed."""
    if is_finished(store, batch):
        return ActResult(kind="cancelled", batch=batch.name, changed=0)
    store.amend(batch.id, to_course(BatchMode.CANCELLED, reason=by.reason), actor=by.name)
    result = clear(store, batch, by, code=CANCELLED, at_once=at_once)
    reconcile.look_for_end(store, batch, actor=by.name)
    return result


def is_finished(store: Store, batch: Batch) -> bool:
    """Return whether there is nothing to cancel: the source was read to its end, and nothing is pending."""
    if batch.course is BatchMode.CANCELLED or batch.ingested_at is None:
        return False
    return not any(chunk.pending for chunk in store.chunks(batch.id))


def preview_cancel(store: Store, batch: Batch, *, at_once: bool = False) -> Preview:
    """Return what `cancel` would do. Nothing is changed."""
    chunks, now = store.chunks(batch.id), store.now()
    held = [chunk for chunk in chunks if chunk.pending and owners.is_live(chunk, now)]
    pending, in_flight = (sum(chunk.pending for chunk in some) for some in (chunks, held))
    by = tuple(sorted({owners.short(chunk.owner) for chunk in held if chunk.owner is not None}))
    counts = {"free": pending - in_flight, "settled": sum(chunk.counts.settled for chunk in chunks)}
    title = f"{many(pending, 'item')} of {batch.name} would be cancelled, for good:"
    rows = [("now", f"{many(counts['free'], 'item')} that no worker holds")]
    if in_flight:
        then = THROWN_AWAY if at_once else FINISHED_FIRST
        rows.append(("in flight", f"{many(in_flight, 'item')} held by {', '.join(by)}: {then}"))
    rows.append(("kept", f"{many(counts['settled'], 'item')} that are settled, with their outputs"))
    finished = is_finished(store, batch)
    if finished:
        title, rows = f"{batch.name} is finished: there is nothing to cancel.", []
    return Preview(
        batch=batch.name, keys="batch free in_flight owners settled at_once", items=pending, counts=counts,
        facts={"at_once": at_once}, in_flight=in_flight, owners=by, titles=(title,), rows=tuple(rows),
        question=f"Cancel {batch.name}", nothing_to_do=finished,
        perform=lambda by, _: cancel(store, batch, by, at_once=at_once),
    )  # fmt: skip


# -- items left over --------------------------------------------------------------------------------------------------


def clear(store: Store, batch: Batch, by: Actor, *, code: str, at_once: bool = False) -> ActResult:
    """Cancel every pending item that no live owner holds; with `at_once`, those as well."""
    acts, in_flight = Acts(store, batch, by), 0
    for chunk in store.chunks(batch.id):
        if chunk.pending and owners.is_live(chunk, store.now()) and not at_once:
            in_flight += chunk.pending
        elif chunk.pending:
            rest = each_item(store, batch.id, lo=chunk.lo, hi=chunk.hi, state=State.PENDING)
            _clear_items(acts, batch, rest, by, code, seize=chunk.owner is not None)
    left = ((IN_FLIGHT, in_flight),) if in_flight else ()
    return ActResult(kind="cancelled", batch=batch.name, changed=acts.changed, left_alone=left)


def _clear_items(acts: Acts, batch: Batch, items: Iterable[StoredItem], by: Actor, code: str, *, seize: bool) -> None:
    """Cancel items; with `seize`, raise the fence of their chunk."""
    stages = len(course.stage_names(batch))

    def change(item: StoredItem) -> Change:
        place = move(item.place, Transition.CANCEL, stages=stages, code=code, reason=by.reason)
        return change_of(item.n, item.place, place)

    acts.carry_out("cancelled", map(change, items), seize=seize)


def clear_over(store: Store, batch: Batch, *, actor: str) -> None:
    """Cancel every pending item of a batch that was cancelled or has reached its end, unless a live owner holds it."""
    code, why_ = _last_word(store, batch)
    clear(store, batch, Actor(name=actor, reason=why_), code=code)


def clear_one(store: Store, batch: Batch, item: StoredItem, *, actor: str) -> None:
    """Cancel one pending item of such a batch. The caller has checked that no live owner holds it; a dead owner is
    fenced off."""
    code, why_ = _last_word(store, batch)
    by = Actor(name=actor, reason=why_)
    _clear_items(Acts(store, batch, by), batch, [item], by, code, seize=True)


def _last_word(store: Store, batch: Batch) -> tuple[str, str]:
    """Return the code and the reason for items that are cancelled because their batch is over."""
    if batch.course is BatchMode.CANCELLED:
        return CANCELLED, why(store, batch, "cancelled")
    return ENDED, f"the batch ended at {in_utc(batch.ends_at or 0.0)}"


# -- the end of a batch -----------------------------------------------------------------------------------------------


def set_end(store: Store, batch: Batch, until: Until | None, *, actor: str) -> Batch:
    """Set the end of the batch, unless it has this one already. A duration counts from the run that first passed it, so
    a script started again after a crash means the same end."""
    if until is None or batch.course is BatchMode.CANCELLED:
        return batch
    now = store.now()
    if until.seconds is not None and batch.ends_at is not None and _last_said(store, batch) == until.words:
        return batch
    ends_at = until.at if until.at is not None else now + (until.seconds or 0.0)
    if ends_at == batch.ends_at:
        return batch
    if ends_at <= now:
        raise UsageError(
            f"until={in_utc(ends_at)} has passed, so everything left in batch {batch.name!r} would be cancelled; pass "
            f"a time in the future, or run `{command('cancel', batch.name)}`"
        )
    return store.amend(batch.id, to_end(ends_at, reason=until.words), actor=actor).batch


def why(store: Store, batch: Batch, default: str) -> str:
    """Return the reason given when the batch was last steered."""
    return next((entry.told(journal.Steered).reason for entry in backward(store, batch, "steered")), default)


def _last_said(store: Store, batch: Batch) -> str:
    """Return the reason with which the batch got its present end, ignoring the reasons of later pauses."""
    said = ""
    for entry in backward(store, batch, "steered"):
        told = entry.told(journal.Steered)
        if told.ends_at != batch.ends_at:
            break
        said = told.reason
    return said


log = logging.getLogger("holdfast.ending")

TURNED_AWAY = "turned_away"


def check_total(expected: int) -> int:
    """Return the expected number of items; raise UsageError if it is not one."""
    if type(expected) is not int or not 0 <= expected <= ITEMS:
        raise UsageError(f"expect {expected!r}: a batch has between 0 and {ITEMS:,} items; nothing was changed")
    return expected


def expect(
    store: Store, batch: Batch, expected: int, *, actor: str, reason: str = "", sinks: Mapping[int, Sink] = NO_SINKS
) -> tuple[Batch, Reconciliation | None]:
    """Record how many items a batch has in all, counted by their keys. The same number again does nothing; a different
    one needs a reason. Return the batch, and its reconciliation if this was its end."""
    known = store.amend(batch.id, to_steer(None, reason=reason, expected=check_total(expected)), actor=actor).batch
    return known, look_for_end(store, known, actor=actor, sinks=sinks)


def close(
    store: Store, batch: Batch, *, actor: str, reason: str = "", sinks: Mapping[int, Sink] = NO_SINKS
) -> tuple[Batch, Reconciliation | None]:
    """Accept no new items from now on; items that were admitted may come again. Closing twice does no harm."""
    known = store.amend(batch.id, to_steer(None, reason=reason, close=True), actor=actor).batch
    return known, look_for_end(store, known, actor=actor, sinks=sinks)


def note_turned_away(store: Store, batch: Batch, *, actor: str) -> None:
    """Report that new items came after the batch was closed: in the log each time, in the journal and the events
    once."""
    text = "new items arrived after the batch was closed and were refused; they stay in the queue"
    log.warning("batch %s: %s", batch.name, text)
    body = journal.Acted(reason=text, note=canonical.encode({"closed_at": batch.closed_at}))
    warning = course.warning("came_after_close", f"{batch.name}: {text}")
    store.amend(batch.id, to_note(TURNED_AWAY, body, once=True, events=[warning]), actor=actor)
