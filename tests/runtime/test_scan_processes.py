"""Scans whose rows are read and handled in processes of their own, while the lease stays where the store is."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import App, stop_between_two_writes, wait_for

PROGRAM = """
    import os, sys, time
    from multiprocessing import current_process, resource_tracker
    if os.path.exists("broken") and hasattr(current_process(), "_inheriting"): raise RuntimeError("not here")
    import holdfast as hf
    from holdfast.testing.rows import Rows

    follow = "follow" in sys.argv or os.environ.get("FOLLOW") == "1"
    os.environ["FOLLOW"] = "1" if follow else "0"
    rows = ["poison" if n == 7 else n for n in range(20)] if os.path.exists("poison") else list(range(20))
    kind, parts = (hf.Follow, {}) if follow else (hf.Scan, {"partitions": 2})
    scan = kind("orders", Rows(rows, page=4), store="state.db", every=5, isolate=os.path.exists("poison"),
                retry=hf.Retry(attempts=2, wait=("1ms", "2ms")), **parts)

    @scan.handler(executor="processes")
    def keep(rows, acc: int, ctx: hf.Context) -> int:
        with open("pids", "a") as file: file.write(f"{os.getpid()} {os.getppid()} {ctx.fence}\\n")
        if "poison" in rows: raise ValueError("no")
        if os.path.exists("die") and 12 in rows:
            os.remove("die")
            os.kill(os.getpid(), 9)
        if os.path.exists("fork") and 12 in rows:
            os.remove("fork")
            if os.fork(): os._exit(1)
            os.closerange(0, 3)  # what the test reads ends with the program
            os.close(resource_tracker._resource_tracker._fd)
            while not os.path.exists("go"): time.sleep(0.01)
            os._exit(0)
        if os.path.exists("hang"):
            open("hanging", "w").write(str(os.getpid()))
            time.sleep(60)
        return acc + len(rows)

    @scan.converge
    def total(parts): return sum(parts)

    if __name__ == "__main__":
        if follow:
            told = scan.tick(lease="500ms")
            print(told.ended, told.rows, told.total, told.dead)
        else:
            told = scan.run(progress=False, lease="500ms")
            print(told.result, told.rows)
        sys.exit(told.exit_code)
"""


@pytest.fixture
def app(folder: Path) -> App:
    return App(folder, PROGRAM)


@pytest.mark.slow
@pytest.mark.promise("B17")
def test_ranges_run_in_processes_and_come_to_the_same(app: App, folder: Path) -> None:
    done = app.run()
    assert done.stdout.split() == ["20", "20"], done.stderr
    lines = [line.split() for line in (folder / "pids").read_text().splitlines()]
    assert len({pid for pid, _, _ in lines}) == 2
    assert {fence for _, _, fence in lines} == {"1"}
    store = SqliteStore(folder / "state.db")
    assert [at.rows for at in store.checkpoints(1)] == [10, 10]
    store.close()


@pytest.mark.slow
@pytest.mark.promise("B1", "B10")
def test_a_process_that_dies_is_tried_again_from_its_checkpoint(app: App, folder: Path) -> None:
    (folder / "die").touch()
    done = app.run()
    assert done.stdout.split() == ["20", "20"], done.stderr
    assert len((folder / "pids").read_text().splitlines()) == 5  # four groups, one of them twice


@pytest.mark.slow
@pytest.mark.promise("B1")
def test_one_that_was_forked_by_a_process_does_not_hide_its_death(app: App, folder: Path) -> None:
    (folder / "fork").touch()
    done = app.run()
    (folder / "go").touch()
    assert done.stdout.split() == ["20", "20"], done.stderr
    assert len((folder / "pids").read_text().splitlines()) == 5


@pytest.mark.slow
@pytest.mark.parametrize("follow", [(), ("follow",)], ids=["run", "tick"])
def test_a_program_that_its_processes_cannot_import_ends_the_run_and_buries_nothing(
    app: App, folder: Path, follow: tuple[str, ...]
) -> None:
    (folder / "broken").touch()
    refused = app.run(*follow)
    assert refused.returncode == 1
    assert "worker processes cannot start, or cannot find the pipeline" in refused.stderr
    (folder / "broken").unlink()
    assert "20 20" in app.run(*follow).stdout


@pytest.mark.slow
def test_ticks_run_in_processes_and_bury_rows_from_there(app: App, folder: Path) -> None:
    (folder / "poison").touch()
    done = app.run("follow")
    assert done.stdout.split()[-3:] == ["20", "20", "1"], done.stderr
    assert done.returncode == 1
    again = app.run("follow")
    assert again.stdout.split()[-3:] == ["0", "20", "0"], again.stderr


@pytest.mark.slow
@pytest.mark.promise("C7", "C13")
def test_a_lost_lease_kills_the_process(app: App, folder: Path) -> None:
    (folder / "hang").touch()
    zombie = app.start("follow")
    wait_for(_written(folder / "hanging"))
    child = int((folder / "hanging").read_text())
    stop_between_two_writes(zombie, folder / "state.db")
    (folder / "hang").unlink()
    wait_for(lambda: app.run("follow").stdout.split()[-2:] == ["20", "0"])
    assert _lives(child), "its parent stands still: nobody has told it"
    os.kill(zombie.pid, signal.SIGCONT)
    out, err = zombie.communicate(timeout=20)
    assert "lost" in out, err
    wait_for(lambda: not _lives(child))
    store = SqliteStore(folder / "state.db")
    assert [(at.rows, at.acc) for at in store.checkpoints(1)] == [(20, b"20")]
    store.close()


DEAF = """
    import os, sys, time
    import holdfast as hf
    from holdfast.stores.sqlite import SqliteStore
    from holdfast.testing.rows import Rows

    class Deaf(SqliteStore):
        def renew(self, *args):
            if not os.path.exists("hanging"): return super().renew(*args)
            with open("calls", "a") as file: file.write("renew\\n")
            raise hf.StoreUnavailable("no answer")
        def commit(self, commits):
            with open("calls", "a") as file: file.write("commit\\n")
            return super().commit(commits)

    follow = os.environ.setdefault("FOLLOW", "1" if "follow" in sys.argv else "0") == "1"
    deaf = os.path.exists("deaf") and __name__ == "__main__"
    kind, store = hf.Follow if follow else hf.Scan, Deaf("state.db") if deaf else "state.db"
    scan = kind("orders", Rows(list(range(20)), page=4), store=store, every=5)

    @scan.handler(executor="processes")
    def keep(rows, acc: int) -> int:
        if 7 in rows and os.path.exists("deaf"):
            with open("hanging", "w") as file: file.write(str(os.getpid()))
            while not os.path.exists("go"): time.sleep(0.01)
            open("continued", "w").close()
        return acc + len(rows)

    if __name__ == "__main__":
        told = scan.tick(lease="1500ms") if follow else scan.run(progress=False, lease="1500ms")
        print(told.ended if follow else told.rows)
        if deaf:  # a while after it: whoever was not killed would go on now
            open("go", "w").close()
            wait = time.monotonic() + 0.5
            while time.monotonic() < wait: time.sleep(0.01)
        sys.exit(told.exit_code)
"""


@pytest.mark.slow
@pytest.mark.promise("C6", "C7")
@pytest.mark.parametrize("how", ["bounded", "follow"])
def test_after_three_failed_renewals_the_process_is_killed_and_nothing_more_is_committed(
    folder: Path, how: str
) -> None:
    app = App(folder, DEAF)
    (folder / "deaf").touch()
    done = app.run(how)
    child = int((folder / "hanging").read_text())
    if how == "follow":
        assert done.stdout.strip() == "its lease was lost", done.stderr
    else:
        assert "3 heartbeats in a row failed" in done.stderr
    assert done.returncode not in (0, -signal.SIGKILL)
    wait_for(lambda: not _lives(child))
    (folder / "go").touch()
    assert not (folder / "continued").exists(), "it hung when it was killed"
    calls = (folder / "calls").read_text().split()
    first = calls.index("renew")
    assert calls[first:] == ["renew"] * 3, "after the first renewal failed, nothing was committed"
    store = SqliteStore(folder / "state.db")
    (at,) = store.checkpoints(1)
    assert (at.rows, at.acc) == (5, b"5")
    fence = store.chunks(1)[0].fence
    (folder / "deaf").unlink()
    wait_for(lambda: app.run(how).returncode == 0)
    assert [(at.rows, at.acc) for at in store.checkpoints(1)] == [(20, b"20")]
    assert store.chunks(1)[0].fence > fence
    store.close()


def _written(file: Path) -> Callable[[], bool]:
    return lambda: file.exists() and bool(file.read_text())


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
