"""Scans that follow their source: ticks, poison rows, killed ticks, and what is seen twice."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import journal, sections
from holdfast.core.model import Act, Change, Claim, chain_of_batch
from holdfast.core.settle import NOTHING
from holdfast.core.states import Transition, move
from holdfast.runtime.acts import Actor
from holdfast.runtime.define.definition import Patience
from holdfast.runtime.engine.driver import LoneHold
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.scan.follow import Follower
from holdfast.runtime.scan.redrive import FIRST, Redriving
from holdfast.runtime.scan.tick import Ended
from holdfast.stores.base import Store, each_entry
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.rows import Rows
from tests.forkserver import Process
from tests.runtime.support import SOON, App, stop_between_two_writes, wait_for, walk_of


class Counting:
    """A store that counts which verbs it was asked for."""

    def __init__(self, store: Store) -> None:
        self._store, self.calls = store, []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name == "now":
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return found(*args, **kwargs)

        return call


@pytest.fixture
def store(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "state.db")


def follow(rows: list[Any], store: Any, **options: Any) -> tuple[hf.Scan, list[Any]]:
    """A scan that counts rows; what its handler was given. A row "poison" cannot be handled."""
    scan = hf.Follow("orders", Rows(rows, page=4), store=store,
                   **{"every": 3, "retry": SOON, **options})  # fmt: skip
    given: list[Any] = []

    @scan.handler
    def keep(some: list[Any], acc: dict[str, int]) -> dict[str, int]:
        given.extend(some)
        for row in some:
            acc[str(row)] = acc.get(str(row), 0) + 1
            if row == "poison":
                raise ValueError("this row cannot be handled")
            if row == "away":
                raise hf.Transient("the other side is away")
        return acc

    return scan, given


def when_due(scan: hf.Scan, before: hf.Tick) -> hf.Tick:
    wait_for(lambda: before.due is None or time.time() >= before.due)
    return scan.tick()


class Away(Rows):
    """A source that does not answer for some looks, and is stopped a while later."""

    looks = 0
    away = range(2, 6)

    def read(self, after: Any, until: Any) -> Any:
        self.looks += 1
        if self.looks == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.looks in self.away:
            raise hf.Transient("the database did not answer: server has gone away", code="source_unavailable")
        return super().read(after, until)


def test_an_outage_is_one_line_and_one_when_it_is_over(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    source = Away(range(3), page=4)
    scan = hf.Follow("orders", source, store=store)
    scan.handler(lambda rows: None)

    told: list[hf.Tick] = []
    scan.run(poll="1ms", progress=told.append, signals="report")
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.follow"]
    assert len(lines) == 2, lines
    assert "did not answer" in lines[0]
    assert "it is back after" in lines[1]
    assert [tick.ended for tick in told] == [Ended.CAUGHT_UP, Ended.FAILED, Ended.NOTHING_NEW]


def test_a_tick_handles_what_is_new_and_only_that(store: SqliteStore) -> None:
    rows: list[Any] = list(range(10))
    scan, given = follow(rows, store)
    first = scan.tick()
    assert (first.ended, first.rows, first.total, first.exit_code) == (Ended.CAUGHT_UP, 10, 10, 0)
    rows += [10, 11]
    second = scan.tick()
    assert (second.rows, second.total, second.again) == (2, 12, False)
    assert given == list(range(12))
    report = scan.report()
    assert report.result == {str(n): 1 for n in range(12)}
    assert report.rows == 12


@pytest.mark.promise("B2")
def test_a_tick_costs_a_claim_a_write_a_checkpoint_and_the_last_one_gives_the_lease_back(store: SqliteStore) -> None:
    counting = Counting(store)
    scan, _ = follow(list(range(10)), counting)
    scan.tick()
    assert counting.calls.count("commit") == 4  # after 3, 6 and 9 rows, and at the end
    assert counting.calls.count("claim") == 1
    assert all(chunk.owner is None for chunk in store.chunks(store.batches()[0].id))


def test_a_tick_with_nothing_new_costs_one_read_and_writes_nothing(store: SqliteStore) -> None:
    counting = Counting(store)
    scan, given = follow([1, 2, 3], counting)
    scan.tick()
    counting.calls.clear()
    told = scan.tick()
    assert told.ended is Ended.NOTHING_NEW
    assert counting.calls == ["checkpoints"]
    again, _ = follow([1, 2, 3], counting)  # another process: it has to find the batch first
    counting.calls.clear()
    assert again.tick().ended is Ended.NOTHING_NEW
    assert counting.calls == ["batches", "checkpoints"]
    assert given == [1, 2, 3]


@pytest.mark.promise("C1", "C8")
def test_two_ticks_at_once_do_not_share_rows(store: SqliteStore, folder: Path) -> None:
    rows: list[Any] = [1, 2, 3]
    scan, given = follow(rows, store)
    inside, go_on = threading.Event(), threading.Event()

    @scan.handler
    def slow(some: list[Any]) -> None:
        inside.set()
        assert go_on.wait(20)
        given.extend(some)

    thread = threading.Thread(target=scan.tick)
    thread.start()
    assert inside.wait(20)
    other, others = follow(rows, SqliteStore(folder / "state.db"))
    assert other.tick().ended is Ended.HELD
    go_on.set()
    thread.join()
    assert (given, others) == ([1, 2, 3], [])


@pytest.mark.promise("C9")
def test_without_isolation_the_scan_stops_at_the_row_tries_again_and_then_says_so(store: SqliteStore) -> None:
    rows: list[Any] = [0, 1, 2, 3, "away", 5]
    scan, given = follow(rows, store)
    first = scan.tick()
    assert (first.ended, first.rows, first.exit_code) == (Ended.WAITING, 3, 75)
    told = first
    while told.ended is not Ended.DEAD:
        told = when_due(scan, told)
    assert given.count("away") == 3
    assert told.exit_code == 1
    assert "away" in told.why
    assert scan.tick().ended is Ended.DEAD  # it stays so until a person acts
    rows[4] = 4
    redrive(store, store.batches()[0], Actor(name="ann", reason="it is back"), ["follow"])
    assert scan.tick().total == 6
    assert scan.report().result == {str(n): 1 for n in range(6)}


@pytest.mark.promise("C11")
def test_a_poison_row_is_found_buried_and_passed_and_leaves_nothing_in_the_accumulator(store: SqliteStore) -> None:
    rows: list[Any] = [0, 1, 2, "poison", 4, 5, 6, 7]
    scan, given = follow(rows, store, every=8, isolate=True)
    told = scan.tick()
    assert (told.ended, told.rows, told.dead, told.exit_code) == (Ended.CAUGHT_UP, 8, 1, 1)
    assert scan.report().result == {str(n): 1 for n in range(8) if n != 3}
    assert given.count("poison") == 4  # of eight, of four, of two, alone
    assert given.count(2) == 4  # what stood with it came as often
    assert given.count(7) == 2  # in the group of eight, and in the half that holds
    (letter,) = scan.report().dead
    assert (letter.key, letter.code) == ("row 4", "ValueError")
    item = store.items(store.batches()[0].id, lo=letter.number)[0]
    for part in (b'"row":"poison"', b'"value":3', b'"value":4', b'"rows":1'):  # with its row, cursor and checkpoint
        assert part in item.payload
    assert scan.tick().exit_code == 0
    rows[3] = "mended"
    redrive(store, store.batches()[0], Actor(name="ann", reason="mended"), [str(letter.key)])
    assert scan.redriven() == 1
    report = scan.report()
    assert report.parts[1:] == ({"mended": 1},)
    assert given.count("mended") == 1
    assert report.counts.dead == 0


def test_those_who_listen_hear_of_buried_rows(store: SqliteStore) -> None:
    heard: list[Any] = []
    scan, _ = follow([1, "poison", 3], store, isolate=True, events=heard.append)
    scan.tick()
    assert [event["data"]["key"] for event in heard if event["type"].endswith("item.dead")] == ["row 2"], heard


def test_several_poison_rows_and_a_group_of_nothing_else(store: SqliteStore) -> None:
    rows: list[Any] = ["poison", "poison", "poison", 3, "poison", 5, "poison"]
    scan, _ = follow(rows, store, isolate=True)
    told = scan.tick()
    assert (told.rows, told.dead) == (7, 5)
    assert scan.report().result == {"3": 1, "5": 1}


async def _nothing() -> None:
    return None


def test_rows_of_a_coroutine_are_isolated_too(store: SqliteStore) -> None:
    scan, _ = follow([1, "poison", 3], store, isolate=True)

    @scan.handler
    async def keep(some: list[Any], acc: list[Any]) -> list[Any]:
        await _nothing()
        if "poison" in some:
            raise ValueError("no")
        return [*acc, *some]

    assert scan.tick().dead == 1
    assert scan.report().result == [1, 3]


def test_when_the_other_side_is_away_no_row_is_to_blame(store: SqliteStore) -> None:
    scan, _ = follow(["away", "away", "away"], store, isolate=True)
    told = scan.tick()
    while told.ended is Ended.WAITING:
        told = when_due(scan, told)
    assert told.ended is Ended.DEAD
    assert scan.report().counts.dead == 1  # the scan, not its rows
    assert told.total == 0


def test_a_row_that_fails_for_now_is_tried_by_the_policy_before_it_is_buried(store: SqliteStore) -> None:
    scan, given = follow([1, "away", 3], store, isolate=True)
    told = scan.tick()
    assert (told.ended, told.dead) == (Ended.WAITING, 0)
    while told.ended is Ended.WAITING:
        told = when_due(scan, told)
    assert (told.ended, told.dead, told.rows) == (Ended.CAUGHT_UP, 1, 3)
    assert given.count("away") == 2 + 3  # twice in its group, and on the last attempt down to the row alone


class Dying(Counting):
    """A store that is gone once, right after rows were buried."""

    buried = died = False

    def add_items(self, *args: Any, **kwargs: Any) -> Any:
        made = self._store.add_items(*args, **kwargs)
        self.buried = self.buried or bool(made.dead)
        return made

    def commit(self, commits: Any) -> Any:
        if self.buried and not self.died:
            self.died = True
            raise hf.StoreUnavailable("gone")
        return self._store.commit(commits)


@pytest.mark.promise("B7")
def test_a_row_that_was_buried_before_a_crash_is_not_handled_again(store: SqliteStore) -> None:
    rows: list[Any] = [0, "poison", 2]
    scan, given = follow(rows, Dying(store), isolate=True)
    with pytest.raises(hf.StoreUnavailable):
        scan.tick()
    wait_for(lambda: all(thread.name != "holdfast-beside" for thread in threading.enumerate()))
    assert scan.report().counts.dead == 1
    given.clear()
    again, later = follow(rows, store, isolate=True)
    wait_for(lambda: again.tick().ended is Ended.CAUGHT_UP)
    assert later == [0, 2]
    assert again.report().counts.dead == 1
    assert again.report().result == {"0": 1, "2": 1}


def test_a_generator_follows_with_its_own_checkpoints(store: SqliteStore) -> None:
    rows = [1, 2, 3]
    scan = hf.Follow("orders", Rows(rows), store=store)

    @scan.handler
    def total(part: Any) -> Any:
        acc = 0 if part.acc is None else part.acc
        for row in part:
            acc += row
            yield acc

    scan.tick()
    rows += [4]
    assert scan.tick().rows == 1
    assert scan.report().result == 10


@pytest.mark.promise("C14", "C16")
def test_a_changed_source_is_refused_with_the_difference_until_somebody_says_why(store: SqliteStore) -> None:
    class Named(Rows):
        table = "orders"

        def describe(self) -> dict[str, Any]:
            return {"kind": "rows", "table": self.table, "cursor": "updated_at"}

    def scan_of(table: str, **options: Any) -> hf.Scan:
        source = Named([1, 2, 3])
        source.table = table
        scan = walk_of("orders", source, store=store, **options)

        @scan.handler
        def count(rows: list[Any], acc: int) -> int:
            return acc + len(rows)

        return scan

    scan_of("orders", follow=True).tick()
    with pytest.raises(hf.FingerprintChanged, match=r'table: "orders" became "invoices".*accept_source='):
        scan_of("invoices", follow=True).tick()
    scan_of("invoices", follow=True).tick(accept_source="it was renamed")
    assert scan_of("invoices", follow=True).tick().total == 3
    entries = [
        sections.decode(entry)
        for entry in each_entry(store, chain_of_batch(store.batches()[0].id))
        if journal.decode_header(entry.head).kind == "source_accepted"
    ]
    assert [each.reason for each in entries if isinstance(each, journal.Acted)] == [
        'it was renamed (table: "orders" became "invoices")'
    ]
    scan_of("a").run("bounded", progress=False)
    with pytest.raises(hf.FingerprintChanged, match="under another batch name"):
        scan_of("b").run("bounded", progress=False)
    scan_of("b").run("backfill", progress=False)  # under its own name it is another scan


def test_what_makes_no_sense_is_refused(store: SqliteStore) -> None:
    scan, _ = follow([], store)
    with pytest.raises(TypeError, match="poll"):
        scan.run()
    with pytest.raises(hf.UsageError, match="no handler"):
        hf.Follow("x", Rows([])).tick()
    with pytest.raises(hf.UsageError, match="lease"):
        scan.tick(lease="1ms")


def test_a_run_that_would_end_it_is_refused_and_nothing_to_do_is_no_orphan(store: SqliteStore) -> None:
    scan, given = follow([1], store)
    scan.tick()
    with pytest.raises(hf.UsageError, match="follows its source"):
        scan.pipeline.run(None, "orders", progress=False)
    assert scan.tick().ended is Ended.NOTHING_NEW
    assert given == [1]
    assert Patience.of(store.batches()[0]).orphan_after > 86_400 * 365


def test_a_tick_ends_in_time_at_a_checkpoint(store: SqliteStore) -> None:
    scan = hf.Follow("orders", Rows(list(range(1000))), store=store, every=1)

    @scan.handler
    def slow(rows: list[Any], acc: int) -> int:
        time.sleep(0.01)
        return acc + len(rows)

    began = time.monotonic()
    told = scan.tick(deadline="300ms")
    assert time.monotonic() - began < 5
    assert (told.ended, told.again, told.exit_code) == (Ended.TIME_UP, True, 75)
    assert 0 < told.rows < 1000
    assert scan.report().result == told.total


def test_a_handler_that_does_not_end_is_left_at_the_deadline_and_commits_nothing(store: SqliteStore) -> None:
    scan = hf.Follow("orders", Rows([1, 2, 3]), store=store)
    hangs = threading.Event()

    @scan.handler
    def hang(rows: list[Any]) -> None:
        if not hangs.is_set():
            hangs.set()
            time.sleep(0.6)

    told = scan.tick(deadline="200ms")
    assert (told.ended, told.rows) == (Ended.TIME_UP, 0)
    assert scan.tick().rows == 3
    assert scan.tick().total == 3


PROGRAM = """
    import os, sys, time, pathlib
    import holdfast as hf

    class Lines:
        def describe(self): return {"kind": "lines"}
        def split(self, parts): raise NotImplementedError
        def read(self, after, until):
            at = 0 if after is None else after.value
            lines = pathlib.Path("lines").read_text().split()
            while at < len(lines):
                yield Page(lines[at:at + 5], at)
                at += 5

    class Page:
        def __init__(self, rows, first): self.rows, self.first = rows, first
        def after(self, count):
            from holdfast.core.cursor import Cursor
            return Cursor("row", self.first + count)

    scan = hf.Follow("orders", Lines(), store="state.db", every=2, isolate="isolate" in sys.argv)

    @scan.handler
    def keep(rows, acc: int) -> int:
        for row in rows:
            with open("seen", "a") as file: file.write(row + "\\n")
            if row == "kill": os.kill(os.getpid(), 9)
            if row == "once" and not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), 9)
            if row == "wait":
                open("waiting", "w").close()
                while not os.path.exists("go"): time.sleep(0.01)
        return acc + len(rows)

    if __name__ == "__main__":
        if "stay" in sys.argv:
            told = scan.run(poll="50ms", lease="1s")
        else:
            told = scan.tick(lease="1s")
        print(told.ended, told.rows, told.total, told.dead)
        sys.exit(told.exit_code)
"""


@pytest.fixture
def app(folder: Path) -> Callable[[str], App]:
    def make(lines: str) -> App:
        (folder / "lines").write_text(lines)
        return App(folder, PROGRAM)

    return make


def seen(folder: Path) -> list[str]:
    return (folder / "seen").read_text().split()


@pytest.mark.promise("B1", "B6", "C10")
def test_a_killed_tick_repeats_no_more_than_one_interval(app: Callable[[str], App], folder: Path) -> None:
    program = app("a b c once e f")
    assert program.run().returncode == -signal.SIGKILL
    done = program.run()
    assert done.stdout.split()[-3:] == ["4", "6", "0"], done.stderr
    assert seen(folder) == ["a", "b", "c", "once", "c", "once", "e", "f"]


@pytest.mark.slow
@pytest.mark.promise("B7")
def test_a_row_that_kills_its_process_is_buried_where_rows_are_isolated(
    app: Callable[[str], App], folder: Path
) -> None:
    program = app("a b c d e kill g h")
    deaths = 0
    while (done := program.run("isolate")).returncode == -signal.SIGKILL:
        deaths += 1
        assert deaths < 20
    assert done.returncode == 1, done.stderr
    assert done.stdout.split()[-2:] == ["8", "1"]
    assert seen(folder)[-2:] == ["g", "h"]
    assert 3 <= seen(folder).count("kill") <= 12
    (letter,) = hf.Scan("orders", Rows([]), store=folder / "state.db").pipeline.store.items(1, lo=1)
    assert (letter.key, letter.place.code) == ("row 6", "killed_process")


@pytest.mark.slow
@pytest.mark.promise("A15")
def test_killed_ticks_never_condemn_a_scan(app: Callable[[str], App], folder: Path) -> None:
    program = app("a b kill d")
    for _ in range(7):
        assert program.run().returncode == -signal.SIGKILL
    (folder / "lines").write_text("a b mended d")
    done = program.run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["4", "0"]


@pytest.mark.slow
def test_a_scan_that_stays_drains_to_the_next_checkpoint_when_it_is_told_to_end(
    app: Callable[[str], App], folder: Path
) -> None:
    program = app("a b wait d e f")
    process = program.start("stay")
    wait_for((folder / "waiting").exists)
    process.send_signal(signal.SIGTERM)
    (folder / "go").touch()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 75, err
    assert out.split()[-2:] == ["4", "0"]
    assert seen(folder) == ["a", "b", "wait", "d"]
    process = program.start("stay")  # idle: it looks, and waits
    wait_for(lambda: len(seen(folder)) == 6)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 75, err
    assert out.split()[-2:] == ["6", "0"]


@pytest.mark.slow
@pytest.mark.promise("C3", "C7", "C13")
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_a_zombie_commits_nothing_after_another_took_over(
    app: Callable[[str], App], folder: Path, finished: bool
) -> None:
    program = app("a b wait d e f")
    zombie = program.start()
    wait_for((folder / "waiting").exists)
    stop_between_two_writes(zombie, folder / "state.db")
    if finished:
        (folder / "go").touch()
        wait_for(lambda: program.run().stdout.split()[-2:] == ["6", "0"])
        total = 6
    else:
        (folder / "waiting").unlink()
        others = [program.start()]
        wait_for(lambda: (folder / "waiting").exists() or _started_again(program, others))
        other = others[-1]
        total = 2
    store = SqliteStore(folder / "state.db")
    (before,) = store.checkpoints(1)
    (chunk,) = store.chunks(1)
    assert (before.rows, chunk.fence >= 2) == (total, True)
    if not finished:
        os.kill(zombie.pid, signal.SIGCONT)  # while the other is in the middle of it
        time.sleep(0.3)
        assert store.checkpoints(1) == [before]
        assert store.chunks(1)[0].fence == chunk.fence
        (folder / "go").touch()
        out, err = other.communicate(timeout=20)
        assert other.returncode == 0, err
        assert out.split()[-2:] == ["6", "0"]
    else:
        os.kill(zombie.pid, signal.SIGCONT)
    out, err = zombie.communicate(timeout=20)
    assert "Traceback" not in err
    assert "lost" in out
    (after,) = store.checkpoints(1)
    assert after.rows == 6
    assert after.acc == b"6"
    store.close()


def _started_again(program: App, others: list[Process]) -> bool:
    """The other one found the lease still held, and ended: it is started until it has run out."""
    if others[-1].poll() is not None:
        others.append(program.start())
    return False


@pytest.mark.promise("C6", "C7")
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_lost_lease_ends_a_thread_at_its_next_row_and_cancels_a_coroutine(
    store: SqliteStore, folder: Path, kind: str
) -> None:
    scan = hf.Follow("orders", Rows(list(range(5000)), page=10), store=store, every=5000)
    began, ended = threading.Event(), threading.Event()

    def rows_of(part: Any) -> Any:
        try:
            for _ in part:
                began.set()
                time.sleep(0.005)
            yield 1
        except hf.LeaseLost:
            ended.set()
            raise

    async def wait(rows: list[Any]) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise

    scan.handler(rows_of if kind == "thread" else wait)
    told: list[hf.Tick] = []
    thread = threading.Thread(target=lambda: told.append(scan.tick(lease="500ms")))
    thread.start()
    assert began.wait(20)
    other = SqliteStore(folder / "state.db")
    _break_lease(other, "orders")
    other.close()
    thread.join(20)
    assert [each.ended for each in told] == [Ended.LOST]
    assert ended.wait(20)
    (batch,) = store.batches("orders")
    assert store.checkpoints(batch.id) == []


@pytest.mark.promise("C5")
def test_a_heartbeat_that_could_miss_the_lease_is_refused_before_anything_happens(store: SqliteStore) -> None:
    scan, given = follow([1], store)
    for heartbeat in ("15s", "30s", "1h", 0):
        with pytest.raises(hf.UsageError, match="under half of it"):
            scan.tick(lease="30s", heartbeat=heartbeat)
        with pytest.raises(hf.UsageError, match="under half of it"):
            scan.run(poll="1s", lease="30s", heartbeat=heartbeat)
    assert store.batches() == []
    assert scan.tick(lease="30s", heartbeat="14s").rows == 1
    assert given == [1]


class Deaf(Counting):
    """A store that renews no lease."""

    def renew(self, *args: Any) -> Any:
        self.calls.append("renew")
        raise hf.StoreUnavailable("no answer")


@pytest.mark.promise("C6", "C7")
def test_after_three_failed_renewals_the_handler_is_stopped_and_nothing_is_committed(store: SqliteStore) -> None:
    deaf = Deaf(store)
    scan = hf.Follow("orders", Rows(list(range(5000)), page=10), store=deaf, every=5000)  # type: ignore[arg-type]
    ended = threading.Event()

    @scan.handler
    def rows_of(part: Any) -> Any:
        try:
            for _ in part:
                time.sleep(0.005)
            yield 1
        except hf.LeaseLost:
            ended.set()
            raise

    assert scan.tick(lease="600ms").ended is Ended.LOST
    assert deaf.calls.count("renew") == 3
    assert "commit" not in deaf.calls
    assert ended.wait(20)
    assert store.checkpoints(store.batches()[0].id) == []


def test_every_window_that_the_documentation_names_has_its_test() -> None:
    root = Path(__file__).resolve().parents[2]
    named = re.findall(r"`(test_\w+)`", (root / "docs" / "followers.md").read_text())
    tests = "".join(file.read_text() for file in (root / "tests").rglob("test_*.py"))
    assert len(named) >= 9
    assert [name for name in named if f"def {name}(" not in tests] == []


def _break_lease(store: Store, name: str) -> None:
    """What an operator does who takes the lease away: the item goes on in the next epoch, its owner is fenced."""
    (batch,) = store.batches(name)
    (item,) = store.items(batch.id, lo=0, hi=1)
    place = move(item.place, Transition.RESET, stage=0, stages=1, reason="broken")
    change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=place)
    act = Act(id=os.urandom(16), batch=batch.id, kind="reset", actor="ann", reason="broken", at_items=(change,),
              seize=True)  # fmt: skip
    assert store.act(act)


# -- a lease that is known to be lost ---------------------------------------------------------------------------------


def follower_of(scan: hf.Scan) -> Follower:
    (following,) = scan._following.values()
    return following.follower


@pytest.mark.promise("C7")
def test_nothing_is_sent_under_a_lease_that_is_known_to_be_lost(store: SqliteStore) -> None:
    counting = Counting(store)
    scan, _ = follow([1], counting)
    scan.tick()
    follower = follower_of(scan)
    claim = follower.holds.claim(FIRST)
    assert isinstance(claim, Claim)
    counting.calls.clear()
    with follower.holds.held(claim) as holding:
        holding.lose()
        assert follower.write(holding, NOTHING, release=True) is False
    follower.holds.close()
    assert "commit" not in counting.calls


@pytest.mark.promise("C7")
def test_a_tick_does_not_wait_for_a_handler_whose_lease_is_lost(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(store)
    scan, _ = follow([1], counting)
    held: list[LoneHold] = []
    over = threading.Event()
    waited: list[bool] = []
    beside = Follower.beside

    def noted(self: Follower, hold: LoneHold, item: Any, **more: Any) -> Any:
        held.append(hold)
        return beside(self, hold, item, **more)

    monkeypatch.setattr(Follower, "beside", noted)

    @scan.handler
    def hang(rows: list[Any]) -> None:
        held[0].lose()
        waited.append(over.wait(20))

    assert scan.tick().ended is Ended.LOST
    over.set()
    wait_for(lambda: bool(waited))
    assert waited == [True], "it ended while its handler was still at it"
    assert "commit" not in counting.calls


@pytest.mark.promise("C7")
def test_no_further_redriven_row_is_begun_once_the_lease_of_the_range_is_lost(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, given = follow(["poison", 1, "poison"], store, isolate=True, every=1)
    assert scan.tick().dead == 2
    redrive(store, store.batches()[0], Actor(name="ann", reason="again"))
    held: list[LoneHold] = []
    handle = Redriving.handle

    def noted(self: Redriving, rows: Any, over: LoneHold) -> Any:
        held.append(over)
        return handle(self, rows, over)

    monkeypatch.setattr(Redriving, "handle", noted)
    given.clear()

    @scan.handler
    def keep(some: list[Any], acc: dict[str, int]) -> dict[str, int]:
        given.extend(some)
        held[0].lose()
        return acc

    told = scan.tick()
    assert (len(given), told.ended, told.redriven) == (1, Ended.LOST, 1)
