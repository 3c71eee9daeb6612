"""Rows that nobody can handle, in scans that come to an end: found, buried, told of, and handled once mended."""

import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import redrive, resolve
from holdfast.runtime.scan.isolation import Burial, Buried, DeadlyGroup
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import DEFINITION
from holdfast.testing.rows import Rows
from tests.runtime.support import SOON, App

BY = Actor(name="ann", reason="try it again")


def test_hooks_hear_of_every_row_that_is_buried_and_of_ranges() -> None:
    rows: list[Any] = ["poison" if n in (3, 17) else n for n in range(20)]
    for follow in (False, True):
        scan = (hf.Follow if follow else hf.Scan)(
            "orders", Rows(rows), store="memory:", isolate=True, every=5, retry=SOON
        )
        heard: list[hf.DeadLetter] = []
        scan.on_failure(heard.append)

        @scan.handler
        def keep(some: list[Any], acc: int) -> int:
            if "poison" in some:
                raise ValueError("no")
            return acc + len(some)

        told = scan.tick() if follow else scan.run(progress=False)
        assert told.exit_code == 1
        assert [(letter.key, letter.code) for letter in heard] == [("row 4", "ValueError"), ("row 18", "ValueError")]
        if not follow:
            assert (told.this_run.dead, told.counts.dead) == (2, 2)


def test_a_hook_hears_when_what_is_followed_stands_still_and_when_a_redriven_row_fails_again() -> None:
    scan = hf.Follow("orders", Rows([0, "poison", 2]), store="memory:", isolate=True, retry=SOON)
    heard: list[str] = []
    scan.on_failure(lambda letter: heard.append(str(letter.key)))

    @scan.handler
    def keep(some: list[Any], acc: int) -> int:
        if "poison" in some:
            raise hf.Permanent("poison", "no")
        return acc + len(some)

    scan.tick()
    store = scan.pipeline.store
    redrive(store, store.batches()[0], BY)
    scan.redriven()
    assert heard == ["row 2", "row 2"]

    @scan.handler
    def never(some: list[Any]) -> None:
        raise hf.Defer(-1)  # a mistake in the handler, which is no row's

    scan.source.rows.append(3)  # type: ignore[attr-defined]
    assert scan.tick("another").ended == "stopped at a dead letter"
    assert heard == ["row 2", "row 2", "follow"]


@pytest.mark.promise("C11")
def test_a_row_that_is_redriven_and_fails_again_is_a_dead_letter_again() -> None:
    rows: list[Any] = ["poison" if n == 3 else n for n in range(20)]
    scan = hf.Scan("orders", Rows(rows), store="memory:", isolate=True, every=5, retry=SOON)

    @scan.handler
    def keep(some: list[Any], acc: int) -> int:
        if "poison" in some:
            raise ValueError("no")
        return acc + len(some)

    scan.converge(sum)
    assert scan.run(progress=False).result == 19
    store = scan.pipeline.store
    redrive(store, store.batches()[0], BY)
    again = scan.run(progress=False)
    assert (again.counts.dead, again.counts.done, again.result, again.exit_code) == (1, 1, 19, 1)
    rows[3] = "mended"
    redrive(store, store.batches()[0], BY)
    assert scan.run(progress=False).result == 20


PROGRAM = """
    import ctypes, os, sys
    import holdfast as hf
    from holdfast.testing.rows import Rows

    names = os.environ.get("SAID", "") or " ".join(sys.argv[1:])
    os.environ["SAID"] = names
    follow, isolate = "follow" in names, "isolate" in names
    deadly = range(50) if "all" in names else {7, 8} if "processes" in names else {7}
    kind = hf.Follow if follow else hf.Scan
    scan = kind("orders", Rows(list(range(50)), page=7), store="state.db", every=8, isolate=isolate,
                retry=hf.Retry(attempts=2, wait=("1ms", "2ms")))

    @scan.handler(executor="processes" if "processes" in names else None)
    def keep(rows, acc: int) -> int:
        with open("seen", "a") as file: file.write(f"{len(rows)}\\n")
        if not os.path.exists("mended") and any(row in deadly for row in rows):
            os._exit(9) if "exit" in names else ctypes.string_at(0)
        return acc + len(rows)

    if __name__ == "__main__":
        told = scan.tick(lease="1s") if follow else scan.run(progress=False, lease="1s")
        report = scan.report()
        print(report.rows, report.result, " ".join(sorted(f"{d.key}:{d.code}" for d in report.dead)))
        sys.exit(told.exit_code)
"""


@pytest.fixture
def app(folder: Path) -> App:
    return App(folder, PROGRAM)


@pytest.mark.slow
@pytest.mark.promise("B7")
@pytest.mark.parametrize("how", ["bounded segfault", "follow exit"])
def test_a_row_that_kills_its_worker_process_is_found_and_buried_and_the_others_are_handled(
    app: App, folder: Path, how: str
) -> None:
    words = [*how.split(), "processes", "isolate"]
    done = app.run(*words)
    while done.returncode == 75:
        done = app.run(*words)
    assert done.returncode == 1, done.stderr
    wanted = "50 48 row 8:killed_process row 9:killed_process"
    assert done.stdout.strip() == wanted, done.stderr
    assert len((folder / "seen").read_text().splitlines()) < 60


@pytest.mark.slow
def test_without_isolation_the_range_is_tried_again_and_then_buried(app: App) -> None:
    done = app.run("processes", "exit")
    assert done.returncode == 1, done.stderr
    assert done.stdout.split() == ["0", "None", "0:process_died"]


@pytest.mark.slow
def test_where_every_row_kills_its_process_the_range_is_to_blame_and_not_the_rows(app: App) -> None:
    done = app.run("processes", "exit", "isolate", "all")
    assert done.returncode == 1, done.stderr
    keys = [f"row {n}:killed_process" for n in (1, 2, 3)]
    assert done.stdout.split(maxsplit=2)[2].strip() == " ".join(["0:process_died", *keys])


@pytest.mark.slow
@pytest.mark.promise("B7")
def test_on_threads_a_row_that_kills_the_whole_process_is_buried_and_not_its_range(app: App, folder: Path) -> None:
    deaths = 0
    while (done := app.run("isolate")).returncode == -signal.SIGSEGV:
        deaths += 1
        assert deaths < 40
    assert done.returncode == 1, done.stderr
    assert done.stdout.strip() == "50 49 row 8:killed_process"
    store = SqliteStore(folder / "state.db")
    (folder / "mended").touch()
    redrive(store, store.batches()[0], BY)
    store.close()
    done = app.run("isolate")
    assert (done.returncode, done.stdout.strip()) == (0, "50 None"), done.stderr  # one more part, and no converge


def test_a_deadly_group_is_halved_down_to_a_row_and_blames_it_after_three_deaths_alone() -> None:
    for every, culprit, deaths in ((20, 7, 9), (1_000, 999, 14), (100_000, 54_321, 21), (1, 0, 4)):
        group, rows, tries = DeadlyGroup(every), 0, 0
        while not group.condemned:
            tries += 1
            size = group.size or every
            rows += (culprit - rows) // size * size
            group.died(rows)
        assert (rows, group.size) == (culprit, 1)
        assert tries <= deaths, "one for the whole, one for each halving, three alone"
        group.died(rows)
        assert "before it reached a row" in group.trouble


@pytest.mark.promise("C11")
@pytest.mark.parametrize(
    ("deaths", "size", "window"),
    [
        ([0], 32, 64),  # one of these 64 rows, in halves
        ([0, 32], 16, 32),  # one of the second half
        ([0, 0, 0], 8, 16),  # one of the first quarter
        ([0, 64], 32, 64),  # a row behind the window: another group
        ([0, 32, 48, 56, 60, 62], 1, 2),  # one of two
        ([0, 32, 48, 56, 60, 62, 63], 1, 1),  # this one, or it is found out
        ([0, 32, 48, 56, 60, 62, 64], 32, 64),  # neither: another group
        ([0, 32, 48, 56, 60, 62, 63, 64], 32, 64),  # the row before it was passed: another group
    ],
)
def test_a_death_behind_a_deadly_group_begins_with_another_group(deaths: list[int], size: int, window: int) -> None:
    group = DeadlyGroup(64)
    for rows in deaths:
        group.died(rows)
    assert (group.size, group.window, group.condemned) == (size, window, "")


@pytest.mark.promise("C11")
def test_only_rows_that_are_dead_letters_now_are_passed_over() -> None:
    """One that was redriven is on its way again, and one that was handled since is no dead letter."""
    store = MemoryStore()
    batch = store.open_batch("orders", "orders", DEFINITION, actor="ann")
    burial = Burial(store, "orders")
    places = [Cursor("id", n) for n in range(4)]
    burial.bury([Buried(row=n, before=None, at=places[n], code="no", reason="no") for n in range(3)])
    redrive(store, batch, BY, ["row 1"])
    resolve(store, batch, BY, "row 2", output=b"1")
    assert burial.buried(places) == {0}
