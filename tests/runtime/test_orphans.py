"""Orphans of real runs: a stopped owner whose item others finish, and how long a pipeline waits before it calls one."""

import os
import signal
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.acts import Strategy
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.define.definition import USUAL
from holdfast.runtime.operate import audit, resolution
from holdfast.runtime.report import orphans, status, why
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import App, Calls, run_until, stop_between_two_writes, wait_for

BY = Actor(name="ada", reason="its owner does not answer")

SLOW = """
import os, sys, time
import holdfast as hf

book = hf.Pipeline("book", orphan_after="1ms")

@book.stage
def first(page: dict) -> dict:
    return page

@book.stage
def second(page: dict) -> dict:
    with open("calls", "a") as file:
        file.write(f"{os.getpid()} {page['number']}\\n")
    while len(sys.argv) > 1 and not os.path.exists("go"):
        time.sleep(0.01)
    return page

if __name__ == "__main__":
    report = book.run([{"number": n} for n in range(3)], key="number", lease="1h", workers=1, progress=False)
    print(report.state, report.counts.done)
"""


@pytest.mark.promise("A11", "A13")
def test_a_stopped_owner_whose_item_was_requeued_and_finished_by_another_cannot_commit(folder: Path) -> None:
    app = App(folder, SLOW)
    zombie = app.start("stop")
    try:
        wait_for((folder / "calls").exists)
        store = SqliteStore(app.store)
        batch = lookup.batch_named(store, "book")
        stop_between_two_writes(zombie, app.store)
        wait_for(lambda: next(orphans.find(store, batch), None) is not None)
        stuck = list(orphans.find(store, batch))
        assert ("second", True) in {(orphan.stage, orphan.is_held) for orphan in stuck}
        assert resolution.resolve_orphans(store, batch, BY, Strategy.REQUEUE).changed == len(stuck)
        heir = app.run()
        assert heir.returncode == 0, heir.stderr
        assert heir.stdout.split() == ["complete", "3"]
        ledger = [(chunk.seq, chunk.head, chunk.counts, chunk.fence) for chunk in store.chunks(batch.id)]
        (folder / "go").touch()
        os.kill(zombie.pid, signal.SIGCONT)
        out, err = zombie.communicate(timeout=60)
        assert zombie.returncode == 0, err
        assert "another worker continues with it" in err
        assert out.split() == ["complete", "3"]
        assert [(chunk.seq, chunk.head, chunk.counts, chunk.fence) for chunk in store.chunks(batch.id)] == ledger
        for orphan in stuck:
            acts = [e for e in why.tell(store, batch, str(orphan.key)).events if e.what in why.ACTS]
            assert [act.what for act in acts] == ["requeued"]
        assert audit.verify(store, lookup.batch_named(store, "book"), full=True).holds
        calls = (folder / "calls").read_text().split("\n")[:-1]
        assert sorted(line.split()[1] for line in calls if not line.startswith(f"{zombie.pid} ")) == ["0", "1", "2"]
        store.close()
    finally:
        zombie.kill()
        zombie.communicate()


@pytest.mark.promise("A9")
def test_a_pipeline_says_how_long_is_too_long_and_commands_without_its_code_know_it(folder: Path) -> None:
    book = hf.Pipeline("book", store=folder / "state.db", orphan_after="1ms", dead_after="1ms")

    calls = Calls()

    @book.stage
    def wait(page: int) -> int:
        calls(page)
        raise hf.Defer(0.0) if page else KeyError("gone")

    run_until(lambda: 0 in calls.seen and calls.seen.count(1) > 2, book, [0, 1], workers=1)
    store = SqliteStore(folder / "state.db")
    batch = lookup.batch_named(store, "book")
    wait_for(lambda: len(list(orphans.find(store, batch))) == 2)
    assert sorted(orphan.kind.value for orphan in orphans.find(store, batch)) == ["stuck", "unanswered"]
    assert status.snapshot(store, batch).counts.orphaned == 1
    store.close()


def test_by_default_it_is_two_hours_and_a_week() -> None:
    assert hf.Pipeline("book").patience == USUAL


@pytest.mark.parametrize("given", ["0s", 0, -1, "soon", None])
@pytest.mark.parametrize("name", ["orphan_after", "dead_after"])
def test_a_bound_that_is_none_is_refused(name: str, given: object) -> None:
    with pytest.raises(hf.UsageError, match=name):
        hf.Pipeline("book", **{name: given})
