"""Two fleets on one prefix, started at once on nothing and killed again and again: each item is recorded once."""

import random
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.stores.open import open_store
from tests.buckets import fleet_app
from tests.faults import app, oracle
from tests.faults.scene import Scene
from tests.faults.world import KILLED
from tests.forkserver import ForkServer, Process

ROUNDS = 10
ITEMS = 25
LIFE = 0.25
"""The longest life of a process of the early rounds, in seconds: a start takes a good part of it."""


class Fleet(Scene):
    """A batch in a folder of its own, its state on the prefix of all fleets."""

    def start(self, *argv: str, fault: str = "", what: str = "run", sabotage: str | None = None) -> Process:
        items = ["--items", str(self.items)] if what == "run" else []
        return self.forkserver.start("tests.buckets.fleet_app", [what, *items, *argv], cwd=self.folder, fault=fault)

    def come_to_an_end(self) -> None:
        """A clean run; who died alone too often is tried again."""
        self.finish()
        redriven = self.start("--code", KILLED, what="redrive")
        assert redriven.wait() == 0, redriven.err
        if redriven.report["changed"]:
            self.finish()


@pytest.fixture
def fleets(forkserver: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Fleet]:
    monkeypatch.setattr(oracle, "SqliteStore", open_store)
    for name in ("STORE", "BATCH"):
        monkeypatch.setattr(app, name, getattr(app, name))
    folders = [tmp_path / "north", tmp_path / "south"]
    for folder in folders:
        folder.mkdir()
    return [Fleet(forkserver, folder, items=ITEMS) for folder in folders]


@pytest.mark.slow
@pytest.mark.promise("B7", "C1", "C2", "C3", "C10", "P1", "P7", "P10")
def test_two_fleets_that_are_started_at_once_and_killed_record_each_item_once(
    fleets: list[Fleet], tally: Callable[..., None]
) -> None:
    seed = secrets.randbelow(1 << 32)
    chance, kills = random.Random(seed), 0
    for number in range(ROUNDS):
        started = [(fleet, fleet.start("--pace", "0.002")) for fleet in fleets for _ in range(2)]
        chance.shuffle(started)
        for fleet, process in started:
            if process.has_ended_within(chance.uniform(0.0, LIFE / 4)):
                assert process.wait() == 0, process.err
            elif number + 1 < ROUNDS:
                fleet.kill(process)
                kills += 1
        for _, process in started:
            assert process.wait() in (0, -9), process.err
    for fleet in fleets:
        fleet.come_to_an_end()
    for fleet in fleets:
        fleet_app.settle_in(fleet.folder)
        complaints = fleet.complaints()
        assert not complaints, f"seed {seed}, in {fleet.folder}: {complaints[:10]}"
    store = open_store(app.STORE)
    assert sorted(batch.name for batch in store.batches()) == ["north", "south"]
    assert kills
    tally(kills=kills)
