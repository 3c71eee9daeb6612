"""The cost of an item that is committed alone.

One worker, and a handler much slower than a commit, so that no groups form. The time spent in the handler is measured
and subtracted on both sides: the rest is the wait for the disk and the work around it.
"""

import time
from pathlib import Path

import msgspec

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.database import database
from bench.floor import BY_ITEM, INSERT, SCHEMA, checked
from bench.items import items, result
from bench.pages import Page, Text
from bench.pages import handle as answer

PAUSE = 0.005  # with 0.5 ms, slices of several items form; the syncs case checks that none do here
LEAST = 1e-6  # seconds per item: if commits overlap the handler, nothing is left to divide by


class SlowHandler:
    """A handler that waits, answers, and remembers how long that took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wait(self) -> None:
        with Stopwatch() as watch:
            time.sleep(PAUSE)
        self.seconds += watch.seconds

    def reading(self, count: int, total: float) -> Reading:
        return Reading(items=count, seconds=max(total - self.seconds, count * LEAST))


def floor(place: Path, seed: int, count: int) -> Reading:
    slow, encode = SlowHandler(), msgspec.json.Encoder().encode
    with Stopwatch() as watch, database(place / "floor.db", SCHEMA) as db:
        for item in items(count, seed):
            slow.wait()
            db.execute(INSERT, (item["number"], item["id"], encode(result(item))))
    checked(place, count, watch.seconds)
    return slow.reading(count, watch.seconds)


def holdfast(place: Path, seed: int, count: int) -> Reading:
    slow = SlowHandler()

    def handle(page: Page) -> Text:
        slow.wait()
        return answer(page)

    seconds = subject.timed_run(subject.pipeline(place, handle), items(count, seed), count, workers=1)
    return slow.reading(count, seconds)


def case(size: Size) -> Case:
    count = size.scaled(1_000)
    return Case(
        name="alone",
        asks="One durable commit per item: time beside the handler",
        metric="cost",
        note="The handler waits 5 ms, so that no groups form; its own time is measured and taken off on both sides.",
        probes=(
            Probe(
                name="floor",
                label="floor: one SQLite row",
                run=floor,
                items=count,
                durability=BY_ITEM,
            ),
            Probe(
                name="holdfast",
                label="Holdfast, workers=1",
                run=holdfast,
                items=count,
                durability=subject.DURABILITY,
            ),
        ),
        goals=(
            Goal(says="Holdfast ÷ floor (0.7 of its rate)", of="holdfast", over="floor", metric="cost", at_most=1.43),
        ),
    )
