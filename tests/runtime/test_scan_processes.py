"""Scans whose rows are read and handled in processes of their own, while the lease stays where the store is."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import App, wait_for

PROGRAM = """
    import os, sys, time
    import holdfast as hf
    from holdfast.testing.rows import Rows

    follow = "follow" in sys.argv or os.environ.get("FOLLOW") == "1"
    os.environ["FOLLOW"] = "1" if follow else "0"
    rows = ["poison" if n == 7 else n for n in range(20)] if os.path.exists("poison") else list(range(20))
    scan = hf.Scan("orders", Rows(rows, page=4), store="state.db", every=5, partitions=1 if follow else 2,
                   follow=follow, isolate=os.path.exists("poison"), retry=hf.Retry(attempts=2, wait=("1ms", "2ms")))

    @scan.handler(executor="processes")
    def keep(rows, acc: int, ctx: hf.Context) -> int:
        with open("pids", "a") as file: file.write(f"{os.getpid()} {os.getppid()} {ctx.fence}\\n")
        if "poison" in rows: raise ValueError("no")
        if os.path.exists("die") and 12 in rows:
            os.remove("die")
            os.kill(os.getpid(), 9)
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
    os.kill(zombie.pid, signal.SIGSTOP)
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


def _written(file: Path) -> Callable[[], bool]:
    return lambda: file.exists() and bool(file.read_text())


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
