"""A plan says what a run would do, and why; it changes nothing, and the run then does just that."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.changes import PlannedFate
from holdfast.core.course import to_steer
from holdfast.core.model import BatchMode
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.plan import Plan
from holdfast.stores import faults
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.runtime.support import ONCE, Calls, run

Restart = Callable[[Callable[[hf.Pipeline], None]], hf.Pipeline]
BY = Actor(name="ann", reason="try again")


def define(calls: Calls, *, fail: set[int] = frozenset(), factor: int = 10) -> Callable[[hf.Pipeline], None]:  # type: ignore[assignment]
    def on(book: hf.Pipeline) -> None:
        @book.stage
        def first(row: dict) -> dict:  # type: ignore[type-arg]
            calls(("first", row["id"]))
            return row

        @book.stage(sink=hf.Files("out/{key}.json"), retry=ONCE)
        def second(row: dict, ctx: hf.Context) -> dict:  # type: ignore[type-arg]
            calls(("second", row["id"]))
            ctx.spend(usd="0.25")
            if row["id"] in fail:
                raise hf.Permanent("bad_row")
            return {"id": row["id"], "made": factor}

    return on


def rows(*ids: int, word: str = "a") -> list[dict[str, Any]]:
    return [{"id": n, "word": word} for n in ids]


def planned(plan: Plan) -> dict[tuple[str, str, str], int]:
    return {(row.fate, row.reason, row.stage): row.count for row in plan.rows}


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file with its size, its time and its content. SQLite makes two empty ones when a database is opened."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.name.endswith("-shm")
        and not (path.name.endswith("-wal") and not path.stat().st_size)
    }


@pytest.fixture
def unchanged(folder: Path) -> Iterator[Callable[[Callable[[], Plan]], Plan]]:
    """Makes a plan and wants nothing written: no file of any kind, no transaction, no name."""
    reached: list[str] = []

    def look(plan: Callable[[], Plan]) -> Plan:
        before = tree(folder)
        faults.arm(reached.append)
        made = plan()
        faults.arm(None)
        assert reached == [], "no durable step is reached"
        assert tree(folder) == before
        return made

    yield look
    faults.arm(None)


def test_without_a_store_all_is_new_and_none_is_made(book: hf.Pipeline, folder: Path) -> None:
    define(Calls())(book)
    plan = book.plan([*rows(1, 2, 3), {"word": "no id"}, *rows(2)], key="id")
    assert planned(plan) == {("run", "new", "first"): 3, ("bury", "invalid", "first"): 1}
    assert (plan.is_new, plan.read, plan.forecast.learned_from) == (True, 5, None)
    assert plan.notes == ("1 item came more than once",)
    assert "are not known yet" in str(plan)
    assert list(folder.iterdir()) == []


def test_a_batch_that_is_not_there_needs_items(book: hf.Pipeline) -> None:
    define(Calls())(book)
    with pytest.raises(hf.UsageError, match="pass items to plan\\(\\)"):
        book.plan()


def test_every_reason_has_its_row(restart: Restart, unchanged: Any, folder: Path) -> None:
    calls = Calls()
    book = restart(define(calls, fail={3, 4}))
    run(book, rows(*range(8)), key="id")
    batch = lookup.batch_named(book.store, "book")
    operations.redrive(book.store, batch, BY, ["4"])
    operations.reset(book.store, batch, BY, "6", to_stage="first")
    (folder / "out" / "5.json").unlink()
    plan = unchanged(lambda: book.plan([*rows(*range(10)), {"id": None}], key="id"))
    assert planned(plan) == {
        ("run", "new", "first"): 2,
        ("run", "sent back", "first"): 1,
        ("run", "redriven", "second"): 1,
        ("rewind", "failed verification", "second"): 1,
        ("bury", "invalid", "first"): 1,
        ("skip", "dead", "second"): 1,
        ("skip", "done", ""): 5 - 1,
    }
    assert plan.counts == {"run": 4, "rewind": 1, "adopt": 0, "bury": 1, "skip": 5, "refuse": 0}
    assert {row.examples for row in plan.rows if row.reason == "redriven"} == {(4,)}


def test_the_run_does_what_was_planned(restart: Restart, unchanged: Any, folder: Path) -> None:
    calls = Calls()
    run(restart(define(calls)), rows(*range(6)), key="id")
    (folder / "out" / "2.json").write_text("{}")
    book = restart(define(calls))
    plan = unchanged(lambda: book.plan(rows(*range(8)), key="id"))
    calls.clear()
    report = run(book, rows(*range(8)), key="id")
    assert len(calls) == sum(each.items for each in plan.forecast.stages) == 2 * 2 + 1
    assert report.this_run.rewound == plan.count("rewind")
    assert report.this_run.admitted == plan.count("run", "new")


def test_quick_looks_at_files_and_full_at_all_of_it(restart: Restart, unchanged: Any, folder: Path) -> None:
    run(restart(define(Calls())), rows(*range(4)), key="id")
    target = folder / "out" / "1.json"
    info = target.stat()
    target.write_bytes(target.read_bytes().replace(b"10", b"11"))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    book = restart(define(Calls()))
    for level, bad in (("none", 0), ("quick", 0), ("full", 1)):
        plan = unchanged(lambda level=level: book.plan(rows(*range(4)), key="id", verify=level))
        assert plan.count("rewind") == bad, level


def test_an_output_that_waits_is_adopted(restart: Restart, unchanged: Any, folder: Path) -> None:
    class Torn(BaseException):
        pass

    def strike(point: str) -> None:
        if point == "sink.staged":
            raise Torn

    book = restart(define(Calls()))
    run(book, rows(1), key="id")
    faults.arm(strike)
    with pytest.raises(Torn):
        run(book, rows(1, 2), key="id")
    faults.arm(None)
    book.store.close()
    calls = Calls()
    book = restart(define(calls))
    plan = unchanged(lambda: book.plan(rows(1, 2), key="id"))
    assert planned(plan) == {("adopt", "its output waits", "second"): 1, ("skip", "done", ""): 1}
    assert sum(each.items for each in plan.forecast.stages) == 0
    run(book, rows(1, 2), key="id")
    assert not calls.seen


@pytest.mark.promise("A7")
def test_what_an_adopter_would_find_is_planned_as_adopted_by_a_full_look() -> None:
    store, asked = MemoryStore(clock=ManualClock()), Calls()
    book = hf.Pipeline("book", store=store)
    paid: dict[int, Any] = {1: "receipt 1", 2: 2, 4: "forged"}

    @book.stage(retry=hf.Retry(attempts=3, wait=("10s", "10s")))
    def pay(n: int) -> str:
        if n in (1, 2, 3, 4):
            raise hf.Transient("no answer")
        return f"receipt {n}"

    @pay.adopt
    def look_up(n: int, ctx: hf.Context) -> Any:
        asked(n)
        if n == 3:
            raise ConnectionError("closed")
        return paid.get(n)

    @pay.verify
    def is_receipt(out: str) -> bool:
        return out.startswith("receipt")

    assert [book.process(n).state for n in range(6)] == ["done", *["waiting"] * 4, "done"]
    (batch,) = store.batches()
    before = store.chunks(batch.id)
    assert (book.plan(range(7)).count("adopt"), asked.seen) == (0, []), "a quick look asks nobody"
    plan = book.plan(range(7), verify="full")
    assert planned(plan) == {
        ("adopt", "found by its adopter", "pay"): 1,
        ("run", "waiting", "pay"): 3,
        ("run", "new", "pay"): 1,
        ("skip", "done", ""): 2,
    }
    assert sorted(asked.seen) == [1, 2, 3, 4], "nothing is looked for that was never tried"
    assert [note for note in plan.notes if "item 3, stage 'pay'" in note and "its adopter gave no answer" in note]
    assert store.chunks(batch.id) == before


def test_an_output_without_its_final_name_is_fine_and_gets_none(restart: Restart, unchanged: Any, folder: Path) -> None:
    book = restart(define(Calls()))
    run(book, rows(1), key="id")
    store, batch = book.store, lookup.batch_named(book.store, "book")
    from holdfast.runtime.sinks.base import Evidence

    (output,) = store.outputs(batch.id, stage=1)
    assert output.file is not None
    evidence = Evidence.decode(output.file)
    (folder / evidence.final).rename(folder / evidence.staged)
    assert planned(unchanged(lambda: book.plan(rows(1), key="id"))) == {("skip", "done", ""): 1}
    assert not (folder / "out" / "1.json").exists()


def test_waiting_running_and_tried_before() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    book = hf.Pipeline("book", store=store)

    @book.stage(retry=hf.Retry(attempts=3, wait=("10s", "10s")))
    def only(n: int) -> int:
        if n == 1:
            raise hf.Transient("not now")
        return n

    assert [book.process(n).state for n in (1, 2)] == ["waiting", "done"]
    assert planned(book.plan([1, 2])) == {("run", "waiting", "only"): 1, ("skip", "done", ""): 1}
    clock.advance(60)
    assert planned(book.plan([1, 2]))["run", "to be tried again", "only"] == 1
    from holdfast.core.model import ClaimRequest

    (batch,) = store.batches()
    store.claim(ClaimRequest(batch=batch.id, owner="elsewhere", limit=9, seconds=30.0))
    assert planned(book.plan([1, 2]))["skip", "running elsewhere", "only"] == 1


@pytest.mark.parametrize("changed", ["refuse", "keep", "rerun"])
def test_another_payload_under_a_known_key(changed: Any, restart: Restart, unchanged: Any) -> None:
    run(restart(define(Calls())), rows(*range(5)), key="id")
    book = restart(define(Calls()))
    items = [*rows(0, 1, 2), *rows(3, 4, word="b"), *rows(4, word="b")]
    plan = unchanged(lambda: book.plan(items, key="id", changed=changed))
    assert (plan.count("refuse"), plan.count("run", "changed input"), plan.count("skip", "done")) == {
        "refuse": (2, 0, 3),
        "keep": (0, 0, 5),
        "rerun": (0, 2, 3),
    }[changed]
    assert bool(plan.obstacles) == (changed == "refuse")
    assert any("kept as stored" in note for note in plan.notes) == (changed == "keep")


def test_changed_code_is_told_with_what_it_affects(restart: Restart, unchanged: Any) -> None:
    run(restart(define(Calls(), fail={2})), rows(*range(5)), key="id")

    def other(book: hf.Pipeline) -> None:
        define(Calls())(book)

        @book.stage(sink=hf.Files("out/{key}.json"))
        def second(row: dict) -> dict:  # type: ignore[type-arg]
            return {"id": row["id"]}

    book = restart(other)
    told = unchanged(lambda: book.plan(rows(*range(5)), key="id"))
    assert told.count("skip") == 5
    assert any("4 items passed it" in note and 'on_code_change="rerun"' in note for note in told.notes)
    again = unchanged(lambda: book.plan(rows(*range(5)), key="id", on_code_change="rerun"))
    assert planned(again) == {("run", "changed code", "second"): 4, ("skip", "dead", "second"): 1}
    refused = unchanged(lambda: book.plan(rows(*range(5)), key="id", on_code_change="refuse"))
    assert "its code changed" in refused.obstacles[0]


def test_the_forecast_is_the_mean_of_the_attempts_so_far(restart: Restart) -> None:
    book = restart(define(Calls(), fail={1}))
    run(book, rows(*range(4)), key="id")
    plan = book.plan(rows(*range(14)), key="id", workers=2)
    first, second = plan.forecast.stages
    assert (first.items, second.items) == (10, 10)
    assert (first.usd, second.usd) == (0, Decimal("2.50"))
    took = book.report().metrics.stages
    assert second.seconds == pytest.approx(took[1].execution.mean * 10, rel=1e-3)
    assert plan.forecast.seconds == pytest.approx((first.seconds + second.seconds) / 2)  # type: ignore[operator]


def test_a_new_batch_learns_from_the_last_one(restart: Restart) -> None:
    book = restart(define(Calls()))
    run(book, rows(1, 2), key="id", batch="monday")
    plan = book.plan(rows(1, 2, 3, 4), key="id", batch="tuesday")
    assert (plan.forecast.learned_from, str(plan.forecast.usd)) == ("monday", "1.00")
    assert "as in batch monday" in str(plan)


def test_what_is_in_the_way_is_told(restart: Restart, unchanged: Any) -> None:
    book = restart(define(Calls()))
    run(book, rows(1), key="id")
    batch = lookup.batch_named(book.store, "book")
    book.store.seal(batch.id, actor="ann", reconciliation=b"")
    plan = unchanged(lambda: book.plan(rows(1), key="id"))
    assert "sealed" in plan.obstacles[0]
    assert plan.headline == "a run would be refused."


@pytest.mark.parametrize("to", [BatchMode.PAUSED, BatchMode.CANCELLED])
@pytest.mark.parametrize("word", ["a", "b"])
def test_a_run_that_would_do_nothing_is_not_called_refused(restart: Restart, to: BatchMode, word: str) -> None:
    book = restart(define(Calls()))
    run(book, rows(1), key="id")
    batch = lookup.batch_named(book.store, "book")
    book.store.amend(batch.id, to_steer(to, reason="wait"), actor="ann")
    plan = book.plan(rows(1, word=word), key="id")
    assert plan.headline == "a run would do nothing."
    assert "refused" not in str(plan)
    assert run(book, rows(1, word=word), key="id").this_run.done == 0


def test_what_could_not_be_verified_is_noted_as_the_run_does(restart: Restart, unchanged: Any, folder: Path) -> None:
    book = restart(define(Calls()))
    run(book, rows(1, 2), key="id")
    path = next(path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix == ".json")
    path.unlink()
    path.mkdir()
    plan = unchanged(lambda: book.plan(rows(1, 2), key="id"))
    assert plan.counts["skip"] == 2
    assert list(plan.notes) == [w for w in run(book, rows(1, 2), key="id").warnings if "could not be verified" in w]
    assert "a folder in its place" in plan.notes[0]


def test_an_end_that_has_come_is_in_the_way_of_what_is_left(restart: Restart, unchanged: Any) -> None:
    book = restart(define(Calls()))
    run(book, rows(1), key="id")
    batch = lookup.batch_named(book.store, "book")
    book.store.amend(batch.id, to_steer(batch.course, reason="run until", ends_at=book.store.now()), actor="ann")
    assert unchanged(lambda: book.plan(rows(1), key="id")).obstacles == ()
    plan = unchanged(lambda: book.plan(rows(1, 2), key="id"))
    assert "until=…" in plan.obstacles[0]
    assert plan.headline == "a run would do nothing."


def test_a_plan_reads_and_nothing_else(restart: Restart) -> None:
    """Every verb that writes is taken away."""
    book = restart(define(Calls(), fail={2}))
    run(book, rows(*range(4)), key="id")

    class ReadOnly:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, verb: str) -> Any:
            reads = {
                "now",
                "batch",
                "batches",
                "chunks",
                "items",
                "known",
                "outputs",
                "entries",
                "url",
                "close",
                "find",
            }
            assert verb in reads, f"a plan called {verb}"
            return getattr(self._store, verb)

    guarded = hf.Pipeline("book", store=ReadOnly(book.store))  # type: ignore[arg-type]
    define(Calls(), fail={2})(guarded)
    for code in (None, "keep", "rerun", "refuse"):
        for level in ("none", "quick", "full"):
            plan = guarded.plan(rows(*range(3, 9)), key="id", verify=level, on_code_change=code)  # type: ignore[arg-type]
            assert plan.count(PlannedFate.RUN, "new") == 5


@pytest.mark.slow
def test_memory_stays_flat(folder: Path) -> None:
    """Forty thousand items more, stored or new, cost next to nothing more."""
    script = """
import resource, sys
import holdfast as hf
book = hf.Pipeline("book", store="state.db")
@book.stage
def only(n: int) -> int:
    return n
count = int(sys.argv[1])
book.run(range(count), progress=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
plan = book.plan(range(2 * count), verify="full")
assert plan.counts["run"] == plan.counts["skip"] == count, plan.counts
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    (folder / "app.py").write_text(script)
    grown = []
    for count in (20_000, 60_000):
        (folder / "state.db").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "app.py", str(count)], cwd=folder, capture_output=True, text=True, check=True
        )
        grown.append(int(done.stdout))
        for left in folder.glob("state.db*"):
            left.unlink()
    assert grown[1] < grown[0] + 30_000, grown


def test_a_plan_says_that_so_much_would_not_be_undone_unasked(restart: Restart) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage(sink=hf.Files("out/{key}.txt"))
        def page(n: int) -> str:
            return str(n)

    book = restart(define)
    run(book, range(120))
    for n in range(120):
        Path(f"out/{n}.txt").unlink()
    plan = book.plan(range(120))
    assert "120 of 120 recorded items" in plan.obstacles[0]
    allowed = book.plan(range(120), undo="100%")
    assert not allowed.obstacles
    assert allowed.count("rewind") == 120
    with pytest.raises(hf.UndoRefused, match="120 of 120 recorded items"):
        run(book, range(120))
