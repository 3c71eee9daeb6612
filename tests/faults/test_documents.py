"""The documents of a case: killed, its outside world damaged, it comes out right and nothing is paid twice."""

import json
import os
import re
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import journal, sections
from holdfast.runtime.operate import audit
from holdfast.stores.base import each_entry
from holdfast.stores.sqlite import SqliteStore
from tests.forkserver import shared

pytestmark = pytest.mark.slow  # a whole pipeline with its outside world, several times

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "documents" / "app.py"
DOCUMENTS = [json.loads(line) for line in APP.with_name("documents.jsonl").read_text().splitlines()]
PROMISES = pytest.mark.promise("A5", "A6", "A7", "P4")
KILLS = ["stage.after:60:kill", "stage.after:300:kill", "commit.written:6:kill", "commit.after:30:kill"]
DAMAGE = {
    "record": "DELETE FROM documents WHERE id = ?",
    "attachments": "DELETE FROM attachments WHERE document = ? AND number = 1",
    "pages": "DELETE FROM pages WHERE document = ? AND number = 1",
    "dates": "DELETE FROM dates WHERE document = ?",
    "tags": "DELETE FROM tags WHERE document = ?",
    "index": "DELETE FROM search WHERE document = ?",
    "release": "DELETE FROM released WHERE document = ?",
}
"""Stage -> what takes its work away."""


def run(folder: Path, *options: str, fault: str = "") -> "subprocess.CompletedProcess[str]":
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "CASE_"))}
    environment = plain | ({"HOLDFAST_FAULT": fault} if fault else {})
    command = ["run", f"{APP}:documents", "--no-progress", "--json", *options]
    return shared().command(*command, cwd=folder, env=environment).completed()


def ask(folder: Path, sql: str, *values: Any) -> list[Any]:
    db = sqlite3.connect(folder / "case.db")
    try:
        found = db.execute(sql, values).fetchall()
        db.commit()
    finally:
        db.close()
    return found


def content(document: dict[str, Any]) -> str:
    return "\n".join([document["body"], *(each["text"] for each in document["attachments"])])


def check_world(folder: Path) -> None:
    """Every distinct document is in the case database once, whole; counted from the documents alone."""
    released = [name for (name,) in ask(folder, "SELECT document FROM released ORDER BY document")]
    by_name = {document["id"]: document for document in DOCUMENTS}
    assert sorted(content(by_name[name]) for name in released) == sorted({content(each) for each in DOCUMENTS})
    for name in released:
        document, text = by_name[name], content(by_name[name])
        assert ask(folder, "SELECT custodian FROM documents WHERE id = ?", name) == [(document["custodian"],)]
        kept = ask(folder, "SELECT name, characters FROM attachments WHERE document = ? ORDER BY number", name)
        assert kept == [(each["name"], len(each["text"])) for each in document["attachments"]]
        pages = ask(folder, "SELECT text FROM pages WHERE document = ? ORDER BY number", name)
        assert "".join(page for (page,) in pages) == text
        days = {day for (day,) in ask(folder, "SELECT day FROM dates WHERE document = ?", name)}
        assert days == set(re.findall(r"\d{4}-\d{2}-\d{2}", text))
        assert ("letter",) in ask(folder, "SELECT tag FROM tags WHERE document = ?", name)
        found = ask(folder, "SELECT text FROM search WHERE document = ?", name)
        assert found == [(re.sub(r"\d{3}-\d{2}-\d{4}", "[number]", text),)]


def bill(folder: Path) -> Counter[str]:
    return Counter(dict(ask(folder, "SELECT document, count(*) FROM bill GROUP BY document")))


def rewinds(folder: Path) -> dict[str, str]:
    """Key -> the stage it went back to, by the journal."""
    store = SqliteStore(folder / ".holdfast" / "state.db")
    batch = store.batches()[0]
    assert audit.verify(store, batch).findings == ()
    keys = {item.n: str(item.key) for item in store.items(batch.id)}
    names = [stage["name"] for stage in json.loads(batch.definition)["stages"]]
    found = {}
    for chunk in store.chunks(batch.id):
        for entry in each_entry(store, chunk.id):
            body = sections.decode(entry)
            if isinstance(body, journal.Acted) and journal.decode_header(entry.head).kind == "rewound":
                found |= {keys[moved.n]: names[moved.stage_after] for moved in body.items}
            if isinstance(body, journal.Checkpointed):
                found |= {keys[a.n]: names[a.to_stage] for a in body.attempts if a.outcome == "rewind"}
    store.close()
    return found


@PROMISES
@pytest.mark.parametrize("fault", KILLS)
def test_killed_and_resumed_it_comes_out_right_and_nothing_is_paid_twice(
    fault: str, tmp_path: Path, tally: Callable[..., None]
) -> None:
    assert run(tmp_path, fault=fault).returncode == -9
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)["counts"]
    assert (counts["done"], counts["skipped"]) == (44, 4)
    check_world(tmp_path)
    assert set(bill(tmp_path).values()) == {1}, "what the service was paid for is found, not bought again"
    assert rewinds(tmp_path) == {}
    tally(kills=1)


@PROMISES
def test_what_is_taken_from_the_world_is_made_again_and_nothing_else(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 0
    named = [name for (name,) in ask(tmp_path, "SELECT DISTINCT document FROM attachments ORDER BY document")]
    taken = dict(zip(DAMAGE, named, strict=False))
    for stage, name in taken.items():
        ask(tmp_path, DAMAGE[stage], name)
    with pytest.raises(AssertionError):
        check_world(tmp_path)
    quick = run(tmp_path)
    assert quick.returncode == 0
    assert rewinds(tmp_path) == {}, "what is done is not asked about again, unless somebody says so"
    full = run(tmp_path, "--verify", "full")
    assert full.returncode == 0, full.stdout + full.stderr
    check_world(tmp_path)
    assert rewinds(tmp_path) == {name: stage for stage, name in taken.items()}
    assert bill(tmp_path) == Counter(ask_all(tmp_path)) + Counter([taken["tags"]])


def ask_all(folder: Path) -> list[str]:
    return [name for (name,) in ask(folder, "SELECT document FROM released")]


@PROMISES
def test_killed_and_damaged_at_once(tmp_path: Path, tally: Callable[..., None]) -> None:
    """A document that stands half-way is asked about before it goes on: only what is gone is made again."""
    assert run(tmp_path, "--workers", "2", fault="stage.after:250:kill").returncode == -9
    ask(tmp_path, "DELETE FROM documents")
    ask(tmp_path, "DELETE FROM pages WHERE number = 1")
    done = run(tmp_path, "--verify", "full")
    assert done.returncode == 0, done.stdout + done.stderr
    check_world(tmp_path)
    assert set(bill(tmp_path).values()) == {1}
    assert set(rewinds(tmp_path).values()) == {"record"}
    tally(kills=1)
