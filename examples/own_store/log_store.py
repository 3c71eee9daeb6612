"""A Store of one's own, in one file: every call that changes something is a line of JSON, and the lines are the state.

The decisions are the memory store's. To open the log is to make all its calls again, each at the time at which it was
made first. Any number of processes on one host may share it: whoever makes a call holds the file, and reads what others
have written before it decides. It reads everything when it is opened and never forgets a line, so it is for small
batches, and for showing how to write a Store.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.course import Amended, Amendment, BatchFacts, Decide
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import (
    Act,
    Admitted,
    Batch,
    BatchId,
    Claim,
    Commit,
    Event,
    ItemNo,
    Lease,
    NewItem,
    Want,
)
from holdfast.stores import faults, owners
from holdfast.stores.base import Capabilities, Idle, Receipt
from holdfast.stores.memory import MemoryStore


class Line(msgspec.Struct, frozen=True):
    """One call that changed something."""

    at: float
    dead: list[str]
    """Owners whose process was known to have ended."""
    verb: str
    arguments: msgspec.Raw


ARGUMENTS: dict[str, Any] = {
    "open_batch": tuple[str, str, bytes, str],
    "amend": tuple[BatchId, Amendment, str],
    "add_items": tuple[BatchId, list[NewItem], bool, str],
    "seal": tuple[BatchId, str, bytes, str, list[Event]],
    "delivered": tuple[str, int],
    "claim": tuple[Want],
    "renew": tuple[list[Lease], float],
    "commit": tuple[list[Commit]],
    "act": tuple[Act],
}


class LogStore:
    """All state in a log of calls."""

    capabilities = Capabilities()

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time,
                 is_dead: Callable[[str], bool] = owners.is_dead) -> None:  # fmt: skip
        self.url = f"log:{path}"
        self._clock, self._is_dead = clock, is_dead
        self._mutex = threading.RLock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _sync_folder(Path(path).parent)
        self._start_anew()

    def now(self) -> float:
        return self._clock()

    def wait(self, batch: BatchId, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        with self._mutex:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    # -- what changes something -----------------------------------------------------------------------------------

    def open_batch(self, name: str, pipeline: str, definition: bytes, *, actor: str) -> Batch:
        return self._call("open_batch", name, pipeline, definition, actor)

    def amend(self, batch: BatchId, decide: Decide, *, actor: str) -> Amended:
        """The decision is made once, on what is known now; what it came to is a line of the log."""
        made: list[Amendment] = []

        def once(at: BatchFacts) -> Amendment | None:
            made.extend([change] if (change := decide(at)) is not None else [])
            return made[0] if made else None

        with self._turn():
            self._at = self._clock()
            answer = self._memory.amend(batch, once, actor=actor)
            if answer.written:
                self._write("amend", batch, made[0], actor)
            return answer

    def seal(
        self, batch: BatchId, *, actor: str, reconciliation: bytes, reason: str = "", events: Sequence[Event] = ()
    ) -> Batch:
        return self._call("seal", batch, actor, reconciliation, reason, events)

    def delivered(self, receiver: str, up_to: int = 0) -> int:
        return self._call("delivered", receiver, up_to)

    def add_items(self, batch: BatchId, items: Sequence[NewItem], *, ended: bool = False, actor: str = "") -> Admitted:
        return self._call("add_items", batch, items, ended, actor)

    def claim(self, want: Want) -> Claim | Idle:
        return self._call("claim", want)

    def renew(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        return self._call("renew", leases, seconds)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        return self._call("commit", commits)

    def act(self, act: Act) -> list[ItemNo]:
        return self._call("act", act)

    # -- what only reads: the memory store's own verbs, once it has read what others wrote --------------------------

    def __getattr__(self, verb: str) -> Any:
        if verb not in {
            "batch",
            "batches",
            "load",
            "chunks",
            "chunk_of",
            "is_settled",
            "items",
            "known",
            "outputs",
            "checkpoints",
            "entries",
            "events",
        }:
            raise AttributeError(verb)

        def read(*arguments: Any, **named: Any) -> Any:
            with self._turn():
                return getattr(self._memory, verb)(*arguments, **named)

        return read

    # -- the log --------------------------------------------------------------------------------------------------

    def _call(self, verb: str, *arguments: Any) -> Any:
        """Make a call and write it down. What is answered is durable."""
        with self._turn():
            holding = {chunk.owner for chunk in self._memory._chunks.values() if chunk.owner is not None}
            self._at, self._dead = self._clock(), [owner for owner in holding if self._is_dead(owner)]
            answer = CALLS[verb](self._memory, *arguments)
            if not isinstance(answer, Idle):
                self._write(verb, *arguments)
            return answer

    def _write(self, verb: str, *arguments: Any) -> None:
        raw = msgspec.Raw(msgspec.json.encode(arguments))
        self._append(msgspec.json.encode(Line(self._at, self._dead, verb, raw)) + b"\n", verb)

    def _append(self, line: bytes, verb: str) -> None:
        try:
            written = os.pwrite(self._file, line, self._read_to)
            faults.reach(f"{verb}.written")
            if written < len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._read_to)
            self._start_anew()
            raise StoreUnavailable(f"{self.url} cannot be written: {error}; nothing was changed") from error
        self._read_to += len(line)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Nobody else writes meanwhile, and everything that was written is known."""
        with self._mutex:
            if self._file < 0:
                raise StoreUnavailable(f"{self.url} is closed")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                self._catch_up()
                yield
            finally:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        size = os.fstat(self._file).st_size
        if size == self._read_to:
            return
        whole, _, torn = os.pread(self._file, size - self._read_to, self._read_to).rpartition(b"\n")
        for text in whole.splitlines():
            line = msgspec.json.decode(text, type=Line)
            self._at, self._dead = line.at, line.dead
            CALLS[line.verb](self._memory, *msgspec.json.decode(line.arguments, type=ARGUMENTS[line.verb]))
        self._read_to = size - len(torn)
        if torn:
            os.ftruncate(self._file, self._read_to)

    def _start_anew(self) -> None:
        self._at, self._dead, self._read_to = 0.0, list[str](), 0
        self._memory = MemoryStore(clock=lambda: self._at, is_dead=lambda owner: owner in self._dead)


CALLS: dict[str, Callable[..., Any]] = {
    "open_batch": lambda store, name, pipeline, definition, actor: store.open_batch(
        name, pipeline, definition, actor=actor
    ),
    "amend": lambda store, batch, change, actor: store.amend(batch, lambda _: change, actor=actor),
    "seal": lambda store, batch, actor, reconciliation, reason, events: store.seal(
        batch, actor=actor, reconciliation=reconciliation, reason=reason, events=events
    ),
    "delivered": MemoryStore.delivered,
    "add_items": lambda store, batch, items, ended, actor: store.add_items(batch, items, ended=ended, actor=actor),
    "claim": MemoryStore.claim,
    "renew": MemoryStore.renew,
    "commit": MemoryStore.commit,
    "act": MemoryStore.act,
}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
