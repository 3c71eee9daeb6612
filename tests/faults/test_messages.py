"""A receiver of messages is killed at every point that `process()` reaches; the next delivery goes on at the
checkpoint, and a third one runs nothing. However often it was killed, the batch comes to its end once."""

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.core.counts import totals
from holdfast.runtime import lookup
from holdfast.runtime.operate.audit import verify
from holdfast.stores.faults import POINTS
from holdfast.stores.open import open_store
from tests.faults import messages
from tests.forkserver import ForkServer

KEYS = 3
CALLS = Counter({(key, stage): 1 for key in range(KEYS) for stage in messages.STAGES}) + Counter({(2, "price"): 1})
"""Every stage once; the third letter is tried twice at its second stage."""
ELSEWHERE = ("renew.", "act.", "seal.", "reopen.", "delivered.", "migrate.", "bucket.")


class Receiver:
    """One folder, and the processes that receive messages in it."""

    def __init__(self, forkserver: ForkServer, folder: Path) -> None:
        self.forkserver, self.folder = forkserver, folder

    def deliver(self, *argv: str, fault: str = "") -> tuple[int, str]:
        process = self.forkserver.start(
            "tests.faults.messages", ["--keys", str(KEYS), *argv], cwd=self.folder, fault=fault
        )
        return process.wait(), process.out

    def effects(self) -> Counter[tuple[int, str]]:
        file = self.folder / messages.EFFECTS
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter((line["key"], line["stage"]) for line in map(json.loads, lines))

    def complaints(self, kills: int) -> list[str]:
        """What is wrong after a clean delivery of everything, and after one more."""
        found = []
        status, out = self.deliver()
        states = [json.loads(line) for line in out.splitlines()]
        if status or states != [[key, "done", f"letter {key}"] for key in range(KEYS)]:
            found.append(f"the next delivery ended with {status}: {states}")
        made = self.effects()
        if CALLS - made or (made - CALLS).total() > kills:
            found.append(f"after {kills} kills the handlers were called {made}")
        found += self._recorded(made)
        self.deliver()
        if self.effects() != made:
            found.append(f"another delivery ran {self.effects() - made}")
        return found

    def _recorded(self, made: Counter[tuple[int, str]]) -> list[str]:
        found = []
        store = open_store(self.folder / messages.STORE)
        batch = lookup.batch_named(store, messages.BATCH)
        told = totals(store.chunks(batch.id))
        most = Decimal(sum(messages.CENTS[stage] * count for (_, stage), count in made.items())) / 100
        least = Decimal(sum(messages.CENTS[stage] * count for (_, stage), count in CALLS.items())) / 100
        if not least <= told.usd <= most:
            found.append(f"{told.usd} is recorded, {most} was spent, {least} at least")
        with contextlib.chdir(self.folder):
            found += [str(finding) for finding in verify(store, batch, full=True).findings]
        ends = [event.kind for event in store.events() if event.kind == "batch.finished"]
        if len(ends) != 1 or batch.ingested_at is None:
            found.append(f"the end was published {len(ends)} times")
        files = {path.name: path.read_text() for path in (self.folder / "out").glob("*.json")}
        if files != {f"{key}.json": f'"letter {key}"\n' for key in range(KEYS)}:
            found.append(f"the files are {files}")
        store.close()
        return found


@pytest.fixture
def receivers(forkserver: ForkServer, tmp_path: Path) -> Callable[[], Receiver]:
    made = 0

    def make() -> Receiver:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        folder.mkdir()
        return Receiver(forkserver, folder)

    return make


@pytest.fixture(scope="module")
def reached(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often each point is reached while three messages are received."""
    folder = tmp_path_factory.mktemp("counted")
    status, _ = Receiver(forkserver, folder).deliver("--count", str(folder / "points.txt"))
    assert status == 0
    return Counter((folder / "points.txt").read_text().split())


def test_process_reaches_every_point_that_is_its_own(reached: Counter[str]) -> None:
    expected = {point for point in POINTS if not point.startswith(ELSEWHERE)}
    assert expected <= set(reached)


@pytest.mark.promise("A4", "A7", "A14", "B7", "C10", "C11", "E6", "P6", "P8", "P10")
@pytest.mark.parametrize("point", [point for point in POINTS if not point.startswith(ELSEWHERE)])
def test_killed_at_a_point_the_next_delivery_goes_on(
    point: str, reached: Counter[str], receivers: Callable[[], Receiver], tally: Callable[..., None]
) -> None:
    hits = sorted({1, reached[point]})
    for hit in hits:
        receiver = receivers()
        status, _ = receiver.deliver(fault=f"{point}:{hit}:kill")
        assert status == -signal.SIGKILL, f"{point}:{hit}"
        assert receiver.complaints(kills=1) == [], f"{point}:{hit}"
    tally(kills=len(hits))


@pytest.mark.promise("A7", "B7", "P10")
def test_killed_again_and_again_it_still_comes_to_its_end(
    receivers: Callable[[], Receiver], tally: Callable[..., None]
) -> None:
    receiver, kills = receivers(), 0
    for point in ("add_items.after", "claim.after", "stage.after", "sink.staged", "commit.after", "sink.published"):
        status, _ = receiver.deliver(fault=f"{point}:1:kill")
        assert status == -signal.SIGKILL, point
        kills += 1
    assert receiver.complaints(kills) == []
    tally(kills=kills)


@pytest.mark.promise("A7", "A15")
def test_a_message_that_kills_its_process_is_buried_though_its_neighbours_never_come(
    receivers: Callable[[], Receiver], tally: Callable[..., None]
) -> None:
    """They stand in one chunk, as items of a source do. None of them is held to blame."""
    receiver = receivers()
    argv = ["--together", "--keys", "6", "--killer", "3"]
    kills = 0
    while (delivered := receiver.deliver(*argv, "--only", "3"))[0] == 9 and kills < 20:
        kills += 1
    assert (kills, json.loads(delivered[1])) == (5, [3, "dead", None]), "two deaths make suspects, three alone condemn"
    status, out = receiver.deliver(*argv)
    states = {key: state for key, state, _ in map(json.loads, out.splitlines())}
    assert (status, states) == (0, {**dict.fromkeys(range(6), "done"), 3: "dead"})
    store = open_store(receiver.folder / messages.STORE)
    batch = lookup.batch_named(store, messages.BATCH)
    with contextlib.chdir(receiver.folder):
        assert verify(store, batch, full=True).holds
    tally(kills=kills)


def test_a_receiver_that_remembers_nothing_is_found_out(receivers: Callable[[], Receiver]) -> None:
    receiver = receivers()
    receiver.deliver("--amnesia")
    assert any("handlers were called" in text for text in receiver.complaints(kills=1))
