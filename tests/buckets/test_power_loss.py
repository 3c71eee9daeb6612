"""After a power loss a directory that is used as a bucket holds what was acknowledged, and nothing that is torn."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.buckets import local
from holdfast.stores.buckets.base import ObjectMark
from holdfast.stores.buckets.local import LocalBucket
from tests.buckets.worker import Worker
from tests.simulation.conftest import place as memory
from tests.sinks.power import Op, Recorder, crash_states, restore

__all__ = ["memory"]

Objects = dict[str, bytes]
HOME = "far/state"
"""Where the bucket is: neither folder is there yet."""
ACKNOWLEDGED = "acknowledged"
ENOUGH = 5
"""States that lost something are enough to say so."""


class Disk(Recorder):
    """Writes down what buckets do to the disk. What they stage is read when it is synced, or gets its name without."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        super().__init__(patch, root)
        patch.setattr(os, "link", self.watch(os.link, self.on_link))
        self._written: set[str] = set()

    def on_open(self, handle: int, path: Any, flags: int, *_: Any) -> None:
        self.handles[handle] = self.short(path)
        if flags & os.O_EXCL:  # others are folders, and locks, which hold nothing
            self.ops.append(Op("stage", self.short(path)))

    def on_fsync(self, _none: None, handle: int) -> None:
        self.keep(self.handles[handle])
        super().on_fsync(None, handle)

    def on_replace(self, _none: None, source: Any, target: Any) -> None:
        self.keep(self.short(source), self.short(target))
        super().on_replace(None, source, target)

    def on_link(self, _none: None, source: Any, target: Any) -> None:
        self.keep(self.short(source))
        self.ops.append(Op("link", self.short(source), self.short(target)))

    def keep(self, path: str, now: str = "") -> None:
        """The content of a staged file, once."""
        if local.TEMPORARY in path and path not in self._written and Path(self.root, now or path).is_file():
            self._written.add(path)
            self.ops.append(Op("write", path, data=Path(self.root, now or path).read_bytes()))


@contextmanager
def watching(here: Path, patch: pytest.MonkeyPatch) -> Iterator[Disk]:
    (here / "run").mkdir()
    with patch.context() as watched:
        yield Disk(watched, here / "run")


class Writer:
    """Writes through a bucket; what it was told of is on record."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.states = disk, [dict[str, bytes]()]
        self.bucket = self.another()

    def another(self) -> LocalBucket:
        return LocalBucket(Path(self.disk.root) / HOME)

    def write(self, name: str, data: bytes, bucket: LocalBucket | None = None) -> None:
        bucket = self.bucket if bucket is None else bucket
        there = bucket.get(name)
        if there is None:
            bucket.create(name, data)
        else:
            bucket.replace(name, data, there.mark)
        self.acknowledge(name, data)

    def acknowledge(self, name: str, data: bytes) -> None:
        self.states.append({**self.states[-1], name: data})
        self.disk.ops.append(Op(ACKNOWLEDGED))


def a_life(writer: Writer) -> None:
    """As a store writes: a root, a batch, objects that never change, a document that is replaced."""
    writer.write("root.json", b"root 1")
    writer.write("b/0000001/batch.json", b"batch 1")
    writer.write("b/0000001/j/00000001/00000001-a", b"entry 1")
    writer.write("b/0000001/c/00000001.json", b"chunk, claimed")
    writer.write("root.json", b"root, another")
    writer.write("b/0000001/j/00000001/00000002-b", b"entry 2")
    writer.write("b/0000001/c/00000001.json", b"chunk, committed", writer.another())


def a_death(writer: Writer) -> None:
    """One is killed between making a folder and syncing the one above; another finds the folder there."""
    writer.write("root.json", b"root 1")
    for name in ("b/0000001/batch.json", "b/0000001/j/00000001/00000001-a"):
        with pytest.MonkeyPatch.context() as killed, suppress(StoreUnavailable):
            killed.setattr(local, "_sync_folder", _killed)
            writer.another().create(name, b"never")
        writer.write(name, b"by another")


def a_death_at_the_beginning(writer: Writer) -> None:
    """The same, of the folder of the bucket itself and of those above it."""
    for _ in range(3):
        with pytest.MonkeyPatch.context() as killed, suppress(StoreUnavailable):
            killed.setattr(local, "_sync_folder", _killed)
            writer.another().create("root.json", b"never")
    writer.write("root.json", b"by another")


class Told(LocalBucket):
    """A bucket that puts on record what it acknowledged."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer.bucket._folder)
        self._writer = writer

    def create(self, name: str, data: bytes) -> ObjectMark:
        return self._told(name, data, super().create(name, data))

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        return self._told(name, data, super().replace(name, data, mark))

    def _told(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        self._writer.acknowledge(name, data)
        return mark


def a_store(writer: Writer) -> None:
    """A whole store, from the first item to the seal."""
    worker = Worker(Told(writer))
    worker.admit("a", "b", "c")
    worker.work()
    worker.seal()


def _killed(folder: Path) -> None:
    raise OSError(f"killed before {folder} was synced")


def survey(story: Callable[[Writer], None], here: Path, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """(states that lost something, all states)."""
    with watching(here, patch) as disk:
        writer = Writer(disk)
        story(writer)
    lost, seen, crashed = 0, set[Any](), here / "crash"
    for ops, files in crash_states(disk.ops):
        done = sum(op.kind == ACKNOWLEDGED for op in ops)
        known = (done, frozenset((path, data) for path, data in files.items() if f"{local.TEMPORARY}/" not in path))
        if known in seen:
            continue
        seen.add(known)
        shutil.rmtree(crashed, ignore_errors=True)
        restore(crashed, files)
        under_way = writer.states[min(done + 1, len(writer.states) - 1)]
        lost += not holds(LocalBucket(crashed / HOME), writer.states[done], under_way)
        if lost == ENOUGH:
            break
    return lost, len(seen)


def holds(bucket: LocalBucket, acknowledged: Objects, under_way: Objects) -> bool:
    """Whether everything acknowledged is there, and nothing but that and what was under way."""
    there = {each.name: found.data for each in bucket.list("") if (found := bucket.get(each.name)) is not None}
    return set(acknowledged) <= set(there) and all(
        data in (acknowledged.get(name), under_way.get(name)) for name, data in there.items()
    )


@pytest.mark.promise("A8", "P6")
@pytest.mark.parametrize("story", [a_life, a_store, a_death, a_death_at_the_beginning])
def test_after_power_loss_a_directory_holds_what_was_acknowledged(
    story: Callable[[Writer], None], memory: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    lost, states = survey(story, memory, monkeypatch)
    assert lost == 0
    assert states > 5
    tally(states=states)


def no_file_sync(patch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def sync(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").is_dir():
            real(handle)

    patch.setattr(os, "fsync", sync)


def no_folder_sync(patch: pytest.MonkeyPatch) -> None:
    """The name of an object is not made durable."""
    patch.setattr(LocalBucket, "_settle", lambda *_: None)


def no_sync_above(patch: pytest.MonkeyPatch) -> None:
    """New folders are made, and the ones they stand in not synced."""
    patch.setattr(LocalBucket, "_make_folder", lambda _, folder: folder.mkdir(parents=True, exist_ok=True))


@pytest.mark.promise("A8", "P6")
@pytest.mark.catches("no directory sync")
@pytest.mark.parametrize("careless", [no_file_sync, no_folder_sync, no_sync_above])
def test_without_one_of_its_syncs_a_directory_loses_what_it_acknowledged(
    careless: Callable[[pytest.MonkeyPatch], None], memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless_life(writer: Writer) -> None:
        with pytest.MonkeyPatch.context() as patch:
            careless(patch)
            a_life(writer)

    lost, _ = survey(careless_life, memory, monkeypatch)
    assert lost
