"""Why an item is where it is now, what happens next by itself, and what a person can type."""

from dataclasses import dataclass
from shlex import quote

from holdfast.core import wait
from holdfast.core.limits import REQUEUES
from holdfast.core.model import Batch, Chunk, Course, Place, State, StoredItem
from holdfast.core.orphans import REVIEW
from holdfast.runtime import lookup
from holdfast.runtime.commands import command, reopen, unpause
from holdfast.runtime.durations import in_words, when
from holdfast.runtime.reports import status
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.stuck import blame
from holdfast.runtime.stuck.grants import last_grant
from holdfast.runtime.stuck.orphans import Eye, Orphan
from holdfast.stores import owners
from holdfast.stores.base import Store


@dataclass(frozen=True, slots=True)
class Outlook:
    """Three answers about one item."""

    now: str
    next: str
    commands: tuple[str, ...]


def look_ahead(store: Store, batch: Batch, item: StoredItem, chunk: Chunk) -> Outlook:
    """Where the item is now, and what may become of it."""
    place = item.place
    names = lookup.stage_names(batch)
    at = lookup.stage_title(names, place.stage)
    reset = _again(batch, item)
    match place.state:
        case State.DONE:
            return Outlook(f"done{_where(store, batch, item, len(names) - 1)}.", "nothing, it is complete.", reset)
        case State.SKIPPED:
            return Outlook(f"skipped at {at!r}: {place.reason}.", "nothing, it is settled.", reset)
        case State.CANCELLED:
            why = f": {place.reason}" if place.reason else ""
            return Outlook(f"cancelled at {at!r}{why}.", "nothing, it is settled.", reset)
        case State.DEAD:
            return _dead(batch, item, at)
        case State.PENDING:
            return _blamed(store, batch, chunk, _pending(store, batch, item, chunk, at, reset))


def _again(batch: Batch, item: StoredItem) -> tuple[str, ...]:
    """How to do it again: in a cancelled batch there is no way, in a sealed one another act comes first."""
    if batch.course is Course.CANCELLED:
        return ()
    if batch.sealed_at is not None:
        return (f"{reopen(batch.name)}   its batch is sealed: reopen it, to do the item again",)
    return (f"{command('reset', batch.name, item.key, '--reason …')}        do it again from the start",)


def _dead(batch: Batch, item: StoredItem, at: str) -> Outlook:
    def dead(verb: str) -> str:
        return command(f"dead {verb}", batch.name, item.key, "--reason …")

    place, redrive = item.place, (f"{dead('redrive')}   try it again where it stopped",)
    commands = (
        f"{command('dead show', batch.name, item.key)}                 payload and every attempt",
        *(redrive if batch.course is not Course.CANCELLED else ()),
        f"{dead('resolve')}   settle it by hand, with --output or as skipped",
        f"{dead('discard')}   give it up",
    )
    waits = "waits for a review" if place.code == REVIEW else "a dead letter"
    sealed = "; its batch is sealed, so reopen that first" if batch.sealed_at is not None else ""
    return Outlook(
        f"{waits} at {at!r}: {place.code}: {place.reason}.", f"nothing, until a person decides{sealed}.", commands
    )


def _pending(store: Store, batch: Batch, item: StoredItem, chunk: Chunk, at: str, reset: tuple[str, ...]) -> Outlook:
    now, place = store.now(), item.place
    stuck = Eye(store, batch).at(item)
    if isinstance(stuck, Orphan):
        return _orphaned(batch, item, stuck, now, at)
    if status.is_live(chunk, now):
        assert chunk.owner is not None
        grant = last_grant(store, chunk)
        since = "" if grant is None else f" since {when(grant.at)}"
        is_due = wait.until_of_item(place, now) <= now
        waits = "" if is_due else f"; its next attempt is due at {when(place.due)}{_because(place)}"
        text = (
            f"pending at {at!r}, in the hands of {owners.short(chunk.owner)} under fence {chunk.fence}{since} "
            f"(its lease lasts {in_words(chunk.expires - now)}{by_whose_clock(store)}){waits}."
        )
        return Outlook(text, "its owner continues with it; if the owner dies, another takes it over.", reset)
    due = max(wait.until_of_item(place, now), wait.until_of_chunk(chunk, now))
    if due > now:
        text = f"waits at {at!r} until {when(due)}, {in_words(due - now)} from now{_because(place)}."
        return Outlook(text, _then(batch, "a run takes it when it is due."), reset)
    lost = "" if chunk.owner is None else f"; {owners.short(chunk.owner)} had it and is gone or overdue"
    again = "the next run takes it: start one, nothing runs by itself."
    return Outlook(f"ready at {at!r}{lost}{_course(batch)}.", _then(batch, again), reset)


def _blamed(store: Store, batch: Batch, chunk: Chunk, found: Outlook) -> Outlook:
    """The same, with the deaths that are held against the part of the batch that has the item."""
    told = blame.of(store, batch, store.chunks(batch.id), now=store.now(), only=chunk.id)
    if told is None or batch.course is Course.CANCELLED:
        return found
    lift = command("reset", batch.name, options="--blame --reason …")
    lift += "   they died of something else: run it at full speed"
    why = f"{told.note[0].upper()}{told.note[1:]}.".replace("of a part", "of this part")
    return Outlook(f"{found.now} {why}", found.next, (*found.commands, lift))


def by_whose_clock(store: Store) -> str:
    return "" if store.capabilities.one_clock else ", as its owner's clock tells"


def _orphaned(batch: Batch, item: StoredItem, stuck: Orphan, now: float, at: str) -> Outlook:
    who = f"{quote(batch.name)} --item={quote(str(item.key))}"
    if stuck.is_held:
        hands = f"{stuck.owner} holds it and is alive"
    else:
        hands = f"{stuck.owner} had it last" if stuck.owner else "nobody ever took it"
    error = f"; its last error was {stuck.error}" if stuck.error else ""
    why = f"no progress since {when(stuck.since)}, {in_words(now - stuck.since)} ago; {hands}{error}"
    if batch.course is Course.CANCELLED:
        text, then = f"stranded at {at!r}: its batch was cancelled; {why}.", "nothing: its batch was cancelled."
    else:
        often = f"; re-enqueued {stuck.place.requeues} of {REQUEUES} times" if stuck.place.requeues else ""
        text = f"an orphan at {at!r}: {why}{often}{_course(batch)}."
        held = ", unless its owner still holds it then" if stuck.is_held else ": start one, nothing runs by itself"
        then = _then(batch, f"the next run takes it{held}.")
    commands = (
        *((f"holdfast orphans {who} --resolve requeue --reason …   send it on its way again",)
          if batch.course is not Course.CANCELLED else ()),
        f"holdfast orphans {who} --resolve fail --reason …      give it up as a dead letter",
        f"holdfast orphans {who} --resolve review --reason …    let a person look at it",
    )  # fmt: skip
    return Outlook(text, then, commands)


def _because(place: Place) -> str:
    return f" ({place.code}: {place.reason})" if place.code else ""


def _course(batch: Batch) -> str:
    return f"; its batch is {batch.course}" if batch.course is not Course.OPEN else ""


def _then(batch: Batch, otherwise: str) -> str:
    if batch.course is Course.PAUSED:
        return f"nothing, while its batch is paused: `{unpause(batch.name)}`, then run it."
    return otherwise


def _where(store: Store, batch: Batch, item: StoredItem, last: int) -> str:
    for output in store.outputs(batch.id, lo=item.n, hi=item.n + 1, stage=last, limit=1):
        return (
            f": its output is in {Evidence.decode(output.file).final}"
            if output.file is not None
            else ": its output is in the store"
        )
    return ""
