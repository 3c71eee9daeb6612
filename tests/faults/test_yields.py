"""A generator's range, killed, failed and stopped around its checkpoints: it stays claimed and in progress through all
of its yields, and whoever takes over goes on at the last one that was stored."""

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core import journal
from holdfast.core.model import State
from holdfast.runtime.report import status
from holdfast.stores.base import Store, each_entry
from holdfast.stores.open import open_store
from tests.faults.scan_app import BATCH, HANDLED, SOURCE
from tests.forkserver import ForkServer, Process

APP = "tests.faults.scan_app"
ROWS, EVERY = 90, 20
YIELDS = 4
"""After 20, 40, 60 and 80 rows; the last ten are part of the completion."""
STORES = ("state.db", "file://{}/state")
BEGUN = ["claimed"]


@dataclass(frozen=True)
class Standing:
    """One range, as its store tells of it."""

    rows: int
    state: State
    is_claimed: bool
    fence: int
    told: list[str]
    """The kinds of the entries of its chunk."""


class Range:
    """One file in one range, and the processes that work on it."""

    def __init__(self, forkserver: ForkServer, folder: Path, store: str) -> None:
        self.forkserver, self.folder = forkserver, folder
        self.store = store.format(folder) if ":" in store else str(folder / store)
        folder.mkdir()
        (folder / SOURCE).write_text("id,price\n" + "".join(f"{n},1.5\n" for n in range(ROWS)))

    def start(self, fault: str = "", lease: str = "30s") -> Process:
        argv = ["generator", "--every", str(EVERY), "--store", self.store, "--lease", lease]
        return self.forkserver.start(APP, argv, cwd=self.folder, fault=fault)

    def open(self) -> Store:
        return open_store(self.store)

    def standing(self) -> Standing:
        with closing(self.open()) as store:
            (batch,) = store.batches(BATCH)
            (chunk,), (item,) = store.chunks(batch.id), store.items(batch.id)
            at = store.checkpoints(batch.id)
            told = [journal.decode_header(entry.head).kind for entry in each_entry(store, chunk.id)]
            return Standing(at[0].rows if at else 0, item.place.state, chunk.owner is not None, chunk.fence, told)

    def handled(self) -> list[int]:
        path = self.folder / HANDLED
        return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(params=STORES, ids=["sqlite", "bucket"])
def ranges(request: pytest.FixtureRequest, forkserver: ForkServer, tmp_path: Path) -> Iterator[Iterator[Range]]:
    yield (Range(forkserver, tmp_path / str(n), request.param) for n in range(1000))
    forkserver.clear()


@pytest.mark.promise("B3", "B5", "B2", "C10")
@pytest.mark.parametrize("point", ["commit.before", "commit.written", "commit.after"])
def test_killed_around_every_yield_the_range_stays_claimed_and_in_progress(point: str, ranges: Iterator[Range]) -> None:
    """Killed before a checkpoint is durable, the one before it stands; after that, the new one. Either way nobody gave
    the range back, nothing says that it ended, and the next one handles exactly the rows behind that checkpoint."""
    for hit in range(1, YIELDS + 1) if point == "commit.after" else (1, YIELDS):
        it = next(ranges)
        assert it.start(f"{point}:{hit}:kill").wait() == -signal.SIGKILL
        landed = hit if point == "commit.after" else hit - 1
        assert it.standing() == Standing(landed * EVERY, State.PENDING, True, 1, [*BEGUN, *["checkpoint"] * landed])
        before = len(it.handled())
        assert before == hit * EVERY
        after = it.start()
        assert after.wait() == 0, after.err
        assert it.handled()[before:] == list(range(landed * EVERY, ROWS))
        assert after.report["result"][0]["count"] == ROWS
        ended = it.standing()
        assert (ended.rows, ended.state, ended.is_claimed, ended.fence) == (ROWS, State.DONE, False, 2)
        assert ended.told == [*BEGUN, *["checkpoint"] * landed, "claimed", *["checkpoint"] * (YIELDS - landed + 1)]


@pytest.mark.promise("B3")
def test_only_its_success_ends_a_range(ranges: Iterator[Range]) -> None:
    """Killed when the completion is durable: now it is done, nobody has it, and no row is handled again."""
    it = next(ranges)
    assert it.start(f"commit.after:{YIELDS + 1}:kill").wait() == -signal.SIGKILL
    whole = Standing(ROWS, State.DONE, False, 1, [*BEGUN, *["checkpoint"] * (YIELDS + 1)])
    assert it.standing() == whole
    after = it.start()
    assert (after.wait(), after.report["rows"]) == (0, ROWS)
    assert (it.standing(), it.handled()) == (whole, list(range(ROWS)))


@pytest.mark.promise("B3")
@pytest.mark.parametrize("store", STORES, ids=["sqlite", "bucket"])
def test_only_its_failure_ends_a_range_that_has_yielded(store: str, tmp_path: Path) -> None:
    where = store.format(tmp_path) if ":" in store else str(tmp_path / store)
    (tmp_path / SOURCE).write_text("id,price\n" + "".join(f"{n},1.5\n" for n in range(ROWS)))
    scan = hf.Scan(BATCH, hf.Csv(tmp_path / SOURCE), store=where, retry=hf.Retry(attempts=1))
    seen: list[tuple[State, bool]] = []

    @scan.handler
    def count(part: hf.Partition) -> Iterator[int]:
        for n, _ in enumerate(part, 1):
            if n % EVERY == 0:
                yield n
                (chunk,), (item,) = scan.pipeline.store.chunks(1), scan.pipeline.store.items(1)
                seen.append((item.place.state, chunk.owner is not None))
            if n == 70:
                raise hf.Permanent("broken", "no")

    assert scan.run(progress=False).counts.dead == 1
    assert seen == [(State.PENDING, True)] * 3
    (chunk,), (item,), (at,) = (find(1) for find in (scan.pipeline.store.chunks, scan.pipeline.store.items,
                                                      scan.pipeline.store.checkpoints))  # fmt: skip
    assert (item.place.state, chunk.owner, at.rows) == (State.DEAD, None, 60)
    scan.pipeline.store.close()


@pytest.mark.promise("B5", "B7")
def test_an_error_right_after_a_checkpoint_was_stored_leaves_it_and_the_next_run_goes_on_there(
    ranges: Iterator[Range],
) -> None:
    for hit in (1, 3):
        it = next(ranges)
        assert it.start(f"commit.after:{hit}:raise").wait() not in (0, -signal.SIGKILL)
        standing = it.standing()
        assert (standing.rows, standing.state) == (hit * EVERY, State.PENDING)
        before = len(it.handled())
        assert it.start().wait() == 0
        assert it.handled()[before:] == list(range(hit * EVERY, ROWS))


@pytest.mark.promise("B3", "B5", "C13")
def test_whoever_finds_a_range_stalled_after_a_yield_goes_on_from_it(forkserver: ForkServer, tmp_path: Path) -> None:
    """The owner stands still when its third checkpoint is durable. While its lease lasts the range is in progress; then
    another process takes it over at row 60, and what the first does after that is not committed."""
    it = Range(forkserver, tmp_path / "stalled", "state.db")
    stalled = it.start("commit.after:3:stop", lease="2s")
    assert stalled.wait_until_stopped()
    with closing(it.open()) as store:
        (batch,) = store.batches(BATCH)
        found = status.snapshot(store, batch).counts
        assert (found.pending, found.done, found.orphaned) == (1, 0, 0)
        (chunk,) = store.chunks(batch.id)
        assert found.running == 1 or store.now() >= chunk.expires, "in progress, while its lease lasts"
    assert it.standing() == Standing(60, State.PENDING, True, 1, [*BEGUN, *["checkpoint"] * 3])
    before = len(it.handled())
    other = it.start(lease="2s")
    assert other.wait() == 0, other.err
    assert it.handled()[before:] == list(range(60, ROWS))
    whole = it.standing()
    assert (whole.rows, whole.state, whole.fence) == (ROWS, State.DONE, 2)
    stalled.signal(signal.SIGCONT)
    stalled.wait()
    assert it.standing() == whole
