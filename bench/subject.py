"""Holdfast as its users use it: default settings, pydantic in and out, ingest included in every figure.

Holdfast is imported inside the functions: only the process that measures it needs it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.case import Reading, Stopwatch
from bench.items import items
from bench.pages import Page, handle

DURABILITY = "defaults: WAL, FULL, group commit"


def fresh(place: Path, seed: int, count: int, keys: str = "ordered") -> Reading:
    """Run a batch from its first item to its report."""
    seconds = timed_run(pipeline(place), items(count, seed, keys=keys), count)
    return Reading(items=count, seconds=seconds, payload_bytes=payload_bytes(count, seed, keys))


def prepare(place: Path, seed: int, count: int, keys: str = "ordered") -> None:
    fresh(place, seed, count, keys)


def again(place: Path, seed: int, count: int, keys: str = "ordered") -> Reading:
    """Run with nothing left to do."""
    seconds = timed_run(pipeline(place), items(count, seed, keys=keys), count, before=count)
    return Reading(items=count, seconds=seconds, worked=0)  # timed_run has checked it


def pipeline(place: Path, handler: Callable[..., Any] = handle, **stage: Any) -> Any:
    import holdfast as hf  # the harness must work even if Holdfast does not

    subject = hf.Pipeline("bench", store=str(place / "state.db"))
    subject.stage(**stage)(handler)
    return subject


def timed_run(subject: Any, source: Iterable[dict[str, Any]], expected: int, before: int = 0, **options: Any) -> float:
    """Return the seconds of one run; it counts only if every item is done, and no finished item ran again."""
    with Stopwatch() as watch:
        report = subject.run(source, batch="bench", key="id", **options)
    report.raise_unless_complete()
    assert report.counts.done == expected, report.counts
    assert report.this_run.done == expected - before, report.this_run
    return watch.seconds


def payload_bytes(count: int, seed: int, keys: str) -> int:
    """Return the size of the JSON of the first thousand items, scaled: all are about equally long."""
    sample = min(count, 1_000)
    size = sum(len(Page.model_validate(item).model_dump_json()) for item in items(sample, seed, keys=keys))
    return size * count // sample
