"""The time of commands that read a large store. Whole commands, as they are typed."""

import os
import subprocess
import sys
from pathlib import Path

import holdfast as hf
from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch

LOOKS = {
    "list": ("status",),
    "one": ("status", "batch-7"),
    "dead": ("status", "dead"),
    "orphans": ("orphans",),
    "doctor": ("doctor",),
    "why": ("why", "batch-7", "3"),
}


def prepare(place: Path, seed: int, count: int, *, dead: int, **_: object) -> None:  # noqa: ARG001
    """Make so many batches of five items, and one of dead letters only; shared by all probes of a size."""
    path = store_of(place, count)
    if path.exists():
        return
    book = hf.Pipeline("book", store=str(path))

    @book.stage
    def read(number: int) -> int:
        return number

    for number in range(count):
        book.run(range(5), batch=f"batch-{number}", progress=False)
    letters = hf.Pipeline("letters", store=str(path))

    @letters.stage
    def fail(number: int) -> int:
        raise hf.Permanent("torn", f"page {number} is torn")

    letters.run(range(dead), batch="dead", progress=False, tolerate="100%")


def look(place: Path, seed: int, count: int, *, arguments: tuple[str, ...], **_: object) -> Reading:  # noqa: ARG001
    command = [sys.executable, "-m", "holdfast", *arguments]
    env = {**os.environ, "HOLDFAST_STORE": str(store_of(place, count)), "COLUMNS": "100"}
    with Stopwatch() as watch:
        done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return Reading(items=1, seconds=watch.seconds)


def store_of(place: Path, count: int) -> Path:
    return place.parent / f"looks-{count}.db"


def case(size: Size) -> Case:
    count, dead = size.scaled(5_000), size.scaled(100_000)
    return Case(
        name="looks",
        asks=f"A look at a store with {count:,} batches and {dead:,} dead letters",
        metric="delay",
        note="Whole commands, from the start of Python to the last line; `--version` is the start alone.",
        at_most_rounds=3,
        probes=tuple(
            Probe(name=name, label=f"holdfast {' '.join(arguments)}", prepare=prepare, run=look, items=count,
                  params={"dead": dead, "arguments": arguments}, durability=subject.DURABILITY)
            for name, arguments in {"start": ("--version",), **LOOKS}.items()
        ),
        goals=tuple(
            Goal(says=f"holdfast {' '.join(arguments)} ÷ start", of=name, over="start", metric="delay", at_most=4.0)
            for name, arguments in LOOKS.items()
        ),
    )  # fmt: skip
