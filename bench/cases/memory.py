"""Peak memory as batches grow: the peak of the whole process, with items from a generator.

One million and ten million items take minutes: they are measured with --full only.
"""

from itertools import pairwise

from bench import script, subject
from bench.case import Case, Goal, Probe, Size

LIMIT = 150  # MB
SAME = 1.1


def case(size: Size) -> Case:
    few = size.scaled(100_000)
    counts = (few, 1_000_000, 10_000_000) if size.full else (few,)
    return Case(
        name="memory",
        asks="Peak memory, items from a generator",
        metric="peak",
        at_most_rounds=1 if size.full else None,
        probes=(
            Probe(
                name="script", label=f"script, {few:,} items", run=script.fresh, items=few, durability=script.DURABILITY
            ),
            *(holdfast(count) for count in counts),
        ),
        goals=(
            *(Goal(says=f"{count:,} items", of=f"holdfast-{count}", metric="peak", at_most=LIMIT) for count in counts),
            *(same(fewer, more) for fewer, more in pairwise(counts[1:])),
        ),
    )


def holdfast(count: int) -> Probe:
    return Probe(
        name=f"holdfast-{count}",
        label=f"Holdfast, {count:,} items",
        run=subject.fresh,
        items=count,
        durability=subject.DURABILITY,
    )


def same(fewer: int, more: int) -> Goal:
    return Goal(
        says=f"{more:,} ÷ {fewer:,} items",
        of=f"holdfast-{more}",
        over=f"holdfast-{fewer}",
        metric="peak",
        at_most=SAME,
    )
