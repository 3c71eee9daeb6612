"""joblib.Memory: the result of each call in separate files, found again by the call's arguments."""

from pathlib import Path
from typing import Any

from joblib import Memory

from bench.case import Reading, Stopwatch
from bench.items import items, result

worked: list[str] = []  # joblib identifies a function by its module, name and source


def handle(item: dict[str, Any]) -> dict[str, Any]:
    worked.append(item["id"])
    return result(item)


def fresh(place: Path, seed: int, count: int) -> Reading:
    remembered = Memory(place / "joblib", verbose=0).cache(handle)
    with Stopwatch() as watch:
        done = sum(remembered(item)["ok"] for item in items(count, seed))
    assert done == count
    return Reading(items=count, seconds=watch.seconds, worked=len(worked))
