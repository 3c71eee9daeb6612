"""The time per item as batches grow, for whole batches with ordered and with random keys."""

from bench import script, subject
from bench.case import Case, Goal, Probe, Size

BATCHES = (10_000, 100_000, 1_000_000)


def case(size: Size) -> Case:
    sizes = tuple(size.scaled(count) for count in BATCHES)
    small, middle, large = sizes
    return Case(
        name="growth",
        asks="Time per item as batches grow",
        metric="cost",
        at_most_rounds=3,
        note="Whole batches, start and end included.",
        probes=(
            *(holdfast(count, keys) for keys in ("ordered", "random") for count in sizes),
            *(by_hand(count, keys) for keys in ("ordered", "random") for count in (small, large)),
        ),
        goals=(
            grows("ordered", small, large, at_most=1.25),
            grows("random", small, large, at_most=2),
            grows(
                "ordered", middle, large, at_most=1.25
            ),  # the start of a run dominates small batches and hides growth
            grows("random", middle, large, at_most=2),
        ),
    )


def grows(keys: str, small: int, large: int, at_most: float) -> Goal:
    return Goal(
        says=f"{keys} keys: {large:,} ÷ {small:,}",
        of=f"holdfast-{keys}-{large}",
        over=f"holdfast-{keys}-{small}",
        metric="cost",
        at_most=at_most,
    )


def holdfast(count: int, keys: str) -> Probe:
    return Probe(
        name=f"holdfast-{keys}-{count}",
        label=f"Holdfast, {count:,} {keys} keys",
        run=subject.fresh,
        items=count,
        params={"keys": keys},
        durability=subject.DURABILITY,
    )


def by_hand(count: int, keys: str) -> Probe:
    return Probe(
        name=f"script-{keys}-{count}",
        label=f"script, {count:,} {keys} keys",
        run=script.fresh,
        items=count,
        params={"keys": keys},
        durability=script.DURABILITY,
    )
