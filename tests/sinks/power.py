"""A recorded file system, and every state that it may come back with after a power loss.

The calls of a run are written down. After a crash at any of them, a new name, a new folder and a rename are certain
when a folder they stand in was synced since; of the others any subset is there, whatever the order. A rename has
happened or has not: the file has one of its two names. Nothing stands in a folder that is not there. Of files
that were not synced there is no content, or half of it, or all. What is staged has no name that anybody looks at.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path, PurePath
from typing import Any

import msgspec
import pytest

SMALL = 9
"""Of at most so many uncertain names every subset is tried, of more as many by chance."""


NAMING = ("create", "rename", "link", "mkdir")


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


def crash_states(ops: list[Op]) -> Iterator[tuple[list[Op], dict[str, bytes | None]]]:
    """(what had been done, what is on the disk); None stands for a folder."""
    for end in range(len(ops) + 1):
        named = [at for at, op in enumerate(ops[:end]) if op.kind in NAMING]
        certain = {at for at in named if is_synced(ops[at], ops[at:end])}
        for chosen in subsets([at for at in named if at not in certain], seed=end):
            for part in (0, 2, 1):
                yield ops[:end], on_disk(ops[:end], certain | set(chosen), part)


def is_synced(op: Op, since: Sequence[Op]) -> bool:
    """Whether a folder that the name stands in was synced since."""
    paths = (op.to,) if op.kind == "link" else (op.path, op.to)
    folders = {folder_of(path) for path in paths if path}
    return any(later.kind == "sync" and later.path in folders for later in since)


def folder_of(path: str) -> str:
    above = str(PurePath(path).parent)
    return "" if above == "." else above


def subsets(of: list[int], *, seed: int) -> Iterator[list[int]]:
    rng = random.Random(seed)
    choices = product([False, True], repeat=len(of)) if len(of) <= SMALL else beginnings_and_some(len(of), rng)
    return ([at for at, is_there in zip(of, chosen, strict=True) if is_there] for chosen in choices)


def beginnings_and_some(count: int, rng: random.Random) -> Iterator[Sequence[bool]]:
    yield from ([index < upto for index in range(count)] for upto in range(count + 1))
    yield from ([rng.random() < 0.5 for _ in range(count)] for _ in range(1 << SMALL))


def on_disk(ops: list[Op], there: set[int], part: int) -> dict[str, bytes | None]:
    """Names and folders that are there; content of synced files whole, of others none (0), a half (2) or all (1)."""
    live: dict[str, int] = {}
    names: dict[str, int] = {}
    folders = {""}
    data: dict[int, bytes] = {}
    durable: set[int] = set()
    for at, op in enumerate(ops):
        if op.kind in ("create", "stage"):
            live[op.path] = at
        elif op.kind == "link":
            live[op.to] = live[op.path]
        elif op.kind == "rename":
            live[op.to] = live.pop(op.path)
        elif op.kind == "write":
            data[live[op.path]] = op.data
        elif op.kind == "sync" and op.path in live:
            durable.add(live[op.path])
        elif op.kind == "mkdir" and at in there and folder_of(op.path) in folders:
            folders.add(op.path)
        if at in there and op.kind in ("create", "rename", "link") and folder_of(op.to or op.path) in folders:
            names.pop(op.path, None)
            names[op.to or op.path] = live[op.to or op.path]
    content = {
        path: whole if file in durable or part == 1 else whole[: len(whole) // part] if part else b""
        for path, file in names.items()
        if (whole := data.get(file, b"")) is not None
    }
    return {**dict.fromkeys(sorted(folders - {""})), **content}


def restore(home: Path, files: dict[str, bytes | None]) -> None:
    home.mkdir()
    for path, data in files.items():
        if data is None:
            (home / path).mkdir(parents=True, exist_ok=True)
        else:
            (home / path).write_bytes(data)
