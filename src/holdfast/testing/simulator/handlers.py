"""Handlers in a simulated world: outputs, failures, and partitions that are walked from checkpoint to checkpoint.

The rows of a partition are numbers, and the handler folds them in a way that reveals each missing, repeated or
misplaced row. So the result of an uninterrupted walk is known for every partition and every row in it.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.core import cursor, settle
from holdfast.core.cursor import Cursor
from holdfast.core.journal import Spend
from holdfast.core.model import Checkpoint, Item, ItemNo
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome, Skipped, excuse
from holdfast.core.settle import Reached
from holdfast.runtime.scan.rows import Feed
from holdfast.testing.rows import Rows
from holdfast.testing.simulator.plan import LEASE

if TYPE_CHECKING:
    from holdfast.testing.simulator.world import World


MEASURED = 9
"""Quick handlers are quick at first, so that they are classified as quick."""


def seconds_of(world: "World", stage: int) -> float:
    """Return how long a handler takes; now and then longer than a lease."""
    chance = world.chance()
    if world.plan.quick:
        stalls = world.chance() < world.plan.stalls and world.runs.total() > MEASURED
        return 2 * chance * chance if stalls else world.plan.quick * (0.5 + chance)
    if world.plan.paces:
        return world.plan.paces[stage]
    return LEASE * (1 + 2 * chance) if world.goes_wrong(world.plan.slow) else 0.1 + 3 * chance * chance


def handle(process: Any, item: Item, seconds: float, result: bytes | None = None) -> Outcome:
    """Return the outcome of a handler. `result` is the result of a partition; for other items it follows from the
    input."""
    world, plan = process.world, process.world.plan
    if plan.killer is not None and plan.killer == (item.key, item.place.stage):
        process.die(f"is killed by item {item.n}")
    spend = spend_of(world, item)
    if plan.outages and world.is_away(item.place.stage):
        return _no_answer(world, item, seconds, spend)
    luck = world.chance()
    if luck < plan.transient:
        after = 40.0 if luck < plan.transient / 10 else None
        return Failed(item, True, "http_503", "no answer", world.chance(), 0.1, seconds, after, spend=spend)
    luck -= plan.transient
    if luck < plan.permanent:
        return Failed(item, False, "http_404", "not there", world.chance(), 0.1, seconds, spend=spend)
    luck -= plan.permanent
    if luck < plan.skip:
        return Skipped(item, "blank", 0.1, seconds, spend)
    luck -= plan.skip
    if luck < plan.defer:
        return Deferred(item, 5 + 60 * world.chance(), "closed", 0.1, seconds)
    world.outputs.make((int(item.n), item.place.stage, item.place.epoch), spend)
    output = output_of(item) if result is None else result
    return Done(item, output, 0.1, seconds, spend)


def spend_of(world: "World", item: Item) -> Spend | None:
    """Return the cost of an attempt."""
    most = world.plan.spend
    return Spend(item.n, usd=1 + int(world.chance() * most), metrics={"run": world.new_id()}) if most else None


def cut_off(world: "World", item: Item) -> Outcome:
    """Return the outcome of an item whose handler is running when its run ends at once. With a budget, it has cost
    nothing yet: an attempt that is not counted has no reservation."""
    spend = None if world.plan.cap is not None else spend_of(world, item)
    return excuse(Failed(item, True, "timeout", "time is up", world.chance(), 0.1, 0.1, spend=spend), "cut off")


def _no_answer(world: "World", item: Item, seconds: float, spend: Spend | None) -> Outcome:
    spend = None if world.plan.cap is not None else spend
    if world.chance() < world.plan.asks:
        return Deferred(item, 5 + 40 * world.chance(), "busy", 0.1, seconds, spend, told=True)
    if world.plan.adopts and world.chance() < 0.5:  # it did its work, but the reply was lost
        world.outputs.make((int(item.n), item.place.stage, item.place.epoch), None)
    return Failed(item, True, "http_503", "no answer", world.chance(), 0.1, seconds, spend=spend)


def effect_of(item: Item) -> tuple[int, int, int]:
    """Return the item with its stage and epoch."""
    return int(item.n), item.place.stage, item.place.epoch


def look_first(world: "World", item: Item) -> Outcome | None:
    """Check, before anything is run, whether the input still exists and whether the output already exists."""
    n, place = int(item.n), item.place
    broken = world.outputs.broken_below(n, place.stage) if world.outputs.broken else None
    if broken is not None or (place.stage and world.goes_wrong(world.plan.lost)):
        return Lost(item, place.stage - 1, "its input is gone")
    effect = effect_of(item)
    if not world.plan.adopts or not world.outputs.has(effect):
        return None
    world.counts["adopted"] += 1
    output = output_of(item)
    spend = world.outputs.made[effect]
    return Done(item, output, 0.0, 0.0, spend, adopted=True)


APART = 100
"""Partitions begin this many rows apart, so that rows read beyond the end of one do not belong to another."""
PRIME = 2_147_483_647


def border(n: int, rows: int) -> Cursor:
    """Return the cursor after so many rows of a partition."""
    return Cursor("row", n * APART + rows)


def length_of(world: "World", n: int) -> int:
    return world.plan.lengths[n % len(world.plan.lengths)]


def fold(acc: int, rows: list[int]) -> int:
    """Return the accumulator after some rows: each missing, repeated or misplaced row changes it."""
    for row in rows:
        acc = (acc * 31 + row + 1) % PRIME
    return acc


@cache
def folded(n: int, rows: int) -> bytes | None:
    """Return the accumulator of an uninterrupted walk after so many rows of a partition."""
    return b"%d" % fold(0, list(range(n * APART, n * APART + rows))) if rows else None


def checkpoint_at(n: ItemNo, rows: int) -> Checkpoint:
    """Return the checkpoint of an uninterrupted walk after so many rows."""
    return Checkpoint(n, rows, cursor.encode(border(n, rows)) if rows else b"", folded(n, rows))


class RangeWalk:
    """One attempt at one partition, starting from a checkpoint."""

    def __init__(self, item: Item, at: Checkpoint | None, length: int, every: int) -> None:
        self.item, self.every = item, every
        self.saved = Checkpoint(item.n, 0, b"") if at is None else at
        """The durable checkpoint, as far as the worker knows."""
        after = cursor.decode(self.saved.cursor) if self.saved.cursor else border(item.n, 0)
        source = Rows(range(item.n * APART, (item.n + 1) * APART), page=3)
        base, until = item.n * APART, border(item.n, length)
        pages = source.read(Cursor("row", after.value - base), Cursor("row", until.value - base))
        self._feed = Feed(iter(pages), self.saved.rows)
        self._acc = 0 if self.saved.acc is None else int(self.saved.acc)

    def go_on(self) -> list[int]:
        """Handle and return the rows up to the next checkpoint."""
        rows = self._feed.take(self.every)
        self._acc = fold(self._acc, rows)
        return rows

    @property
    def at_end(self) -> bool:
        return self._feed.at_end

    def reached(self) -> Reached:
        """Return the next checkpoint."""
        rows = self._feed.rows
        at = cursor.encode(border(self.item.n, rows)) if rows else b""
        return Reached(item=self.item, rows=rows, cursor=at, acc=b"%d" % self._acc if rows else None)

    def result(self) -> bytes:
        return b"%d" % self._acc

    def is_saved(self, reached: Reached) -> None:
        """Note that the checkpoint is durable: the walk may continue from there."""
        self.saved = reached.checkpoint
        self.item = settle.further(self.item)


def output_of(item: Item) -> bytes:
    """Return the output of a stage for the input of an item."""
    return item.input + b"|%d" % item.place.stage
