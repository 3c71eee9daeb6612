"""The cost of checking that every item is accounted for, or of planning a run, with outputs in files. Beside both, a
bare loop of `os.stat`.

A million files take minutes to make: they are measured with --full only.
"""

import os
from pathlib import Path
from typing import Any

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.items import items

LIMIT = 150  # MB
NOTE = (
    "Both look at the same files, one `os.stat` each, from a warm cache. Holdfast reads its evidence, compares size, "
    "time and inode, counts every state and every entry of the folder."
)


def prepare(place: Path, seed: int, count: int) -> None:
    """Write files without syncing: reading is measured, not writing."""
    subject.timed_run(with_files(place), items(count, seed), count)


def with_files(place: Path) -> Any:
    import holdfast as hf  # the harness must work even if Holdfast does not

    return subject.pipeline(place, sink=hf.Files(f"{place}/out/{{key}}.json", sync=False))


def bare(place: Path, seed: int, count: int) -> Reading:
    paths = (f"{place}/out/{item['id']}.json" for item in items(count, seed))
    total = 0.0
    for group in iter(lambda: [path for path, _ in zip(paths, range(1_000), strict=False)], []):
        with Stopwatch() as watch:  # making the names is not timed
            for path in group:
                os.stat(path)  # noqa: PTH116 - the bare call is measured
        total += watch.seconds
    return Reading(items=count, seconds=total)


def holdfast(place: Path, seed: int, count: int) -> Reading:  # noqa: ARG001 - the files are there
    from holdfast.runtime import lookup
    from holdfast.runtime.report.reconcile import reconcile
    from holdfast.stores.open import open_store

    store = open_store(place / "state.db", must_exist=True)
    with Stopwatch() as watch:
        found = reconcile(store, lookup.batch_named(store, "bench"))
    assert found.is_explained, found.unexplained
    assert (found.recorded.done, found.observed.files) == (count, count), found
    return Reading(items=count, seconds=watch.seconds, worked=0)


def planned(place: Path, seed: int, count: int) -> Reading:  # noqa: ARG001 - the files are there
    pipeline = with_files(place)
    with Stopwatch() as watch:
        plan = pipeline.plan(batch="bench")
    assert [(row.fate, row.count) for row in plan.rows] == [("skip", count)], plan.rows
    return Reading(items=count, seconds=watch.seconds, worked=0)


def case(size: Size) -> Case:
    count = 1_000_000 if size.full else size.scaled(100_000)
    return Case(
        name="reconcile",
        asks=f"Is every one of {count:,} items accounted for, outputs in files?",
        metric="cost",
        note=NOTE,
        probes=(
            Probe(name="stat", label="bare loop of os.stat", prepare=prepare, run=bare, items=count),
            Probe(
                name="holdfast", label="Holdfast, reconcile", prepare=prepare, run=holdfast, items=count,
                durability="nothing to write",
            ),
            Probe(
                name="plan", label="Holdfast, plan", prepare=prepare, run=planned, items=count,
                durability="nothing to write",
            ),
        ),
        goals=(
            Goal(says="reconcile ÷ bare os.stat", of="holdfast", over="stat", metric="cost", at_most=3),
            Goal(says="reconcile, peak memory", of="holdfast", metric="peak", at_most=LIMIT),
            Goal(says="plan ÷ bare os.stat", of="plan", over="stat", metric="cost", at_most=3),
            Goal(says="plan, peak memory", of="plan", metric="peak", at_most=LIMIT),
        ),
    )  # fmt: skip
