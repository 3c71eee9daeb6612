"""Huey on SQLite: a task per item, worked off by the threads of one consumer; results stay in the same file."""

import threading
from pathlib import Path
from typing import Any

from huey import SqliteHuey
from huey.signals import SIGNAL_COMPLETE

from bench.case import Reading, Stopwatch
from bench.items import items, result


def fresh(place: Path, seed: int, count: int, *, workers: int) -> Reading:
    huey = SqliteHuey(filename=str(place / "huey.db"), fsync=True)
    before = huey.storage.result_store_size()
    left, finished = threading.Semaphore(0), 0

    @huey.task()
    def handle(item: dict[str, Any]) -> dict[str, Any]:
        return result(item)

    @huey.signal(SIGNAL_COMPLETE)  # sent after the result was stored
    def completed(*_: Any) -> None:
        left.release()

    consumer = huey.create_consumer(workers=workers, periodic=False, initial_delay=0.01, max_delay=0.05)
    with Stopwatch() as watch:
        for item in items(count, seed):
            handle(item)
        consumer.start()
        for _ in range(count):
            left.acquire()
            finished += 1
    consumer.stop(graceful=True)
    assert huey.storage.result_store_size() == before + count
    return Reading(items=count, seconds=watch.seconds, worked=finished)
