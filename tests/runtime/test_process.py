"""`process()` handles one message idempotently: admitted by key, claimed alone, run here, committed stage by stage."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.course import to_steer
from holdfast.core.model import Claim, ClaimRequest, ItemNo
from holdfast.core.settle import NOTHING, commit
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.message import Processor
from holdfast.runtime.operate import operations
from holdfast.runtime.operate.audit import verify
from holdfast.stores import faults
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.kit import holder_of, new_item
from tests.runtime.support import Calls, run, wait_for

AT_ONCE = hf.Retry(attempts=3, wait=("0s", "0s"))


def define(book: hf.Pipeline, calls: Calls) -> hf.Pipeline:
    @book.stage
    def first(n: int) -> int:
        calls(("first", n))
        return n + 1

    @book.stage(sink=hf.Files("out/{key}.json"), retry=AT_ONCE)
    async def second(n: int, ctx: hf.Context) -> int:
        calls(("second", n))
        await asyncio.sleep(0)
        if n == 11 and ctx.attempt < 3:
            raise hf.Transient("not yet")
        if n == 21:
            raise hf.Permanent("no_such_page", "gone")
        if n == 31:
            raise hf.Skip("blank")
        return n * 2

    return book


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def pages(book: hf.Pipeline, calls: Calls) -> hf.Pipeline:
    return define(book, calls)


def test_a_message_goes_through_all_stages_here(pages: hf.Pipeline, calls: Calls, folder: Path) -> None:
    result = pages.process(1)
    assert (result.state, result.output, result.key, result.number) == ("done", 4, 1, 0)
    assert (result.is_finished, result.run_again) == (True, False)
    assert calls.seen == [("first", 1), ("second", 2)]
    assert (folder / "out" / "1.json").read_text() == "4\n"


@pytest.mark.promise("P8", "P11")
def test_a_duplicate_is_answered_from_the_store(pages: hf.Pipeline, calls: Calls) -> None:
    first = pages.process(1)
    calls.clear()
    reached: list[str] = []
    faults.arm(reached.append)
    again = pages.process(1)
    faults.arm(None)
    assert again == first
    assert not calls.seen
    assert not reached, "not one write"


@pytest.mark.parametrize(
    ("item", "state", "code", "attempts"),
    [(10, "done", "", 3), (20, "dead", "no_such_page", 1), (30, "skipped", "skipped", 1)],
)
def test_every_end_is_told_and_told_again(
    item: int, state: str, code: str, attempts: int, pages: hf.Pipeline, calls: Calls
) -> None:
    result = pages.process(item)
    assert (result.state, result.code) == (state, code)
    assert calls.seen.count(("second", item + 1)) == attempts
    calls.clear()
    assert pages.process(item) == result
    assert not calls.seen


def test_what_is_not_valid_is_a_dead_letter_at_once(pages: hf.Pipeline, calls: Calls) -> None:
    told: list[hf.DeadLetter] = []
    pages.on_failure(told.append)
    result = pages.process("x")
    assert (result.state, result.code, result.key) == ("dead", "invalid", "x")
    assert [letter.code for letter in told] == ["invalid"]
    assert not calls.seen


def test_hooks_are_told_of_what_is_buried(pages: hf.Pipeline) -> None:
    told: list[Any] = []
    pages.on_failure(lambda letter: told.append(letter.code))
    pages.process(20)
    pages.process(20)
    assert told == ["no_such_page"]


def test_a_hook_before_a_stage_that_raises_is_called_again_for_the_next_message(book: hf.Pipeline) -> None:
    told: list[str] = []

    @book.stage
    def read(number: int) -> int:
        told.append("item")
        return number

    @read.before
    def prepare() -> None:
        told.append("before")
        if len(told) == 1:
            raise OSError("not yet")

    with pytest.raises(OSError, match="not yet"):
        book.process(1)
    assert [book.process(number).state for number in (1, 2)] == ["done", "done"]
    assert told == ["before", "before", "item", "item"]


def test_two_first_messages_call_the_hook_before_a_stage_once_and_both_wait_for_it(book: hf.Pipeline) -> None:
    told: list[str] = []
    both = threading.Barrier(2)
    arrived: list[int] = []
    begin = Processor._begin

    @book.stage
    def read(number: int) -> int:
        told.append("item")
        return number

    @read.before
    def prepare() -> None:
        wait_for(lambda: len(arrived) == 2)
        told.append("before")

    def seen(one: Processor, stage: Any) -> None:
        arrived.append(1)
        begin(one, stage)

    def message(number: int) -> None:
        both.wait(60)
        book.process(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processor, "_begin", seen)
        threads = [threading.Thread(target=message, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert told == ["before", "item", "item"]


def test_a_message_takes_a_handful_of_writes(pages: hf.Pipeline) -> None:
    pages.process(0)
    reached: list[str] = []
    faults.arm(reached.append)
    pages.process(1)
    faults.arm(None)
    writes = [point for point in reached if point.endswith(".written")]
    assert writes == ["add_items.written", "claim.written", "commit.written", "commit.written"]


def test_a_retry_that_is_not_due_is_left_for_later() -> None:
    clock = ManualClock()
    book, calls = hf.Pipeline("book", store=MemoryStore(clock=clock)), Calls()

    @book.stage(retry=hf.Retry(attempts=3, wait=("10s", "10s")))
    def only(n: int) -> int:
        if calls(n) == 1:
            raise hf.Transient("not now")
        return n

    result = book.process(7)
    assert (result.state, result.due, result.run_again) == ("waiting", clock() + 10, True)
    assert book.process(7).state == "waiting"
    assert len(calls) == 1
    clock.advance(10)
    assert book.process(7).output == 7
    assert len(calls) == 2


def test_an_item_that_another_process_tried_in_the_same_moment_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    book, calls = hf.Pipeline("book", store=MemoryStore(clock=clock)), Calls()

    @book.stage(retry=hf.Retry(attempts=3, wait=("10s", "10s")))
    def only(n: int) -> int:
        calls(n)
        raise hf.Transient("not now")

    claim, again = book.store.claim, [1]

    def claim_late(want: ClaimRequest) -> Any:
        if again and want.only == 0:
            again.clear()
            assert book.process(0).state == "waiting"  # another delivery comes first
        return claim(want)

    with book.processor() as one:
        one.store.add_items(one.batch.id, [one.ingester.freeze(n, None) for n in (0, 1)])
        monkeypatch.setattr(book.store, "claim", claim_late)
        result = one.process(0)
    assert (result.state, result.due, len(calls)) == ("waiting", clock() + 10, 1)


def test_what_another_process_holds_is_running(pages: hf.Pipeline, calls: Calls) -> None:
    pages.process(1)
    batch = lookup.batch_named(pages.store, "book")
    operations.reset(pages.store, batch, Actor(name="ann", reason="again"), "1")
    (chunk,) = pages.store.chunks(batch.id)
    pages.store.claim(ClaimRequest(batch=batch.id, owner="elsewhere", limit=1, seconds=30.0))
    calls.clear()
    result = pages.process(1)
    assert (result.state, result.run_again, calls.seen) == ("running", True, [])
    assert chunk.owner is None


def test_what_waits_is_not_running_because_something_else_runs() -> None:
    clock = ManualClock()
    book = hf.Pipeline("book", store=MemoryStore(clock=clock, is_dead=lambda _owner: False))

    @book.stage
    def only(n: int) -> int:
        return n

    with book.processor() as one:
        for n in (1, 2):
            one.store.add_items(one.batch.id, [one.ingester.freeze(n, None)])
        parked = one.store.claim(ClaimRequest(batch=one.batch.id, owner="a run", limit=1, seconds=30.0, only=ItemNo(0)))
        one.store.claim(ClaimRequest(batch=one.batch.id, owner="a run", limit=1, seconds=30.0, only=ItemNo(1)))
        assert isinstance(parked, Claim)
        holder = holder_of(parked, 0, 30.0)
        one.store.commit([commit(holder, NOTHING, commit_id=bytes(16), release=True, due=clock() + 90)])
        waits, runs = one.process(1), one.process(2)
    assert (waits.state, waits.due) == ("waiting", clock() + 90)
    assert (runs.state, runs.why, runs.due) == ("running", "another process is handling it", None)


def test_two_threads_with_the_same_message_run_it_once(book: hf.Pipeline) -> None:
    calls, inside, leave = Calls(), threading.Event(), threading.Event()

    @book.stage
    def only(n: int) -> int:
        calls(n)
        inside.set()
        assert leave.wait(20)
        return n

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(book.process(1)))
    thread.start()
    assert inside.wait(20)
    assert book.process(1).state == "running"
    leave.set()
    thread.join(20)
    assert [result.state for result in found] == ["done"]
    assert book.process(1).output == 1
    assert len(calls) == 1


def test_an_item_of_a_batch_that_was_read_from_a_source(pages: hf.Pipeline, calls: Calls) -> None:
    """It stands in a chunk with others, which are not run."""
    from holdfast.runtime.define import definition
    from holdfast.runtime.engine.control import Control
    from holdfast.runtime.engine.ingester import Ingester
    from holdfast.runtime.engine.ledger import Ledger

    described = definition.describe("book", pages.stages, definition.keyed_by(None, "key"))
    batch = pages.store.open_batch("book", "book", described, actor="reader")
    ingester = Ingester(pages.store, batch, pages.stages[0].input, key=None, identity="key", changed="refuse",
                        owner="reader", rerun=lambda *_: None)  # fmt: skip
    ingester.read(range(5), Control(1), Ledger([]), lambda: None)
    assert pages.process(3).output == 8
    assert {n for _, n in calls.seen} == {3, 4}
    assert run(pages, range(5)).counts.done == 5
    assert calls.seen.count(("first", 3)) == 1
    assert verify(pages.store, lookup.batch_named(pages.store, "book"), full=True).holds


def test_another_payload_under_a_known_key(book: hf.Pipeline) -> None:
    @book.stage
    def only(row: dict) -> str:  # type: ignore[type-arg]
        return str(row["word"])

    assert book.process({"id": 1, "word": "a"}, key="id").output == "a"
    with pytest.raises(hf.PayloadChanged):
        book.process({"id": 1, "word": "b"}, key="id")
    assert book.process({"id": 1, "word": "b"}, key="id", changed="keep").output == "a"
    assert book.process({"id": 1, "word": "b"}, key="id", changed="rerun").output == "b"
    with pytest.raises(hf.DefinitionChanged):
        book.process({"id": 1, "word": "b"}, key=lambda row: row["id"])


@pytest.mark.promise("P4")
def test_a_finished_item_whose_file_is_gone_is_made_again(pages: hf.Pipeline, calls: Calls, folder: Path) -> None:
    pages.process(1)
    (folder / "out" / "1.json").unlink()
    calls.clear()
    assert pages.process(1).output == 4
    assert calls.seen == [("second", 2)]
    assert (folder / "out" / "1.json").exists()


# -- time ------------------------------------------------------------------------------------------------------------


def test_it_stops_at_a_checkpoint_before_its_time_is_over(book: hf.Pipeline) -> None:
    calls, hangs = Calls(), threading.Event()

    @book.stage
    def first(n: int) -> int:
        calls("first")
        return n

    @book.stage
    def second(n: int) -> int:
        if calls("second") == 1:
            hangs.wait(20)
        return n

    began = time.monotonic()
    result = book.process(1, deadline="1s")
    assert (result.state, result.run_again) == ("again", True)
    assert time.monotonic() - began < 15
    hangs.set()
    again = book.process(1)
    assert (again.state, again.output) == ("done", 1)
    assert calls.seen.count("first") == 1, "it resumed at the checkpoint, at once"


def test_without_time_nothing_is_begun(pages: hf.Pipeline, calls: Calls) -> None:
    result = pages.process(1, deadline=0)
    assert (result.state, calls.seen) == ("again", [])
    assert pages.process(1).state == "done"


def test_a_timeout_of_a_plain_function_breaks_in(book: hf.Pipeline) -> None:
    hangs = threading.Event()

    @book.stage(timeout="0.2s", retry=hf.Retry(attempts=1))
    def only(n: int) -> int:
        hangs.wait(20)
        return n

    assert book.process(1).code == "timeout"
    hangs.set()


@pytest.mark.promise("P11")
@pytest.mark.parametrize("slow", ["verifier", "disk"])
def test_the_timeout_is_for_the_handler_and_for_nothing_else(
    slow: str, book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it made would be paid for with the failed attempt, and once more when its output is adopted."""
    calls, whole = Calls(), hf.Files.stage

    def stage(sink: hf.Files, *args: Any) -> Any:
        time.sleep(0.5 if slow == "disk" else 0.0)
        return whole(sink, *args)

    monkeypatch.setattr(hf.Files, "stage", stage)

    @book.stage(sink=hf.Files("out/{key}.json"), timeout="200ms", retry=AT_ONCE)
    def pay(number: int, ctx: hf.Context) -> int:
        calls(number)
        ctx.spend(usd=1)
        return number

    @pay.verify(timeout="20s")
    def holds(out: int) -> bool:
        time.sleep(0.5 if slow == "verifier" else 0.0)
        return out == 1

    assert book.process(1).state == "done"
    report = book.report()
    assert (len(calls), report.totals.attempts, report.totals.usd) == (1, 1, 1)


def test_a_slow_handler_keeps_its_lease(book: hf.Pipeline) -> None:
    seen = threading.Event()

    @book.stage
    def only(n: int) -> int:
        renewed: list[str] = []
        faults.arm(renewed.append)
        wait_for(lambda: renewed.count("renew.after") >= 3)
        faults.arm(None)
        seen.set()
        return n

    assert book.process(1, lease="0.3s").state == "done"
    assert seen.is_set()


# -- interrupted -----------------------------------------------------------------------------------------------------


def test_an_interrupt_is_not_held_against_the_item(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage
    def only(n: int) -> int:
        if calls(n) == 1:
            raise KeyboardInterrupt
        return n

    with pytest.raises(KeyboardInterrupt):
        book.process(1)
    assert book.process(1).state == "done", "at once: the lease was given back"


def test_inside_a_running_loop(pages: hf.Pipeline) -> None:
    async def main() -> Any:
        return pages.process(1)

    assert asyncio.run(main()).output == 4


def test_sealed_cancelled_and_paused_batches(pages: hf.Pipeline) -> None:
    from holdfast.core.model import BatchMode

    done = pages.process(1)
    batch = lookup.batch_named(pages.store, "book")
    pages.store.amend(batch.id, to_steer(BatchMode.PAUSED, reason="later"), actor="ann")
    assert pages.process(2).state == "waiting"
    assert "paused" in pages.process(2).why
    pages.store.amend(batch.id, to_steer(BatchMode.CANCELLED, reason="never"), actor="ann")
    assert (pages.process(2).state, pages.process(2).code) == ("cancelled", "cancelled")
    assert pages.report().counts.cancelled == 1, "it is on record"
    assert pages.process(1) == done
    with pytest.raises(hf.Refused):
        pages.process(3)


@pytest.mark.promise("C13")
def test_a_commit_after_a_take_over_is_refused(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage
    def only(n: int) -> int:
        if calls(n) == 1:
            batch = lookup.batch_named(book.store, "book")
            operations.reset(book.store, batch, Actor(name="ann", reason="mine"), str(n))
        return n

    result = book.process(1)
    assert (result.state, result.run_again) == ("again", True), "nobody else is at work on it"
    assert "taken over" in result.why
    assert book.process(1).state == "done"
    assert verify(book.store, lookup.batch_named(book.store, "book"), full=True).holds


def test_it_does_not_decide_about_changed_code(restart: Callable[..., hf.Pipeline]) -> None:
    def old(book: hf.Pipeline) -> None:
        @book.stage
        def only(n: int) -> int:
            return n

    def new(book: hf.Pipeline) -> None:
        @book.stage
        def only(n: int) -> int:
            return n + 1

    assert restart(old).process(1).output == 1
    assert restart(new).process(2).output == 3
    book = restart(new)
    assert run(book, [1, 2]).warnings, "the next run asks"


@pytest.mark.promise("P8")
def test_what_a_killed_process_left_at_the_first_stage_is_adopted(folder: Path) -> None:
    clock, paid = ManualClock(), Calls()
    book = hf.Pipeline("book", store=MemoryStore(clock=clock))

    @book.stage
    def pay(n: int) -> int:
        paid(n)
        return n

    @pay.adopt
    def find(n: int, ctx: hf.Context) -> int | None:
        return n if n in paid.seen else None

    with book.processor(lease="30s") as killed:
        n = killed.store.add_items(killed.batch.id, [killed.ingester.freeze(7, None)]).lo
        killed.store.claim(ClaimRequest(batch=killed.batch.id, owner="killed", limit=1, seconds=30, only=n))
        paid(7)
    clock.advance(31)
    assert (book.process(7).state, paid.seen) == ("done", [7])


def test_no_thread_is_left_behind(book: hf.Pipeline) -> None:
    @book.stage
    def read(n: int) -> int:
        return n

    @read.verify
    def is_there(n: int) -> bool:
        return True

    before = threading.active_count()
    for n in range(3):
        assert book.process(n).state == "done"
    wait_for(lambda: threading.active_count() <= before)


def ending(clock: ManualClock, seconds: float = 1.0) -> hf.Pipeline:
    """A pipeline with a batch that ends then."""
    book = hf.Pipeline("book", store=MemoryStore(clock=clock, is_dead=lambda _owner: False))
    book.stage(name="read")(lambda n: n)
    with book.processor() as processor:
        batch = processor.batch
    book.store.amend(batch.id, to_steer(batch.course, reason="it ends", ends_at=clock() + seconds), actor="ann")
    return book


@pytest.mark.promise("A15")
def test_after_the_end_of_a_batch_a_new_message_is_refused(folder: Path) -> None:
    clock = ManualClock()
    book = ending(clock)
    book.expect("book", 1)
    done = book.process(1)
    clock.advance(2)
    for _ in range(2):
        with pytest.raises(hf.Refused, match=r"ended at .* takes no new items; give it a later end"):
            book.process(2)
    report = book.report("book")
    assert (report.state, report.counts.expected, report.counts.pending) == ("complete", 1, 0)
    assert book.process(1) == done, "those it has may come again"
    answer = hf.lambda_handler(book)({"Records": [{"messageId": "m", "body": "2"}]}, None)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m"}]}, "the queue keeps it"


def test_a_later_end_takes_new_messages_again(folder: Path) -> None:
    clock = ManualClock()
    book = ending(clock)
    with book.processor() as processor:
        clock.advance(2)
        batch = lookup.batch_named(book.store, "book")
        book.store.amend(batch.id, to_steer(batch.course, reason="later", ends_at=clock() + 10), actor="ann")
        assert processor.process(1).state == "done"


@pytest.mark.promise("A15")
def test_an_item_that_its_batch_left_is_cancelled_on_record(folder: Path) -> None:
    clock = ManualClock()
    book = ending(clock)
    batch = lookup.batch_named(book.store, "book")
    book.store.add_items(batch.id, [new_item(n, str(n).encode()) for n in (1, 2)], actor="ann")
    clock.advance(2)
    late = book.process(1)
    assert (late.state, late.code, late.is_finished) == ("cancelled", "ended", True)
    assert late.why.startswith("the batch ended at ")
    counts = book.report("book").counts
    assert (counts.cancelled, counts.pending) == (1, 1), "the other one has its own message, or a run"
    book.process(2)
    assert book.report("book").state == "stopped"
    assert verify(book.store, batch, full=True).holds
    finished = [event for event in book.store.events(0) if event.kind == "batch.finished"]
    assert len(finished) == 1


@pytest.mark.promise("A15")
@pytest.mark.parametrize("how", ["until", "cancel"])
def test_an_item_in_hand_is_not_called_cancelled(how: str, folder: Path) -> None:
    clock = ManualClock()
    book = ending(clock)
    batch = lookup.batch_named(book.store, "book")
    book.store.add_items(batch.id, [new_item(1, b"1")], actor="ann")
    claim = book.store.claim(ClaimRequest(batch=batch.id, owner="other", limit=1, seconds=30))
    assert isinstance(claim, Claim)
    if how == "cancel":
        book.cancel("book", reason="never")
    else:
        clock.advance(2)
    held = book.process(1)
    assert (held.state, held.run_again) == ("running", True)
    clock.advance(60)
    gone = book.process(1)
    assert (gone.state, gone.code) == ("cancelled", "cancelled" if how == "cancel" else "ended")
    assert book.report("book").counts.cancelled == 1
