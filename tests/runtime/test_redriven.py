"""Rows that were buried and redriven: ticks take them, tell what became of them, and show them a fence that grows."""

import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.course import to_steer
from holdfast.core.model import BatchMode, State
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.report import why
from holdfast.runtime.scan.redrive import REFRESH_SECONDS, Redriving
from holdfast.runtime.scan.tick import Ended
from holdfast.stores.base import Store
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import Rows
from tests.runtime.support import SOON, App, wait_for, walk_of
from tests.runtime.test_following import PROGRAM, Counting

BY = Actor(name="ann", reason="it was corrected")


@pytest.fixture(params=["memory", "sqlite", "bucket"])
def store(request: pytest.FixtureRequest, folder: Path) -> Store:
    made: dict[str, Callable[[], Any]] = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(folder / "state.db"),
        "bucket": lambda: BucketStore(MemoryBucket()),
    }
    there: Store = made[request.param]()
    return there


class Ledger:
    """What a user keeps outside: it refuses whoever comes with a smaller fence than it has seen, as is documented."""

    def __init__(self) -> None:
        self.fences: list[tuple[int, tuple[Any, ...]]] = []

    def book(self, rows: list[Any], fence: int) -> None:
        if fence < max((seen for seen, _ in self.fences), default=0):
            raise hf.Transient("another poller took over")
        self.fences.append((fence, tuple(rows)))

    def fence_of(self, row: Any) -> int:
        (fence,) = [fence for fence, rows in self.fences if row in rows]
        return fence


def scan_of(rows: list[Any], store: Any, ledger: Ledger | None = None, **options: Any) -> hf.Scan:
    scan = walk_of("orders", Rows(rows, page=4), store=store, isolate=True,
                   **{"follow": True, "every": 3, "retry": SOON, **options})  # fmt: skip

    @scan.handler
    def keep(some: list[Any], acc: int, ctx: hf.Context) -> int:
        if "poison" in some:
            raise hf.Permanent("poison")
        if "away" in some:
            raise hf.Transient("the other side is away")
        if ledger is not None:
            ledger.book(some, ctx.fence)
        return acc + len(some)

    return scan


def send_again(scan: hf.Scan) -> None:
    store = scan.pipeline.store
    assert redrive(store, store.batches()[0], BY)


@pytest.mark.promise("C2", "C11")
def test_a_redriven_row_is_shown_a_higher_fence_than_its_range_had_and_the_range_a_higher_one_later(
    store: Store,
) -> None:
    rows: list[Any] = [0, 1]
    ledger = Ledger()
    scan = scan_of(rows, store, ledger)

    def tick() -> hf.Tick:
        """As cron does it: by a process that knows nothing."""
        return scan_of(rows, store, ledger).tick()

    tick()
    rows += [2, "poison", 4]
    assert tick().dead == 1
    rows += [5]
    tick()
    before = max(fence for fence, _ in ledger.fences)
    rows[3] = "mended"
    send_again(scan)
    told = tick()
    assert (told.redriven, told.dead, told.waiting, told.exit_code) == (1, 0, 0, 0), told
    assert ledger.fence_of("mended") > before == 3
    rows += [6]
    tick()
    assert ledger.fence_of(6) > ledger.fence_of("mended")
    rows += ["poison", 8]
    assert tick().dead == 1
    rows[7] = "mended too"
    send_again(scan)
    rows += [9]
    told = tick()  # with new rows: under the one grant of the tick
    assert (told.ended, told.rows, told.redriven) == (Ended.CAUGHT_UP, 1, 1)
    assert ledger.fence_of("mended too") == ledger.fence_of(9)
    assert [fence for fence, _ in ledger.fences] == sorted(fence for fence, _ in ledger.fences)
    assert all(chunk.owner is None for chunk in store.chunks(store.batches()[0].id))


@pytest.mark.promise("C2", "C11")
def test_a_redriven_row_of_a_scan_that_ends_is_shown_no_lower_fence_than_its_range_had(store: Store) -> None:
    rows: list[Any] = [0, 1, "poison", 3]
    ledger = Ledger()
    scan = scan_of(rows, store, ledger, follow=False)
    right, rows[:] = list(rows), ["away"] * 4
    for _ in range(3):  # all of them, so no row is to blame: each time its range stops, and is granted again
        assert scan.run(progress=False).counts.dead == 1
        send_again(scan)
    rows[:] = right
    assert scan.run(progress=False).counts.dead == 1
    granted = ledger.fence_of(0)
    assert granted == 4
    rows[2] = "mended"
    send_again(scan)
    assert scan.run(progress=False).counts.dead == 0
    assert ledger.fence_of("mended") >= granted


@pytest.mark.promise("C11")
def test_a_redriven_row_on_a_quiet_table_is_taken_by_the_next_tick_of_any_process(store: Store) -> None:
    rows: list[Any] = [0, "poison", 2]
    scan = scan_of(rows, store)
    scan.tick()
    assert (scan.tick().ended, scan.tick().exit_code) == (Ended.NOTHING_NEW, 0)
    rows[1] = 1
    send_again(scan)
    told = scan_of(rows, store).tick()
    assert (told.ended, told.rows, told.redriven, told.exit_code) == (Ended.NOTHING_NEW, 0, 1, 0)
    assert "1 redriven" in str(told)
    assert told.as_dict()["redriven"] == 1
    assert scan.report().counts.dead == 0
    assert scan.report().parts == (2, 1)


def test_a_scan_that_stays_takes_redriven_rows_on_a_quiet_table(folder: Path) -> None:
    rows: list[Any] = [0, "poison", 2]
    scan = scan_of(rows, SqliteStore(folder / "state.db"))
    shown: list[hf.Tick] = []

    def show(tick: hf.Tick) -> None:
        shown.append(tick)
        if tick.dead:
            rows[1] = 1
            send_again(scan)

    told = scan.run(poll="1ms", deadline="2s", progress=show)
    assert [(each.rows, each.dead, each.redriven) for each in shown] == [(3, 1, 0), (0, 0, 1)]
    assert (told.rows, told.dead, told.redriven) == (3, 1, 1)
    assert (told.ended, told.exit_code) == (Ended.TIME_UP, 1)  # a row was buried: that is told before all else


def test_a_redriven_row_that_fails_is_told_and_left_to_do_until_it_is_buried_again(store: Store) -> None:
    rows: list[Any] = [0, "poison", 2]
    scan = scan_of(rows, store)
    scan.tick()
    rows[1] = "away"
    send_again(scan)
    told = scan.tick()
    assert (told.ended, told.redriven, told.waiting, told.dead, told.exit_code) == (Ended.WAITING, 0, 1, 0, 75)
    assert "row 2: transient: the other side is away" in told.why
    assert "1 redriven and not handled yet" in str(told)
    assert told.due is not None
    while told.ended is Ended.WAITING:
        due = told.due
        wait_for(lambda due=due: time.time() >= due)
        told = scan.tick()
    assert (told.ended, told.redriven, told.dead, told.exit_code) == (Ended.NOTHING_NEW, 0, 1, 1)
    assert "the other side is away" in told.why
    assert "1 buried" in str(told)
    assert (scan.tick().exit_code, scan.report().counts.dead) == (0, 1)


def test_before_its_next_attempt_is_due_a_redriven_row_is_told_as_waiting(folder: Path) -> None:
    rows: list[Any] = ["poison"]
    scan = scan_of(rows, SqliteStore(folder / "state.db"), retry=hf.Retry(attempts=3, wait=("10m", "10m")))
    scan.tick()
    rows[0] = "away"
    send_again(scan)
    assert scan.tick().waiting == 1
    later = scan.tick()
    assert (later.ended, later.waiting, later.exit_code) == (Ended.WAITING, 1, 75)
    assert later.due is not None
    assert later.due > time.time() + 60
    assert scan.redriven() == 0


def test_redriven_counts_what_was_handled_and_nothing_else(store: Store) -> None:
    rows: list[Any] = ["poison", "poison", "poison"]
    scan = scan_of(rows, store)
    assert scan.tick().dead == 3
    rows[0] = 0
    rows[1] = "away"
    send_again(scan)
    assert scan.redriven() == 1
    counts = scan.report().counts
    assert (counts.done, counts.dead, counts.pending) == (1, 1, 2)  # the range itself is pending for ever


def test_where_no_row_was_ever_buried_a_tick_with_nothing_new_is_one_read_else_two(folder: Path) -> None:
    counting = Counting(SqliteStore(folder / "state.db"))
    rows: list[Any] = [0, 1]
    scan = scan_of(rows, counting)
    scan.tick()
    counting.calls.clear()
    scan.tick()
    assert counting.calls == ["checkpoints"]
    rows += ["poison"]
    scan.tick()
    counting.calls.clear()
    scan.tick()
    assert counting.calls == ["checkpoints", "chunks"]


def test_rows_that_another_process_buried_are_found_after_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = [0]
    mine, other = (scan_of(rows, SqliteStore(folder / "state.db")) for _ in range(2))
    mine.tick()
    rows += ["poison"]
    other.tick()
    rows[1] = 1
    send_again(other)
    assert mine.tick().redriven == 0  # it was not told that there are such rows
    began = time.monotonic()
    monkeypatch.setattr("holdfast.runtime.scan.redrive.time.monotonic", lambda: began + 2 * REFRESH_SECONDS)
    assert mine.tick().redriven == 1


def test_in_a_bucket_a_process_that_stays_looks_for_redriven_rows_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counting = Counting(BucketStore(MemoryBucket()))  # type: ignore[arg-type]
    rows: list[Any] = [0, "poison"]
    scan = scan_of(rows, counting)
    scan.tick()
    assert scan.tick().ended is Ended.NOTHING_NEW
    assert "chunks" in counting.calls
    rows[1] = 1
    send_again(scan)
    counting.calls.clear()
    assert scan.tick().redriven == 0
    assert counting.calls == ["checkpoints"]
    monkeypatch.setattr(Redriving, "_is_worth_it", lambda _: True)
    assert scan.tick().redriven == 1


def test_what_stands_still_says_so_and_leaves_redriven_rows_alone(folder: Path) -> None:
    rows: list[Any] = [0, "poison"]
    store = SqliteStore(folder / "state.db")
    scan = scan_of(rows, store)
    scan.tick()
    rows[1] = 1
    send_again(scan)
    store.amend(store.batches()[0].id, to_steer(BatchMode.PAUSED, reason="maintenance"), actor="ann")
    told = scan.tick()
    assert (told.ended, told.exit_code, told.redriven) == (Ended.WAITING, 75, 0)
    assert "holdfast unpause orders" in told.why


@pytest.mark.slow
@pytest.mark.promise("A15", "B7")
def test_a_redriven_row_that_kills_its_process_is_buried_again_and_no_other_row_is_to_blame(folder: Path) -> None:
    (folder / "lines").write_text("a b kill d")
    program = App(folder, PROGRAM)

    def until_it_lives() -> tuple[int, list[str]]:
        for _ in range(20):
            done = program.run("isolate")
            if done.returncode != -signal.SIGKILL:
                return done.returncode, done.stdout.split()[-3:]
        raise AssertionError("it is killed for ever")

    assert until_it_lives()[0] == 1
    store = SqliteStore(folder / "state.db")
    batch = store.batches()[0]
    assert redrive(store, batch, BY)
    store.close()
    code, told = until_it_lives()
    assert (code, told[-1]) == (1, "1")
    (folder / "lines").write_text("a b kill d x y")
    assert until_it_lives() == (0, ["2", "6", "0"])


@pytest.mark.slow
def test_a_redriven_row_runs_in_a_process_where_that_was_asked_for(folder: Path) -> None:
    program = App(folder, """
        import os, pathlib
        import holdfast as hf
        from holdfast.testing.rows import Rows

        scan = hf.Follow("orders", Rows([0, 1, 2]), store="state.db", isolate=True,
                       retry=hf.Retry(attempts=1))

        @scan.handler(executor="processes")
        def keep(rows, acc: int, ctx: hf.Context) -> int:
            if 1 in rows and not os.path.exists("mended"):
                raise hf.Permanent("poison")
            if 1 in rows:
                pathlib.Path("told").write_text(f"{os.getpid()} {ctx.fence}")
            return acc + len(rows)

        if __name__ == "__main__":
            print(os.getpid(), scan.tick())
    """)  # fmt: skip
    assert "1 buried" in program.run().stdout
    (folder / "mended").touch()
    store = SqliteStore(folder / "state.db")
    assert redrive(store, store.batches()[0], BY)
    store.close()
    done = program.run()
    assert "1 redriven" in done.stdout, done
    process, fence = (folder / "told").read_text().split()
    assert process != done.stdout.split()[0]
    assert fence == "2"


@pytest.mark.parametrize("follow", [True, False], ids=["follows", "ends"])
def test_without_converge_the_result_is_that_of_the_only_part_and_of_several_there_is_none(
    folder: Path, follow: bool
) -> None:
    rows: list[Any] = [0, "poison", 2]
    scan = scan_of(rows, SqliteStore(folder / "state.db"), follow=follow)

    def go() -> Any:
        return scan.tick() if follow else scan.run(progress=False)

    go()
    assert (scan.report().parts, scan.report().result) == ((2,), 2)
    rows[1] = 1
    send_again(scan)
    go()
    assert (scan.report().parts, scan.report().result, scan.report().are_apart) == ((2, 1), None, True)
    scan.converge(sum)
    go()
    assert (scan.report().result, scan.report().are_apart) == (3, False)


def test_the_report_of_what_follows_says_so(folder: Path) -> None:
    scan = scan_of([0, "poison", 2], SqliteStore(folder / "state.db"))
    scan.tick()
    report = scan.report()
    assert report.state == "following"
    assert report.why == "3 rows behind its checkpoint. 1 dead letter: see `holdfast dead list orders`."
    send_again(scan)
    assert "1 redriven row not handled yet" in scan.report().why
    assert str(scan.report()).startswith("orders: following.")


@pytest.mark.parametrize("follow", [True, False], ids=["follows", "ends"])
def test_the_row_is_read_again_so_one_that_was_corrected_is_and_one_that_moved_comes_with_the_scan(
    folder: Path, follow: bool
) -> None:
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, total INTEGER)")
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(1, 1, 1), (2, 2, -1), (3, 3, -1), (4, 4, 4)])
    table = hf.Table(f"sqlite:///{folder}/shop.db", "orders", cursor="at", key="id", unsafe_cursor=True)
    scan = (hf.Follow if follow else hf.Scan)("orders", table, store=folder / "state.db", isolate=True, retry=SOON)

    @scan.handler
    def add(rows: list[dict[str, Any]], acc: int) -> int:
        if any(row["total"] < 0 for row in rows):
            raise hf.Permanent("negative")
        return acc + sum(row["total"] for row in rows)

    def go() -> Any:
        return scan.tick() if follow else scan.run(progress=False)

    go()
    assert scan.report().counts.dead == 2
    with shop:
        shop.execute("UPDATE orders SET total = 20 WHERE id = 2")
        shop.execute("UPDATE orders SET total = 30, at = 9 WHERE id = 3")
    shop.close()
    send_again(scan)
    told = go()
    assert scan.report().parts == ((35, 20) if follow else (5, 20))
    assert scan.report().counts.dead == 0
    if follow:
        assert (told.rows, told.redriven, told.waiting, told.exit_code) == (1, 1, 0, 0)
        assert "row 3/3: it is not in the source any more" in told.why


class Deleting(Rows):
    """A table whose rows may be deleted: single ones are not there any more."""

    deleted = False

    def read(self, after: Any, until: Any) -> Any:
        if self.deleted and after is not None and until is not None and until.value - after.value == 1:
            return iter(())
        return super().read(after, until)


@pytest.mark.promise("C2")
@pytest.mark.parametrize("follow", [False, True])
def test_a_redriven_row_that_is_not_in_the_source_any_more_is_skipped_with_that_reason(
    folder: Path, follow: bool
) -> None:
    source = Deleting([0, "poison", 2, "poison", 4], page=4)
    scan = (hf.Follow if follow else hf.Scan)("orders", source, store=folder / "state.db", isolate=True, every=3)
    called: list[Any] = []

    @scan.handler
    def keep(some: list[Any]) -> None:
        called.append(some)
        if "poison" in some:
            raise hf.Permanent("poison")

    scan.tick() if follow else scan.run(progress=False)
    source.deleted = True
    send_again(scan)
    called.clear()
    if follow:
        told = scan.tick()
        assert (told.redriven, told.dead, told.waiting) == (0, 0, 0)
        assert "row 2, row 4: it is not in the source any more" in told.why
    else:
        assert scan.run(progress=False).exit_code == 0
    assert not called
    store = scan.pipeline.store
    places = {item.key: item.place for item in store.items(store.batches()[0].id)}
    for key in ("row 2", "row 4"):
        assert places[key].state is State.SKIPPED
        assert "it is not in the source any more" in places[key].reason
    assert "skipped" in why.tell(store, store.batches()[0], "row 2").now
    assert scan.report().parts == (None,), "no part came of them"
