"""`holdfast import` of what other programs kept: each becomes a batch that continues there."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import canonical, journal, sections
from holdfast.core.model import chain_of_batch
from holdfast.stores.sqlite import SqliteStore
from tests.cli.conftest import Command

APP = '''
from datetime import UTC, datetime, timedelta
import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.scan.scan import Scan
from holdfast.runtime.sources.base import Span
from holdfast.testing.rows import Rows

START = datetime(2026, 4, 7, tzinfo=UTC)

class Page:
    def __init__(self, rows):
        self.rows = rows
    def after(self, count):
        row = self.rows[count - 1]
        return Cursor("column+key", row["at"], {"id": row["id"]})

class Orders:
    """A table of 100 orders, two in each minute."""
    def describe(self):
        return {"kind": "table", "table": "orders"}
    def read(self, after, until):
        rows = [{"id": n, "at": START + timedelta(minutes=n // 2)} for n in range(100)]
        rows = [r for r in rows if after is None or (r["at"], r["id"]) > (after.value, after.tiebreaker["id"])]
        yield Page([r for r in rows if until is None or (r["at"], r["id"]) <= (until.value, until.tiebreaker["id"])])
    def split(self, parts):
        return [Span()]

orders = Scan("orders", Orders(), every=10)

@orders.handler
def deliver(rows):
    with open("seen.txt", "a") as out:
        out.writelines(f"{row['id']}\\n" for row in rows)

totals = Scan("totals", Rows(range(1000)), every=100, partitions=2)

@totals.handler
def add(rows, acc: dict[str, float] = {"total": 0.0}):
    return {"total": acc["total"] + sum(rows)}

book = hf.Pipeline("book", source=lambda: [{"page": n} for n in range(1, 6)], key="page")

@book.stage(sink=hf.Files("corrected/page_{key:04d}.json"))
def corrected(page: dict) -> dict:
    return {"text": f"page {page['page']}"}
'''
AGREED = ("--yes", "--reason", "we move", "--actor", "ada")
POLLER: dict[str, Any] = {
    "version": 1,
    "poller_name": "orders",
    "source_fingerprint": "sha256:ab",
    "checkpoint": {
        "cursor": {"kind": "timestamp+pk", "value": "2026-04-07T00:20:00Z", "tiebreaker": {"id": 40}},
        "last_successful_batch_id": "batch_7",
        "updated_at": "2026-04-07T01:23:46.020000Z",
        "metadata": {"row_count": 100},
    },
    "lease": {"owner_id": "app/1", "fencing_token": 42, "expires_at": "2026-04-07T01:25:00Z"},
}


@pytest.fixture
def app(here: Path) -> Path:
    (here / "app.py").write_text(APP)
    return here


def notes(kind: str, batch: str) -> list[Any]:
    """What the journal of a batch keeps of one kind."""
    store = SqliteStore(Path(".holdfast/state.db"))
    (found,) = store.batches(batch)
    entries = store.entries(chain_of_batch(found.id))
    store.close()
    bodies = [sections.decode(each) for each in entries if journal.decode_header(each.head).kind == kind]
    return [canonical.decode(body.note) for body in bodies if isinstance(body, journal.Acted)]


def fence(holdfast: Command, batch: str) -> int:
    parts = holdfast("cursor", "show", batch, "--json").document["partitions"]
    return min(part["lease"]["fence"] for part in parts)


@pytest.mark.promise("C3")
def test_a_poller_continues_after_its_cursor_under_a_higher_fence(app: Path, holdfast: Command) -> None:
    Path("state.json").write_text(json.dumps(POLLER))
    args = ("import", "app.py:orders", "--from-state", "state.json")
    shown = holdfast(*args, "--dry-run")
    assert shown.code == 0
    assert "2026-04-07T00:20:00+00:00, id=40" in shown.out
    assert "fences above 42" in shown.out
    assert not Path(".holdfast").exists(), "a dry run makes no store"
    assert holdfast(*args, *AGREED).code == 0
    assert fence(holdfast, "orders") > 42
    assert notes("planted", "orders")[0]["last_batch"] == "batch_7"
    assert holdfast("run", "app.py:orders").code == 0
    assert Path("seen.txt").read_text().split() == [str(n) for n in range(41, 100)]
    audited = holdfast("cursor", "audit", "orders", "app.py:orders")
    assert audited.code == 0, "what another program delivered up to the cursor is not missing"
    again = holdfast(*args, *AGREED)
    assert again.code == 1
    assert "never replaces another" in again.err


def test_a_poller_that_may_still_deliver_is_left_alone(app: Path, holdfast: Command) -> None:
    lease = POLLER["lease"] | {"expires_at": "2999-01-01T00:00:00Z"}
    Path("state.json").write_text(json.dumps(POLLER | {"lease": lease}))
    answer = holdfast("import", "app.py:orders", "--from-state", "state.json", *AGREED)
    assert answer.code == 1
    assert "stop that poller" in answer.err
    assert not Path(".holdfast").exists()


@pytest.mark.promise("C18")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 7}, "SchemaTooNew"),
        ({"surprise": 1}, "NotOurs"),
        ({"checkpoint": {"cursor": {"kind": "integer+pk", "value": 5, "tiebreaker": {"id": 1}}}}, "UsageError"),
        ({"checkpoint": {"cursor": {"kind": "lsn", "value": 5}}}, "UsageError"),
    ],
)
def test_what_is_not_known_is_refused_and_nothing_is_written(
    app: Path, holdfast: Command, change: dict[str, Any], error: str
) -> None:
    Path("state.json").write_text(json.dumps(POLLER | change))
    answer = holdfast("import", "app.py:orders", "--from-state", "state.json", *AGREED, "--json")
    assert answer.document["error"]["type"] == error
    assert not Path(".holdfast").exists()


def checkpoint(cursor: Any, rows: int, total: float | None = 0.0, **more: Any) -> str:
    history = [{"cursor": cursor, "timestamp": "2025-01-15T10:30:00Z"}]
    acc = None if total is None else {"total": total}
    return json.dumps(
        {"cursor": cursor, "items_processed": rows, "accumulated_results": acc, "history": history} | more
    )


@pytest.mark.promise("B10")
def test_checkpoints_continue_with_what_was_accumulated_and_their_history_is_kept(app: Path, holdfast: Command) -> None:
    Path("one.json").write_text(checkpoint(300, 300, float(sum(range(300)))))
    args = ("import", "app.py:totals", "--from-checkpoint", "0=one.json")
    assert "partitions 1 begin at their start" in holdfast(*args, "--dry-run").out
    assert holdfast(*args, *AGREED).code == 0
    assert notes("imported", "totals")[0]["history"][0]["cursor"] == 300
    answer = holdfast("run", "app.py:totals", "--json").document
    assert answer["rows"] == 1000
    assert holdfast("cursor", "audit", "totals", "app.py:totals").code == 0
    parts = holdfast("cursor", "show", "totals", "--json").document["partitions"]
    assert sum(part["checkpoint"]["acc"]["total"] for part in parts) == sum(range(1000))


def test_a_checkpoint_that_counts_rows_is_looked_up(app: Path, holdfast: Command) -> None:
    Path("orders.json").write_text(checkpoint(41, 41, None))
    plain = holdfast("import", "app.py:orders", "--from-checkpoint", "orders.json", *AGREED)
    assert plain.code == 2
    assert "--by-rows" in plain.err
    assert holdfast("import", "app.py:orders", "--from-checkpoint", "orders.json", "--by-rows", *AGREED).code == 0
    holdfast("run", "app.py:orders")
    assert Path("seen.txt").read_text().split() == [str(n) for n in range(41, 100)]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (checkpoint("300", 300), "of type str"),
        (checkpoint(300, 300, accumulated_results={"total": "much"}), "not valid"),
        (checkpoint(700, 300), "is outside of"),
        (checkpoint(300, 300, history=[{"cursor": 200, "timestamp": "t"}]), "contradicts itself"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(app: Path, holdfast: Command, said: str, why: str) -> None:
    Path("one.json").write_text(said)
    answer = holdfast("import", "app.py:totals", "--from-checkpoint", "0=one.json", *AGREED)
    assert answer.code in (1, 2)
    assert why in answer.err
    assert not Path(".holdfast").exists()


@pytest.fixture
def pages(app: Path) -> Path:
    """Pages 1 to 3 called done; the output of 3 is damaged, and 4 has one that nobody called done."""
    folder = app / "corrected"
    folder.mkdir()
    metrics = {str(n): {"page_num": n, "cost_usd": 0.1, "processing_time_seconds": 1.0} for n in (1, 2, 3)}
    plain = {"stage_name": "corrected", "total_pages": 5, "status": "in_progress", "page_metrics": metrics}
    (folder / ".checkpoint").write_text(json.dumps(plain))
    for n in (1, 2, 4):
        (folder / f"page_{n:04d}.json").write_text(json.dumps({"text": f"page {n}"}))
    (folder / "page_0003.json").write_text('{"text": "pa')
    return app


@pytest.mark.promise("P4", "P5", "P15")
def test_a_file_of_pages_continues_with_the_outputs_that_count(pages: Path, holdfast: Command) -> None:
    args = ("import", "app.py:book", "--from-pages", "corrected/.checkpoint")
    before = {path: path.read_bytes() for path in Path("corrected").iterdir()}
    shown = holdfast(*args, "--dry-run", "--json").document
    assert (shown["recovery"]["recovered"], shown["lost"], shown["found"]) == ({"corrected": 3}, ["3"], ["4"])
    assert not Path(".holdfast").exists()
    assert holdfast(*args, *AGREED).code == 0
    assert {path: path.read_bytes() for path in Path("corrected").iterdir()} == before
    assert notes("imported", "book")[0]["cost_usd"] == "0.3"
    answer = holdfast("run", "app.py:book", "--json").document
    assert (answer["this_run"]["done"], answer["counts"]["done"]) == (2, 5)


def test_a_dry_run_refuses_pages_of_a_batch_that_is_there_as_the_import_does(pages: Path, holdfast: Command) -> None:
    args = ("import", "app.py:book", "--from-pages", "corrected/.checkpoint")
    assert holdfast(*args, *AGREED).code == 0
    for manner in (("--dry-run",), AGREED):
        answer = holdfast(*args, *manner)
        assert (answer.code, "there is nothing to rebuild" in answer.err) == (1, True), answer


def test_a_file_of_other_pages_is_refused(pages: Path, holdfast: Command) -> None:
    file = pages / "corrected" / ".checkpoint"
    plain = json.loads(file.read_text())
    for change, why in (({"total_pages": 6}, "has 5"), ({"stage_name": "ocr"}, "stage 'ocr'")):
        file.write_text(json.dumps(plain | change))
        answer = holdfast("import", "app.py:book", "--from-pages", str(file), *AGREED)
        assert answer.code in (1, 2)
        assert why in answer.err
    file.write_text(json.dumps(plain)[:-9])
    assert "truncated" in holdfast("import", "app.py:book", "--from-pages", str(file), *AGREED).err
    assert not Path(".holdfast").exists()
