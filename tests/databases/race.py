"""The cursor race: four writers whose transactions take at random long to commit, and scans that follow the table."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import holdfast as hf

WRITERS = 4
LONGEST = 0.9
"""Seconds that a transaction takes at most."""

_AT = {"postgresql": "TIMESTAMPTZ", "mysql": "DATETIME(6)", "sqlite": "DATETIME"}


def make_table(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY, updated_at {_AT[engine.dialect.name]} NOT NULL)"
        )
        connection.exec_driver_sql("CREATE INDEX by_cursor ON orders (updated_at, id)")


@dataclass
class Race:
    """Writers at work, and what they committed."""

    engine: sa.Engine
    seconds: float
    seed: int
    committed: list[str] = field(default_factory=list)
    late: int = 0
    """Rows that were committed after one with a larger cursor."""
    _newest: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        until = time.monotonic() + self.seconds
        self._threads = [
            threading.Thread(target=self._write, args=(writer, until), daemon=True) for writer in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_on(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _write(self, writer: int, until: float) -> None:
        draw = random.Random(self.seed * 100 + writer)
        n = 0
        while time.monotonic() < until:
            rows = [f"{writer}-{n + each}" for each in range(draw.randint(1, 4))]
            n += len(rows)
            stays = draw.choice((0.0, 0.01, 0.05, 0.3, LONGEST)) * draw.random()
            at = datetime.now(UTC)
            if self.engine.dialect.name == "sqlite":
                time.sleep(stays)  # it has one writer at a time: what takes long is to come to be that one
                stays = 0.0
            with self.engine.begin() as connection:
                for row in rows:
                    connection.execute(_INSERT, {"id": row, "at": _written(at, self.engine.dialect.name)})
                time.sleep(stays)
            with self._lock:
                self.committed += rows
                self.late += self._newest is not None and at < self._newest
                self._newest = at if self._newest is None else max(at, self._newest)


_INSERT = sa.text("INSERT INTO orders VALUES (:id, :at)")


def _written(at: datetime, dialect: str) -> Any:
    if dialect == "sqlite":
        return at.strftime("%Y-%m-%d %H:%M:%S.%f")
    return at.replace(tzinfo=None) if dialect == "mysql" else at


@dataclass
class Reader:
    """A scan that follows the table, and what it was given."""

    scan: hf.Scan
    seen: Counter[str]

    @staticmethod
    def of(name: str, source: Any, folder: Path) -> "Reader":
        scan = hf.Follow(name, source, store=folder / f"{name}.db", every=5)
        seen: Counter[str] = Counter()

        @scan.handler
        def keep(rows: list[dict[str, Any]], acc: int) -> int:
            seen.update(row["id"] for row in rows)
            return acc + len(rows)

        return Reader(scan, seen)

    def verdict(self, race: Race) -> tuple[int, int]:
        """Rows that were lost, and rows that were counted twice."""
        return len(set(race.committed) - self.seen.keys()), sum(self.seen.values()) - len(self.seen)


def run(race: Race, readers: list[Reader], patience: float) -> None:
    """Tick until the writers are done and the careful reader, the first, has all there is, or nothing new comes."""
    race.start()
    while race.is_on:
        for reader in readers:
            reader.scan.tick()
        time.sleep(0.02)
    deadline = time.monotonic() + patience
    while readers[0].verdict(race)[0] and time.monotonic() < deadline:
        for reader in readers:
            reader.scan.tick()
        time.sleep(0.05)
