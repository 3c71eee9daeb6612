"""diskcache: a result under each key, looked up before the work."""

from pathlib import Path

from diskcache import Cache

from bench.case import Reading, Stopwatch
from bench.items import items, result


def fresh(place: Path, seed: int, count: int, *, synchronous: int) -> Reading:
    worked = 0
    with Cache(str(place / "cache"), sqlite_synchronous=synchronous) as cache:
        with Stopwatch() as watch:
            for item in items(count, seed):
                if item["id"] not in cache:
                    cache[item["id"]] = result(item)
                    worked += 1
        assert len(cache) == count
    return Reading(items=count, seconds=watch.seconds, worked=worked)
