"""How many dead letters a batch may have before its run stops, however many processes bury them."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.model import State
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import discard
from holdfast.runtime.report import status
from tests.runtime.support import App, Calls, run

Restart = Callable[..., hf.Pipeline]


def define(calls: Calls, dies: Callable[[int], bool] = lambda number: True) -> Callable[[hf.Pipeline], None]:
    def one(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            calls(number)
            if dies(number):
                raise hf.Permanent("blank", "nothing on it")
            return number

    return one


def test_plain_numbers_are_judged_at_the_end_only(restart: Restart) -> None:
    report = run(restart(define(Calls())), range(15), tolerate=2)
    assert (report.state, report.exit_code, report.counts.dead) == ("complete with dead letters", 1, 15)


@pytest.mark.promise("A15")
def test_beyond_the_count_nothing_more_is_begun(restart: Restart) -> None:
    calls = Calls()
    report = run(restart(define(calls)), range(5000), workers=1, stop_beyond=10)
    assert (report.state, report.reason, report.exit_code) == ("over tolerance", "tolerance", 1)
    assert 11 <= report.counts.dead == len(calls) < 60, "what was in flight, not all that was claimed"
    assert "blank (" in report.why
    assert "redrive" in report.why.lower()
    assert not report.run_again
    calls.clear()
    again = run(restart(define(calls)), range(5000), stop_beyond=10)
    assert (again.state, len(calls)) == ("over tolerance", 0)
    assert run(restart(define(calls)), range(5000), tolerate="100%").exit_code == 0


@pytest.mark.promise("A15")
def test_of_a_large_claim_only_what_was_in_flight_dies(restart: Restart) -> None:
    book = restart(define(Calls(), lambda number: number >= 3000))
    report = run(book, range(20_000), workers=1, stop_beyond=10)
    assert report.state == "over tolerance"
    assert 11 <= report.counts.dead < 100


def test_exactly_the_share_is_fine_though_it_is_no_whole_number_in_binary(restart: Restart) -> None:
    book = restart(define(Calls(), lambda number: 1 <= number <= 29))
    report = run(book, range(100), stop_beyond="29%")
    assert (report.state, report.exit_code) == ("complete with dead letters", 0)


def test_exactly_as_many_as_are_tolerated_is_fine(restart: Restart) -> None:
    book = restart(define(Calls(), lambda number: number < 10))
    report = run(book, range(100), stop_beyond=10)
    assert (report.state, report.exit_code) == ("complete with dead letters", 0)


def test_a_share_is_judged_once_the_source_is_read(restart: Restart) -> None:
    book = restart(define(Calls(), lambda number: 1 <= number <= 60))
    report = run(book, range(1000), workers=1, stop_beyond="5%")
    assert (report.state, report.counts.expected) == ("over tolerance", 1000)
    assert 51 <= report.counts.dead <= 60
    assert run(book, range(1000), stop_beyond="6%").exit_code == 0


@pytest.mark.parametrize("option", ["tolerate", "stop_beyond"])
@pytest.mark.parametrize("wrong", [-1, True, 1.5, 0.01, "200%", "many", ""])
def test_a_tolerance_that_makes_no_sense_is_refused(restart: Restart, option: str, wrong: Any) -> None:
    with pytest.raises(hf.UsageError, match=f"{option}={re.escape(repr(wrong))}: write a number of items such as 5"):
        run(restart(define(Calls())), range(5), **{option: wrong})


def test_a_run_may_stop_later_than_what_is_fine_at_the_end(restart: Restart) -> None:
    book = restart(define(Calls(), lambda number: number % 2 == 1))
    report = run(book, range(100), tolerate=0, stop_beyond="100%")
    assert (report.state, report.exit_code, report.tolerated) == ("complete with dead letters", 1, 0)


APP = """
    import json, sys, time
    import holdfast as hf

    book = hf.Pipeline("book")

    @book.stage
    def read(number: int) -> int:
        time.sleep(0.002)
        raise hf.Permanent("blank")

    if __name__ == "__main__":
        report = book.run(range(4000), workers=2, progress=False, stop_beyond=10)
        print(json.dumps([report.state, report.this_run.dead, report.exit_code]))
"""


@pytest.mark.promise("A15")
def test_several_processes_on_one_file_bury_no_more_than_the_count_and_what_was_in_flight(
    folder: Path, tally: Callable[..., None]
) -> None:
    app = App(folder, APP)
    processes = [app.start() for _ in range(3)]
    said = [json.loads(process.communicate(timeout=100)[0]) for process in processes]
    assert {(state, code) for state, _, code in said} == {("over tolerance", 1)}
    dead = hf.Pipeline("book", store=app.store).report().counts.dead
    assert dead == sum(mine for _, mine, _ in said)
    together, handed_over = 10, 2 * 2
    assert 11 <= dead <= 10 + 3 * handed_over * together < 4000, said
    tally(processes=3)


def test_a_worker_without_dead_letters_of_its_own_stops_too(restart: Restart) -> None:
    """Two runs of one batch: one buries, the other is refused when it claims."""
    ends, calls = threading.Event(), Calls()

    def one(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            calls(number)
            ends.wait(30)
            if number < 20:
                raise hf.Permanent("blank")
            return number

    reports: list[hf.Report] = []
    threads = [
        threading.Thread(target=lambda: reports.append(run(restart(one), range(3000), workers=2, stop_beyond=0)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    ends.set()
    for thread in threads:
        thread.join(60)
    assert [report.state for report in reports] == ["over tolerance"] * 2
    assert len(calls) < 3000


def halted(book: hf.Pipeline) -> tuple[str, str]:
    """Why the last run ended, as far as that still holds, and the word of a report."""
    batch = lookup.batch_named(book.store, "book")
    return status.snapshot(book.store, batch).halted, book.report("book").state


def test_a_batch_is_over_tolerance_only_while_too_many_are_dead(restart: Restart) -> None:
    book = restart(define(Calls(), lambda number: number % 2 == 0))
    run(book, range(1000), workers=1, stop_beyond=10)
    batch, by = lookup.batch_named(book.store, "book"), Actor(name="ann", reason="looked at")
    for letter in book.store.items(batch.id, state=State.DEAD)[10:]:
        assert halted(book) == ("tolerance", "over tolerance")
        discard(book.store, batch, by, [f"#{letter.n}"])
    assert halted(book) == ("", "open")


def test_the_tolerance_of_the_last_run_is_the_one_that_counts(restart: Restart) -> None:
    book = restart(define(Calls()))
    for count in (10, 3):
        run(book, range(1000), workers=1, stop_beyond=count)
    batch, by = lookup.batch_named(book.store, "book"), Actor(name="ann", reason="looked at")
    dead = book.store.items(batch.id, state=State.DEAD)
    discard(book.store, batch, by, [f"#{letter.n}" for letter in dead[4:]])
    assert halted(book) == ("tolerance", "over tolerance")
    discard(book.store, batch, by, [f"#{dead[0].n}"])
    assert halted(book) == ("", "open")
