"""The time from run() to the handler of the first new item when many are already done."""

import time
from pathlib import Path

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size
from bench.items import items
from bench.pages import Page, Text
from bench.pages import handle as answer


def holdfast(place: Path, seed: int, count: int) -> Reading:
    """Run one more item. The rounds share a store: each brings the next item."""
    rounds = place / "rounds"
    done = count + (len(rounds.read_bytes()) if rounds.exists() else 0)
    started: list[float] = []

    def handle(page: Page) -> Text:
        started.append(time.perf_counter())
        return answer(page)

    pipeline = subject.pipeline(place, handle)
    called = time.perf_counter()
    subject.timed_run(pipeline, items(1, seed, start=done), done + 1, before=done)
    assert len(started) == 1
    with rounds.open("ab") as file:
        file.write(b".")
    return Reading(items=count, seconds=started[0] - called)


def case(size: Size) -> Case:
    few, many = size.scaled(10_000), size.scaled(1_000_000)
    return Case(
        name="first",
        asks="The first new item when so many are done",
        metric="delay",
        note="From `run()` to the first call of the handler, with one new item in the source.",
        probes=tuple(
            Probe(
                name=f"done-{count}",
                label=f"Holdfast, {count:,} done",
                prepare=subject.prepare,
                run=holdfast,
                items=count,
                durability=subject.DURABILITY,
            )
            for count in (few, many)
        ),
        goals=(
            Goal(
                says=f"{many:,} done ÷ {few:,} done",
                of=f"done-{many}",
                over=f"done-{few}",
                metric="delay",
                at_most=1.5,
            ),
        ),
    )
