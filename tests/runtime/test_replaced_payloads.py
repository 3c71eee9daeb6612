"""`changed="rerun"`: nothing is paid for with a payload that the same run replaces, and no money is missing."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any, get_args

import pytest

import holdfast as hf
from holdfast.core.limits import INGEST_FIRST_GROUP
from holdfast.core.model import BatchId, Chunk, ChunkId, Counts, ItemNo, State
from holdfast.runtime.acts import Actor
from holdfast.runtime.define.options import Changed, Identity
from holdfast.runtime.engine import session as runs
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.exchange import Rules
from holdfast.runtime.engine.ingester import Ingester
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.operate import audit, operations
from tests.runtime.support import Calls, outputs, run, run_until, wait_for

Restart = Callable[..., hf.Pipeline]
CENT = Decimal("0.01")


def paying(calls: Calls) -> Callable[[hf.Pipeline], None]:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def pay(row: dict[str, int], ctx: hf.Context) -> int:
            calls((row["id"], row["v"]))
            ctx.spend(usd="0.01")
            return row["v"]

    return define


def rows(version: int, count: int = 20) -> list[dict[str, int]]:
    return [{"id": n, "v": version} for n in range(count)]


class Rounds:
    """Counts the rounds of the worker; a source that waits for some gives it the time to begin what it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        look_after = Desk._free_slots

        def counted(desk: Desk) -> None:
            self.count += 1
            look_after(desk)

        monkeypatch.setattr(Desk, "_free_slots", counted)
        monkeypatch.setattr(runs, "Rules", partial(Rules, idle_seconds=0.001))

    def slowly(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            until = self.count + 5
            wait_for(lambda until=until: self.count >= until)
            yield item


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


def half_done(restart: Restart) -> None:
    """Eight of twenty are done and paid for."""
    report = run(restart(paying(Calls())), rows(1), key="id", workers=1, budget=hf.Budget(usd="0.08", item="0.01"))
    assert (report.counts.done, report.counts.pending) == (8, 12)


@pytest.mark.promise("P4")
@pytest.mark.parametrize("at_hand", [True, False])
def test_what_is_pending_is_not_paid_for_with_the_old_payload(restart: Restart, rounds: Rounds, at_hand: bool) -> None:
    half_done(restart)
    calls = Calls()
    book = restart(paying(calls))
    report = run(book, rows(2) if at_hand else rounds.slowly(rows(2)), key="id", changed="rerun", workers=2)
    assert sorted(calls.seen) == [(n, 2) for n in range(20)]
    assert (report.this_run.done, report.this_run.done_before) == (20, 0)
    assert (report.this_run.usd, report.totals.usd) == (20 * CENT, 28 * CENT)
    assert outputs(book) == dict.fromkeys(range(20), 2)
    assert audit.verify(book.store, book.store.batches()[0], full=True).findings == ()


def test_what_did_not_change_counts_as_done_before(restart: Restart, rounds: Rounds) -> None:
    half_done(restart)
    calls = Calls()
    mixed = [*rows(1)[:5], *rows(2)[5:]]
    report = run(restart(paying(calls)), rounds.slowly(mixed), key="id", changed="rerun")
    assert sorted(calls.seen) == [(n, 2) for n in range(5, 20)]
    assert (report.this_run.done, report.this_run.done_before, report.saved.items) == (15, 5, 5)


def test_a_new_batch_is_worked_on_while_its_source_is_read(restart: Restart) -> None:
    calls = Calls()

    def source() -> Iterator[dict[str, int]]:
        yield from rows(1, 1)
        wait_for(lambda: calls.seen == [(0, 1)])
        yield from rows(1, 3)[1:]

    assert run(restart(paying(calls)), source(), key="id", changed="rerun").is_complete


def test_a_source_that_breaks_off_leaves_stored_items_alone(restart: Restart, rounds: Rounds) -> None:
    half_done(restart)
    calls = Calls()

    def source() -> Iterator[dict[str, int]]:
        yield from rounds.slowly(rows(2)[:12])
        raise OSError("the line is down")

    with pytest.raises(OSError, match="the line is down"):
        run(restart(paying(calls)), source(), key="id", changed="rerun")
    assert calls.seen == []
    report = run(restart(paying(calls)), rows(2), key="id", changed="rerun")
    assert sorted(calls.seen) == [(n, 2) for n in range(20)]
    assert report.totals.usd == 28 * CENT


def test_a_run_that_ends_before_its_source_was_compared_says_that_nothing_began(restart: Restart) -> None:
    half_done(restart)
    calls, waits = Calls(), threading.Event()

    def source() -> Iterator[dict[str, int]]:
        yield from rows(2)[:10]
        waits.set()
        threading.Event().wait(60)
        yield from rows(2)[10:]

    report = run_until(waits.is_set, restart(paying(calls)), source(), key="id", changed="rerun")
    assert (report.state, calls.seen) == ("interrupted", [])
    (warning,) = report.warnings
    assert "nothing was begun" in warning
    assert 'changed="rerun"' in warning


@pytest.mark.promise("P4")
def test_a_key_that_comes_twice_does_not_lose_the_money_of_an_attempt_under_way(restart: Restart) -> None:
    calls, running, end = Calls(), threading.Event(), threading.Event()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def pay(row: dict[str, int], ctx: hf.Context) -> int:
            calls((row["id"], row["v"]))
            ctx.spend(usd="0.01")
            running.set()
            assert end.wait(20)
            return row["v"]

    def source() -> Iterator[dict[str, int]]:
        yield {"id": 1, "v": 1}
        assert running.wait(20)
        threading.Timer(0.2, end.set).start()
        yield {"id": 1, "v": 2}

    book = restart(define)
    report = run(book, source(), key="id", changed="rerun")
    assert calls.seen == [(1, 1), (1, 2)]
    assert report.totals.usd == report.this_run.usd == 2 * CENT
    assert (report.this_run.done, report.this_run.done_before) == (1, 0)
    assert outputs(book) == {1: 2}


@pytest.mark.promise("E10")
def test_a_dead_letter_that_was_corrected_and_redriven_is_tried_with_the_new_payload(
    restart: Restart, rounds: Rounds
) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def pay(row: dict[str, int]) -> int:
            calls((row["id"], row["v"]))
            if row["v"] < 0:
                raise hf.Permanent("unreadable")
            return row["v"]

    run(restart(define), [*rows(1, 3), {"id": 3, "v": -1}], key="id")
    book = restart(define)
    operations.redrive(book.store, book.store.batches()[0], Actor(name="ann", reason="corrected"), ["3"])
    calls.clear()
    report = run(book, rounds.slowly([*rows(1, 3), {"id": 3, "v": 7}]), key="id", changed="rerun")
    assert calls.seen == [(3, 7)]
    assert (report.counts.done, report.this_run.done, report.this_run.done_before) == (4, 1, 3)


@pytest.mark.parametrize("sees_it_first", [False, True])
def test_another_process_is_told_in_words_that_a_payload_was_replaced(
    restart: Restart, caplog: pytest.LogCaptureFixture, sees_it_first: bool
) -> None:
    running, end = threading.Event(), threading.Event()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def pay(row: dict[str, int], ctx: hf.Context) -> int:
            ctx.spend(usd="0.01")
            if row["v"] == 1:
                running.set()
                assert end.wait(20)
            return row["v"]

    first, lease = restart(define), "1s" if sees_it_first else "30s"
    thread = threading.Thread(target=lambda: run(first, [{"id": 7, "v": 1}], key="id", lease=lease))
    thread.start()
    assert running.wait(20)
    second = restart(define)
    with caplog.at_level(logging.WARNING):
        run(second, [{"id": 7, "v": 2}], key="id", changed="rerun")
        wait_for(lambda: not sees_it_first or "not recorded" in caplog.text)
        end.set()
        thread.join(30)
    assert outputs(second) == {7: 2}
    (told,) = [each.getMessage() for each in caplog.records if "not recorded" in each.getMessage()]
    assert told.startswith("batch 'book': the payload of item 7 was replaced while it was handled")
    assert "its result and its cost are not recorded" in told
    assert ("$0.01" in told) is not sees_it_first, "what runs has not told its cost"
    assert "chunk" not in told


def test_no_more_is_sent_back_than_was_there_before() -> None:
    chunk = Chunk(id=ChunkId(1), batch=BatchId(1), lo=ItemNo(0), hi=ItemNo(4), counts=Counts(done=1))
    ledger = Ledger([chunk])
    for _ in range(3):
        ledger.send_back(State.DONE)
    assert ledger.before.done == 0


@pytest.mark.parametrize("changed", ["rerun", "keep", "refuse"])
def test_a_batch_is_compared_before_it_is_worked_on_where_payloads_may_be_replaced(
    restart: Restart, changed: Changed
) -> None:
    book = restart(paying(Calls()))
    run(book, rows(1, count=1), key="id")
    for identity in get_args(Identity):
        (batch,) = book.store.batches()
        reading = Ingester(book.store, batch, book.stages[0].input, key="id", identity=identity, changed=changed,
                           owner="ann", rerun=lambda *_: None)  # fmt: skip
        assert reading.compares_first is (changed == "rerun" and identity == "key")


def test_a_payload_that_changed_refuses_the_run_before_anything_is_worked_on_however_late_it_comes(
    restart: Restart,
) -> None:
    book = restart(paying(Calls()))
    count = 2 * INGEST_FIRST_GROUP
    run(book, rows(1, count), key="id")
    (batch,), begun = book.store.batches(), list[bool]()
    reading = Ingester(book.store, batch, book.stages[0].input, key="id", identity="key", changed="refuse",
                       owner="ann", rerun=lambda *_: None)  # fmt: skip
    source = [*rows(1, count)[:-1], {"id": count - 1, "v": 2}]
    with pytest.raises(hf.PayloadChanged):
        reading.read(source, Control(1), Ledger([]), lambda: None, begin=lambda: bool(begun.append(True)))
    assert not begun


def test_the_worker_sees_that_payloads_are_compared_before_its_rest_is_waited_for() -> None:
    """A rest that it notes late, from the comparison before, must not be taken for one after which it began again."""
    control, seen = Control(1), list[bool]()

    class Watched(threading.Event):
        def clear(self) -> None:
            seen.append(control.comparing)
            super().clear()

    control._still = Watched()
    with control.stilled(control.rest, lambda: False):
        assert control.comparing
    assert (seen, control.comparing) == ([True], False)
