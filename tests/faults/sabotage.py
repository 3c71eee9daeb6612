"""Broken versions of Holdfast, one decision removed in each. An oracle that passes any of them is worth nothing."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.core import lease as leases
from holdfast.core.errors import CommitUnknown
from holdfast.core.model import Chunk, Commit, Receipt
from holdfast.runtime.engine.worker import Worker
from holdfast.stores.sqlite import SqliteStore, rows
from holdfast.stores.sqlite import store as sqlite
from holdfast.stores.sqlite.claims import Claims
from holdfast.stores.sqlite.file import SqliteFile
from holdfast.stores.sqlite.rows import Prepared
from tests.faults import ending

replace = msgspec.structs.replace


def commit_it(name: str) -> None:
    """Break this process in the way of that name."""
    (WAYS | ENDINGS)[name]()


def change_commits(change: Callable[[SqliteStore, SqliteFile, Commit], Commit]) -> None:
    """Change every commit inside its transaction, before its guard looks at it."""
    real = SqliteStore._commit_together

    def commit_together(self: SqliteStore, db: SqliteFile, prepared: Sequence[Prepared]) -> list[Receipt]:
        return real(self, db, [rows.prepare(change(self, db, each.commit), self._draw) for each in prepared])

    SqliteStore._commit_together = commit_together  # type: ignore[method-assign]


def unfenced_commit() -> None:
    """A commit lands whoever holds the chunk."""

    def unfenced(self: SqliteStore, db: SqliteFile, commit: Commit) -> Commit:
        guard = rows.chain_heads(db, [commit.chunk])[commit.chunk].guard
        if guard.owner is None:
            db.execute("UPDATE chunks SET owner = 'somebody' WHERE id = ?", (commit.chunk,))
        return replace(commit, fence=guard.fence, grant=guard.grant, version=guard.version)

    change_commits(unfenced)


def acknowledge_before_commit() -> None:
    """A commit is answered as landed and written with the next one."""
    real = SqliteStore.commit
    held_back: list[Commit] = []

    def commit(self: SqliteStore, commits: Sequence[Commit]) -> list[Receipt]:
        now, held_back[:] = [*held_back, *(c for c in commits if c.release)], [c for c in commits if not c.release]
        for each in now:
            real(self, [each])
        return [Receipt(landed=True) for _ in commits]

    SqliteStore.commit = commit  # type: ignore[method-assign]


def fence_not_raised() -> None:
    """A take-over goes on under the fence and the grant of the owner before."""
    real = leases.grant

    def grant(chunk: Chunk, *args: Any, **kwargs: Any) -> leases.Grant:
        given = real(chunk, *args, **kwargs)
        same = chunk.grant or given.chunk.grant
        return replace(given, chunk=replace(given.chunk, fence=max(1, chunk.fence), grant=same))

    leases.grant = grant


def no_read_back() -> None:
    """A commit whose reply was lost is written again as if it were another one."""

    def write(self: Worker, commits: list[Commit]) -> list[Receipt]:
        try:
            return self.store.commit(commits)
        except CommitUnknown:
            ahead = [replace(each, id=each.id[::-1], version=each.version + 1) for each in commits]
            for hold in self.desk.holds:
                hold.version += any(each.chunk == hold.lease.chunk for each in ahead)
            return self.store.commit(ahead)

    Worker._write = write  # type: ignore[method-assign]


def commit_not_idempotent() -> None:
    """A commit that is sent twice lands twice: only the fence is checked, neither the version nor the commit's id."""

    def of_any_version(self: SqliteStore, db: SqliteFile, commit: Commit) -> Commit:
        return replace(commit, version=rows.chain_heads(db, [commit.chunk])[commit.chunk].guard.version)

    def write(self: Worker, commits: list[Commit]) -> list[Receipt]:
        try:
            return self.store.commit(commits)
        except CommitUnknown:
            return self.store.commit(commits)

    change_commits(of_any_version)
    Worker._write = write  # type: ignore[method-assign]


def totals_in_a_second_write() -> None:
    """Items move in one transaction, the totals of their chunk in the next."""
    real = SqliteStore.commit

    def commit(self: SqliteStore, commits: Sequence[Commit]) -> list[Receipt]:
        bare = [replace(each, counts=msgspec.structs.replace(each.counts, spent=0, tokens=0)) for each in commits]
        receipts = real(self, bare)
        with self._file.writing("note") as db:
            for each in commits:
                db.execute(
                    "UPDATE chunks SET spent = spent + ?, tokens = tokens + ? WHERE id = ?",
                    (each.counts.spent, each.counts.tokens, each.chunk),
                )
        return receipts

    SqliteStore.commit = commit  # type: ignore[method-assign]


def steal_from_the_living() -> None:
    """A lease is taken over before it has expired."""
    real = SqliteStore.__init__

    def init(self: SqliteStore, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self._claims = Claims(lambda owner: str(os.getpid()) not in owner.split("/"))

    SqliteStore.__init__ = init  # type: ignore[method-assign]


def items_by_position() -> None:
    """A source that is read again is admitted again: keys are not compared."""

    def known(*_: Any) -> dict[int, Any]:
        return {}

    def insert(*_: Any) -> bool:
        return True

    sqlite.known_items = known
    sqlite.insert_keys = insert


def attempts_forgotten() -> None:
    """The number of attempts lives in memory only."""
    real = sqlite.prepare

    def prepare(commit: Commit, draw: Any) -> Any:
        moves = tuple(replace(move, place=replace(move.place, attempt=0)) for move in commit.moves)
        return real(replace(commit, moves=moves), draw)

    sqlite.prepare = prepare


def journal_falls_behind() -> None:
    """What moved is in the store, and not all of it in the journal."""

    def without_attempts(_self: SqliteStore, _db: SqliteFile, commit: Commit) -> Commit:
        return replace(commit, body=replace(commit.body, attempts=[]))

    change_commits(without_attempts)


def in_a_second_write(name: str, is_left: Callable[..., bool]) -> None:
    """What a helper of the store writes is left for a second transaction, where it is of that kind."""
    real, writing = getattr(SqliteStore, name), SqliteFile.writing
    left: list[Any] = []

    def later(self: SqliteStore, db: SqliteFile, *args: Any) -> Any:
        if not is_left(*args):
            return real(self, db, *args)
        left.append((self, args))
        return SimpleNamespace(seq=0, hash=b"")

    @contextmanager
    def then_the_rest(self: SqliteFile, verb: str) -> Iterator[SqliteFile]:
        with writing(self, verb) as db:
            yield db
        while left:
            store, args = left.pop(0)
            with writing(self, "note") as db:
                real(store, db, *args)

    setattr(SqliteStore, name, later)
    SqliteFile.writing = then_the_rest  # type: ignore[method-assign]


def events_in_a_second_write() -> None:
    """What others hear of is written after what it tells."""
    in_a_second_write("_tell", lambda _batch, told: bool(told))


def seal_in_a_second_write() -> None:
    """The row says that the batch is sealed before its chain does."""
    in_a_second_write("_link_batch", lambda _batch, kind, *_: kind == "sealed")


def course_in_a_second_write() -> None:
    """The row has the new course before the chain does."""
    in_a_second_write("_link_batch", lambda _batch, kind, *_: kind == "steered")


def acknowledged_before_it_is_heard() -> None:
    """That a receiver has an event is written down before it does."""

    def hear(self: ending.Ending) -> None:
        after = self.store.delivered(ending.RECEIVER)
        for event in self.store.events(after):
            self.store.delivered(ending.RECEIVER, event.id)
            ending.deliver({"id": event.id, "kind": event.kind})

    ending.Ending.hear = hear  # type: ignore[method-assign]


def delivered_is_not_written() -> None:
    """How far a receiver is lives in memory only."""
    at: dict[str, int] = {}

    def delivered(_: SqliteStore, receiver: str, up_to: int = 0) -> int:
        with _._file.writing("delivered"):
            at[receiver] = max(up_to, at.get(receiver, 0))
        return at[receiver]

    SqliteStore.delivered = delivered  # type: ignore[method-assign]


WAYS: dict[str, Callable[[], None]] = {
    way.__name__: way
    for way in (
        unfenced_commit, acknowledge_before_commit, fence_not_raised, no_read_back, commit_not_idempotent,
        totals_in_a_second_write, steal_from_the_living, items_by_position, attempts_forgotten, journal_falls_behind,
    )
}  # fmt: skip

ENDINGS: dict[str, Callable[[], None]] = {
    way.__name__: way
    for way in (
        events_in_a_second_write, seal_in_a_second_write, course_in_a_second_write, acknowledged_before_it_is_heard,
        delivered_is_not_written,
    )
}  # fmt: skip
"""Broken versions that only the end of a batch shows."""
