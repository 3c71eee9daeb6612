"""A store that vanishes, is replaced or was set back is noticed; columns that rest on no proof are audited."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.core.model import Claim, Item
from holdfast.runtime.operate import audit
from holdfast.stores.base import find_batch
from holdfast.stores.sqlite import SqliteStore
from tests.cli.conftest import Command, python
from tests.runtime.support import run

FILES = ("state.db", "state.db-wal", "state.db-shm", "state.db-fence")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    return tmp_path


def pipeline(act: Callable[[int], Any], store: str = "state.db") -> hf.Pipeline:
    made = hf.Pipeline("p", store=store)

    @made.stage
    def same(n: int) -> int:
        act(n)
        return n

    return made


def remove() -> None:
    for name in FILES:
        Path(name).unlink(missing_ok=True)


@pytest.mark.promise("C1")
@pytest.mark.parametrize("at", [0, 5, 9], ids=["first", "middle", "last"])
def test_a_store_that_vanishes_under_a_run_is_never_called_complete(at: int) -> None:
    p = pipeline(lambda n: remove() if n == at else None)
    with pytest.raises(hf.Damaged, match=r"state\.db was removed or moved away while it was in use.*-wal"):
        run(p, range(10), workers=1)
    assert not Path("state.db").exists(), "nothing is made in its place"


def test_a_store_that_is_replaced_under_a_run_is_noticed_and_the_other_left_alone() -> None:
    other = pipeline(lambda _n: None, "other.db")
    run(other, range(3), batch="theirs")
    other.store.close()
    p = pipeline(lambda n: Path("other.db").replace("state.db") if n == 5 else None)
    with pytest.raises(hf.Damaged, match=r"was replaced by another file"):
        run(p, range(10), workers=1)
    p.store.close()
    for name in FILES[1:3]:  # the older log, as the message says
        Path(name).unlink(missing_ok=True)
    found = SqliteStore(Path("state.db"))
    assert [batch.name for batch in found.batches()] == ["theirs"]


def test_a_handler_that_changes_the_working_directory_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert run(pipeline(lambda _n: os.chdir(tmp_path / "elsewhere")), range(5)).is_complete


def test_closing_leaves_the_log_of_the_file_that_has_the_name_now() -> None:
    first = SqliteStore(Path("state.db"))
    run(pipeline(lambda _n: None, "other.db"), [1])
    Path("other.db").replace("state.db")
    with pytest.raises(hf.Damaged):
        first.batches()
    log = Path("state.db-wal")
    log.write_bytes(b"theirs")
    first.close()
    assert log.read_bytes() == b"theirs"


@pytest.mark.promise("A7")
@pytest.mark.parametrize("name", ["state.db-wal", "state.db-shm"])
@pytest.mark.parametrize("at", [0, 5, 9], ids=["first", "middle", "last"])
def test_a_log_or_index_that_vanishes_under_a_run_costs_no_acknowledged_work(at: int, name: str) -> None:
    ran: list[int] = []

    def act(n: int) -> None:
        ran.append(n)
        if n == at:
            Path(name).unlink()

    p = pipeline(act)
    with pytest.raises(hf.Damaged, match=rf"{name} was removed or moved away while it was in use.*run again"):
        run(p, range(10), workers=1)
    p.store.close()
    again = pipeline(ran.append)
    again.store.now = lambda: time.time() + 60  # type: ignore[attr-defined] # the lease of the first is over
    kept = again.report("p").counts
    assert kept.done + kept.pending == 10, "what was admitted is there"
    ran.clear()
    assert run(again, range(10), workers=1).counts.done == 10
    assert len(ran) == 10 - kept.done
    again.store.close()


APP = """
import os
import holdfast as hf

p = hf.Pipeline("p", store="state.db")

@p.stage
def same(n: int) -> int:
    if n == 3 and os.path.exists("harm"):
        os.unlink("harm")
        os.unlink("state.db-wal")
    return n

@p.source
def numbers() -> list[int]:
    return list(range(10))
"""


@pytest.mark.slow
def test_a_process_whose_log_vanishes_ends_with_1_and_the_next_completes(folder: Path) -> None:
    Path("app.py").write_text(APP)
    Path("harm").touch()
    first, second = (python("run", "app.py", cwd=folder) for _ in range(2))
    assert (first.code, second.code) == (1, 0), (first.err, second.err)
    assert "state.db-wal was removed or moved away while it was in use" in first.err
    assert "run again" in first.err


# -- set back ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C3")
def test_a_store_that_was_set_back_is_told_by_run_report_status_and_audit(holdfast: Command) -> None:
    p = pipeline(lambda _n: None)
    run(p, range(3), batch="b")
    p.store.close()
    shutil.copyfile("state.db", "backup.db")
    for more in range(6, 30, 3):
        again = pipeline(lambda _n: None)
        run(again, range(more), batch="b")
        again.store.close()
    shutil.copyfile("backup.db", "state.db")
    Path("state.db-wal").unlink(missing_ok=True)
    after = pipeline(lambda _n: None)
    report = run(after, range(3), batch="b")
    assert [told for told in report.warnings if "was set back: it had" in told]
    assert [told for told in after.report("b").warnings if "was set back" in told]
    (batch,) = after.store.batches("b")
    checked = audit.verify(after.store, batch)
    assert checked.holds
    assert "was set back" in checked.set_back
    after.store.close()
    later = pipeline(lambda _n: None)
    later.store.now = lambda: 9e9  # type: ignore[attr-defined]
    fresh = run(later, range(3), batch="opened later")
    assert not [told for told in fresh.warnings if "set back" in told]
    later.store.close()
    for command in (("status", "--store", "state.db"), ("status", "b", "--store", "state.db"),
                    ("audit", "verify", "b", "--store", "state.db")):  # fmt: skip
        assert "was set back: it had" in holdfast(*command).out, command
    assert "set back" in holdfast("status", "b", "--store", "state.db", "--json").document["set_back"]


# -- columns without a proof ------------------------------------------------------------------------------------------


@pytest.fixture
def stored() -> Path:
    """A batch with one item that is deferred, one that waits after it paid, one that is done."""
    p = hf.Pipeline("p", store="state.db")

    @p.stage(retry=hf.Retry(attempts=3, wait=("1h", "2h"), within="12h"))
    def first(n: int, ctx: hf.Context) -> int:
        ctx.spend(usd="0.25")
        if n == 1:
            raise hf.Defer(3600)
        if n == 2:
            raise hf.Transient("later")
        return n

    @p.stage
    def second(n: int) -> int:
        return n

    run(p, range(3), batch="b", deadline="1s")
    p.store.close()
    return Path("state.db")


def findings(path: Path) -> list[str]:
    store = SqliteStore(path)
    try:
        batch = find_batch(store, "b")
        found = [] if batch is None else [each.message for each in audit.verify(store, batch).findings]
        return found + [each.message for each in audit.flaws(store)]
    finally:
        store.close()


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE places SET spent = spent + 1 WHERE spent > 0",
        "UPDATE places SET spent = 0 WHERE spent > 0",
        "UPDATE places SET deferred = deferred + 1 WHERE deferred > 0",
        "UPDATE places SET deferred = 5.0 WHERE attempt > 0",
        "UPDATE places SET used = used + 1 WHERE attempt > 0",
        "UPDATE places SET used = 0 WHERE attempt > 0",
        "UPDATE places SET used = 5 WHERE deferred > 0",
        "UPDATE places SET wait = wait + 1 WHERE attempt > 0",
        "UPDATE places SET wait = 0 WHERE deferred > 0",
        "UPDATE chunks SET version = version + 1",
        "UPDATE batches SET stages = 1",
        "DELETE FROM batches",
    ],
)
def test_a_changed_column_is_found(stored: Path, change: str) -> None:
    assert findings(stored) == []
    db = apsw.Connection(str(stored))
    db.execute(change)
    assert db.changes()
    db.close()
    assert findings(stored)


def test_the_audit_of_a_store_without_its_batch_ends_with_1(stored: Path, holdfast: Command) -> None:
    db = apsw.Connection(str(stored))
    db.execute("DELETE FROM batches")
    db.close()
    told = holdfast("audit", "verify", "--store", "state.db")
    assert told.code == 1
    assert "its row is missing" in told.out


def test_a_wrong_number_of_stages_in_a_row_does_not_keep_a_run_from_its_end(stored: Path) -> None:
    db = apsw.Connection(str(stored))
    db.execute("UPDATE batches SET stages = 1")
    db.execute("UPDATE places SET due = 0")
    db.execute("UPDATE chunks SET due = 0")
    db.close()
    p = hf.Pipeline("p", store="state.db")
    p.stage(name="first")(same)
    p.stage(name="second")(same)
    assert run(p, range(3), batch="b", on_code_change="keep").counts.done == 3


def same(n: int) -> int:
    return n


@pytest.mark.promise("A15")
def test_a_worker_that_is_granted_items_and_loads_none_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    p = pipeline(lambda _n: None)
    loads: list[int] = []

    def nothing(self: SqliteStore, claim: Claim, *_: object) -> list[Item]:
        loads.append(claim.lease.chunk)
        assert len(loads) < 20, "it spins"
        return []

    monkeypatch.setattr(SqliteStore, "load", nothing)
    with pytest.raises(
        hf.Damaged, match=r"counts 5 pending items, but the store has no such item.*holdfast audit verify p"
    ):
        run(p, range(5))
    assert len(loads) == 2
