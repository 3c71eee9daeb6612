"""The cost of outputs as files that are whole or absent, beside loops that take less care.

All of them validate each item, build its output and write the same bytes. Holdfast's figure is that of the whole run:
ingest, lease, digest, commit and journal included."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.items import items
from bench.pages import Page, Text

FILES = {4: 500, 64: 300, 1_000: 60}  # the number of files of each size, in kB
LABELS = {
    "careless": "naive write, not synced",
    "synced": "naive write and fsync",
    "atomic": "atomic by hand",
    "single": "Holdfast, workers=1",
    "holdfast": "Holdfast, defaults",
}
NOTE = (
    "All write the same bytes; Holdfast's figure is the whole run, ingest, digest, commit and journal included. "
    "The loops have one thread, so like is compared with like at `workers=1`; by default Holdfast syncs on several "
    "threads at once. A loop that never syncs has only copied bytes in memory when it ends, and a power loss takes "
    "them: its ratio is shown, and judged by nobody."
)
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
    """Write under a temporary name, sync, rename, and sync the folder: whole or absent, whatever happens."""
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
            write(out / f"{page.id}.json", output(page, size))
    return checked(out, seed, count, size, watch.seconds)


def holdfast(place: Path, seed: int, count: int, size: int, **options: Any) -> Reading:
    import holdfast as hf  # the harness must work even if Holdfast does not

    def handle(page: Page) -> Text:
        return long_answer(page, size)

    pipeline = subject.pipeline(place, handle, sink=hf.Files(f"{place}/out/{{key}}.json"))
    seconds = subject.timed_run(pipeline, items(count, seed), count, **options)
    return checked(place / "out", seed, count, size, seconds)


def output(page: Page, size: int) -> bytes:
    return long_answer(page, size).model_dump_json().encode() + b"\n"


def long_answer(page: Page, size: int) -> Text:
    return Text(id=page.id, number=page.number, text=(page.body * (size // 72 + 1))[:size], ok=True)


def checked(out: Path, seed: int, count: int, size: int, seconds: float) -> Reading:
    """Return a reading, which counts only if every file is there with the same bytes."""
    for item in items(count, seed):
        page = Page.model_validate(item)
        assert (out / f"{page.id}.json").read_bytes() == output(page, size), page.id
    return Reading(items=count, seconds=seconds)


def case(size: Size) -> Case:
    return Case(
        name="files",
        asks="Outputs as files, whole or absent",
        metric="cost",
        many_files=True,
        note=NOTE,
        probes=tuple(probe for kilobytes in FILES for probe in probes(kilobytes, size)),
        goals=(
            *(ratio("single", "synced", kilobytes, at_most=2) for kilobytes in FILES),
            *(ratio("holdfast", "synced", kilobytes, at_most=2) for kilobytes in FILES),
            *(ratio("holdfast", "careless", kilobytes) for kilobytes in FILES),
        ),
    )


def ratio(of: str, over: str, kilobytes: int, at_most: float | None = None) -> Goal:
    return Goal(
        says=f"{LABELS[of]} ÷ {LABELS[over]}, {kilobytes:,} kB",
        of=f"{of}-{kilobytes}",
        over=f"{over}-{kilobytes}",
        metric="cost",
        at_most=at_most,
    )


def probes(kilobytes: int, size: Size) -> tuple[Probe, ...]:
    carefully = "fsync, rename, folders synced once a group; WAL, FULL"
    runs: dict[str, tuple[Callable[..., Reading], str, dict[str, int]]] = {
        "careless": (careless, "none: torn or lost in a crash", {}),
        "synced": (synced, "content synced, name not; torn in a crash", {}),
        "atomic": (atomic, "fsync, rename, fsync of the folder, each", {}),
        "single": (holdfast, carefully, {"workers": 1}),
        "holdfast": (holdfast, carefully, {}),
    }
    return tuple(
        Probe(
            name=f"{name}-{kilobytes}",
            label=f"{LABELS[name]}, {kilobytes:,} kB",
            run=run,
            items=size.scaled(FILES[kilobytes]),
            params={"size": kilobytes * 1_000, **options},
            durability=durability,
        )
        for name, (run, durability, options) in runs.items()
    )
