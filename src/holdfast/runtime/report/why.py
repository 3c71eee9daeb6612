"""The story of one item: what happened to it, why it is where it is, and what a person can do."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from shlex import quote
from typing import Any, ClassVar

import msgspec

from holdfast.core import canonical, cursor, journal, retry
from holdfast.core.acts import REVIEW
from holdfast.core.commitments import DIGEST_BYTES
from holdfast.core.course import stage_names
from holdfast.core.cursor import Standing
from holdfast.core.errors import HoldfastError
from holdfast.core.journal import FLOAT32, UINT16, unpack
from holdfast.core.limits import REQUEUES
from holdfast.core.model import Batch, BatchMode, Chunk, ItemState, Key, Kind, State, StoredItem
from holdfast.core.plain import Plain, plain
from holdfast.runtime import lookup
from holdfast.runtime.journal import forward
from holdfast.runtime.partitions import cost_facts, cost_words, remarks, standing_of
from holdfast.runtime.report import lifecycle, orphans
from holdfast.runtime.report.attempts import was_run
from holdfast.runtime.report.orphans import Orphan, OrphanFinder, context_of, last_grant
from holdfast.runtime.report.overview import of_a_row, partition_in_words
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.text import (
    brief,
    command,
    in_words,
    many,
    printable,
    reopen,
    to_the_millisecond,
    unpause_command,
    when,
)
from holdfast.stores import owners
from holdfast.stores.base import Store, lineage


def row_fields(item: StoredItem) -> list[tuple[str, str]]:
    """Return the row of a dead letter field by field, then its place in the source; nothing if it cannot be read."""
    try:
        plain = canonical.decode(item.payload)
        return [*_row(plain), ("place", _place(plain))]
    except (HoldfastError, msgspec.DecodeError, KeyError, TypeError):
        return []  # damaged, or truncated: it is shown as it is


def _row(plain: dict[str, Any]) -> list[tuple[str, str]]:
    if "row" not in plain:
        return [("row", "too large to store: it is only in the source")]
    row = canonical.from_plain(plain["row"], "the row")
    if not isinstance(row, dict) or not row:
        return [("row", _shown(row))]
    wide = max(len(str(name)) for name in row)
    return [("row", "\n".join(f"{name!s:<{wide}}  {_shown(value)}" for name, value in row.items()))]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value and value.isprintable() else repr(value)


def _place(plain: dict[str, Any]) -> str:
    after = plain["after"]
    begins = "at the start" if after is None else f"after {cursor.from_plain(after)}"
    return f"{begins}, up to {cursor.from_plain(plain['until'])}"


@dataclass(frozen=True, slots=True)
class ItemOutlook:
    """The place of one item, what happens next, and the commands for it."""

    now: str
    next: str
    commands: tuple[str, ...]


def look_ahead(store: Store, batch: Batch, item: StoredItem, chunk: Chunk) -> ItemOutlook:
    """Return where the item is now, and what can happen to it."""
    place = item.place
    names = stage_names(batch)
    at = lookup.stage_title(names, place.stage)
    reset = _again(batch, item)
    match place.state:
        case State.DONE:
            return ItemOutlook(f"done{_where(store, batch, item, len(names) - 1)}.", "nothing, it is complete.", reset)
        case State.SKIPPED:
            return ItemOutlook(f"skipped at {at!r}: {place.reason}.", "nothing, it is settled.", reset)
        case State.CANCELLED:
            why = f": {place.reason}" if place.reason else ""
            return ItemOutlook(f"cancelled at {at!r}{why}.", "nothing, it is settled.", reset)
        case State.DEAD:
            return _dead(batch, item, at)
        case State.PENDING:
            return _blamed(store, batch, chunk, _pending(store, batch, item, chunk, at, reset))


def _again(batch: Batch, item: StoredItem) -> tuple[str, ...]:
    """Return the command to do the item again: none in a cancelled batch; a sealed one must be reopened first."""
    if batch.course is BatchMode.CANCELLED:
        return ()
    if batch.sealed_at is not None:
        return (f"{reopen(batch.name)}   its batch is sealed: reopen it to do the item again",)
    return (f"{command('reset', batch.name, item.key, '--reason …')}        do it again from the start",)


def _dead(batch: Batch, item: StoredItem, at: str) -> ItemOutlook:
    def dead(verb: str) -> str:
        return command(f"dead {verb}", batch.name, item.key, "--reason …")

    place, redrive = item.place, (f"{dead('redrive')}   try it again where it stopped",)
    commands = (
        f"{command('dead show', batch.name, item.key)}                 payload and every attempt",
        *(redrive if batch.course is not BatchMode.CANCELLED else ()),
        f"{dead('resolve')}   settle it by hand, with --output or as skipped",
        f"{dead('discard')}   give it up",
    )
    waits = "waits for a review" if place.code == REVIEW else "a dead letter"
    sealed = "; its batch is sealed, so reopen that first" if batch.sealed_at is not None else ""
    return ItemOutlook(
        f"{waits} at {at!r}: {place.code}: {place.reason}.", f"nothing, until a person decides{sealed}.", commands
    )


def _pending(
    store: Store, batch: Batch, item: StoredItem, chunk: Chunk, at: str, reset: tuple[str, ...]
) -> ItemOutlook:
    now, place = store.now(), item.place
    stuck = OrphanFinder(store, batch).at(item)
    if isinstance(stuck, Orphan):
        return _orphaned(batch, item, stuck, now, at)
    if owners.is_live(chunk, now):
        assert chunk.owner is not None
        grant = last_grant(store, chunk)
        since = "" if grant is None else f" since {when(grant.at)}"
        is_due = retry.item_waits_until(place, now) <= now
        waits = "" if is_due else f"; its next attempt is due at {when(place.due)}{_because(place)}"
        text = (
            f"pending at {at!r}, held by {owners.short(chunk.owner)} under fence {chunk.fence}{since} (its lease lasts "
            f"{in_words(chunk.expires - now)}{by_whose_clock(store)}){waits}."
        )
        return ItemOutlook(text, "its owner continues with it; if the owner dies, another worker takes it over.", reset)
    due = max(retry.item_waits_until(place, now), retry.chunk_waits_until(chunk, now))
    if due > now:
        text = f"waits at {at!r} until {when(due)}, {in_words(due - now)} from now{_because(place)}."
        return ItemOutlook(text, _then(batch, "a run claims it when it is due."), reset)
    lost = "" if chunk.owner is None else f"; its last owner, {owners.short(chunk.owner)}, is gone or overdue"
    again = "the next run claims it: start one, nothing runs by itself."
    return ItemOutlook(f"ready at {at!r}{lost}{_course(batch)}.", _then(batch, again), reset)


def _blamed(store: Store, batch: Batch, chunk: Chunk, found: ItemOutlook) -> ItemOutlook:
    """Return the outlook with the blame of the item's chunk added."""
    told = orphans.blame_of(store, batch, store.chunks(batch.id), now=store.now(), only=chunk.id)
    if told is None or batch.course is BatchMode.CANCELLED:
        return found
    lift = command("reset", batch.name, options="--blame --reason …")
    lift += "   they died for another reason: run it at full speed"
    why = f"{told.note[0].upper()}{told.note[1:]}.".replace("of a chunk", "of this chunk")
    return ItemOutlook(f"{found.now} {why}", found.next, (*found.commands, lift))


def by_whose_clock(store: Store) -> str:
    return "" if store.capabilities.one_clock else ", by its owner's clock"


def _orphaned(batch: Batch, item: StoredItem, stuck: Orphan, now: float, at: str) -> ItemOutlook:
    who = f"{quote(batch.name)} --item={quote(str(item.key))}"
    if stuck.is_held:
        hands = f"{stuck.owner} holds it and is alive"
    else:
        hands = f"{stuck.owner} had it last" if stuck.owner else "it was never claimed"
    error = f"; its last error was {stuck.error}" if stuck.error else ""
    why = f"no progress since {when(stuck.since)}, {in_words(now - stuck.since)} ago; {hands}{error}"
    if batch.course is BatchMode.CANCELLED:
        text, then = f"stranded at {at!r}: its batch was cancelled; {why}.", "nothing: its batch was cancelled."
    else:
        often = f"; requeued {stuck.place.requeues} of {REQUEUES} times" if stuck.place.requeues else ""
        text = f"an orphan at {at!r}: {why}{often}{_course(batch)}."
        held = ", unless its owner still holds it then" if stuck.is_held else ": start one, nothing runs by itself"
        then = _then(batch, f"the next run claims it{held}.")
    commands = (
        *((f"holdfast orphans {who} --resolve requeue --reason …   requeue it from its checkpoint",)
          if batch.course is not BatchMode.CANCELLED else ()),
        f"holdfast orphans {who} --resolve fail --reason …      give it up as a dead letter",
        f"holdfast orphans {who} --resolve review --reason …    leave it for a person to review",
    )  # fmt: skip
    return ItemOutlook(text, then, commands)


def _because(place: ItemState) -> str:
    return f" ({place.code}: {place.reason})" if place.code else ""


def _course(batch: Batch) -> str:
    return f"; its batch is {batch.course}" if batch.course is not BatchMode.OPEN else ""


def _then(batch: Batch, otherwise: str) -> str:
    if batch.course is BatchMode.PAUSED:
        return f"nothing, while its batch is paused: `{unpause_command(batch.name)}`, then run it."
    return otherwise


def _where(store: Store, batch: Batch, item: StoredItem, last: int) -> str:
    for output in store.outputs(batch.id, lo=item.n, hi=item.n + 1, stage=last, limit=1):
        return (
            f": its output is in {Evidence.decode(output.file).final}"
            if output.file is not None
            else ": its output is in the store"
        )
    return ""


def of_a_range(batch: Batch, at: Standing, outlook: ItemOutlook) -> ItemOutlook:
    """Return the outlook of a partition: with its checkpoint, and with commands that name where they resume."""
    found = _of_a_range(batch, at, outlook)
    if at.checkpoint is None:
        return replace(found, commands=aligned(found.commands))
    past = f"{command('cursor show', batch.name, at.key, options='--history')}   every checkpoint it had"
    return replace(found, commands=aligned((*found.commands, past)))


def aligned(commands: tuple[str, ...]) -> tuple[str, ...]:
    """Return commands and what each does, in two columns."""
    pairs = [re.split(r" {2,}", each, maxsplit=1) for each in commands]
    wide = max((len(pair[0]) for pair in pairs), default=0)
    return tuple("   ".join([pair[0].ljust(wide), *pair[1:]]).rstrip() for pair in pairs)


def _of_a_range(batch: Batch, at: Standing, outlook: ItemOutlook) -> ItemOutlook:
    if batch.course is BatchMode.CANCELLED or batch.sealed_at is not None:
        return outlook
    who = f"{quote(batch.name)} {quote(str(at.key))}"
    again = many(at.rows, "row")
    once_more = f": {again} handled once more" if at.rows else ""
    start = f"holdfast reset {who} --from-start --reason …   begin again{once_more}"
    if at.place.state is State.DEAD:
        show, *rest = outlook.commands
        commands = (
            show,
            f"holdfast dead redrive {who} --reason …   {_range_again(at)}",
            f"holdfast reset {who} --reason …          the same, in a new epoch",
            start,
            f"holdfast reset {who} --complete-with FILE --reason …   done by hand, with this result",
            *(each for each in rest if "discard" in each),
        )
        return replace(outlook, commands=commands)
    if at.place.state is State.DONE:
        return replace(outlook, commands=(start,))
    if not at.rows:
        return replace(outlook, commands=(start,))
    kept = tuple(each for each in outlook.commands if not each.startswith("holdfast reset "))
    resumes = f"holdfast reset {who} --reason …        resume {_range_where(at)} with no attempts used"
    return replace(outlook, commands=(*kept, resumes, start))


def _range_again(at: Standing) -> str:
    if at.cursor is None:
        return "try it again from its first row"
    return f"resume {_range_where(at)}: no row is handled again"


def _range_where(at: Standing) -> str:
    return "from its start" if at.cursor is None else f"after {at.cursor}"


ACTS = frozenset(
    {"redriven", "reset", "rewound", "renewed", "requeued", "marked_failed", "sent_to_review", "buried", "discarded",
     "resolved", "lease_broken", "cloned", "imported", journal.LIFTED}
)  # fmt: skip
"""Acts on an item by a person, or by the runtime for one; `ItemStory.last_act` is the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEvent(Plain):
    """One event in the story of an item."""

    at: float
    what: str
    """admitted, claimed, interrupted, checkpoint, attempt, or the kind of an operator's act"""
    text: str
    entry: str
    """The journal entry that records it."""
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"at": self.at, "what": self.what, "text": self.text, "entry": self.entry, **plain(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStory(Plain):
    """The story of one item, from its admission until now."""

    _tells: ClassVar[str] = (
        "batch key number state stage epoch attempts now next checkpoint note? usd tokens events commands"
    )

    batch: str
    """The name of its batch."""
    key: Key
    """Its key."""
    number: int
    """Its number in the batch, from 0."""
    state: str
    """Its state."""
    stage: str
    """The stage it is at; `end` after the last."""
    epoch: int
    """How often it was started again."""
    attempts: int
    """How many attempts it has used at its stage."""
    events: tuple[StoryEvent, ...]
    """Everything that happened to it, oldest first."""
    now: str
    """Why it is in its state, in a sentence or two."""
    next: str
    """What happens next, or what a person can do."""
    commands: tuple[str, ...]
    """Commands that apply to it now."""
    checkpoint: str = ""
    """How far it has been read, if it is a partition of a scan."""
    note: str = ""
    """A remark on its total, if a person moved its cursor."""
    last_act: StoryEvent | None = None
    """The last act on it, by a person or by the runtime."""
    usd: str = "0.00"
    """The cost of all its attempts and checkpoints, in dollars."""
    tokens: int = 0
    """The tokens of all its attempts."""

    @property
    def cost(self) -> str:
        """What it cost in all, for a person; empty where nothing was spent."""
        usd, tokens = Decimal(self.usd), self.tokens
        return ", ".join([*([f"${self.usd}"] if usd else []), *([f"{tokens:,} tokens"] if tokens else [])])

    def __str__(self) -> str:
        lines = [f"item {self.key!r} (number {self.number}) of batch {self.batch!r}", f"Now:  {self.now}", ""]
        lines += [f"  {to_the_millisecond(event.at)}  {event.text}" for event in self.events]
        if self.note:
            lines += ["", f"Note: {self.note}"]
        if self.cost:
            lines += ["", f"Cost: {self.cost}"]
        lines += ["", f"Next: {self.next}"]
        return printable("\n".join(lines + [f"      {command}" for command in self.commands]))


def tell(store: Store, batch: Batch, item: Key | StoredItem) -> ItemStory:
    """Return the story of one item, as it is now."""
    n = item.n if isinstance(item, StoredItem) else lookup.item_named(store, batch, item).n
    found = lookup.item_of(store, batch, n)
    assert found is not None
    names = stage_names(batch)
    line = lineage(store.chunks(batch.id), found.n)
    teller = _StoryTeller(store, batch, found, names, line)
    events = tuple(teller.events())
    place = found.place
    outlook = look_ahead(store, batch, found, line[-1])
    at = standing_of(store, batch, found)
    if at is not None:
        outlook = of_a_range(batch, at, outlook)
    acted = next((event for event in reversed(events) if event.what in ACTS), None)
    now = outlook.now if acted is None or place.state is State.DONE else f"{outlook.now} Last act: {acted.text}."
    return ItemStory(
        batch=batch.name,
        key=found.key,
        number=found.n,
        state=place.state.value,
        stage=lookup.stage_title(names, place.stage),
        epoch=place.epoch,
        attempts=sum(1 for event in events if event.what == "attempt"),
        events=events,
        now=now,
        next=outlook.next,
        commands=outlook.commands,
        checkpoint=_checkpoint(found, at, line[-1].kind),
        note="" if at is None else "".join(map(str, remarks(store, batch, canonical.key_text(found.key)))),
        last_act=acted,
        usd=format(canonical.to_usd(teller.spent), "f"),
        tokens=teller.tokens,
    )


def _checkpoint(item: StoredItem, at: Standing | None, kind: Kind) -> str:
    if at is not None:
        return partition_in_words(at)
    return of_a_row(item) if kind is Kind.ROWS else ""


class _StoryTeller:
    """A reader of the entries about the item, from the batch's chain and from those of its chunks, oldest first."""

    def __init__(self, store: Store, batch: Batch, item: StoredItem, names: list[str], line: list[Chunk]) -> None:
        self._store, self._batch, self._item, self._names, self._line = store, batch, item, names, line
        self._n = int(item.n)
        self._grant: StoryEvent | None = None
        """The current grant, which is only shown if something follows from it."""
        self._where = ""
        """The name of the entry that is being told."""
        self._is_pending = True
        self.spent = self.tokens = 0
        """Money in units and tokens of its attempts, and of its checkpoints if it is a partition."""
        self._kind = line[-1].kind

    def events(self) -> Iterator[StoryEvent]:
        yield from self._admission()
        for chunk in self._line:
            for entry in forward(self._store, chunk):
                self._where = entry.name
                yield from self._of(entry.header, entry.body)
                if self._is_cut_off(chunk, entry.body):
                    break  # later entries of that chunk are about other items
        for late in lifecycle.late_for(self._store, self._batch, self._n):
            text = f"{owners.short(late.owner)} tried to commit work on it after the batch was sealed: refused"
            yield StoryEvent(at=late.at, what="late", text=text, entry=late.entry, facts={"owner": late.owner})
        if self._grant is not None and self._is_pending and self._line[-1].owner is not None:
            yield self._grant

    def _is_cut_off(self, chunk: Chunk, body: journal.Body) -> bool:
        """Return whether this entry cut the item off the chunk."""
        if chunk is self._line[-1] or not isinstance(body, journal.Claimed) or body.child is None:
            return False
        _, lo, hi = body.child
        return lo <= self._n < hi

    def _admission(self) -> Iterator[StoryEvent]:
        for entry in forward(self._store, self._batch):
            body = entry.body
            if isinstance(body, journal.Ingested) and body.lo <= self._n < body.hi:
                at = (self._n - body.lo) * DIGEST_BYTES
                facts = {"payload_digest": body.digests[at : at + DIGEST_BYTES].hex()}
                code = dict(body.invalid).get(self._n)
                self._is_pending = code is None
                how = "could not be handled" if self._kind is Kind.ROWS else "refused at the boundary"
                text = "admitted" if code is None else f"{how}: {code}; a dead letter from the start"
                self._where = entry.name
                yield self._event(entry.header, "admitted", text, **facts)
                return

    def _of(self, header: journal.Header, body: journal.Body) -> Iterator[StoryEvent]:
        if isinstance(body, journal.Claimed):
            if body.lo <= self._n < body.hi and self._is_pending:
                yield from self._claimed(header, body)
        elif isinstance(body, journal.Checkpointed):
            yield from self._committed(header, body)
        elif isinstance(body, journal.Acted):
            if header.kind == journal.LIFTED and self._is_pending:
                yield self._lifted(header, body)
            for moved in body.items:
                if moved.n == self._n:
                    yield from self._acted(header, body, moved)

    def _claimed(self, header: journal.Header, body: journal.Claimed) -> Iterator[StoryEvent]:
        if body.taken_from and self._grant is not None:
            who = owners.short(body.taken_from)
            yield self._grant
            yield self._event(
                header, "interrupted", f"{who} ended without releasing it; its unfinished work does not count"
            )
        who = owners.short(header.actor)
        found = next((shot for shot in body.snapshots if shot.n == self._n), None)
        used = many(found.attempt, "attempt") if found is not None else ""
        stood = f", at {self._name(found.stage)!r} with {used} used" if found is not None else ""
        facts = {"owner": header.actor, "fence": header.fence, "expires": body.expires, "blame": body.blame}
        self._grant = self._event(header, "claimed", f"claimed by {who} under fence {header.fence}{stood}", **facts)

    def _committed(self, header: journal.Header, body: journal.Checkpointed) -> Iterator[StoryEvent]:
        if header.kind == journal.STARTED and self._is_pending and self._grant is not None:
            self._grant = replace(self._grant, text=f"{self._grant.text}, and started alone: a death counts against it")
        spends = {stage: said for stage, said in body.spends if said.n == self._n}
        self.spent += sum(said.usd for said in spends.values())
        self.tokens += sum(said.tokens for said in spends.values())
        mine = [group for group in body.advanced if self._n in group.items]
        attempts = [attempt for attempt in body.attempts if attempt.n == self._n]
        if (mine or attempts) and self._grant is not None:
            yield self._grant
            self._grant = None
        for group in mine:
            yield from self._advanced(header, group, spends.get(group.stage))
        for attempt in attempts:
            yield self._attempted(header, attempt, spends.get(attempt.stage))
        if body.released:
            self._grant = None

    def _advanced(
        self, header: journal.Header, group: journal.Advanced, said: journal.Spend | None
    ) -> Iterator[StoryEvent]:
        index = list(group.items).index(self._n)
        stage, number = self._name(group.stage), unpack(UINT16, group.attempts)[index] if group.attempts else 1
        queued, took = unpack(FLOAT32, group.queued)[index], unpack(FLOAT32, group.seconds)[index]
        facts = {"stage": stage, "attempt": number, "queued": queued, "seconds": took, **_cost_facts(said)}
        if group.adopted:
            yield self._event(
                header,
                "adopted",
                f"the output of {stage!r} already existed and was valid: adopted, nothing was run",
                **facts,
            )
        else:
            text = f"attempt {number} at {stage!r} succeeded after {brief(took)}, queued {brief(queued)}{_cost(said)}"
            yield self._event(header, "attempt", text, outcome="done", **facts)
        digest = group.digests[index * 32 : index * 32 + 32].hex()
        self._is_pending = not group.finished
        then = "is done" if group.finished else f"continues at {self._name(group.stage + 1)!r}"
        yield self._event(
            header,
            "checkpoint",
            f"checkpoint: the output of {stage!r} is durable; the item {then}",
            stage=stage,
            output_digest=digest,
        )

    def _attempted(self, header: journal.Header, attempt: journal.Attempted, said: journal.Spend | None) -> StoryEvent:
        stage = self._name(attempt.stage)
        facts = {
            "stage": stage, "attempt": attempt.attempt, "outcome": attempt.outcome, "code": attempt.code,
            "message": attempt.message, "due": attempt.due, "queued": attempt.queued, "seconds": attempt.seconds,
            "trace": attempt.trace, **_cost_facts(said),
        }  # fmt: skip
        self._is_pending = attempt.outcome not in ("skip", "bury")
        if not was_run(attempt):
            back = f"goes back to {self._name(attempt.to_stage)!r} in a new epoch" if self._is_pending else "buried"
            return self._event(header, "rewound", f"{attempt.message}: {back}", **facts)
        began = f"attempt {attempt.attempt} at {stage!r}"
        after = f"after {brief(attempt.seconds)}{_cost(said)}"
        error = f"{attempt.code}: {attempt.message}" if attempt.message != attempt.code else attempt.code
        text = {
            "skip": f"{began} skipped the item {after}: {attempt.message}",
            "defer": f"{began} was deferred {after}: {attempt.message}; due again at {when(attempt.due)}",
            "retry": f"{began} failed {after}: {error}; tried again from {when(attempt.due)}",
            "bury": f"{began} failed {after}: {error}; buried as a dead letter",
        }.get(attempt.outcome, f"{began}: {attempt.outcome} {after}")
        return self._event(header, "attempt", text, **facts)

    def _acted(self, header: journal.Header, body: journal.Acted, moved: journal.Moved) -> Iterator[StoryEvent]:
        if body.seized and self._grant is not None:
            yield self._grant
        self._grant = None if body.seized else self._grant
        self._is_pending = moved.after == State.PENDING
        who = owners.short(header.actor)
        there = self._name(moved.stage_after)
        fenced = "; its owner was fenced off" if body.seized else ""
        change = f"{moved.before} became {moved.after}"
        if moved.position is not None:
            change += f", to resume {_place_of(moved.position)} in epoch {moved.epoch}"
            fenced = f"; the fence rose to {header.fence}"
        elif header.kind in ("reset", "rewound", "renewed"):
            how = "resume at its checkpoint" if self._kind is Kind.PARTITIONS else f"begin again at {there!r}"
            change += f", to {how} in epoch {moved.epoch}"
        elif header.kind == "requeued":
            change = f"to continue at {there!r}"
        act = header.kind.replace("_", " ")
        text = f"{act} by {who} ({change}{fenced}): {body.reason}"
        facts: dict[str, Any] = {"actor": header.actor, "reason": body.reason}
        facts |= {"before": moved.before, "after": moved.after}
        context = context_of(body.note, self._n)
        facts |= {"context": context} if context else {}
        yield self._event(header, header.kind, text, **facts, stage=there, epoch=moved.epoch, seized=body.seized)

    def _lifted(self, header: journal.Header, body: journal.Acted) -> StoryEvent:
        self._grant = None
        text = f"the blame of its chunk was lifted by {owners.short(header.actor)}: {body.reason}"
        return self._event(header, journal.LIFTED, text, actor=header.actor, reason=body.reason)

    def _event(self, header: journal.Header, what: str, text: str, **facts: Any) -> StoryEvent:
        return StoryEvent(at=header.at, what=what, text=text, entry=self._where, facts=facts)

    def _name(self, stage: int) -> str:
        return lookup.stage_title(self._names, stage)


def _place_of(position: journal.Position) -> str:
    return f"after {cursor.decode(position.cursor)} ({position.rows:,} rows)" if position.cursor else "from the start"


def _cost(said: journal.Spend | None) -> str:
    shown = "" if said is None else cost_words(said)
    return f", {shown}" if shown else ""


def _cost_facts(said: journal.Spend | None) -> dict[str, Any]:
    return {} if said is None else cost_facts(said)
