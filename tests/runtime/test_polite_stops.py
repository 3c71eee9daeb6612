"""SIGTERM to the whole process group, as systemd and many supervisors send it: what is in hand comes to its checkpoint,
and no partition pays for the stop with an attempt."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.core import journal, sections
from holdfast.core.model import State
from holdfast.stores.base import each_entry
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import App, wait_for

PROGRAM = """
    import os, sys, time
    import holdfast as hf
    from holdfast.testing.rows import Rows

    def hold(name):
        if os.path.exists(f"hold-{name}"):
            open(name, "w").close()
            while os.path.exists(f"hold-{name}"): time.sleep(0.005)

    if __name__ == "__mp_main__":
        hold("starting")
    follow = os.environ.get("FOLLOW") == "1" or "follow" in sys.argv
    os.environ["FOLLOW"] = "1" if follow else "0"
    scan = (hf.Follow if follow else hf.Scan)("rows", Rows(range(20), page=4), store="state.db", every=5)

    @scan.handler(executor="processes")
    def add(rows, acc: int, ctx: hf.Context) -> int:
        hold("working")
        while os.path.exists("stops") and not ctx.stopping: time.sleep(0.005)
        with open("handled", "a") as file: file.write("".join(f"{row}\\n" for row in rows))
        return acc + len(rows)

    if __name__ == "__main__":
        sys.exit((scan.tick() if follow else scan.run(progress=False)).exit_code)
"""


@pytest.fixture
def app(folder: Path) -> App:
    return App(folder, PROGRAM)


def stop_politely(app: App, how: str, when: str) -> None:
    """Let it come to a certain moment, end the whole group with SIGTERM, let it go on from there. A handler ends only
    once it is told of the stop, so that each of them comes at most one group further."""
    gate, reached, stops = app.folder / f"hold-{when}", app.folder / when, app.folder / "stops"
    reached.unlink(missing_ok=True)
    gate.touch()
    stops.touch()
    process = app.start(how)
    try:
        wait_for(reached.exists)
        os.killpg(process.pid, signal.SIGTERM)
    finally:
        gate.unlink()
        _, err = process.communicate(timeout=60)
        stops.unlink()
    assert process.returncode == 75, err


def attempts(store: SqliteStore) -> Iterator[journal.Attempted]:
    for batch in store.batches():
        for chunk in store.chunks(batch.id):
            for entry in each_entry(store, chunk.id):
                body = sections.decode(entry)
                yield from body.attempts if isinstance(body, journal.Checkpointed) else ()


@pytest.mark.slow
@pytest.mark.promise("A7")
@pytest.mark.parametrize("how", ["bounded", "follow"])
def test_a_group_that_is_told_to_end_drains_and_costs_no_attempt(app: App, how: str) -> None:
    before = 0
    for when in ("starting", "working", "starting"):
        stop_politely(app, how, when)
        with closing(SqliteStore(app.folder / "state.db")) as store:
            batch = store.batches()[0]
            rows = sum(at.rows for at in store.checkpoints(batch.id))
            assert rows >= before + (5 if when == "working" else 0), "what was in hand is behind the checkpoint"
            before = rows
            (item,) = store.items(batch.id)
            assert (item.place.state, item.place.attempt) in ((State.PENDING, 0), (State.DONE, 0))
            assert not list(attempts(store))
    assert app.run(how).returncode == 0
    assert [int(line) for line in (app.folder / "handled").read_text().split()] == list(range(20))
