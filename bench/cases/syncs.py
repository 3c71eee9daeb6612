"""The number of waits for the disk per item. Counted by strace: unlike seconds, this figure is constant."""

from collections.abc import Callable
from typing import Any

from bench import floor, script, subject
from bench.case import Case, Goal, Probe, Reading, Size
from bench.cases import alone, waiting

WAITS = "50 ms on 64 threads"


def case(size: Size) -> Case:
    many, few = size.scaled(50_000), size.scaled(1_000)
    params = {"milliseconds": 50, "workers": 64}
    return Case(
        name="syncs",
        asks="fsync and fdatasync calls per item",
        metric="syncs",
        at_most_rounds=3,
        note="Counted by strace, start and end of the run included.",
        probes=(
            traced("floor", "floor, groups of 1,000", floor.in_groups, many, floor.BY_GROUP),
            traced("floor-one", "floor, one by one", floor.one_by_one, few, floor.BY_ITEM),
            traced("script", "hand-written script", script.fresh, many, script.DURABILITY),
            traced("holdfast", "Holdfast, saturated", subject.fresh, many, subject.DURABILITY),
            traced("alone", "Holdfast, one at a time", alone.holdfast, few, subject.DURABILITY),
            traced("waiting", f"Holdfast, {WAITS}", waiting.holdfast_threads, 2_560, subject.DURABILITY, **params),
        ),
        goals=(
            Goal(says="Holdfast, saturated", of="holdfast", metric="syncs", at_most=0.02),
            Goal(says="Holdfast, one at a time: no groups form", of="alone", metric="syncs", at_least=0.9),
        ),
    )


def traced(name: str, label: str, run: Callable[..., Reading], items: int, durability: str, **params: Any) -> Probe:
    return Probe(name=name, label=label, run=run, items=items, params=params, durability=durability, traced=True)
