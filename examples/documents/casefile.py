"""The outside world: a case database with a full-text index, and a service that tags documents for money.

Nothing in it knows of Holdfast. Every write is a small transaction that can be repeated; every question is answered by
what is really there. The file is `$CASE_DB`, or `case.db` in the current folder.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS digests (sha256 TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS documents (id TEXT PRIMARY KEY, custodian TEXT NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attachments (document TEXT, number INTEGER, name TEXT, characters INTEGER,
                                        PRIMARY KEY (document, number));
CREATE TABLE IF NOT EXISTS pages (document TEXT, number INTEGER, text TEXT, PRIMARY KEY (document, number));
CREATE TABLE IF NOT EXISTS dates (document TEXT, day TEXT, PRIMARY KEY (document, day));
CREATE TABLE IF NOT EXISTS tags (document TEXT, tag TEXT, PRIMARY KEY (document, tag));
CREATE TABLE IF NOT EXISTS released (document TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS bill (call INTEGER PRIMARY KEY, document TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS search USING fts5 (document UNINDEXED, text);
"""
TAGS = {"privileged": "privileged", "invoice": "money", "paid": "money", "insurance": "insurance", "lease": "property",
        "crane": "machines", "shipment": "freight", "meeting": "people"}  # fmt: skip
CENTS = 2
"""What the service takes for tagging one document."""

_mine = threading.local()
_opening = threading.Lock()
"""A file is made ready by one thread at a time: SQLite waits for no lock while it changes to write-ahead logging."""


def path() -> Path:
    return Path(os.environ.get("CASE_DB", "case.db")).resolve()


def connection() -> sqlite3.Connection:
    """One for each thread and file."""
    if getattr(_mine, "path", None) != path():
        with _opening:
            db = sqlite3.connect(path(), timeout=30, isolation_level=None)
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(SCHEMA)
        _mine.path, _mine.db = path(), db
    return _mine.db  # type: ignore[no-any-return]


@contextmanager
def writing() -> Iterator[sqlite3.Connection]:
    db = connection()
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def rows(sql: str, *values: Any) -> list[Any]:
    return connection().execute(sql, values).fetchall()


# -- duplicates -------------------------------------------------------------------------------------------------------


def first_with(sha256: str, document: str) -> str:
    """The document that had this content first; this one, if none had."""
    with writing() as db:
        db.execute("INSERT OR IGNORE INTO digests VALUES (?, ?)", (sha256, document))
    return str(rows("SELECT document FROM digests WHERE sha256 = ?", sha256)[0][0])


# -- what is kept of a document ---------------------------------------------------------------------------------------


def record(document: str, custodian: str, sha256: str) -> None:
    with writing() as db:
        db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (document, custodian, sha256))


def has_record(document: str, sha256: str) -> bool:
    return rows("SELECT sha256 FROM documents WHERE id = ?", document) == [(sha256,)]


def attach(document: str, texts: Sequence[tuple[str, str]]) -> None:
    with writing() as db:
        db.execute("DELETE FROM attachments WHERE document = ?", (document,))
        db.executemany(
            "INSERT INTO attachments VALUES (?, ?, ?, ?)",
            [(document, number, name, len(text)) for number, (name, text) in enumerate(texts, start=1)],
        )


def attached(document: str) -> list[tuple[str, int]]:
    return rows("SELECT name, characters FROM attachments WHERE document = ? ORDER BY number", document)


def paginate(document: str, pages: Sequence[str]) -> None:
    with writing() as db:
        db.execute("DELETE FROM pages WHERE document = ?", (document,))
        db.executemany("INSERT INTO pages VALUES (?, ?, ?)", [(document, n, page) for n, page in enumerate(pages, 1)])


def page_count(document: str) -> int:
    return int(rows("SELECT count(*) FROM pages WHERE document = ?", document)[0][0])


def put_dates(document: str, days: Sequence[str]) -> None:
    with writing() as db:
        db.execute("DELETE FROM dates WHERE document = ?", (document,))
        db.executemany("INSERT OR IGNORE INTO dates VALUES (?, ?)", [(document, day) for day in days])


def dates(document: str) -> list[str]:
    return [day for (day,) in rows("SELECT day FROM dates WHERE document = ? ORDER BY day", document)]


# -- the service that costs money -------------------------------------------------------------------------------------


def tag(document: str, text: str) -> list[str]:
    """Ask the service for the tags of a text, pay for it, and keep them."""
    found = sorted({name for word, name in TAGS.items() if word in text.lower()} | {"letter"})
    with writing() as db:
        db.execute("INSERT INTO bill (document, cents) VALUES (?, ?)", (document, CENTS))
        db.execute("DELETE FROM tags WHERE document = ?", (document,))
        db.executemany("INSERT INTO tags VALUES (?, ?)", [(document, name) for name in found])
    return found


def tags(document: str) -> list[str]:
    return [name for (name,) in rows("SELECT tag FROM tags WHERE document = ? ORDER BY tag", document)]


# -- the index --------------------------------------------------------------------------------------------------------


def put_in_index(document: str, text: str) -> None:
    with writing() as db:
        db.execute("DELETE FROM search WHERE document = ?", (document,))
        db.execute("INSERT INTO search VALUES (?, ?)", (document, text))


def in_index(document: str) -> int:
    return int(rows("SELECT count(*) FROM search WHERE document = ?", document)[0][0])


def find(words: str) -> list[str]:
    """Documents that have all of the words, as the people who work on the case ask for them."""
    return [one for (one,) in rows("SELECT document FROM search WHERE search MATCH ? ORDER BY document", words)]


# -- the end ----------------------------------------------------------------------------------------------------------


def release(document: str) -> None:
    with writing() as db:
        db.execute("INSERT OR IGNORE INTO released VALUES (?)", (document,))


def is_released(document: str) -> bool:
    return bool(rows("SELECT 1 FROM released WHERE document = ?", document))
