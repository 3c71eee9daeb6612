"""A slow item among quick ones stops nobody: another thread takes the role of the worker, commits what is finished, and
runs the rest, while the slow handler ends as an ordinary assignment."""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import StoreError
from holdfast.core.model import Claim, ClaimRequest, Commit, Item, Receipt
from holdfast.core.outcome import Outcome
from holdfast.core.settle import NOTHING, commit
from holdfast.runtime.engine import control as role
from holdfast.runtime.engine import dispatch
from holdfast.runtime.engine.assignment import Answer, Assignment
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.dispatch import Appetite
from holdfast.runtime.engine.exchange import Deadline
from holdfast.runtime.engine.leases import Heartbeat
from holdfast.runtime.engine.runner import StageRunner
from holdfast.runtime.engine.stages import StageDriver
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import holder_of
from tests.runtime.support import Calls, Crowd, outputs, run, wait_for

PATIENCE = 60.0
COUNT = 400


class Told(SqliteStore):
    """Counts what is durable, by item, and where it was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.settled: Counter[int] = Counter()
        self.threads: set[str] = set()
        self.breaks = False

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        if self.breaks:
            raise StoreError("the disk is gone")
        receipts = super().commit(commits)
        for each, receipt in zip(commits, receipts, strict=True):
            if receipt.landed and each.counts.settled:
                self.settled.update(output.n for output in each.outputs)
                self.threads.add(threading.current_thread().name)
        return receipts


class Scene:
    """A pipeline some of whose items are held, and a run of it beside the test."""

    def __init__(self, store: Told, slow: Collection[int], **options: Any) -> None:
        self.store = store
        self.slow = frozenset(slow)
        self.options = options
        self.calls = Calls()
        self.begun = Calls()
        self.may_end = threading.Event()
        self.report: hf.Report | None = None
        self.error: BaseException | None = None
        self.pipeline = hf.Pipeline("scene", store=store)
        self.pipeline.stage(**options.pop("stage", {}))(self.read)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def read(self, number: int) -> int:
        self.calls(number)
        if number in self.slow and not self.may_end.is_set():
            self.begun(number)
            self.may_end.wait(PATIENCE)
        return number * 2

    def _run(self) -> None:
        try:
            self.report = run(self.pipeline, range(COUNT), **self.options)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def __enter__(self) -> "Scene":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_end.set()
        self._thread.join(PATIENCE)

    def wait(self) -> hf.Report:
        """The report of a run that ends by itself."""
        self._thread.join(PATIENCE)
        assert self.report is not None, self.error
        return self.report

    def wait_until_all_others_are_durable(self) -> None:
        wait_for(lambda: len(self.store.settled) == COUNT - len(self.slow) or self.error, PATIENCE)
        assert self.error is None
        assert set(self.begun.seen) == self.slow


class Quick(dispatch.Pace):
    """A pace that stays what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.mean = 100, 1e-5

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Told]:
    store = Told(tmp_path / "state.db")
    yield store
    store.close()


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """All handlers are taken for quick from the beginning, however slow the machine is."""
    monkeypatch.setattr(dispatch, "Pace", Quick)


@pytest.fixture
def controls(monkeypatch: pytest.MonkeyPatch) -> list[Control]:
    """The controls of the runs that are made from now on."""
    return _made(monkeypatch, "holdfast.runtime.engine.session.Control", Control)


def _made(monkeypatch: pytest.MonkeyPatch, where: str, kind: type[Any]) -> list[Any]:
    made: list[Any] = []

    def make(*args: Any, **options: Any) -> Any:
        made.append(kind(*args, **options))
        return made[-1]

    monkeypatch.setattr(where, make)
    return made


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Over every run of this file: one thread drives at a time, and every item is in exactly one answer."""
    crowd, told = Crowd(), dict[int, tuple[Assignment, list[int]]]()
    commits, finish = Desk._commit, Desk._finish

    def watched(desk: Desk) -> Any:
        with crowd:
            yield from commits(desk)

    def noted(desk: Desk, work: Assignment, outcomes: list[Outcome], unrun: Sequence[Item] = ()) -> Any:
        told.setdefault(id(work), (work, []))[1].extend([o.item.n for o in outcomes] + [item.n for item in unrun])
        yield from finish(desk, work, outcomes, unrun)

    monkeypatch.setattr(Desk, "_commit", watched)
    monkeypatch.setattr(Desk, "_finish", noted)
    yield
    assert crowd.most <= 1
    for work, numbers in told.values():
        assert len(set(numbers)) == len(numbers), "no item is handed in twice"
        assert set(numbers) <= {item.n for item in work.items}
        assert work.left or sorted(numbers) == sorted(item.n for item in work.items)


# -- what is finished is durable ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [{0}, {137}, {255}, {COUNT - 1}, {5, 6}, {5, 250}, {0, 255, COUNT - 1}], ids=str)
@pytest.mark.usefixtures("inline")
def test_while_items_are_slow_all_others_are_durable(store: Told, slow: set[int]) -> None:
    with Scene(store, slow) as scene:
        scene.wait_until_all_others_are_durable()
        assert "holdfast-spare" in store.threads
        scene.may_end.set()
        report = scene.wait()
    assert report.is_complete
    assert outputs(scene.pipeline) == {number: number * 2 for number in range(COUNT)}
    assert sorted(scene.calls.seen) == list(range(COUNT)), "nobody was run twice"
    assert set(store.settled.values()) == {1}


@pytest.mark.parametrize("given", [None, 2], ids=["own threads", "an executor"])
def test_an_item_that_is_slow_on_a_thread_holds_up_none_that_travel_with_it(
    store: Told, monkeypatch: pytest.MonkeyPatch, given: int | None
) -> None:
    monkeypatch.setattr(dispatch.Pace, "quick", False)
    monkeypatch.setattr(dispatch.Pace, "slice", lambda self, inline: 50)
    monkeypatch.setattr(Appetite, "portion", lambda self: COUNT)
    options: dict[str, Any] = {"workers": 2} if given is None else {"executor": ThreadPoolExecutor(given), "workers": 2}
    with Scene(store, {60}, **options) as scene:
        scene.wait_until_all_others_are_durable()
        scene.may_end.set()
        assert scene.wait().is_complete
    assert sorted(scene.calls.seen) == list(range(COUNT))


@pytest.mark.usefixtures("inline")
def test_a_stage_that_surprised_once_is_not_run_on_the_committing_thread_again(store: Told) -> None:
    scene = Scene(store, {100})
    read, where, then = scene.read, list[tuple[int, bool]](), set[bool]()

    def noted(number: int) -> int:
        where.append((number, _is_driver()))
        return read(number)

    scene.pipeline.stages[0].function = noted

    @scene.pipeline.stage
    def note(number: int) -> int:
        then.add(_is_driver())
        return number

    with scene:
        scene.wait_until_all_others_are_durable()
        scene.may_end.set()
        assert scene.wait().is_complete
    at = where.index((100, True))
    assert not any(is_driver for _, is_driver in where[at + 1 :])
    assert then == {True}, "another stage is not concerned"


def _is_driver() -> bool:
    return threading.current_thread().name in ("holdfast-worker", "holdfast-spare")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("inline")
def test_the_slow_handler_holds_the_place_of_a_worker(store: Told, workers: int) -> None:
    scene = Scene(store, {50}, workers=workers)
    crowd, read = Crowd(), scene.read

    def counted(number: int) -> int:
        with crowd:
            return read(number)

    scene.pipeline.stages[0].function = counted
    with scene:
        wait_for(lambda: len(store.settled) >= (50 if workers == 1 else COUNT - 1), PATIENCE)
        assert crowd.now >= 1
        scene.may_end.set()
        assert scene.wait().is_complete
    assert crowd.most <= workers


# -- ends, while an item hangs ----------------------------------------------------------------------------------------


@pytest.mark.promise("A7")
@pytest.mark.usefixtures("inline")
def test_a_deadline_ends_the_run_while_an_item_hangs(store: Told, controls: list[Control]) -> None:
    with Scene(store, {7}, deadline="1h") as scene:
        scene.wait_until_all_others_are_durable()
        controls[0].deadline = Deadline(time.monotonic())
        report = scene.wait()
        assert not scene.may_end.is_set()
    assert (report.state, report.counts.done, report.exit_code) == ("interrupted", COUNT - 1, 75)
    assert run(scene.pipeline, range(COUNT)).is_complete


@pytest.mark.usefixtures("inline")
def test_a_deadline_holds_even_if_it_comes_before_anybody_took_over(store: Told, controls: list[Control]) -> None:
    with Scene(store, {7}, deadline="1h") as scene:
        wait_for(lambda: scene.begun.seen)
        controls[0].deadline = Deadline(time.monotonic())
        report = scene.wait()
        assert not scene.may_end.is_set()
    assert report.exit_code == 75
    assert store.settled.keys() >= set(range(7)), "what was finished before it is durable"


@pytest.mark.promise("A7")
@pytest.mark.usefixtures("inline")
def test_an_interrupt_waits_for_the_slow_item_and_a_second_one_does_not(store: Told, controls: list[Control]) -> None:
    with Scene(store, {7}) as scene:
        scene.wait_until_all_others_are_durable()
        controls[0].stop("interrupted")
        scene.may_end.set()
        assert scene.wait().counts.done == COUNT, "what was in flight came to its checkpoint"
    with Scene(Told(store.path.with_name("second.db")), {7}) as scene:
        scene.wait_until_all_others_are_durable()
        controls[1].stop("interrupted")
        controls[1].stop("interrupted", at_once=True)
        assert scene.wait().counts.done == COUNT - 1
        assert not scene.may_end.is_set()


@pytest.mark.promise("A4")
@pytest.mark.usefixtures("inline")
def test_a_lease_that_is_lost_meanwhile_costs_the_slow_outcome_and_nothing_else(
    store: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[Heartbeat] = _made(monkeypatch, "holdfast.runtime.engine.session.Heartbeat", Heartbeat)
    other = SqliteStore(store.path, clock=lambda: time.time() + 60)
    with Scene(store, {7}) as scene:
        scene.wait_until_all_others_are_durable()
        (batch,) = other.batches("scene")
        claim = other.claim(ClaimRequest(batch=batch.id, owner="another", limit=COUNT, seconds=30))
        assert isinstance(claim, Claim)
        beats[0].beat()
        scene.may_end.set()
        wait_for(lambda: not beats[0]._held, PATIENCE)
        holder = holder_of(claim, 0, 30)
        other.commit([commit(holder, NOTHING, commit_id=b"0" * 16, release=True)])
        assert scene.wait().is_complete
    other.close()
    assert scene.calls.seen.count(7) == 2
    assert set(store.settled.values()) == {1}
    assert outputs(scene.pipeline) == {number: number * 2 for number in range(COUNT)}


@pytest.mark.usefixtures("inline")
def test_trouble_on_the_thread_that_took_over_ends_the_run(store: Told) -> None:
    with Scene(store, {7}) as scene:
        scene.wait_until_all_others_are_durable()
        store.breaks = True
        scene.may_end.set()
        scene._thread.join(PATIENCE)
    assert isinstance(scene.error, StoreError)


@pytest.mark.parametrize("when", ["watching", "taking over", "in the slow handler's thread"])
@pytest.mark.usefixtures("inline")
def test_trouble_of_our_own_is_never_swallowed(store: Told, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise ZeroDivisionError(when)

    runs = StageRunner.run

    def fail_late(runner: StageRunner, work: Assignment) -> None:
        runs(runner, work)
        if work.is_split:
            fail()

    if when == "watching":
        monkeypatch.setattr(Assignment, "split", fail)
    elif when == "taking over":
        monkeypatch.setattr(StageDriver, "handed_on", fail)
    else:
        monkeypatch.setattr(StageRunner, "run", fail_late)
    with Scene(store, {7}) as scene:
        if when == "in the slow handler's thread":
            scene.wait_until_all_others_are_durable()
        else:
            assert failed.wait(PATIENCE)
        scene.may_end.set()
        scene._thread.join(PATIENCE)
    assert isinstance(scene.error, ZeroDivisionError)


# -- the very moment in which a slice ends ---------------------------------------------------------------------------


@pytest.mark.usefixtures("inline")
def test_the_role_moves_in_the_moment_the_slice_has_ended(store: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers are done, nothing is handed in: the spare thread is quicker."""
    split, runs, done = threading.Event(), StageRunner.run, []

    def run_and_wait(runner: StageRunner, work: Assignment) -> None:
        runs(runner, work)
        if not done:
            done.append(work)
            assert split.wait(PATIENCE)

    splits = Assignment.split

    def note(work: Assignment) -> Answer | None:
        answer = splits(work)
        split.set()
        return answer

    monkeypatch.setattr(StageRunner, "run", run_and_wait)
    monkeypatch.setattr(Assignment, "split", note)
    with Scene(store, ()) as scene:
        assert scene.wait().is_complete
    assert done[0].is_split
    assert sorted(scene.calls.seen) == list(range(COUNT))


@pytest.mark.usefixtures("inline")
def test_the_role_stays_where_it_is_if_the_slice_was_handed_in_first(
    store: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spare thread has seen that a slice is slow, and comes too late to split it."""
    answered, splits, answers, tried = threading.Event(), Assignment.split, Assignment.answer, []

    def wait_and_split(work: Assignment) -> Answer | None:
        scene.may_end.set()
        assert answered.wait(PATIENCE)
        tried.append(splits(work))
        return tried[-1]

    def note(work: Assignment) -> Answer | None:
        answer = answers(work)
        answered.set()
        return answer

    monkeypatch.setattr(Assignment, "split", wait_and_split)
    monkeypatch.setattr(Assignment, "answer", note)
    with Scene(store, {7}) as scene:
        assert scene.wait().is_complete
    assert tried[0] is None
    assert store.threads == {"holdfast-worker"}
    assert sorted(scene.calls.seen) == list(range(COUNT))


def test_an_assignment_is_split_or_answered_and_each_item_is_told_once() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        met = Counter(_race(seed) for seed in range(300))
    finally:
        sys.setswitchinterval(before)
    assert sum(met.values()) == 300


def _race(seed: int) -> str:
    """One thread runs items as a stage does, another splits them at a moment of its own."""
    chance = random.Random(seed)
    items: Any = list(range(chance.randrange(1, 12)))
    work = Assignment(0, items, 1, 0.0, None)
    rests: list[Answer | None] = []
    waits = [chance.randrange(40) for _ in items]

    def go() -> None:
        for item in items:
            if work.cut:
                break
            for _ in range(waits[item]):
                pass
            work.outcomes.append(item)
        rests.append(work.answer())

    thread = threading.Thread(target=go)
    thread.start()
    for _ in range(chance.randrange(400)):
        pass
    first = work.split()
    thread.join()
    told = [answer for answer in (first, *rests) if answer is not None]
    assert sorted([n for answer in told for n in (*answer.outcomes, *answer.unrun)]) == items
    return "split" if first is not None else "answered"


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 80), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.usefixtures("inline")
def test_whatever_moment_the_role_moves_in_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    monkeypatch.setattr(role, "SLOW_SECONDS", 0.0)
    for seed in seeds:
        chance = random.Random(seed)
        monkeypatch.setattr(role, "WATCH_SECONDS", chance.random() * 0.004)
        calls = Calls()
        pipeline = hf.Pipeline("race", store=Told(tmp_path / f"{seed}.db"))
        for name in ("a", "b", "c"):
            pipeline.stage(name=name)(_note(calls, name, [chance.randrange(300) for _ in range(100)]))
        assert run(pipeline, range(100), workers=2).is_complete
        assert sorted(calls.seen) == sorted((name, number) for name in "abc" for number in range(100))
        pipeline.store.close()


def _note(calls: Calls, name: str, work: Sequence[int]) -> Callable[[int], int]:
    def handle(number: int) -> int:
        for _ in range(work[number]):
            pass
        calls((name, number))
        return number

    return handle
