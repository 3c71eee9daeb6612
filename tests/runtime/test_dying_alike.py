"""A mistake in the code buries nothing: while no item has succeeded, deaths are withheld, and the run stops."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.core import retry
from holdfast.core.limits import ALIKE_ITEMS, SLICE_ITEMS, WITHHELD_TIMES
from holdfast.core.model import BatchId, Claim, ClaimRequest
from holdfast.core.outcome import Skipped
from holdfast.core.retry import Policy
from holdfast.core.settle import commit, settle
from holdfast.interfaces.cli.app import call
from holdfast.runtime.engine import withheld
from holdfast.runtime.engine.exchange import LookAt, StopRun
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.operate import audit
from holdfast.runtime.report import why
from holdfast.testing.conformance.kit import holder_of
from holdfast.testing.rows import Rows
from tests.core.made import chunk
from tests.runtime.rehearsal import died, held, item
from tests.runtime.support import ONCE, Calls, codes, run, wait_for

Restart = Callable[..., hf.Pipeline]


def typo(calls: Calls, *, correct: bool = False, kind: str = "threads") -> Callable[[hf.Pipeline], None]:
    def define(book: hf.Pipeline) -> None:
        def read(number: int) -> int:
            calls(number)
            return number if correct else nubmer  # type: ignore[name-defined] # noqa: F821

        async def read_async(number: int) -> int:
            return read(number)

        book.stage(name="read")(read_async if kind == "loop" else read)

    return define


class Doc(BaseModel):
    body: str


def test_the_line_that_is_named_is_the_users_and_not_one_of_a_library(restart: Restart) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> str:
            return Doc(body=str(number)).bodyy  # type: ignore[attr-defined,no-any-return]

    book = restart(define)
    with pytest.raises(hf.DiedAlike, match=r"\(test_dying_alike\.py:\d+ in read\)"):
        run(book, range(100))
    report = run(book, range(100), tolerate="100%")
    (attempt, *_) = [
        each for each in why.tell(book.store, book.store.batches()[0], "1").events if each.facts.get("trace")
    ]
    assert attempt.facts["trace"].endswith("in __getattr__")
    assert "; pydantic/main.py:" in attempt.facts["trace"]
    assert report.counts.dead == 100


@pytest.mark.promise("E2")
@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("workers", [1, 4, 40])
def test_a_typo_stops_the_run_and_buries_nothing(restart: Restart, kind: str, workers: int) -> None:
    calls = Calls()
    book = restart(typo(calls, kind=kind))
    with pytest.raises(hf.DiedAlike) as caught:
        run(book, range(3_000), workers=workers)
    text = str(caught.value)
    assert "died alike at stage 'read', and none has succeeded: NameError: name 'nubmer' is not defined" in text
    assert "in read); for example item " in text
    assert "Nothing was buried: correct the code or the input, then run again." in text
    assert text.count("NameError") == 1
    report = book.report()
    assert (report.counts.dead, report.counts.done) == (0, 0)
    assert max(ALIKE_ITEMS, workers) <= len(calls) < 3_000
    assert all(item.place.attempt == 0 for item in book.store.items(1))
    assert audit.verify(book.store, book.store.batches()[0], full=True).findings == ()
    assert run(restart(typo(Calls(), correct=True)), range(3_000)).is_complete


@pytest.mark.promise("E2", "P10")
def test_the_command_ends_with_1_and_says_it_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("app.py").write_text(
        "import holdfast as hf\n"
        "words = hf.Pipeline('words', source=range(1000))\n"
        "@words.stage\n"
        "def shout(word: int) -> str:\n"
        "    return wrod\n"
    )
    assert call(["run", "app.py:words", "--no-progress"]) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("name 'wrod' is not defined") == 1
    assert "(app.py:5 in shout)" in said.err
    assert call(["run", "app.py:words", "--no-progress", "--tolerate", "100%"]) == 0
    assert "1,000 dead" in capsys.readouterr().out


@pytest.mark.promise("E2", "E4")
def test_fewer_items_than_that_are_buried_at_the_end_of_their_source(restart: Restart) -> None:
    report = run(restart(typo(Calls())), range(ALIKE_ITEMS - 1), workers=4)
    assert (report.counts.dead, report.exit_code) == (ALIKE_ITEMS - 1, 1)
    assert report.state == "complete with dead letters"


@pytest.mark.promise("E2")
def test_one_success_is_enough_to_believe_the_others(book: hf.Pipeline) -> None:
    died = Calls()

    @book.stage
    def read(number: int) -> int:
        if number != ALIKE_ITEMS - 2:
            died(number)
            raise ValueError("bad page")
        return number

    report = run(book, range(100), workers=1)
    assert (report.counts.dead, report.counts.done) == (99, 1)
    assert len(died) == 99, "nobody was tried twice"


def test_a_skipped_item_is_a_success(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        if number == 3:
            raise hf.Skip("blank")
        raise ValueError("bad page")

    assert run(book, range(100), workers=1).counts.dead == 99


def test_a_batch_in_which_something_ever_succeeded_is_not_concerned(restart: Restart) -> None:
    assert run(restart(typo(Calls(), correct=True)), [0]).is_complete
    report = run(restart(typo(Calls())), range(50))
    assert (report.counts.dead, report.counts.done) == (49, 1)


@pytest.mark.promise("E2")
@pytest.mark.parametrize("again", [1, 2])
def test_a_typo_that_comes_into_a_batch_half_done_stops_the_run_and_buries_nothing(
    restart: Restart, again: int
) -> None:
    """What other code has done proves nothing about this one; nor does it the second time."""

    def right(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            return number

    def wrong(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            return nubmer  # type: ignore[name-defined,no-any-return] # noqa: F821

    assert run(restart(right), range(50)).counts.done == 50
    for _ in range(again):
        with pytest.raises(hf.DiedAlike):
            run(restart(wrong), range(150))
    report = run(restart(right), range(150))
    assert (report.counts.done, report.counts.dead) == (150, 0)


def test_a_typo_in_the_second_stage_stops_the_run_too(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        if number % 7 == 1:
            raise hf.Permanent("odd")
        return number

    @book.stage
    def write(number: int) -> int:
        return nubmer  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(hf.DiedAlike, match="stage 'write'"):
        run(book, range(300), workers=2)
    assert {letter.code for letter in book.report().dead} <= {"odd"}, "the first stage works: its deaths count"


def test_codes_of_the_users_are_alike_without_a_place_and_errors_only_at_the_same_one(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        if number % 2:
            raise hf.Permanent("blank", f"page {number}")
        raise ValueError(number)

    with pytest.raises(hf.DiedAlike, match=r"(blank: page \d+|ValueError: \d+ \(\S+ in read\));"):
        run(book, range(200), workers=1)


@pytest.mark.promise("E2")
def test_deaths_of_many_kinds_are_believed_and_memory_stays_bounded(
    book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = [0]
    hold = withheld.WithheldDeaths._hold

    def noted(self: withheld.WithheldDeaths, *args: Any) -> None:
        hold(self, *args)
        most[0] = max(most[0], len(self._held))

    monkeypatch.setattr(withheld.WithheldDeaths, "_hold", noted)

    @book.stage(timeout=60)
    def read(number: int, ctx: hf.Context) -> int:
        raise hf.Permanent(f"code {number}")

    count = ALIKE_ITEMS * WITHHELD_TIMES + 3 * SLICE_ITEMS
    report = run(book, range(count), workers=2)
    assert report.counts.dead == count
    assert most[0] <= ALIKE_ITEMS * WITHHELD_TIMES + SLICE_ITEMS


def test_invalid_input_is_not_concerned(restart: Restart) -> None:
    report = run(restart(typo(Calls(), correct=True)), ["x"] * 3 + [f"word {n}" for n in range(100)])
    assert set(codes(report).values()) == {"invalid"}
    assert report.counts.dead == 101


@pytest.mark.promise("C8", "E2")
def test_a_typo_in_a_verifier_stops_a_run_that_resumes_behind_it(restart: Restart, folder: Path) -> None:
    state, calls = ["stop"], Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage(sink=hf.Files("out/{key}.json"))
        def read(number: int) -> int:
            return number

        @read.verify
        def holds(out: int) -> bool:
            return True if state == ["stop"] else uot  # type: ignore[name-defined,no-any-return] # noqa: F821

        @book.stage
        def write(number: int, ctx: hf.Context) -> int:
            calls(number)
            if state == ["stop"] and len(set(calls.seen)) == 60:
                book.pause(reason="all have passed the first stage")
            if state == ["stop"]:
                raise hf.Defer(0.05)
            return number

    assert run(restart(define), range(60)).reason == "paused"
    state[:] = ["typo"]
    book = restart(define)
    book.unpause(reason="they have")
    with pytest.raises(hf.DiedAlike, match="verifier_failed"):
        run(book, range(60), verify="quick")
    assert book.report().counts.dead == 0


def test_the_code_of_a_kind() -> None:
    assert retry.enough_alike(4) == ALIKE_ITEMS
    assert retry.enough_alike(64) == 64


# -- money, tolerance, breakers ----------------------------------------------------------------------------------------


@pytest.mark.promise("E2")
def test_what_was_paid_for_deaths_that_are_not_written_is_kept(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage
    def read(number: int, ctx: hf.Context) -> int:
        calls(number)
        ctx.spend(usd="0.01")
        raise ValueError(number)

    with pytest.raises(hf.DiedAlike):
        run(book, range(100), workers=2)
    assert float(book.report().totals.usd) == pytest.approx(len(calls) * 0.01)


def test_a_budget_sees_what_fails(book: hf.Pipeline) -> None:
    calls = Calls()

    @book.stage
    def read(number: int, ctx: hf.Context) -> int:
        calls(number)
        ctx.spend(usd="0.10")
        raise ValueError(number)

    report = run(book, range(100), workers=1, budget=hf.Budget(usd="0.50", item="0.10"))
    assert (len(calls), str(report.totals.usd), report.state) == (5, "0.50", "paused")


@pytest.mark.promise("E7", "E2")
def test_a_tolerance_below_it_decides_first(restart: Restart) -> None:
    report = run(restart(typo(Calls())), range(100), workers=1, stop_beyond=4)
    assert (report.state, report.exit_code) == ("over tolerance", 1)
    assert 5 <= report.counts.dead < ALIKE_ITEMS


@pytest.mark.promise("E7", "E2")
@pytest.mark.parametrize("fine", [{"stop_beyond": 50}, {"tolerate": 50}, {"tolerate": "10%"}])
def test_a_tolerance_above_it_changes_nothing(restart: Restart, fine: dict[str, Any]) -> None:
    book = restart(typo(Calls()))
    with pytest.raises(hf.DiedAlike):
        run(book, range(1000), workers=1, **fine)
    assert book.report().counts.dead == 0


def test_whoever_tolerates_everything_is_believed(restart: Restart) -> None:
    report = run(restart(typo(Calls())), range(100), tolerate="100%")
    assert (report.counts.dead, report.exit_code) == (100, 0)


@pytest.mark.promise("E2")
def test_a_service_that_is_down_makes_its_stage_pause_and_is_no_typo(book: hf.Pipeline) -> None:
    paused = threading.Event()

    @book.stage(retry=ONCE, breaker=hf.Breaker(failures=30, pause="1h"))
    def read(number: int) -> int:
        raise hf.Transient("busy")

    @book.on_event
    def heard(event: Any) -> None:
        if "pauses" in str(event):
            paused.set()
            book.pause(reason="it is seen")

    report = run(book, range(100), workers=1)
    assert paused.is_set()
    assert any("pauses" in warning for warning in report.warnings)
    assert report.counts.pending > 0


# -- how a run ends meanwhile ------------------------------------------------------------------------------------------


@pytest.mark.promise("A7")
def test_what_died_before_ctrl_c_is_not_forgotten_and_never_paid_again(restart: Restart) -> None:
    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.10")
            if calls(number) and number == 5:
                os.kill(os.getpid(), signal.SIGINT)
                wait_for(lambda: ctx.stopping)
            return nubmer  # type: ignore[name-defined,no-any-return] # noqa: F821

    report = run(
        restart(define), range(50), workers=1, budget=hf.Budget(usd=100)
    )  # with a budget each item travels alone
    assert (report.state, report.counts.dead, report.counts.pending) == ("interrupted", 5, 45), (
        "the sixth came after it"
    )
    assert len(calls) == 6
    assert report.totals.usd == Decimal("0.60")


@pytest.mark.promise("A15")
def test_another_reason_to_stop_buries_what_is_withheld(book: hf.Pipeline) -> None:
    never, calls = threading.Event(), Calls()

    @book.stage
    def read(number: int) -> int:
        calls(number)
        raise ValueError(number)

    def source() -> Iterator[int]:
        yield 1
        wait_for(lambda: len(calls) == 1)
        book.pause(reason="enough")
        never.wait(60)

    report = run(book, source())
    assert (report.counts.dead, report.reason) == (1, "paused")


def test_a_source_that_gives_nothing_more_for_a_while_does_not_keep_deaths_back(
    book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withheld, "WITHHELD_SECONDS", 0.0)
    buried = threading.Event()

    @book.stage
    def read(number: int) -> int:
        raise ValueError(number)

    @book.on_failure
    def heard(letter: hf.DeadLetter) -> None:
        buried.set()

    def source() -> Iterator[int]:
        yield 1
        wait_for(lambda: book.report().counts.dead == 1)
        yield 2

    assert run(book, source()).counts.dead == 2
    assert buried.is_set()


def test_a_lost_lease_takes_what_was_withheld_along(book: hf.Pipeline) -> None:
    seized = threading.Event()

    @book.stage
    def read(number: int) -> int:
        if number == 0 and not seized.is_set():
            raise ValueError(number)
        wait_for(seized.is_set)
        return number

    def source() -> Iterator[int]:
        from holdfast.runtime.acts import Actor
        from holdfast.runtime.operate.operations import reset

        yield 0
        wait_for(lambda: any(chunk.owner for chunk in book.store.chunks(1)))
        reset(book.store, book.store.batches()[0], Actor(name="ann", reason="mine"), "0")
        seized.set()
        yield 1

    report = run(book, source(), workers=1, heartbeat="10ms")
    assert (report.counts.done, report.counts.dead) == (2, 0)


# -- scans ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B7", "E2")
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("error", [NameError("name 'rwos' is not defined"), ImportError("no module named 'nunpy'")])
def test_a_mistake_in_the_handler_of_a_scan_stops_it_at_once(error: Exception, follow: bool, isolate: bool) -> None:
    scan = (hf.Follow if follow else hf.Scan)(
        "rows", Rows(range(12), page=4), store="memory:", every=2, isolate=isolate
    )
    broken = [True]

    @scan.handler
    def handle(rows: list[int], acc: int) -> int:
        if broken and 6 in rows:
            raise error
        return acc + len(rows)

    with pytest.raises(hf.UsageError, match=f"{type(error).__name__}: .* nothing was buried"):
        scan.tick() if follow else scan.run(progress=False)
    assert (scan.report().counts.dead, scan.report().rows) == (0, 6)
    broken.clear()
    assert (scan.tick() if follow else scan.run(progress=False)).exit_code == 0
    assert scan.report().rows == 12


@pytest.mark.promise("E2")
@pytest.mark.parametrize("workers", [1, 4])
def test_what_died_alike_teaches_no_forecast_and_its_money_is_on_the_ledger(restart: Restart, workers: int) -> None:
    paid: list[Decimal] = []

    def define(price: str, *, correct: bool) -> Callable[[hf.Pipeline], None]:
        def defined(book: hf.Pipeline) -> None:
            @book.stage
            def read(number: int, ctx: hf.Context) -> int:
                ctx.spend(usd=price)
                paid.append(Decimal(price))
                return number if correct else nubmer  # type: ignore[name-defined] # noqa: F821

        return defined

    wrong = restart(define("0.01", correct=False))
    with pytest.raises(hf.DiedAlike):
        run(wrong, range(100), workers=workers)
    plan, report = wrong.plan(range(100)), wrong.report()
    assert (plan.count("run"), plan.forecast.unknown, plan.forecast.usd) == (100, ("read",), 0)
    assert (report.totals.usd, report.forecast.usd, report.forecast.work_seconds) == (sum(paid), None, None)
    right = restart(define("0.25", correct=True))
    report = run(right, range(100), workers=workers)
    assert report.totals.usd == sum(paid)
    assert right.plan(range(300)).forecast.usd == 200 * Decimal("0.25")


@pytest.mark.promise("E2")
@pytest.mark.parametrize("others", [1, 5])
def test_few_deaths_do_not_wait_for_what_another_process_holds(
    book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Not even all that are left could make enough of them."""
    monkeypatch.setattr(withheld, "WITHHELD_SECONDS", float("inf"))

    turn = threading.Event()

    @book.stage
    def read(number: int) -> int:
        if turn.is_set():
            raise ValueError("bad page")
        book.pause(reason="another process begins")
        raise hf.Defer(0)

    run(book, range(10))
    book.unpause(reason="now it is our turn")
    turn.set()
    elsewhere = book.store.claim(
        ClaimRequest(batch=BatchId(1), owner="host-b/boot/ns/5/6/cafe", limit=others, seconds=3600.0)
    )
    assert isinstance(elsewhere, Claim)
    report = threading.Thread(target=run, args=(book, range(10)), kwargs={"deadline": "60s"})
    report.start()
    wait_for(lambda: book.report().counts.dead == 10 - others)
    held = holder_of(elsewhere, 0, 3600.0)
    outcomes = [Skipped(item, "blank", 0.0, 0.0) for item in book.store.load(elsewhere, None, 10, 1 << 20)]
    settled = settle(outcomes, stages=1, policies=[Policy()], now=book.store.now())
    assert book.store.commit([commit(held, settled, commit_id=b"c" * 16, release=True)])[0].landed
    report.join()
    assert (book.report().counts.dead, book.report().counts.skipped) == (10 - others, others)


# -- as the desk asks ------------------------------------------------------------------------------------------------


def sifted(deaths: withheld.WithheldDeaths, hold: Hold, numbers: range, *, done: int = 0) -> list[Any]:
    """What is asked for when these items died, in a batch in which so many are done."""
    asked: list[Any] = []
    effects, answer = deaths.sift(hold, 0, [died(item(n)) for n in numbers], stopping=False), None
    while True:
        try:
            asked.append(effects.send(answer))
        except StopIteration:
            return asked
        answer = [chunk(0, 100, done=done)] if isinstance(asked[-1], LookAt) else None


@pytest.mark.promise("E2")
@pytest.mark.parametrize("done", [0, 1])
def test_deaths_alike_are_believed_where_another_process_saw_an_item_succeed(done: int) -> None:
    deaths = withheld.WithheldDeaths("book", ["read"], 1, active=True, has_cap=False, tolerance=None)
    hold = held(ALIKE_ITEMS)
    asked = sifted(deaths, hold, range(ALIKE_ITEMS), done=done)
    assert [each.reason for each in asked if isinstance(each, StopRun)] == ([] if done else ["trouble"])
    assert {type(each).__name__ for each in hold.outcomes} == {"Failed" if done else "Deferred"}


@pytest.mark.promise("E2", "C13")
def test_deaths_that_another_worker_has_on_record_do_not_count_as_alike_here() -> None:
    deaths = withheld.WithheldDeaths("book", ["read"], 1, active=True, has_cap=False, tolerance=None)
    lost, kept = held(ALIKE_ITEMS), held(ALIKE_ITEMS)
    assert sifted(deaths, lost, range(ALIKE_ITEMS - 1)) == []
    deaths.forget(lost)
    assert sifted(deaths, kept, range(1)) == [], "one death is not many"
