"""Scans over rows in memory, for tests of what operators do with their cursors."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import cursor
from holdfast.core.model import Batch, Claim, ClaimRequest, Item, Receipt
from holdfast.core.settle import NOTHING, Reached, commit
from holdfast.runtime.acts import Actor
from holdfast.runtime.define.policy import Retry
from holdfast.runtime.partitions import standings
from holdfast.runtime.scan.scan import Scan
from holdfast.stores.base import Store
from holdfast.testing.conformance.kit import holder_of
from holdfast.testing.rows import Rows

BY = Actor(name="ada", reason="because")


class Totals:
    """Adds up numbers, and writes down which it was given; fails where it is told to."""

    def __init__(self, store: Store, rows: Sequence[int], *, partitions: int = 1, every: int = 100,
                 attempts: int = 1, name: str = "totals") -> None:  # fmt: skip
        self.seen: list[int] = []
        self.bad: set[int] = set()
        self.error: Callable[[int], Exception] = lambda row: ValueError(f"row {row}")
        self.source = Rows([*rows], page=every)
        self.scan = Scan(name, self.source, every=every, partitions=partitions, store=store,
                         retry=Retry(attempts=attempts, wait=("0s", "0s")))  # fmt: skip
        self.store = store

        @self.scan.handler
        def add(rows: list[int], acc: int) -> int:
            for row in rows:
                if row in self.bad:
                    raise self.error(row)
            self.seen += rows
            return acc + sum(rows)

        self.scan.converge(sum)

    def run(self, batch: str | None = None) -> Any:
        self.seen.clear()
        return self.scan.run(batch, progress=False)

    def batch(self, name: str = "totals") -> Batch:
        (found,) = self.store.batches(name)
        return found

    def rows(self, batch: str = "totals") -> list[int]:
        """Rows that each partition has behind it."""
        return [at.rows for at in standings(self.store, self.batch(batch))]

    def claim(self, owner: str = "host/boot/ns/1/2/ann", batch: str = "totals") -> Claim:
        """A grant to somebody who is not this process."""
        answer = self.store.claim(ClaimRequest(batch=self.batch(batch).id, owner=owner, limit=1, seconds=30.0))
        assert isinstance(answer, Claim), answer
        return answer

    def reach(self, claim: Claim, rows: int, version: int = 0) -> Receipt:
        """A checkpoint under a grant."""
        (item,) = self.store.load(claim, None, 1, 1 << 20)
        return self.write(item, claim, rows, version)

    def write(self, item: Item, claim: Claim, rows: int, version: int) -> Receipt:
        """The same, by a worker that read its item long ago."""
        at = Reached(item=item, rows=rows, cursor=cursor.encode(cursor.Cursor("row", rows)), acc=b"1")
        holder = holder_of(claim, version, 30.0)
        return self.store.commit([commit(holder, NOTHING, commit_id=os.urandom(16), release=False, reached=[at])])[0]

    def fences(self, batch: str = "totals") -> list[int]:
        return [chunk.fence for chunk in self.store.chunks(self.batch(batch).id)]
