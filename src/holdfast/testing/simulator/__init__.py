"""A deterministic simulation of several workers on the real core, in virtual time, with every kind of fault.

`simulate(seed)` draws a small world from its seed (a batch, workers, an ingester, operators, some faults), runs it in
virtual time on a real store, and checks what must be true:

- the journal verifies, and replayed from its first entry it gives the items, totals and outputs in the store;
- every stage of an item succeeds once in each epoch, in order, under the fence of the grant that committed it;
- a handler ran at least once for each recorded attempt, and never more often than crashes and lost leases explain;
- fences grow, waits and budgets are kept, no cost is counted twice, no lease is lost without a reason;
- no item depends on an output that does not hold; unrecorded outputs are adopted without counting an attempt;
- a batch that is paused, cancelled or sealed stays so, and a seal covers everything;
- every event has its fact and every fact its event, and the receiver gets all of them, in order;
- a partition continues at its durable checkpoint, delivers no row twice except those that were cut off, and accumulates
  the same as an uninterrupted walk;
- a stage that pauses starts nothing, then one item as a trial, and failures in the meantime cost no attempt;
- an item under which processes die is tried in a new one, then alone; an innocent item is never blamed;
- a run starts nothing that its deadline will cut off, ends in time, and loses nothing that was in progress;
- quick handlers on the thread of a run do not keep it from committing, and a slow one among them is handed on;
- a message, however often and to whichever process it is delivered, is done once, and leaves nothing claimed;
- when faults stop, every item is settled.

The same seed gives the same events: `python -m holdfast.testing.simulator --seed 7 --trace` prints one of them. With
`--store module:function` it runs on your own store; with `--store cas` on a bucket, where every request may fail and
documents are replaced by compare-and-swap: revisions and fences grow, one fence has one owner, a lease is taken over
only after it was observed for its whole length, and everything that a document refers to was written before it.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import msgspec

from holdfast.stores.base import Store, random_bytes
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.memory import MemoryStore
from holdfast.testing.replay import Violation
from holdfast.testing.simulator.bucket import BucketWorld
from holdfast.testing.simulator.messages import receivers
from holdfast.testing.simulator.operators import (
    canceller,
    caretaker,
    checker,
    hear_the_rest,
    ingester,
    last_words,
    operator,
    pauser,
    receiver,
    sealer,
)
from holdfast.testing.simulator.oracles import check
from holdfast.testing.simulator.plan import draw, draw_on_a_bucket
from holdfast.testing.simulator.restores import RestoredWorld, draw_restored
from holdfast.testing.simulator.worker import Crew
from holdfast.testing.simulator.world import MakeStore, World

__all__ = [
    "Failure",
    "Violation",
    "in_folders",
    "in_memory",
    "on_a_bucket",
    "search",
    "simulate",
    "simulate_restores",
    "tell",
]


HEARING = (receiver,)


class Failure(AssertionError):
    """A seed whose world broke a promise; the message tells how to replay it."""


def in_memory(clock: Callable[[], float], is_dead: Callable[[str], bool]) -> MemoryStore:
    """Return the default store of simulations."""
    return MemoryStore(clock=clock, is_dead=is_dead, draw=Random(0).randbytes)  # noqa: S311 - the same every time


def on_a_bucket(clock: Callable[[], float], is_dead: Callable[[str], bool]) -> BucketStore:
    """Select, as `make_store`, worlds on a bucket in memory: each process has its own handle, and requests fail."""
    return BucketStore(MemoryBucket(), clock=clock, monotonic=clock, is_dead=is_dead, at_once=1)


def in_folders(make_store: Callable[..., Store], place: Path) -> MakeStore:
    """Return stores for simulations from a function for the conformance suite: each in an empty folder below `place`,
    which is removed when the next one is made."""
    numbers = itertools.count()

    def make(clock: Callable[[], float], is_dead: Callable[[str], bool]) -> Store:
        number = next(numbers)
        shutil.rmtree(place / f"world{number - 1}", ignore_errors=True)
        folder = place / f"world{number}"
        folder.mkdir()
        return make_store(folder, clock=clock, is_dead=is_dead, draw=random_bytes)

    return make


def simulate(seed: int, make_store: MakeStore = in_memory, *, trace: list[str] | None = None,
             chunks: int | None = None) -> World:  # fmt: skip
    """Run the world of one seed and check it. Raise if a promise was broken. `chunks` overrides the plan's limit of
    chunks claimed in one write: with 1, every store gives the same trace."""
    plan = draw_on_a_bucket(seed) if make_store is on_a_bucket else draw(seed)
    plan = plan if chunks is None else msgspec.structs.replace(plan, chunks=chunks)
    world = BucketWorld(plan, trace) if make_store is on_a_bucket else World(plan, make_store, trace)
    try:
        for number in range(world.plan.ingesters):
            world.begin(ingester(world, f"source{number}"))
        Crew(world).begin()
        for actor in (
            operator,
            caretaker,
            checker,
            pauser,
            canceller,
            sealer,
            *HEARING[: world.store.capabilities.events],
        ):
            world.begin(actor(world))
        for actor_of_its_own in (*world.others(), *receivers(world)):
            world.begin(actor_of_its_own)
        world.run()
        last_words(world)
        if world.store.capabilities.events:
            hear_the_rest(world)
        check(world)
    finally:
        world.stopped = True
        world.store.close()
    return world


def simulate_restores(seed: int, *, trace: list[str] | None = None) -> RestoredWorld:
    """Run the world of one seed in which the store is set back, and check it. Raise if a promise was broken."""
    world = RestoredWorld(draw_restored(seed), MemoryStore(), trace)
    try:
        for number in range(world.plan.ingesters):
            world.begin(ingester(world, f"source{number}"))
        Crew(world).begin()
        for actor in (operator(world), *world.others()):
            world.begin(actor)
        world.run()
        world.check()
    finally:
        world.stopped = True
    return world


def search(seeds: Iterable[int], make_store: MakeStore = in_memory, *, store: str = "") -> Counter[str]:
    """Run many seeds; the first failure is reported with its seed and the end of its trace. `store` is the name of the
    store on the command line that replays it."""
    total: Counter[str] = Counter()
    for seed in seeds:
        try:
            total += simulate(seed, make_store).counts
        except Exception as error:
            raise Failure(tell(seed, make_store, error, store=store)) from error
        total["worlds"] += 1
    return total


def tell(seed: int, make_store: MakeStore, error: Exception, lines: int = 40, *, store: str = "") -> str:
    """Return what went wrong in a world, and the trace before it."""
    trace: list[str] = []
    try:
        simulate(seed, make_store, trace=trace)
    except Exception as again:  # noqa: BLE001 - any error is reported
        error = again
    drawn = draw_on_a_bucket(seed) if make_store is on_a_bucket else draw(seed)
    plan = {name: value for name, value in msgspec.structs.asdict(drawn).items() if value}
    told = "\n".join([f"  {line}" for line in trace[-lines:]])
    replaying = f"python -m holdfast.testing.simulator --seed {seed} --trace{f' --store {store}' if store else ''}"
    return (
        f"seed {seed}: {type(error).__name__}: {error}\nreplay it: {replaying}\nthe plan: {plan}\nhow it came:\n{told}"
    )
