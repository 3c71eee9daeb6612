"""The cost of many small chunks, as made by messages and slow sources, against few large ones."""

import os
from pathlib import Path

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.items import items
from holdfast.stores.base import find_batch

ITEMS, SMALL, LARGE = 100_000, 10, 20_000


def case(size: Size) -> Case:
    count = size.scaled(ITEMS)
    return Case(
        name="chunks",
        asks="Many small chunks against few large ones",
        metric="rate",
        note="Items were admitted before, in groups; a zero-cost handler. Each group is a chunk.",
        probes=(of(SMALL, count), of(LARGE, count)),
        goals=(
            Goal(says=f"chunks of {SMALL} ÷ {LARGE:,}", of=f"of-{SMALL}", over=f"of-{LARGE}", metric="rate",
                 at_least=1 / 3),
        ),
    )  # fmt: skip


def of(each: int, count: int) -> Probe:
    return Probe(
        name=f"of-{each}",
        label=f"chunks of {each:,}",
        run=run,
        items=count,
        params={"each": each},
        durability=subject.DURABILITY,
    )


def run(place: Path, seed: int, count: int, each: int) -> Reading:
    """Time the run alone, without the admission of items."""
    from holdfast.core import ingest

    pipeline = subject.pipeline(place)
    made = list(items(count, seed))
    pipeline.run(made[:1], batch="bench", key="id", progress=False)
    batch, freeze = find_batch(pipeline.store, "bench"), pipeline.stages[0].input.freeze
    new = [ingest.admit(item["id"], freeze(item), os.urandom(16)) for item in made[1:]]
    for start in range(0, len(new), each):
        pipeline.store.add_items(batch.id, new[start : start + each])
    del made, new  # a run fed by messages does not hold them, and the collector would scan them
    with Stopwatch() as watch:
        report = pipeline.run(None, batch="bench", progress=False)
    assert report.counts.done == count, report.counts
    return Reading(items=count, seconds=watch.seconds)
