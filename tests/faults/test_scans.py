"""A scan of a CSV file, killed with SIGKILL at rows and at checkpoints and resumed, in one range and in five, in all
three shapes: what comes of it is what an uninterrupted run gives, and no row before a checkpoint is handled again."""

import random
import signal
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import canonical, journal, sections
from holdfast.core.model import chain_of_batch
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.partitions import span_of
from holdfast.stores.base import each_checkpoint, each_entry, each_item, find_batch
from holdfast.stores.open import open_store
from tests.faults.scan_app import BATCH, CONVERGED, HANDLED, NAMES, SOURCE, STORE, scan_of
from tests.forkserver import ForkServer

APP = "tests.faults.scan_app"
ROWS, EVERY = 230, 20
SHAPES = ("rows", "fold", "generator")


class Story:
    """One file, one store, and the processes that worked on it."""

    def __init__(self, forkserver: ForkServer, folder: Path, shape: str, partitions: int, broken: str = "", *,
                 follow: bool = False) -> None:  # fmt: skip
        self.forkserver, self.folder, self.shape, self.partitions = forkserver, folder, shape, partitions
        self.argv = [shape, "--partitions", str(partitions), "--every", str(EVERY), "--broken", broken]
        self.argv += ["--follow"] if follow else []
        folder.mkdir(exist_ok=True)
        body = "".join(f'{n},"part {n}\nin two lines",{n}.25\n' for n in range(ROWS))
        (folder / SOURCE).write_text("id,text,price\n" + body)
        self.safe: set[str] = set()
        """Rows before a checkpoint that was durable when a process died."""
        self.again = 0
        self.problems: list[str] = []

    def run(self, *more: str, fault: str = "") -> Any:
        before = self.handled()
        process = self.forkserver.start(APP, [*self.argv, *more], cwd=self.folder, fault=fault)
        status = process.wait()
        fresh = self.handled()[len(before) :]
        again = self.safe.intersection(fresh)
        if again:
            self.problems.append(f"handled again though before a checkpoint: {sorted(again, key=int)[:5]}")
        twice = len(set(before) & set(fresh))
        if twice > EVERY * self.partitions:
            self.problems.append(f"{twice} rows were handled again, more than an interval for each range")
        self.again += twice
        if status == -signal.SIGKILL:
            self.note_checkpoints()
            return None
        assert status == 0, process.err
        return process.report

    def handled(self) -> list[str]:
        path = self.folder / HANDLED
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []

    def note_checkpoints(self) -> None:
        """What the store says was read: by the number of rows, and by the cursor, which must agree."""
        if not (self.folder / STORE).exists():
            return
        source = hf.Csv(self.folder / SOURCE)
        with closing(open_store(str(self.folder / STORE))) as store:
            batch = find_batch(store, BATCH)
            if batch is None:
                return
            spans = {item.n: span_of(item.payload) for item in each_item(store, batch.id)}
            for at in each_checkpoint(store, batch.id):
                rows = [row["id"] for page in source.read(spans[at.n].after, spans[at.n].until) for row in page.rows]
                self.safe.update(rows[: at.rows])
                if not set(rows[: at.rows]) <= set(self.handled()):
                    self.problems.append("a checkpoint covers rows that nobody handled")

    def check(self, report: Any, expected: Any) -> None:
        handled = Counter(self.handled())
        missing = {str(n) for n in range(ROWS)} - set(handled)
        if missing:
            self.problems.append(f"never handled: {sorted(missing, key=int)[:5]}")
        if report != expected:
            self.problems.append(f"{report} is not {expected}")


@pytest.fixture(scope="module")
def expected(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """What uninterrupted runs give."""
    found = {}
    for shape in SHAPES:
        for partitions in (1, 5):
            folder = tmp_path_factory.mktemp("whole")
            found[shape, partitions] = Story(forkserver, folder, shape, partitions).run()
            assert found[shape, partitions]["rows"] == ROWS
            assert found[shape, partitions]["done"] == partitions
    return found


@pytest.fixture
def story(forkserver: ForkServer, tmp_path: Path) -> Any:
    count = iter(range(1000))
    yield lambda shape, partitions, broken="", **how: Story(
        forkserver, tmp_path / str(next(count)), shape, partitions, broken, **how
    )
    forkserver.clear()


@pytest.mark.promise("B1", "B2", "B6", "B7", "B10")
@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_killed_at_rows_again_and_again_it_comes_to_the_same_end(
    shape: str, partitions: int, story: Any, expected: Any, tally: Any
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    kills = 0
    it = story(shape, partitions)
    report = None
    while report is None:
        report = it.run("--kill-at", str(chance.randrange(1, ROWS // 2) if kills < 4 else 0))
        kills += report is None
    it.check(report, expected[shape, partitions])
    assert not it.problems, (seed, it.problems)
    tally(kills=kills, rows_handled_again=it.again)


@pytest.mark.promise("B1", "B2", "B7", "B10")
@pytest.mark.parametrize(
    "point",
    [*(pytest.param(point, marks=pytest.mark.slow) for point in ("commit.before", "commit.written")), "commit.after"],
)
def test_killed_at_every_checkpoint_of_one_range(point: str, story: Any, expected: Any, tally: Any) -> None:
    kills = 0
    while True:
        it = story("fold", 1)
        if it.run(fault=f"{point}:{kills + 1}:kill") is not None:
            break
        kills += 1
        it.check(it.run(), expected["fold", 1])
        assert not it.problems, (kills, it.problems)
    assert kills >= ROWS // EVERY, "eleven checkpoints and the completion"
    tally(kills=kills)


@pytest.mark.slow
@pytest.mark.promise("B1", "B2", "B7", "B10")
@pytest.mark.parametrize(("shape", "partitions"), [("rows", 5), ("fold", 5), ("generator", 1), ("generator", 5)])
def test_killed_at_checkpoints_in_every_shape(
    shape: str, partitions: int, story: Any, expected: Any, tally: Any
) -> None:
    kills = 0
    for hit in (1, 2, 4, 7):
        for point in ("commit.written", "commit.after"):
            it = story(shape, partitions)
            report = it.run(fault=f"{point}:{hit}:kill")
            kills += report is None
            it.check(it.run() if report is None else report, expected[shape, partitions])
            assert not it.problems, (point, hit, it.problems)
    assert kills
    tally(kills=kills)


def costs(story: Story) -> list[int]:
    """What each checkpoint in the journal cost, in units of money."""
    with closing(open_store(str(story.folder / STORE))) as store:
        batch = find_batch(store, BATCH)
        if batch is None:
            return []
        bodies = [sections.decode(entry) for chunk in store.chunks(batch.id)
                  for entry in each_entry(store, chunk.id)]  # fmt: skip
        told = [body for body in bodies if isinstance(body, journal.Checkpointed)]
        spent = [said.usd for body in told for _, said in body.spends]
        assert sum(len(body.positions) for body in told) == len(spent)
        assert sum(chunk.counts.spent for chunk in store.chunks(batch.id)) == sum(spent)
        return spent


def names(story: Story) -> dict[tuple[str, str], set[str]]:
    """The keys that each group of rows was ever handled under, by partition and rows before it."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in (story.folder / NAMES).read_text().splitlines():
        partition, rows, key = line.split()
        found.setdefault((partition, rows), set()).add(key)
    return found


POINTS = ("commit.before", "commit.begun", "commit.written", "commit.after")


@pytest.mark.promise("E8", "B1", "B2")
@pytest.mark.parametrize("follow", [False, True], ids=["bounded", "following"])
@pytest.mark.parametrize("shape", SHAPES)
def test_killed_around_a_checkpoint_the_money_of_every_committed_group_is_on_record_once(
    shape: str, follow: bool, story: Any, tally: Any
) -> None:
    groups, kills = -(-ROWS // EVERY), 0
    for point in POINTS:
        it = story(shape, 1, follow=follow)
        report, hit = None, 2
        while report is None:
            report = it.run(fault=f"{point}:{hit}:kill" if hit < 5 else "")
            kills, hit = kills + (report is None), hit + 1
            assert set(costs(it)) <= {canonical.to_units("0.01")}
        assert (report["usd"], report["tokens"]) == (f"{Decimal(groups) / 100:.2f}", 3 * groups), point
        assert len(costs(it)) == groups
        called = names(it)
        assert len(called) == groups
        assert all(len(keys) == 1 for keys in called.values()), "a group that is repeated has the key it had"
        assert len(set.union(*called.values())) == groups, "and the next one another"
    assert kills >= 3 * len(POINTS)
    tally(kills=kills)


def calls(story: Story) -> int:
    path = story.folder / CONVERGED
    return len(path.read_text().splitlines()) if path.exists() else 0


def is_on_record(story: Story) -> bool:
    with closing(open_store(str(story.folder / STORE))) as store:
        (batch,) = store.batches(BATCH)
        entries = each_entry(store, chain_of_batch(batch.id))
        return any(journal.decode_header(entry.head).kind == "converged" for entry in entries)


@pytest.mark.promise("B7", "B10")
def test_killed_around_its_convergence_it_is_called_until_its_result_is_on_record_and_never_after(
    story: Any, expected: Any, tally: Any
) -> None:
    """Inside the function, while the entry is written, and when it is durable and nobody knows it."""
    kills, found = 0, set()
    wanted = expected["fold", 5]
    for more, fault in [(("--converge", "kill"), ""), *(((), f"{point}:{hit}:kill") for hit in (1, 2, 3)
                        for point in ("note.written", "note.after"))]:  # fmt: skip
        it = story("fold", 5)
        if it.run(*more, fault=fault) is not None:
            continue
        kills += 1
        made, recorded = calls(it), is_on_record(it)
        found.add((made, recorded))
        it.check(it.run(), wanted)
        assert calls(it) == made + (not recorded)
        it.check(it.run(), wanted)
        assert calls(it) == made + (not recorded), "a run of what is complete calls nothing"
        assert not it.problems, (fault, it.problems)
    assert found == {(0, False), (1, False), (1, True)}, "before it, within it, and after it"
    tally(kills=kills)


def test_a_convergence_that_raises_ends_the_process_with_an_error_and_the_next_one_calls_it(
    story: Any, expected: Any
) -> None:
    it = story("fold", 5)
    process = it.forkserver.start(APP, [*it.argv, "--converge", "raise"], cwd=it.folder)
    assert process.wait() not in (0, -signal.SIGKILL)
    assert "converge 'converge' raised ValueError: these parts do not fit" in process.err
    it.check(it.run(), expected["fold", 5])
    assert calls(it) == 2
    assert not it.problems


@pytest.mark.parametrize(
    ("broken", "says"), [("restart", "handled again though before a checkpoint"), ("skip", "never handled")]
)
def test_the_oracle_sees_what_broken_cursors_do(broken: str, says: str, story: Any, expected: Any) -> None:
    it = story("fold", 1, broken)
    assert it.run(fault="commit.after:5:kill") is None
    it.check(it.run(), expected["fold", 1])
    assert says in " ".join(it.problems)


@pytest.mark.promise("B14")
def test_a_thousand_rows_at_two_hundred_are_four_checkpoints_and_a_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(SOURCE).write_text("id,price\n" + "".join(f"{n},1.5\n" for n in range(1000)))
    scan = scan_of("fold", 1, 200)
    report = scan.run(progress=False)
    store = scan.pipeline.store
    (batch,) = store.batches(BATCH)
    (at,) = each_checkpoint(store, batch.id)
    assert (at.rows, report.rows, report.counts.done) == (1000, 1000, 1)
    (chunk,) = store.chunks(batch.id)
    bodies = [sections.decode(entry) for entry in store.entries(chunk.id) if entry.body]
    told = [position.rows for body in bodies for position in getattr(body, "positions", ())]
    assert told == [200, 400, 600, 800, 1000]


@pytest.mark.promise("B14", "B1")
def test_a_crash_after_three_of_them_resumes_at_row_six_hundred(
    forkserver: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(SOURCE).write_text("id,price\n" + "".join(f"{n},1.5\n" for n in range(1000)))
    argv = ["fold", "--every", "200"]
    process = forkserver.start(APP, argv, cwd=tmp_path, fault="commit.after:3:kill")
    assert process.wait() == -signal.SIGKILL
    with closing(open_store(STORE)) as store:
        (batch,) = store.batches(BATCH)
        (at,) = each_checkpoint(store, batch.id)
        assert at.rows == 600
    before = len(Path(HANDLED).read_text().splitlines())
    process = forkserver.start(APP, argv, cwd=tmp_path)
    assert process.wait() == 0
    fresh = [line.split()[1] for line in Path(HANDLED).read_text().splitlines()[before:]]
    assert fresh == [str(n) for n in range(600, 1000)]


@pytest.mark.promise("B16")
@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_empty_source_converges(
    shape: str, partitions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(SOURCE).write_text("id,price\n")
    scan = scan_of(shape, partitions, 10)
    scan.converge(len)
    report = scan.run(progress=False, allow_empty=True)
    assert (report.rows, report.result, report.exit_code) == (0, 1, 0)
    assert not Path(HANDLED).read_text()


@pytest.mark.promise("B13")
def test_what_failed_at_half_of_its_range_does_the_other_half_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five ranges of about 200 rows; the fourth fails half-way. Redriven: exactly the rows it had not checkpointed."""
    monkeypatch.chdir(tmp_path)
    Path(SOURCE).write_text("id,price\n" + "".join(f"{n:04},1\n" for n in range(1000)))
    calls: list[int] = []
    failing = True
    scan = hf.Scan(BATCH, hf.Csv(SOURCE), every=50, partitions=5, store=STORE, retry=hf.Retry(attempts=1))

    @scan.handler(initial=0)
    def add(rows: list[dict[str, str]], acc: int) -> int:
        numbers = [int(row["id"]) for row in rows]
        if failing and any(n >= 700 for n in numbers) and numbers[0] < 800:
            raise hf.Permanent("broken", "for now")
        calls.extend(numbers)
        return acc + len(rows)

    scan.converge(sum)
    first = scan.run(progress=False)
    assert (first.counts.done, first.counts.dead, first.result) == (4, 1, None)
    done, failing = len(calls), False
    store = scan.pipeline.store
    (batch,) = store.batches(BATCH)
    operations.redrive(store, batch, Actor(name="operator", reason="it is mended"))
    second = scan.run(progress=False)
    assert second.result == 1000
    assert calls[done:] == sorted(set(range(1000)) - set(calls[:done]))
    assert sorted(calls) == list(range(1000)), "no row twice, none left out"


@pytest.mark.promise("B7")
def test_a_file_that_changed_is_refused_on_resume_and_nothing_is_handled(
    forkserver: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = "id,price\n" + "".join(f"{n},1.5\n" for n in range(1000))
    Path(SOURCE).write_text(good)
    process = forkserver.start(APP, ["fold", "--every", "200"], cwd=tmp_path, fault="commit.after:3:kill")
    assert process.wait() == -signal.SIGKILL
    for changed, says in ((good[:5000], "it was shortened"), (good.replace("1.5", "2.5"), "it was rewritten")):
        Path(SOURCE).write_text(changed)
        with pytest.raises(hf.SourceChanged, match=says):
            scan_of("fold", 1, 200).run(progress=False)
    Path(SOURCE).write_text(good + "1000,1.5\n")
    report = scan_of("fold", 1, 200).run(progress=False)
    assert report.rows == 1000, "a bounded scan covers what the file held when it began"


@pytest.mark.promise("B7", "B10")
def test_a_file_that_vanishes_is_told_and_once_it_is_back_the_scan_goes_on_at_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(SOURCE).write_text("id,price\n" + "".join(f"{n},1\n" for n in range(1000)))
    calls: list[int] = []
    scan = hf.Scan(BATCH, hf.Csv(SOURCE), every=100, store=STORE, retry=hf.Retry(attempts=2, wait=("0s", "0s")))

    @scan.handler(initial=0)
    def add(rows: list[dict[str, str]], acc: int) -> int:
        if len(calls) == 300:
            calls.append(-1)
            Path(SOURCE).rename("away.csv")
            raise hf.Transient("the disk was taken away")
        calls.extend(int(row["id"]) for row in rows)
        return acc + len(rows)

    report = scan.run(progress=False)
    (letter,) = report.dead
    assert "no such file" in str(letter)
    Path("away.csv").rename(SOURCE)
    store = scan.pipeline.store
    (batch,) = store.batches(BATCH)
    operations.redrive(store, batch, Actor(name="operator", reason="the disk is back"))
    assert scan.run(progress=False).result == 1000
    assert [n for n in calls if n >= 0] == list(range(1000)), "no row before the checkpoint came again"
