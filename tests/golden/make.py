"""Make the golden stores of today's format, and the answers that later code must give on them.

    python -m tests.golden.make             stores and answers
    python -m tests.golden.make answers     only the answers, from the stores as they are

Make new stores only under a new name: those that are here stay, so that every later version opens them.
"""

import contextlib
import io
import json
import os
import sqlite3
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.interfaces.cli.app import call
from tests.golden import story
from tests.golden.answers import HERE, KINDS, ask, url_of

LATER = 3600.0
"""How long after they were made the stores are asked: what was put off is due by then."""


def main() -> None:
    only_answers = sys.argv[1:] == ["answers"]
    for kind in KINDS:
        if not only_answers:
            with _somewhere() as folder:
                _live(url_of(kind, folder), folder)
                _pack(kind, folder)
        path = HERE / f"{kind}.json"
        at = json.loads(path.read_text(encoding="utf-8"))["at"] if only_answers else time.time() + LATER
        with _somewhere() as folder:
            path.write_text(_told({"at": at, **ask(kind, at, folder)}), encoding="utf-8")


def _told(found: dict[str, Any]) -> str:
    """One line an answer: a change shows which."""
    parts = [f'"at": {found["at"]!r}']
    for part in ("as it is", "resumed"):
        lines = [f"  {json.dumps(name)}: {json.dumps(found[part][name])}" for name in sorted(found[part])]
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _live(store: str, folder: Path) -> None:
    """Let batches see everything that a store can hold."""
    os.environ["HOLDFAST_STORE"] = store
    story.BROKEN.add("redriven")
    story.BAD_ROWS.add(17)
    story.write_rows(folder)
    _book(store, folder)
    _others(store)
    _scans(store, folder)


def _book(store: str, folder: Path) -> None:
    book = story.book(store)
    items = [*story.pages(), {"name": 7, "text": ["not", "a", "page"]}]
    book.run(items, batch="book", key="name", tolerate=10, progress=False, workers=2)
    _do("dead", "resolve", "book", "resolved", "--output", '{"name": "resolved", "words": 1}')
    _do("dead", "discard", "book", "discarded")
    _do("dead", "redrive", "book", "redriven")
    story.BROKEN.remove("redriven")
    (folder / "out" / "book" / "rewound.json").unlink()
    book.run(items, batch="book", key="name", tolerate=10, progress=False, workers=2)
    _do("reset", "book", "reset", "--to-stage", "write")
    book.run(items, batch="book", key="name", tolerate=10, progress=False, workers=2)
    _do("reconcile", "book", "--tolerate", "10", expected=None)
    _do("reset", "book", "again")


def _others(store: str) -> None:
    book, mail = story.book(store), story.mail(store)
    book.run(story.pages(["one", "two"]), batch="sealed", key="name", seal=True, progress=False)
    book.run(story.pages(["one", "two"]), batch="paused", key="name", progress=False)
    _do("reset", "paused", "two")
    _do("pause", "paused")
    book.run(story.pages(["one", "two"]), batch="cancelled", key="name", progress=False)
    _do("reset", "cancelled", "two")
    _do("cancel", "cancelled")
    book.run(story.pages(["one"]), batch="reopened", key="name", seal=True, progress=False)
    _do("reopen", "reopened")
    story.BROKEN.add("later")
    for page in story.pages(["now", "later"]):
        mail.process(page, batch="mail", key="name")
    story.BROKEN.remove("later")
    mail.expect("mail", 2)


def _scans(store: str, folder: Path) -> None:
    totals, feed = story.totals(store), story.feed(store)
    totals.run("totals", progress=False)
    story.BAD_ROWS.remove(17)
    _do("dead", "redrive", "totals", _buried("totals")[-1])
    totals.run("totals", progress=False)
    totals.run("halfway", progress=False)
    _do("cursor", "reset", "halfway", "1", "--to-beginning")
    with contextlib.closing(sqlite3.connect(folder / "feed.db")) as table:
        table.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, changed INTEGER NOT NULL)")
        table.execute("CREATE INDEX by_change ON orders (changed, id)")
        table.executemany("INSERT INTO orders VALUES (?, ?)", [(n, n) for n in range(1, 7)])
        table.commit()
    feed.tick("feed")


def _buried(batch: str) -> list[str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        call(["dead", "list", batch, "--json"])
    return [each["key"] for each in json.loads(said.getvalue())["items"]]


def _do(*args: str, expected: int | None = 0) -> None:
    by = [] if args[0] == "reconcile" else ["--yes", "--actor", "ada", "--reason", "a golden store"]
    with contextlib.redirect_stdout(io.StringIO()):
        code = call([*args, *by])
    assert expected is None or code == expected, (args, code)


def _pack(kind: str, folder: Path) -> None:
    with tarfile.open(HERE / f"{kind}.tar.xz", "w:xz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)


@contextlib.contextmanager
def _somewhere() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield Path(name)


if __name__ == "__main__":
    main()
