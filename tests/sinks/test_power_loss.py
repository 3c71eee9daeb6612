"""Power loss, simulated: every state that a journalling file system may come back with.

The calls of a run are written down. A crash after any of them leaves the names as they were at some moment between
the last sync of a folder and the crash, and of files that were not synced no content, or half of it.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.runtime.sinks import Evidence, Files
from tests.sinks.making import output, place

KEYS = (1, 2, 3)


class Op(msgspec.Struct, frozen=True):
    kind: str
    path: str = ""
    to: str = ""
    data: bytes = b""


class Recorder:
    """Writes down what a run does to the disk."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self.ops: list[Op] = []
        self.root = str(root) + "/"
        self.handles: dict[int, str] = {}
        for name in ("open", "write", "fsync", "replace", "mkdir"):
            patch.setattr(os, name, self.watch(getattr(os, name), getattr(self, f"on_{name}")))

    def watch(self, call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            answer = call(*args, **kwargs)
            note(answer, *args)
            return answer

        return watched

    def on_open(self, handle: int, path: Any, flags: int, *_: Any) -> None:
        self.handles[handle] = self.short(path)
        if flags & os.O_CREAT:
            self.ops.append(Op("create", self.short(path)))

    def on_write(self, _count: int, handle: int, data: Any) -> None:
        self.ops.append(Op("write", self.handles[handle], data=bytes(data)))

    def on_fsync(self, _none: None, handle: int) -> None:
        self.ops.append(Op("sync", self.handles[handle]))

    def on_replace(self, _none: None, source: Any, target: Any) -> None:
        self.ops.append(Op("rename", self.short(source), self.short(target)))

    def on_mkdir(self, _none: None, path: Any, *_: Any) -> None:
        self.ops.append(Op("mkdir", self.short(path)))

    def short(self, path: Any) -> str:
        return (os.fspath(path) + "/").removeprefix(self.root).rstrip("/")


class Careless(Files):
    """Leaves the folder of staged outputs unsynced."""

    def sync_folders(self, evidence: Any) -> None:
        pass


class Unsynced(Files):
    """Syncs neither files nor folders."""

    def __init__(self, template: str) -> None:
        super().__init__(template, sync=False)


class Hasty(Files):
    """Leaves the user's folder unsynced."""

    def publish(self, evidence: Any, **_: Any) -> None:
        super().publish(evidence, sync=False)


@pytest.mark.promise("A8", "P6")
@pytest.mark.parametrize("template", ["out/{key}.json", "{key}.json", "out/{batch}/{key}/page.json"])
def test_after_power_loss_every_recorded_output_is_there(
    template: str, here: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    lost, gone, states = survey(Files, template, here, monkeypatch)
    assert (lost, gone) == (0, 0)
    assert states > 200
    tally(states=states)


@pytest.mark.parametrize("kind", [Careless, Unsynced])
def test_without_syncs_the_simulation_loses_outputs(
    kind: type[Files], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, _, _ = survey(kind, "out/{key}.json", here, monkeypatch)
    assert lost > 0


def test_without_the_last_sync_nothing_is_lost_but_names_come_late(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, gone, _ = survey(Hasty, "out/{key}.json", here, monkeypatch)
    assert lost == 0
    assert gone > 0


def survey(kind: type[Files], template: str, here: Path, patch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """(states that lost a recorded output, states that lost a published name, all states)."""
    (here / "run").mkdir()
    patch.chdir(here / "run")
    with patch.context() as watching:
        recorder = Recorder(watching, here / "run")
        sink = kind(template)
        made = [sink.stage(place(key, n=key), output(key)) for key in KEYS]
        sink.sync_folders(made)
        recorder.ops.append(Op("committed"))
        sink.publish(made)
        recorder.ops.append(Op("published"))
    lost = gone = states = 0
    for states, (ops, files) in enumerate(crash_states(recorder.ops), 1):
        home = here / f"crash{states}"
        restore(home, files)
        patch.chdir(home)
        done = {op.kind for op in ops}
        gone += "published" in done and not all(Path(each.final).is_file() for each in made)
        lost += not survives(Files(template), made, recorded="committed" in done)
    return lost, gone, states


def survives(sink: Files, made: list[Evidence], *, recorded: bool) -> bool:
    if recorded:
        return all(sink.check(each, full=True) is None for each in made)
    found = [sink.find(place(key, n=key)) for key in KEYS]
    return all(each is None or sink.read(each) == output(key) for key, each in zip(KEYS, found, strict=True))


def crash_states(ops: list[Op]) -> Iterator[tuple[list[Op], dict[str, bytes | None]]]:
    """Every (what had been done, what is on the disk); None stands for a folder."""
    folders = {op.path for op in ops if op.kind == "mkdir"} | {""}
    for end in range(len(ops) + 1):
        synced = [at for at, op in enumerate(ops[:end]) if op.kind == "sync" and op.path in folders]
        for names_as_of in range(synced[-1] if synced else 0, end + 1):
            for part in (0, 2):
                yield ops[:end], on_disk(ops[:end], names_as_of, part)


def on_disk(ops: list[Op], names_as_of: int, part: int) -> dict[str, bytes | None]:
    """Names as of one moment; content of synced files whole, of others none (0) or a half (2)."""
    names: dict[str, int] = {}
    live: dict[str, int] = {}
    folders: dict[str, bytes | None] = {}
    data: dict[int, bytes] = {}
    durable: dict[int, bytes] = {}
    for at, op in enumerate(ops):
        if op.kind == "create":
            live[op.path] = at
        elif op.kind == "rename":
            live[op.to] = live.pop(op.path)
        elif op.kind == "write":
            data[live[op.path]] = op.data
        elif op.kind == "sync" and op.path in live:
            durable[live[op.path]] = data[live[op.path]]
        if at < names_as_of:
            names = dict(live)
            folders |= {op.path: None} if op.kind == "mkdir" else {}
    content = {path: durable.get(file, data.get(file, b"")[: len(data.get(file, b"")) // part] if part else b"")
               for path, file in names.items()}  # fmt: skip
    return {**folders, **content}


def restore(home: Path, files: dict[str, bytes | None]) -> None:
    home.mkdir()
    for path, data in files.items():
        if data is None:
            (home / path).mkdir(parents=True, exist_ok=True)
        else:
            (home / path).write_bytes(data)
