"""Items that are ranges of rows: how a worker walks them from checkpoint to checkpoint, and what must be true of that.

The rows of a range are numbers, and the handler folds them in a way that shows each row that is missing, doubled or out
of its order. So what an uninterrupted walk gives is known for every range and every row in it.
"""

from collections import Counter
from functools import cache

from holdfast.core import cursor, settle
from holdfast.core.canonical import digest_of_acc
from holdfast.core.cursor import Cursor
from holdfast.core.model import Change, Checkpoint, Commit, Item, ItemNo, State, StoredItem
from holdfast.core.settle import Reached
from holdfast.core.states import Transition, move
from holdfast.runtime.scan.rows import Feed
from holdfast.stores.base import has_landed
from holdfast.testing.replay import EVERYTHING, Story, Violation
from holdfast.testing.rows import Rows
from holdfast.testing.simulator.world import World

APART = 100
"""Ranges begin so many rows apart: what a walk reads beyond its end is no row of another range."""
PRIME = 2_147_483_647


def border(n: int, rows: int) -> Cursor:
    """The cursor after so many rows of a range."""
    return Cursor("row", n * APART + rows)


def length_of(world: World, n: int) -> int:
    return world.plan.lengths[n % len(world.plan.lengths)]


def fold(acc: int, rows: list[int]) -> int:
    """The handler: whatever is missing, doubled or out of order changes it."""
    for row in rows:
        acc = (acc * 31 + row + 1) % PRIME
    return acc


@cache
def folded(n: int, rows: int) -> bytes | None:
    """What was accumulated after so many rows of a range, if nothing ever interrupted it."""
    return b"%d" % fold(0, list(range(n * APART, n * APART + rows))) if rows else None


def checkpoint_at(n: ItemNo, rows: int) -> Checkpoint:
    """Where an uninterrupted walk stands after so many rows."""
    return Checkpoint(n, rows, cursor.encode(border(n, rows)) if rows else b"", folded(n, rows))


class Walk:
    """One attempt at one range, from a checkpoint on."""

    def __init__(self, item: Item, at: Checkpoint | None, length: int, every: int) -> None:
        self.item, self.every = item, every
        self.saved = Checkpoint(item.n, 0, b"") if at is None else at
        """What is durable, as far as the worker was told."""
        after = cursor.decode(self.saved.cursor) if self.saved.cursor else border(item.n, 0)
        source = Rows(range(item.n * APART, (item.n + 1) * APART), page=3)
        base, until = item.n * APART, border(item.n, length)
        pages = source.read(Cursor("row", after.value - base), Cursor("row", until.value - base))
        self._feed = Feed(iter(pages), self.saved.rows)
        self._acc = 0 if self.saved.acc is None else int(self.saved.acc)

    def go_on(self) -> list[int]:
        """Up to so many rows as there are between two checkpoints, handled."""
        rows = self._feed.take(self.every)
        self._acc = fold(self._acc, rows)
        return rows

    @property
    def at_end(self) -> bool:
        return self._feed.at_end

    def reached(self) -> Reached:
        """How far it has come: the next checkpoint."""
        rows = self._feed.rows
        at = cursor.encode(border(self.item.n, rows)) if rows else b""
        return Reached(item=self.item, rows=rows, cursor=at, acc=b"%d" % self._acc if rows else None)

    def result(self) -> bytes:
        return b"%d" % self._acc

    def is_saved(self, reached: Reached) -> None:
        """The checkpoint is durable: the walk may go on from there."""
        self.saved = reached.checkpoint
        self.item = settle.further(self.item)


class Ranges:
    """What must be true of all walks of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._walks: Counter[tuple[int, int]] = Counter()
        """(item, epoch) -> how many walks were begun."""
        self._handled: Counter[tuple[int, int]] = Counter()
        """(item, epoch) -> rows that were given to the handler, each as often as it was."""
        self.sent: dict[bytes, Commit] = {}
        """Commits with checkpoints, by their ids."""

    def begins(self, walk: Walk) -> None:
        self._walks[int(walk.item.n), walk.item.place.epoch] += 1

    def goes_on(self, walk: Walk, fence: int) -> None:
        """Whoever holds the range stands at the checkpoint that is durable, neither before it nor beyond; one that was
        overtaken may not know of the last ones, but never stands beyond them."""
        world, n = self._world, walk.item.n
        row = world.row_of(n)
        if row.place.epoch != walk.item.place.epoch:
            return
        chunk, stands, truth = world.chunk_of(n), walk.saved, world.checkpoint_of(n)
        held = chunk.fence == fence and chunk.owner is not None and row.place.state is State.PENDING
        if held and (stands.rows, stands.cursor, stands.acc) != (truth.rows, truth.cursor, truth.acc):
            raise Violation(f"item {n} goes on at row {stands.rows}, its durable checkpoint is at {truth.rows}")
        if stands.rows > truth.rows:
            raise Violation(f"item {n} goes on at row {stands.rows}, beyond its durable checkpoint {truth.rows}")

    def handled(self, walk: Walk, rows: list[int]) -> None:
        """No row but its own, in order, from the checkpoint on."""
        n = int(walk.item.n)
        begin = n * APART
        expected = list(range(begin + walk.saved.rows, begin + walk.saved.rows + len(rows)))
        if rows != expected or len(rows) > walk.every or expected[-1:] >= [begin + length_of(self._world, n)]:
            raise Violation(
                f"item {n} handles rows {rows}, it has {length_of(self._world, n)} from {begin} on, and stands at "
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
                raise Violation(f"item {n} is at {at}, after so many rows an uninterrupted walk is at {whole}")
        results = {int(output.n): output.data for output in store.outputs(batch, limit=EVERYTHING)}
        for n, told in story.items.items():
            if told.state is State.DONE and results.get(n) != (folded(n, length_of(world, n)) or b"0"):
                raise Violation(f"item {n} gave {results.get(n)!r}, not what an uninterrupted walk gives")
            if told.state is State.DONE and (n not in reached or reached[n].rows != length_of(world, n)):
                raise Violation(f"item {n} is done, and its checkpoint is not at its end: {reached.get(n)}")
        self._check_told(story)
        self._check_redone()

    def _check_told(self, story: Story) -> None:
        """One entry for every checkpoint that landed; within an epoch each is further than the one before, but for the
        one at the end, where there may be nothing left to read."""
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
            raise Violation(f"checkpoints {landed} landed, the journal tells of {told}")

    def _check_redone(self) -> None:
        """A walk that is cut off costs at most the rows of one interval."""
        for (n, epoch), handled in self._handled.items():
            most = length_of(self._world, n) + self._world.plan.every * self._walks[n, epoch]
            if handled > most:
                raise Violation(f"{handled} rows of item {n} were handled in epoch {epoch}, at most {most} may be")


def reset(world: World, row: StoredItem) -> Change:
    """An operator lets a range begin again: where it stands, at its start, or at another cursor."""
    after = move(row.place, Transition.RESET, stage=0, stages=world.stages, reason="because")
    change = Change(n=row.n, state=row.place.state, epoch=row.place.epoch, place=after)
    luck = world.chance()
    if luck < 0.4:
        return change
    at = checkpoint_at(row.n, int(world.chance() * (length_of(world, row.n) + 1)) if luck < 0.7 else 0)
    given = digest_of_acc(row.salt, at.acc)
    return Change(n=row.n, state=row.place.state, epoch=row.place.epoch, place=after, checkpoint=at, acc_digest=given)
