"""A deterministic simulation of several workers on the real core, under virtual time, with everything that goes wrong.

`simulate(seed)` draws a small world from its seed (a batch, workers, an ingester, people, some faults), lets it
happen in virtual time on a real store, and checks what must be true:

- the journal verifies, and retold from its first entry it gives the items, totals and outputs that the store has;
- every stage of an item succeeds once in each epoch, in order, under the fence of the grant that committed it;
- a handler ran at least once for each recorded attempt, and never more often than crashes and lost leases explain;
- fences grow, waits and budgets are kept, no cost is counted twice, nobody loses a lease without a reason;
- nobody rests on an output that does not hold; what was made and not recorded is adopted, at no cost of an attempt;
- a batch that is paused, cancelled or sealed keeps to it, and a seal covers everything;
- every event has its fact and every fact its event, and the receiver hears them all, in order;
- a range of rows goes on at its durable checkpoint, hands out no row twice but for what was cut off, and folds to what
  an uninterrupted walk gives;
- a stage that pauses begins nothing, then one item to try, and what fails meanwhile costs no attempt;
- an item under which processes die is tried in a new one, then alone; who is innocent is never to blame;
- a run begins nothing that its deadline will cut off, ends in time, and forgets nothing of what was at work;
- quick handlers on the thread of a run do not keep it from committing, and a slow one among them is handed on;
- a message, however often it is handed over and to whom, is done once, and leaves nothing in the hands of its process;
- when faults stop, every item comes to its end.

The same seed gives the same events: `python -m holdfast.testing.simulator --seed 7 --trace` tells the story of one.
With `--store module:function` it runs on a store of your own; with `--store cas` on a bucket, where faults are in every
request and documents are replaced by compare-and-swap: revisions and fences grow, one fence has one holder, a lease is
taken over only after it was watched for its whole length, and what a document speaks of was written before it.
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from holdfast.stores.base import Store
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
from holdfast.testing.simulator.worker import Crew
from holdfast.testing.simulator.world import MakeStore, World

__all__ = ["Failure", "Violation", "in_folders", "in_memory", "on_a_bucket", "search", "simulate", "tell"]


HEARING = (receiver,)


class Failure(AssertionError):
    """A simulation broke a promise; the message says how to replay its seed."""


def in_memory(clock: Callable[[], float], is_dead: Callable[[str], bool]) -> MemoryStore:
    """Return the store that simulations run on unless told otherwise."""
    return MemoryStore(clock=clock, is_dead=is_dead)


def on_a_bucket(clock: Callable[[], float], is_dead: Callable[[str], bool]) -> BucketStore:
    """Return a store on a bucket in memory. Simulations give each process its own handle, and requests fail."""
    return BucketStore(MemoryBucket(), clock=clock, monotonic=clock, is_dead=is_dead, at_once=1)


def in_folders(make_store: Callable[..., Store], place: Path) -> MakeStore:
    """Return a function that makes stores for simulations, from the function that the conformance suite takes: each in
    an empty folder below `place`, which is removed when the next one is made."""
    numbers = itertools.count()

    def make(clock: Callable[[], float], is_dead: Callable[[str], bool]) -> Store:
        number = next(numbers)
        shutil.rmtree(place / f"world{number - 1}", ignore_errors=True)
        folder = place / f"world{number}"
        folder.mkdir()
        return make_store(folder, clock=clock, is_dead=is_dead)

    return make


def simulate(seed: int, make_store: MakeStore = in_memory, *, trace: list[str] | None = None,
             chunks: int | None = None) -> World:  # fmt: skip
    """Run the simulation of one seed and check it. Raises if a promise was broken. `chunks` is the most that one
    write claims, if it should differ from the plan: with 1, every store gives the same history."""
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


def search(seeds: Iterable[int], make_store: MakeStore = in_memory, *, store: str = "") -> Counter[str]:
    """Run many seeds; the first failure is raised with its seed and the end of its trace. `store` is how the command
    line that replays it names the store."""
    total: Counter[str] = Counter()
    for seed in seeds:
        try:
            total += simulate(seed, make_store).counts
        except Exception as error:
            raise Failure(tell(seed, make_store, error, store=store)) from error
        total["worlds"] += 1
    return total


def tell(seed: int, make_store: MakeStore, error: Exception, lines: int = 40, *, store: str = "") -> str:
    """Return what went wrong in a world, and what came before."""
    trace: list[str] = []
    try:
        simulate(seed, make_store, trace=trace)
    except Exception as again:  # noqa: BLE001 - whatever it was, it is told
        error = again
    drawn = draw_on_a_bucket(seed) if make_store is on_a_bucket else draw(seed)
    plan = {name: value for name, value in msgspec.structs.asdict(drawn).items() if value}
    told = "\n".join([f"  {line}" for line in trace[-lines:]])
    replaying = f"python -m holdfast.testing.simulator --seed {seed} --trace{f' --store {store}' if store else ''}"
    return (
        f"seed {seed}: {type(error).__name__}: {error}\nreplay it: {replaying}\nthe plan: {plan}\nhow it came:\n{told}"
    )
