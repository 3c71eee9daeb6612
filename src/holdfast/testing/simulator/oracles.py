"""Invariants: during a world, and at its end."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core import canonical, course, journal, sections
from holdfast.core.limits import BLAME
from holdfast.core.model import BatchId, BatchMode, Claim, Commit, DeadLimit, Item, ItemNo, State, chain_of_batch
from holdfast.core.outcome import Failed, Outcome
from holdfast.core.retry import Policy
from holdfast.core.settle import Settled
from holdfast.stores.base import Store, has_landed, outbox_of
from holdfast.testing.replay import EVERYTHING, Story, Violation, compare, replay
from holdfast.testing.simulator.handlers import APART, RangeWalk, checkpoint_at, effect_of, folded, length_of

if TYPE_CHECKING:
    from holdfast.testing.simulator.world import World


class SealedState:
    """The state of a batch when it was sealed."""

    def __init__(self, store: Store, batch: BatchId) -> None:
        self.batch = batch
        self.items = store.items(batch, limit=EVERYTHING)
        self.heads = heads(store, batch)
        if any(item.place.state is State.PENDING for item in self.items):
            raise Violation("a batch with pending items is sealed")
        self.check(store)

    def check(self, store: Store) -> None:
        """Check that nothing has changed since, and that the seal covers the ends of the chains."""
        if store.items(self.batch, limit=EVERYTHING) != self.items:
            raise Violation("items of a sealed batch have changed")
        if heads(store, self.batch) != self.heads:
            raise Violation("a chain of a sealed batch has grown")
        entries = store.entries(chain_of_batch(self.batch), limit=EVERYTHING)
        noted = ("warned",)  # a worker that does not know of the seal may report that a stage pauses
        last = next(entry for entry in reversed(entries) if journal.decode_header(entry.head).kind not in noted)
        body = sections.decode(last)
        if not isinstance(body, journal.Sealed):
            raise Violation("a batch is sealed, but the last entry of its chain is not a seal")
        if body.heads != hashlib.sha256(b"".join(self.heads)).digest():
            raise Violation("the seal of a batch does not cover the heads of its chains")


def heads(store: Store, batch: BatchId) -> list[bytes]:
    """Return number, length and last hash of the chain of every chunk, from the entries themselves."""
    found = []
    for chunk in sorted(store.chunks(batch), key=lambda chunk: chunk.number):
        entries = store.entries(chunk.id, limit=EVERYTHING)
        last = entries[-1].hash if entries else chunk.head
        found.append(chunk.number.to_bytes(8, "big") + len(entries).to_bytes(8, "big") + last)
    return found


def check_sums(store: Store, batch: BatchId) -> None:
    """Check that every item is in one state, every state is counted, and the sum is the number of admitted items."""
    chunks = store.chunks(batch)
    states = Counter(item.place.state for item in store.items(batch, limit=EVERYTHING))
    told = {state: sum(getattr(chunk.counts, state.value) for chunk in chunks) for state in State if state != "pending"}
    told[State.PENDING] = sum(chunk.pending for chunk in chunks)
    if +Counter(told) != states:
        raise Violation(f"the chunks count {told}, but the items are {dict(states)}")
    (admitted,) = [row.admitted for row in store.batches() if row.id == batch]
    if states.total() != admitted:
        raise Violation(f"{admitted} items were admitted, but there are {states.total()}")


def is_over(tolerance: DeadLimit, store: Store, batch: BatchId, ended: bool) -> bool:
    """Return whether there are more dead letters than tolerated, counted one by one."""
    dead = len(store.items(batch, state=State.DEAD, limit=EVERYTHING))
    if tolerance.count is not None and dead > tolerance.count:
        return True
    admitted = len(store.items(batch, limit=EVERYTHING))
    return tolerance.share is not None and ended and dead > tolerance.share * admitted


def check_waits(outcomes: Sequence[Outcome], settled: Settled, policies: Sequence[Policy], now: float) -> None:
    """Check that every wait is between the minimum and the growing maximum; permanent failures never wait."""
    asked = {outcome.item.n: outcome for outcome in outcomes if isinstance(outcome, Failed)}
    for attempt in settled.attempts:
        if attempt.outcome != "retry":
            continue
        failed, policy = asked[ItemNo(attempt.n)], policies[attempt.stage]
        if not failed.transient:
            raise Violation(f"item {attempt.n} failed for good ({attempt.code}) and is tried again")
        most = max(policy.wait_min, min(policy.wait_max, policy.wait_min * 2**attempt.attempt), failed.after or 0.0)
        wait = attempt.due - now
        if not policy.wait_min - 1e-6 <= wait <= most + 1e-6:
            bounds = f"{policy.wait_min:.3f} to {most:.3f}"
            raise Violation(f"item {attempt.n} waits {wait:.3f} s after attempt {attempt.attempt}, not {bounds}")


def check_condemned(world: "World", item: Item, fence: int) -> None:
    """Check that a condemned item was started alone, on trial, often enough before that grant, and that none is if no
    process can die. A process that slept may bury it late: what others did since makes no difference."""
    plan, effect = world.plan, effect_of(item)
    may_die = plan.crash or plan.pause or plan.missed_beat or plan.unsent
    if not may_die and plan.killer != (item.key, item.place.stage):
        raise Violation(f"item {item.n} is condemned, but it never killed a process")
    since = max((each for each in world.progressed[item.n] if each < fence), default=0)
    if sum(since < each < fence for each in world.trials[effect]) < BLAME:
        raise Violation(f"item {item.n} is condemned, but it was not started {BLAME} times alone without success")
    world.condemned[effect] += 1


def end_trials(world: "World", claim: Claim) -> None:
    """Note that something was committed under a claim: no item of its chunk is on trial any more."""
    for n in range(claim.lo, claim.hi):
        world.progressed[n].append(claim.lease.fence)


def check(world: "World") -> Story:
    """Check everything; the journal first, because the other checks depend on it."""
    story = replay(world.store, world.batch.id, world.plan.policies)
    compare(world.store, world.batch.id, story)
    check_admitted(world, story)
    check_effects(world, story)
    check_adopted(world, story)
    check_money(story)
    if world.store.capabilities.events:
        check_events(world, story)
    check_requeues(story)
    check_ended(world, story)
    if world.plan.every:
        world.ranges.check(story)
    world.heads = [chunk.head for chunk in world.store.chunks(world.batch.id)]
    world.counts["items"] += len(story.items)
    world.counts["runs"] += world.runs.total()
    world.counts["condemned"] += world.condemned.total()
    return story


def check_admitted(world: "World", story: Story) -> None:
    """Check that every key of the source was admitted once, with its first payload."""
    rows = [row for group in world.plan.groups for row in group]
    wanted = {key if key is not None else payload for key, payload in rows}
    held = [row.key for row in world.store.items(world.batch.id)]
    keys = {canonical.key_text(key) for key in held}
    if world.course is BatchMode.CANCELLED and len(keys) == len(held) <= len(wanted):
        return  # it takes no more items
    if len(held) != len(wanted) or len(keys) != len(held) or len(story.items) != len(held):
        raise Violation(f"the source has {len(wanted)} different keys, but {len(held)} items were admitted: {held}")
    missing = {key for key in wanted if isinstance(key, str)} - keys
    if missing:
        raise Violation(f"keys of the source were not admitted: {sorted(missing)}")


def check_effects(world: "World", story: Story) -> None:
    """Check that there is at least one run for each recorded attempt, and at most one more for each interruption."""
    for effect, told in story.attempts.items():
        ran = world.runs[effect] + world.condemned[effect]
        if told > ran:
            raise Violation(f"{told} attempts at (item, stage, epoch) {effect} are recorded, but {ran} were made")
    for effect, ran in world.runs.items():
        told = story.attempts.get(effect, 0)
        cut_off = world.excused[effect]
        if ran - told > cut_off:
            raise Violation(
                f"(item, stage, epoch) {effect} ran {ran} times, {told} are recorded, {cut_off} were cut off"
            )


def check_adopted(world: "World", story: Story) -> None:
    """Check that adopted outputs were made, in the same epoch, and that their cost is recorded."""
    paid = {spend.metrics["run"] for spend in story.spends}
    for effect in story.adopted:
        if not world.runs[effect]:
            raise Violation(f"(item, stage, epoch) {effect} was adopted, but never made")
        spend = world.outputs.made[effect]
        if spend is not None and spend.metrics["run"] not in paid:
            raise Violation(f"(item, stage, epoch) {effect} was adopted, but its cost is not recorded")


def check_events(world: "World", story: Story) -> None:
    """Check that the events match the facts in the journal, and that the receiver got all of them, in order."""
    stored = outbox_of(world.store).events(limit=EVERYTHING)
    resolved = [n for kind, _, n in story.acted if kind in ("requeued", "buried")]
    wanted: Counter[tuple[str, int | None]] = Counter((course.ITEM_DEAD, n) for n in story.buried)
    wanted.update((course.ORPHAN_RESOLVED, n) for n in resolved)
    wanted[course.BATCH_OPENED, None] = 1
    wanted[course.BATCH_FINISHED, None] = story.seals
    wanted[course.WARNING, None] = world.warnings
    told: Counter[tuple[str, int | None]] = Counter((event.kind, event.n) for event in stored)
    if +wanted != told:
        raise Violation(f"events without a fact: {+(told - wanted)}; facts without an event: {+(wanted - told)}")
    if list(dict.fromkeys(world.heard)) != [event.id for event in stored]:
        raise Violation(
            f"events {[event.id for event in stored]} were expected in this order, but received: {world.heard}"
        )
    if len(world.heard) > len(stored) and not world.plan.deaf:
        raise Violation(f"events were received more than once, although nothing was lost: {world.heard}")


def check_requeues(story: Story) -> None:
    """Check that an act that is sent twice is done once."""
    twice = [each for each, times in Counter(story.acted).items() if times > 1]
    if twice:
        raise Violation(f"acts that were sent twice changed an item twice: {twice}")


def check_money(story: Story) -> None:
    """Check that no run is paid for twice."""
    seen: set[bytes] = set()
    for spend in story.spends:
        run = spend.metrics["run"]
        if run in seen:
            raise Violation(f"an attempt at item {spend.n} is counted twice in the spending")
        seen.add(run)


def check_ended(world: "World", story: Story) -> None:
    """Check that everything is settled once faults have stopped; a killer is buried, not run forever."""
    waiting = [n for n, told in story.items.items() if told.state is State.PENDING]
    broken = [output for output in world.store.outputs(world.batch.id) if world.outputs.is_broken(output)]
    resting = [o.n for o in broken if story.items[o.n].state is State.DONE and world.course is not BatchMode.CANCELLED]
    if resting:
        raise Violation(f"items {resting} are done, but depend on outputs that do not hold")
    if waiting:
        raise Violation(f"items {waiting} were never settled")
    held = [chunk.id for chunk in world.store.chunks(world.batch.id) if chunk.owner is not None]
    excuses = ("crashes", "leases lost", "commits late or lost", "seals")
    if held and not any(world.counts[excuse] for excuse in excuses):
        raise Violation(f"chunks {held} were never released")


class RangeOracle:
    """Invariants of all walks of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._walks: Counter[tuple[int, int]] = Counter()
        """(item, epoch) -> how many walks were started."""
        self._handled: Counter[tuple[int, int]] = Counter()
        """(item, epoch) -> rows that were given to the handler, with repetitions."""
        self.sent: dict[bytes, Commit] = {}
        """Commits with checkpoints, by their ids."""

    def begins(self, walk: RangeWalk) -> None:
        self._walks[int(walk.item.n), walk.item.place.epoch] += 1

    def goes_on(self, walk: RangeWalk, fence: int) -> None:
        """Check that the owner of a partition is at the durable checkpoint, neither before nor beyond it; an overtaken
        owner may not know the last ones, but is never beyond them."""
        world, n = self._world, walk.item.n
        row = world.row_of(n)
        if row.place.epoch != walk.item.place.epoch:
            return
        chunk, stands, truth = world.chunk_of(n), walk.saved, world.checkpoint_of(n)
        held = chunk.fence == fence and chunk.owner is not None and row.place.state is State.PENDING
        if held and (stands.rows, stands.cursor, stands.acc) != (truth.rows, truth.cursor, truth.acc):
            raise Violation(f"item {n} continues at row {stands.rows}, but its durable checkpoint is at {truth.rows}")
        if stands.rows > truth.rows:
            raise Violation(f"item {n} continues at row {stands.rows}, beyond its durable checkpoint {truth.rows}")

    def handled(self, walk: RangeWalk, rows: list[int]) -> None:
        """Check that only the partition's own rows are handled, in order, starting from the checkpoint."""
        n = int(walk.item.n)
        begin = n * APART
        expected = list(range(begin + walk.saved.rows, begin + walk.saved.rows + len(rows)))
        if rows != expected or len(rows) > walk.every or expected[-1:] >= [begin + length_of(self._world, n)]:
            raise Violation(
                f"item {n} handles rows {rows}, but it has {length_of(self._world, n)} starting at {begin}, and is at "
                f"{walk.saved.rows}"
            )
        self._handled[n, walk.item.place.epoch] += len(rows)

    # -- at the end ---------------------------------------------------------------------------------------------

    def check(self, story: Story) -> None:
        world = self._world
        store, batch = world.store, world.batch.id
        reached = {int(at.n): at for at in store.checkpoints(batch, limit=EVERYTHING)}
        for n, at in reached.items():
            whole = checkpoint_at(ItemNo(n), at.rows)
            if at.rows > length_of(world, n) or (at.cursor, at.acc) != (whole.cursor, whole.acc):
                raise Violation(f"item {n} is at {at}, but an uninterrupted walk is then at {whole}")
        results = {int(output.n): output.data for output in store.outputs(batch, limit=EVERYTHING)}
        for n, told in story.items.items():
            if told.state is State.DONE and results.get(n) != (folded(n, length_of(world, n)) or b"0"):
                raise Violation(f"item {n} gave {results.get(n)!r}, not the result of an uninterrupted walk")
            if told.state is State.DONE and (n not in reached or reached[n].rows != length_of(world, n)):
                raise Violation(f"item {n} is done, but its checkpoint is not at its end: {reached.get(n)}")
        self._check_told(story)
        self._check_redone()

    def _check_told(self, story: Story) -> None:
        """Check that there is one entry for every checkpoint that landed; within an epoch, each is further than the one
        before, except for the one at the end, where there may be nothing left to read."""
        last: dict[tuple[int, int], int] = {}
        for n, epoch, rows in story.positions:
            before = last.get((n, epoch), -1)
            if rows < before or (rows == before and rows != length_of(self._world, n)):
                raise Violation(f"item {n} has a checkpoint at row {rows} after one at row {before}")
            last[n, epoch] = rows
        told = Counter(n for n, _, _ in story.positions)
        taken = [commit for commit in self.sent.values() if has_landed(self._world.store, commit)]
        landed = Counter(int(at.n) for commit in taken for at in commit.checkpoints)
        if told != landed:
            raise Violation(f"checkpoints {landed} landed, but the journal has {told}")

    def _check_redone(self) -> None:
        """Check that an interrupted walk costs at most the rows of one interval."""
        for (n, epoch), handled in self._handled.items():
            most = length_of(self._world, n) + self._world.plan.every * self._walks[n, epoch]
            if handled > most:
                raise Violation(f"{handled} rows of item {n} were handled in epoch {epoch}, but at most {most} may be")
