"""The connection that the floor and the script share: WAL and synchronous=FULL, a sync for every commit."""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import apsw

GROUP = 1_000
T = TypeVar("T")


@contextmanager
def database(path: Path, *schema: str) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(path))) as db:
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        for statement in schema:
            db.execute(statement)
        yield db


def groups(rows: Iterable[T], size: int = GROUP) -> Iterator[list[T]]:
    stream = iter(rows)
    while group := list(islice(stream, size)):
        yield group
