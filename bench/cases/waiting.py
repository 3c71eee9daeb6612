"""The share of the ideal that is reached when handlers wait, as calls to a model or an API do.

The ideal is the time of the waits alone, shared evenly by the workers. The bare pool
beside each figure shows how much of it Python itself can reach.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.items import items
from bench.pages import Page, Text
from bench.pages import handle as answer


def bare_threads(place: Path, seed: int, count: int, workers: int, milliseconds: float) -> Reading:  # noqa: ARG001
    def wait(_: dict[str, Any]) -> None:
        time.sleep(milliseconds / 1e3)

    with Stopwatch() as watch, ThreadPoolExecutor(workers) as pool:
        done = sum(1 for _ in pool.map(wait, items(count, seed)))
    assert done == count
    return reading(count, watch.seconds, workers, milliseconds)


def bare_async(place: Path, seed: int, count: int, workers: int, milliseconds: float) -> Reading:  # noqa: ARG001
    async def worker(source: Iterator[dict[str, Any]]) -> None:
        for _ in source:
            await asyncio.sleep(milliseconds / 1e3)

    async def everything() -> None:
        source = items(count, seed)
        await asyncio.gather(*(worker(source) for _ in range(workers)))

    with Stopwatch() as watch:
        asyncio.run(everything())
    return reading(count, watch.seconds, workers, milliseconds)


def holdfast_threads(place: Path, seed: int, count: int, workers: int, milliseconds: float) -> Reading:
    def handle(page: Page) -> Text:
        time.sleep(milliseconds / 1e3)
        return answer(page)

    seconds = subject.timed_run(subject.pipeline(place, handle), items(count, seed), count, workers=workers)
    return reading(count, seconds, workers, milliseconds)


def holdfast_async(place: Path, seed: int, count: int, workers: int, milliseconds: float) -> Reading:
    async def handle(page: Page) -> Text:
        await asyncio.sleep(milliseconds / 1e3)
        return answer(page)

    seconds = subject.timed_run(subject.pipeline(place, handle), items(count, seed), count, workers=workers)
    return reading(count, seconds, workers, milliseconds)


def reading(count: int, seconds: float, workers: int, milliseconds: float) -> Reading:
    ideal = math.ceil(count / workers) * milliseconds / 1e3
    assert seconds >= ideal, "faster than the ideal: more handlers ran at once than there are workers"
    return Reading(items=count, seconds=seconds, ideal_seconds=ideal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """A number of workers that each wait for a time, several times."""

    kind: str
    workers: int
    milliseconds: float
    turns: int
    at_least: float

    @property
    def name(self) -> str:
        return f"{self.workers}-{self.kind}"

    @property
    def label(self) -> str:
        return f"{self.milliseconds:g} ms on {self.workers:,} {self.kind}"


CROWDS = (
    Crowd(kind="threads", workers=64, milliseconds=50, turns=120, at_least=97),
    Crowd(kind="async", workers=64, milliseconds=50, turns=120, at_least=95),
    Crowd(kind="async", workers=1_000, milliseconds=50, turns=100, at_least=85),
    Crowd(kind="threads", workers=8, milliseconds=1, turns=4_000, at_least=80),
)
RUNS = {"threads": (bare_threads, holdfast_threads), "async": (bare_async, holdfast_async)}


def case(size: Size) -> Case:
    return Case(
        name="waiting",
        asks="Handlers that wait: share of the ideal",
        metric="share",
        note="The ideal is what the waits alone would take, shared evenly by the workers; the bare pools show how much "
        "of it Python itself reaches.",
        probes=tuple(probe for crowd in CROWDS for probe in probes(crowd, size)),
        goals=tuple(
            Goal(says=f"Holdfast, {crowd.label}", of=crowd.name, metric="share", at_least=crowd.at_least)
            for crowd in CROWDS
        ),
    )


def probes(crowd: Crowd, size: Size) -> tuple[Probe, Probe]:
    bare, holdfast = RUNS[crowd.kind]
    count = crowd.workers * size.scaled(crowd.turns)
    params = {"workers": crowd.workers, "milliseconds": crowd.milliseconds}
    return (
        Probe(name=f"bare-{crowd.name}", label=f"bare, {crowd.label}", run=bare, items=count, params=params),
        Probe(
            name=crowd.name,
            label=f"Holdfast, {crowd.label}",
            run=holdfast,
            items=count,
            params=params,
            durability=subject.DURABILITY,
        ),
    )
