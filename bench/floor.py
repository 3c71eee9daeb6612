"""The floor: durable result rows in SQLite, and nothing else. No library on this driver can be faster."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.case import Reading, Stopwatch
from bench.database import database, groups
from bench.items import items, result

BY_GROUP, BY_ITEM = "WAL, FULL, a commit per 1,000", "WAL, FULL, a commit per item"
SCHEMA = "CREATE TABLE IF NOT EXISTS results (number INTEGER PRIMARY KEY, key TEXT NOT NULL, body BLOB NOT NULL)"
INSERT = "INSERT INTO results VALUES (?, ?, ?)"

Row = tuple[int, str, bytes]


def bare_loop(place: Path, seed: int, count: int) -> Reading:  # noqa: ARG001  every probe is called alike
    """Read and write JSON and keep nothing: the cost of a script that stores nothing."""
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    with Stopwatch() as watch:
        size = sum(len(encode(result(decode(encode(item))))) for item in items(count, seed))
    assert size > 60 * count
    return Reading(items=count, seconds=watch.seconds)


def in_groups(place: Path, seed: int, count: int) -> Reading:
    """Make one commit, and so one sync, for every 1,000 rows."""
    with Stopwatch() as watch, database(place / "floor.db", SCHEMA) as db:
        for group in groups(rows(count, seed)):
            with db:
                db.executemany(INSERT, group)
    return checked(place, count, watch.seconds)


def one_by_one(place: Path, seed: int, count: int) -> Reading:
    """Make one commit, and so one sync, for every row."""
    with Stopwatch() as watch, database(place / "floor.db", SCHEMA) as db:
        for row in rows(count, seed):
            db.execute(INSERT, row)
    return checked(place, count, watch.seconds)


def rows(count: int, seed: int) -> Iterator[Row]:
    encode = msgspec.json.Encoder().encode
    for item in items(count, seed):
        yield item["number"], item["id"], encode(result(item))


def checked(place: Path, count: int, seconds: float) -> Reading:
    """Return a reading, which counts only if every row is there."""
    assert stored(place / "floor.db", "results") == count
    return Reading(items=count, seconds=seconds)


def stored(path: Path, table: str) -> int:
    with database(path) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").get)  # noqa: S608  named by this code
