"""What does it cost to write outputs as files that are whole or absent? Against writers that take less care."""

import os
from collections.abc import Callable
from pathlib import Path

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.items import Page, Text, items

Write = Callable[[Path, bytes], None]


def careless(place: Path, seed: int, count: int, size: int) -> Reading:
    return written_by(write_plainly, place, seed, count, size)


def synced(place: Path, seed: int, count: int, size: int) -> Reading:
    return written_by(write_and_sync, place, seed, count, size)


def atomic(place: Path, seed: int, count: int, size: int) -> Reading:
    return written_by(write_atomically, place, seed, count, size)


def write_plainly(path: Path, body: bytes) -> None:
    path.write_bytes(body)


def write_and_sync(path: Path, body: bytes) -> None:
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, body: bytes) -> None:
    """A temporary name, a sync, a rename, and a sync of the folder: whole or absent, whatever happens."""
    temporary = path.with_suffix(".new")
    write_and_sync(temporary, body)
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def written_by(write: Write, place: Path, seed: int, count: int, size: int) -> Reading:
    out = place / "out"
    out.mkdir()
    with Stopwatch() as watch:
        for item in items(count, seed):
            page = Page.model_validate(item)
            write(out / f"{page.id}.json", long_answer(page, size).model_dump_json().encode())
    return checked(out, count, size, watch.seconds)


def holdfast(place: Path, seed: int, count: int, size: int) -> Reading:
    import holdfast as hf  # the harness must work where Holdfast does not

    def handle(page: Page) -> Text:
        return long_answer(page, size)

    pipeline = subject.pipeline(place, handle, sink=hf.Files(f"{place}/out/{{key}}.json"))
    seconds = subject.timed_run(pipeline, items(count, seed), count)
    return checked(place / "out", count, size, seconds)


def long_answer(page: Page, size: int) -> Text:
    return Text(id=page.id, number=page.number, text=(page.body * (size // 72 + 1))[:size], ok=True)


def checked(out: Path, count: int, size: int, seconds: float) -> Reading:
    sizes = [path.stat().st_size for path in out.glob("*.json")]
    assert len(sizes) == count
    assert min(sizes) >= size
    return Reading(items=count, seconds=seconds)


def case(size: Size) -> Case:
    return Case(
        name="files",
        asks="Outputs as files",
        metric="cost",
        many_files=True,
        probes=tuple(probe for kilobytes in (2, 256) for probe in probes(kilobytes, size)),
        goals=tuple(goal(kilobytes, rival) for kilobytes in (2, 256) for rival in ("careless", "synced")),
    )


def goal(kilobytes: int, rival: str) -> Goal:
    return Goal(
        says=f"Holdfast ÷ {rival} write, {kilobytes} kB",
        of=f"holdfast-{kilobytes}",
        over=f"{rival}-{kilobytes}",
        metric="cost",
        at_most=2,
    )


def probes(kilobytes: int, size: Size) -> tuple[Probe, ...]:
    runs = {
        "careless": ("careless write", careless, "none: torn or lost by a crash"),
        "synced": ("write and fsync", synced, "torn by a crash"),
        "atomic": ("atomic by hand", atomic, "fsync, rename, fsync of the folder"),
        "holdfast": ("Holdfast, hf.Files", holdfast, subject.DURABILITY),
    }
    count = size.scaled(2_000 if kilobytes < 100 else 500)
    return tuple(
        Probe(
            name=f"{name}-{kilobytes}",
            label=f"{label}, {kilobytes} kB",
            run=run,
            items=count,
            params={"size": kilobytes * 1_000},
            durability=durability,
        )
        for name, (label, run, durability) in runs.items()
    )
