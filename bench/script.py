"""The hand-written script: what a good engineer writes for this work without a library, and the most relevant
yardstick.

It validates each input, stores it, runs the handler, validates the output and stores that as well, durably, in groups
of 1,000. A second run skips finished items. It has no retries, dead letters, leases, journal, metrics or report.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw

from bench.case import Reading, Stopwatch
from bench.database import database, groups
from bench.floor import stored
from bench.items import items
from bench.pages import Page, Text, handle

DURABILITY = "WAL, FULL, two commits per 1,000"
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS payloads (key TEXT PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, body BLOB NOT NULL)",
)
FINISHED = "SELECT key FROM results WHERE key IN (SELECT value FROM carray(?))"
KEEP_PAYLOAD = "INSERT INTO payloads VALUES (?, ?) ON CONFLICT DO NOTHING"
KEEP_RESULT = "INSERT INTO results VALUES (?, ?) ON CONFLICT DO NOTHING"

# Bound once: half the cost of the public methods, as a first profile shows.
page_from = Page.__pydantic_validator__.validate_python
page_json = Page.__pydantic_serializer__.to_json
text_from = Text.__pydantic_validator__.validate_python
text_json = Text.__pydantic_serializer__.to_json


def run(path: Path, source: Iterable[dict[str, Any]]) -> int:
    """Return how many items were worked on, without those finished in an earlier run."""
    with database(path, *SCHEMA) as db:
        return sum(work(db, group) for group in groups(source))


def work(db: apsw.Connection, group: list[dict[str, Any]]) -> int:
    finished = {key for (key,) in db.execute(FINISHED, (apsw.carray(tuple(item["id"] for item in group)),))}
    pages = [page_from(item) for item in group if item["id"] not in finished]
    if not pages:
        return 0
    with db:
        db.executemany(KEEP_PAYLOAD, [(page.id, page_json(page)) for page in pages])
    texts = [text_from(handle(page)) for page in pages]
    with db:
        db.executemany(KEEP_RESULT, [(text.id, text_json(text)) for text in texts])
    return len(texts)


def fresh(place: Path, seed: int, count: int, keys: str = "ordered") -> Reading:
    with Stopwatch() as watch:
        worked = run(place / "script.db", items(count, seed, keys=keys))
    assert worked == stored(place / "script.db", "results") == count
    return Reading(items=count, seconds=watch.seconds)


def prepare(place: Path, seed: int, count: int, keys: str = "ordered") -> None:
    fresh(place, seed, count, keys)


def again(place: Path, seed: int, count: int, keys: str = "ordered") -> Reading:
    """Run with nothing left to do."""
    with Stopwatch() as watch:
        worked = run(place / "script.db", items(count, seed, keys=keys))
    assert worked == 0
    return Reading(items=count, seconds=watch.seconds, worked=worked)
