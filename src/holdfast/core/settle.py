"""The step from outcomes to what is written.

`settle(outcomes, …)` takes the outcomes of some items of one claimed chunk and returns everything that follows from
them: outputs, new places, totals, the body of the journal entry, and the items that continue.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from holdfast.core import course, journal, retry, verify
from holdfast.core.canonical import storable
from holdfast.core.errors import UsageError
from holdfast.core.journal import FLOAT32, UINT16, pack
from holdfast.core.limits import MESSAGE_CHARS
from holdfast.core.model import (
    LANDED,
    BatchId,
    Checkpoint,
    Chunk,
    ChunkId,
    Commit,
    CommitRefusal,
    Counts,
    Event,
    Item,
    ItemNo,
    ItemState,
    Move,
    Output,
    Receipt,
    State,
)
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome, Skipped
from holdfast.core.retry import Policy
from holdfast.core.states import Transition, checkpoint, move, on_plain_way

replace = msgspec.structs.replace


class Settled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that follows from some outcomes."""

    outputs: list[Output]
    moves: list[Move]
    counts: Counts
    advanced: list[journal.Advanced]
    attempts: list[journal.Attempted]
    spends: list[tuple[int, journal.Spend]]
    onward: list[Item]
    """Items that are still pending: at their next stage, or waiting to be due."""
    events: list[Event]
    """Events for receivers: the items that were buried."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The grant under which a commit is made."""

    batch: BatchId
    uid: bytes
    """The uid of the batch."""
    chunk: ChunkId
    number: int
    """The number of the chunk within the batch."""
    fence: int
    grant: bytes
    version: int
    seconds: float = 0.0
    """The length of its lease."""


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition of a source has been read: the facts of its checkpoint."""

    item: Item
    rows: int
    cursor: bytes
    acc: bytes | None = None
    spend: journal.Spend | None = None
    """Cost and metrics of its rows since the previous checkpoint."""
    seconds: float = 0.0
    """The duration of the attempt, if this is its last checkpoint because the run ends."""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.item.n, self.rows, self.cursor, self.acc)

    @property
    def position(self) -> journal.Position:
        return journal.Position(self.item.n, self.rows, self.cursor, seconds=self.seconds)


def settle(outcomes: Sequence[Outcome], *, stages: int, policies: Sequence[Policy], now: float) -> Settled:
    """Return everything that follows from the outcomes. `stages`: the stage before which the items are done;
    `policies` has one for every stage of the pipeline."""
    result = _Ledger(stages, policies, now)
    done: dict[tuple[int, bool], list[Done]] = {}
    group, place, adopted = None, None, False
    for outcome in outcomes:
        if isinstance(outcome, Done):
            if group is None or outcome.item.place is not place or outcome.adopted is not adopted:
                place, adopted = outcome.item.place, outcome.adopted
                group = done.setdefault((place.stage, adopted), [])
            group.append(outcome)
        elif isinstance(outcome, Lost):
            result.lost(outcome)
        else:
            result.unfinished(outcome)
    for (stage, was_there), some in done.items():
        result.advance(stage, was_there, some)
    return result.settled()


def commit(
    holder: Holder, settled: Settled, *, commit_id: bytes, release: bool = False, due: float = 0.0, reserved: int = 0,
    reached: Sequence[Reached] = (), makers: Sequence[str] = (),
) -> Commit:  # fmt: skip
    """Return the one guarded write that makes it durable. The cost of rows belongs to the checkpoint that covers them;
    `makers` are the stages as they are defined now."""
    settled = booked(settled, reached)
    body = journal.Checkpointed(
        advanced=settled.advanced, attempts=settled.attempts, spends=settled.spends, released=release, due=due,
        positions=[each.position for each in reached], made_by=_made_by(settled, makers),
    )  # fmt: skip
    return Commit(
        id=commit_id,
        batch=holder.batch,
        uid=holder.uid,
        chunk=holder.chunk,
        number=holder.number,
        fence=holder.fence,
        grant=holder.grant,
        version=holder.version,
        kind="checkpoint" if settled.advanced or settled.attempts or reached else "released",
        body=body,
        outputs=tuple(settled.outputs),
        moves=(*_behind(reached), *settled.moves),
        checkpoints=tuple(each.checkpoint for each in reached),
        events=tuple(settled.events),
        counts=settled.counts,
        release=release,
        due=due,
        reserved=reserved,
        extend=holder.seconds,
    )


def _made_by(settled: Settled, makers: Sequence[str]) -> list[tuple[int, str]]:
    if not makers:
        return []
    stages = {group.stage for group in settled.advanced} | {attempt.stage for attempt in settled.attempts}
    return [(stage, makers[stage]) for stage in sorted(stages)]


def booked(settled: Settled, reached: Sequence[Reached]) -> Settled:
    """Return the result with the time and cost of partitions up to their checkpoints added."""
    spends = [(each.item.place.stage, each.spend) for each in reached if each.spend is not None]
    seconds = sum(each.seconds for each in reached)
    if not spends and not seconds:
        return settled
    cost = Counts(spent=sum(said.usd for _, said in spends), tokens=sum(said.tokens for _, said in spends),
                  seconds=seconds)  # fmt: skip
    return replace(settled, spends=[*settled.spends, *spends], counts=settled.counts.plus(cost))


def further(item: Item) -> Item:
    """Return the item once its checkpoint is durable: its earlier attempts no longer count."""
    place = move(item.place, Transition.PROGRESS, stages=item.place.stage + 1)
    return item if place == item.place else replace(item, place=place, plain=False)


def _behind(reached: Sequence[Reached]) -> list[Move]:
    moved = [(each.item, further(each.item)) for each in reached if not each.item.plain]
    return [Move(after.n, after.place) for before, after in moved if after is not before]


def start(holder: Holder, *, commit_id: bytes) -> Commit:
    """Return the commit that makes it durable that an item on trial is about to run: nothing moves, and the blame rises
    by one."""
    return Commit(
        id=commit_id, batch=holder.batch, uid=holder.uid, chunk=holder.chunk, number=holder.number, fence=holder.fence,
        grant=holder.grant, version=holder.version, kind=journal.STARTED, body=journal.Checkpointed(),
        extend=holder.seconds,
    )  # fmt: skip


class Guard(NamedTuple):
    """A chunk at the time of a commit."""

    fence: int
    grant: bytes
    version: int
    owner: str | None
    lo: ItemNo
    hi: ItemNo
    sealed: bool

    def lets_through(self, commit: Commit) -> bool:
        return self._is_of(commit) and self.version == commit.version and not self.sealed

    def _is_of(self, commit: Commit) -> bool:
        """Return whether the commit is made under the current grant. The fence alone would not show it: a copy of the
        store may have granted the same one to another owner."""
        return self.owner is not None and (self.fence, self.grant) == (commit.fence, commit.grant)

    def refusal(self, commit: Commit) -> CommitRefusal:
        """Return why a commit is refused."""
        if self.sealed:
            return CommitRefusal.SEALED
        return CommitRefusal.STALE if self._is_of(commit) else CommitRefusal.LOST


def guard_of(chunk: Chunk, *, sealed: bool) -> Guard:
    """Return the facts that guard a commit to a chunk; `sealed` is whether its batch is sealed."""
    return Guard(chunk.fence, chunk.grant, chunk.version, chunk.owner, chunk.lo, chunk.hi, sealed)


class Judged(NamedTuple):
    """The decision about a commit: it is to be written, it landed before, or it is refused."""

    commit: Commit
    receipt: Receipt = LANDED
    """The receipt, once the commits that land are written."""
    lands: bool = False


def judge(
    commits: Sequence[Commit], guards: Mapping[ChunkId, Guard], has_landed: Callable[[Commit], bool]
) -> list[Judged]:
    """Judge all commits of a group before any is written, each as if those before it were. `has_landed` looks a commit
    up in the chain of its chunk; it is called only for commits that are not let through."""
    at, taken, judged = dict(guards), set[bytes](), list[Judged]()
    for commit in commits:
        guard = at.get(commit.chunk)
        if guard is None:  # the store was set back to before the chunk was made
            judged.append(Judged(commit, Receipt(landed=False, reason=CommitRefusal.LOST)))
        elif guard.lets_through(commit):
            commit.check_range(guard.lo, guard.hi)
            owner = None if commit.release else guard.owner
            at[commit.chunk] = guard._replace(version=guard.version + 1, owner=owner)
            taken.add(commit.id)
            judged.append(Judged(commit, lands=True))
        elif commit.id in taken or has_landed(commit):
            judged.append(Judged(commit))
        else:
            judged.append(Judged(commit, Receipt(landed=False, reason=guard.refusal(commit))))
    return judged


def advanced(chunk: Chunk, commit: Commit, now: float) -> Chunk:
    """Return a chunk after a commit that its guard lets through, whether or not the commit releases it."""
    version, expires = chunk.version + 1, max(chunk.expires, now + commit.extend)
    if commit.kind == journal.STARTED:
        return replace(chunk, version=version, expires=expires, blame=chunk.blame + 1)
    after = replace(
        chunk, version=version, expires=expires, progressed=True, blame=0, touched_at=now, reserved=commit.reserved,
        counts=chunk.counts.plus(commit.counts),
    )  # fmt: skip
    assert after.pending >= 0, f"chunk {chunk.id} would have settled more items than it has"
    return replace(after, owner=None, expires=0.0, due=commit.due, reserved=0) if commit.release else after


NOTHING = Settled(outputs=[], moves=[], counts=Counts(), advanced=[], attempts=[], spends=[], onward=[], events=[])
"""The result of no outcomes: a bare release."""


_get_item = attrgetter("item")
_get_n = attrgetter("n")
_get_plain = attrgetter("plain")


class _Ledger:
    """The result of settling, collected outcome by outcome."""

    def __init__(self, stages: int, policies: Sequence[Policy], now: float) -> None:
        if len(policies) < stages:
            raise UsageError(f"{len(policies)} policies for {stages} stages: each stage has one")
        self.stages, self.policies, self.now = stages, policies, now
        self.outputs: list[Output] = []
        self.moves: list[Move] = []
        self.advanced: list[journal.Advanced] = []
        self.attempts: list[journal.Attempted] = []
        self.spends: list[tuple[int, journal.Spend]] = []
        self.onward: list[Item] = []
        self.events: list[Event] = []
        self.tally = {"done": 0, "skipped": 0, "dead": 0, "attempts": 0, "spent": 0, "tokens": 0}
        self.seconds = 0.0

    def settled(self) -> Settled:
        return Settled(
            outputs=self.outputs, moves=self.moves, counts=Counts(**self.tally, seconds=self.seconds),
            advanced=self.advanced, attempts=self.attempts, spends=self.spends, onward=self.onward,
            events=self.events,
        )  # fmt: skip

    def advance(self, stage: int, adopted: bool, group: list[Done]) -> None:
        """Add items whose stage succeeded, with one column per fact."""
        items: list[Item] = list(map(_get_item, group))
        ns: list[ItemNo] = list(map(_get_n, items))
        seconds = [d.seconds for d in group]
        plain = all(map(_get_plain, items))
        self.outputs += [
            Output(n, stage, 0 if plain else d.item.place.epoch, d.output if d.file is None else None, d.file)
            for n, d in zip(ns, group, strict=True)
        ]
        self.advanced.append(
            journal.Advanced(
                stage=stage,
                items=journal.numbers(ns),
                digests=b"",
                queued=pack(FLOAT32, [d.queued for d in group]),
                seconds=pack(FLOAT32, seconds),
                attempts=b"" if plain else pack(UINT16, [min(i.place.attempt + 1, 65535) for i in items]),
                epochs=b"" if plain else pack(UINT16, [min(i.place.epoch, 65535) for i in items]),
                finished=stage + 1 == self.stages,
                adopted=adopted,
            )
        )
        if not adopted:
            self.tally["attempts"] += len(group)
            self.seconds += sum(seconds)
        for d in group:
            if d.spend is not None:
                self._spend(stage, d.spend)
        self._go_on(stage, group, plain)

    def _go_on(self, stage: int, group: list[Done], plain: bool) -> None:
        if stage + 1 == self.stages:
            self.tally["done"] += len(group)
            if not plain:
                self.moves += [
                    Move(d.item.n, checkpoint(d.item.place, stage + 1, self.stages)) for d in group if not d.item.plain
                ]
            return
        fresh = on_plain_way(stage + 1, self.stages)
        for d in group:
            item, place = d.item, fresh
            if not item.plain:
                place = checkpoint(item.place, stage + 1, self.stages)
                self.moves.append(Move(item.n, place))
            self.onward.append(Item(item.n, item.key, d.output, place, item.plain, d.file, item.revision))

    def unfinished(self, outcome: Skipped | Deferred | Failed) -> None:
        """Add one attempt that gave no output."""
        item = outcome.item
        spent = outcome.spend.usd if outcome.spend is not None else 0
        if outcome.spend is not None:
            self._spend(item.place.stage, outcome.spend)
        self.tally["attempts"] += 1
        self.seconds += outcome.seconds
        if isinstance(outcome, Skipped):
            place = move(item.place, Transition.SKIP, stages=self.stages, code="skipped", reason=_cut(outcome.why))
            self.tally["skipped"] += 1
            self._keep(outcome, place, "skip", place.code, place.reason)
        elif isinstance(outcome, Deferred):
            self._deferred(outcome, item.place.spent + spent)
        else:
            self._failed(outcome, item.place.spent + spent)

    def lost(self, outcome: Lost) -> None:
        """Add an item whose input is gone: it goes back to the stage that makes it, in the next epoch; after too many
        rewinds it is buried."""
        item, before = outcome.item, outcome.item.place
        place = verify.rewound(before, max(0, outcome.to_stage), self.stages, reason=_cut(outcome.why))
        if place.state is State.DEAD:
            self._bury(item, place)
        self.moves.append(Move(item.n, place))
        self.attempts.append(
            journal.Attempted(
                n=item.n,
                stage=before.stage,
                attempt=0,
                epoch=before.epoch,
                code="lost",
                outcome="bury" if place.state is State.DEAD else "rewind",
                message=place.reason,
                to_stage=place.stage,
            )  # fmt: skip
        )

    def _deferred(self, outcome: Deferred, spent: int) -> None:
        """Add a deferral: no attempt is counted, but the total time is limited. A failing disk, a paused stage or a run
        that was asked to stop does not count against the item."""
        place = outcome.item.place
        policy, why = self.policies[place.stage], _cut(outcome.why)
        blameless = outcome.trouble or outcome.by_breaker or outcome.excused
        total = place.deferred if blameless else retry.deferred(place, outcome.wait)
        if total > policy.defer_within:
            why = f"{why} (deferred for {total:,.0f} s in total, the limit is {policy.defer_within:,.0f} s)"
            after = move(place, Transition.BURY, stages=self.stages, attempt=place.attempt + 1, spent=spent,
                         code="deferred_too_long", reason=why)  # fmt: skip
            self._bury(outcome.item, after)
            self._keep(outcome, after, "bury", after.code, after.reason)
            return
        after = move(place, Transition.DEFER, stages=self.stages, due=self.now + outcome.wait,
                     wait=outcome.wait, spent=spent, deferred=total, code="deferred", reason=why)  # fmt: skip
        self._keep(outcome, after, "defer", after.code, after.reason)

    def _failed(self, failed: Failed, spent: int) -> None:
        place = failed.item.place
        policy = self.policies[place.stage]
        attempt, used = place.attempt + 1, place.used + failed.seconds
        decision = retry.decide(place, failed, policy, spent=spent)
        message, code, trace = _cut(failed.message), storable(failed.code), storable(failed.trace)
        if isinstance(decision, retry.TryAgain):
            after = move(
                place, Transition.RETRY, stages=self.stages, attempt=attempt, spent=spent, code=code, reason=message,
                due=self.now + decision.wait, wait=decision.wait, used=used + decision.charged,
                deferred=place.deferred + (decision.wait - decision.charged),
            )  # fmt: skip
            self._keep(failed, after, "retry", code, message, trace=trace)
        else:
            why = message if decision.why == "permanent" else f"{message} ({decision.why})"
            after = move(place, Transition.BURY, stages=self.stages, attempt=attempt, spent=spent, code=code,
                         reason=why, used=used)  # fmt: skip
            self._bury(failed.item, after)
            self._keep(failed, after, "bury", code, why, trace=trace)

    def _bury(self, item: Item, place: ItemState) -> None:
        self.tally["dead"] += 1
        self.events.append(course.item_dead(item.n, item.key, place))

    def _keep(
        self,
        outcome: Skipped | Deferred | Failed,
        place: ItemState,
        word: str,
        code: str,
        message: str,
        trace: str = "",
    ) -> None:
        before = outcome.item.place
        self.moves.append(Move(outcome.item.n, place))
        self.attempts.append(
            journal.Attempted(
                n=outcome.item.n,
                stage=before.stage,
                attempt=before.attempt + 1,
                epoch=before.epoch,
                outcome=word,
                code=code,
                message=message,
                due=place.due,
                deadline=retry.deadline(place, self.policies[before.stage], self.now),
                used=place.used,
                wait=place.wait,
                queued=outcome.queued,
                seconds=outcome.seconds,
                trace=trace,
                deferred=place.deferred,
                excused=isinstance(outcome, Deferred) and outcome.excused,
            )  # fmt: skip
        )
        if place.state is State.PENDING:
            self.onward.append(replace(outcome.item, place=place, plain=False))

    def _spend(self, stage: int, spend: journal.Spend) -> None:
        self.spends.append((stage, spend))
        self.tally["spent"] += spend.usd
        self.tally["tokens"] += spend.tokens


def _cut(text: str) -> str:
    return storable(text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…")
