"""The cost of a run that finds nothing left to do, beside a bare loop that looks up the same keys."""

from pathlib import Path

from bench import script, subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.database import database
from bench.items import items

LOOK_UP = "SELECT 1 FROM results WHERE key = ?"


def look_up(place: Path, seed: int, count: int, keys: str = "ordered") -> Reading:
    """Look up key by key, in the table that the script left."""
    with Stopwatch() as watch, database(place / "script.db") as db:
        found = sum(db.execute(LOOK_UP, (item["id"],)).get for item in items(count, seed, keys=keys))
    assert found == count
    return Reading(items=count, seconds=watch.seconds)


def case(size: Size) -> Case:
    count = size.scaled(1_000_000)
    orders = ("ordered", "random") if size.full else ("ordered",)
    return Case(
        name="resume",
        asks=f"A run over {count:,} items that are all done",
        metric="cost",
        probes=tuple(probe for keys in orders for probe in probes(count, keys)),
        goals=tuple(
            Goal(
                says=f"Holdfast ÷ bare look-ups, {keys} keys",
                of=f"holdfast-{keys}",
                over=f"look-up-{keys}",
                metric="cost",
                at_most=3,
            )
            for keys in orders
        ),
    )


def probes(count: int, keys: str) -> tuple[Probe, ...]:
    runs = {
        "look-up": ("bare look-ups, one by one", script.prepare, look_up),
        "script": ("script, look-ups in groups of 1,000", script.prepare, script.again),
        "holdfast": ("Holdfast", subject.prepare, subject.again),
    }
    return tuple(
        Probe(
            name=f"{name}-{keys}",
            label=f"{label}, {keys} keys",
            prepare=prepare,
            run=run,
            items=count,
            params={"keys": keys},
            durability="nothing to write",
        )
        for name, (label, prepare, run) in runs.items()
    )
