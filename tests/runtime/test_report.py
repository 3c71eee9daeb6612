"""The report: a picture of a moment, which nobody can change."""

import copy
import dataclasses
import io
import json
import pickle
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import holdfast as hf
from tests.runtime.support import ONCE, Calls, outputs, run


def define(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def ask(number: int, ctx: hf.Context) -> dict[str, int]:
        ctx.spend(usd="0.10", tokens=7, model="small" if number % 2 else "large")
        if number == 3:
            raise hf.Permanent("no_such_page")
        return {"n": number}

    ask.after(lambda facts: {"runs": facts.runs})


@pytest.fixture
def asked(book: hf.Pipeline) -> hf.Pipeline:
    define(book)
    return book


@pytest.mark.promise("P9")
def test_nothing_in_a_report_can_be_changed(asked: hf.Pipeline) -> None:
    report = run(asked, range(5))
    before = json.dumps(report.as_dict(), default=str)
    for part in (report, report.counts, report.totals, report.this_run, report.saved, report.dead[0], report.forecast):
        for field in dataclasses.fields(part):
            with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
                setattr(part, field.name, None)
    with pytest.raises(TypeError):
        report.stages["ask"] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        report.stages["ask"]["metadata"] = {}  # type: ignore[index]
    assert json.dumps(report.as_dict(), default=str) == before


@pytest.mark.promise("P9")
def test_what_a_report_hands_out_is_a_copy(asked: hf.Pipeline) -> None:
    report = run(asked, range(5))
    for result in report.results():
        result.output["n"] = 99
    plain = report.as_dict()
    plain["counts"]["done"] = 99
    plain["dead"].clear()
    report.stages["ask"]["metadata"]["runs"] = 99
    assert {key: value["n"] for key, value in outputs(asked).items()} == {0: 0, 1: 1, 2: 2, 4: 4}
    again = asked.report()
    assert (again.counts.done, len(again.dead)) == (4, 1)
    assert again.stages["ask"]["metadata"] == {"runs": 5}


@pytest.mark.promise("P9")
def test_a_report_stays_what_it_was_when_the_batch_goes_on(asked: hf.Pipeline) -> None:
    first = run(asked, range(5))
    run(asked, range(20))
    assert (first.counts.expected, first.totals.usd) == (5, Decimal("0.50"))
    assert asked.report().counts.expected == 20


def test_a_report_is_plain_for_machines(asked: hf.Pipeline) -> None:
    plain = json.loads(json.dumps(run(asked, range(5)).as_dict()))
    assert plain["counts"]["done"] == 4
    assert plain["totals"]["usd"] == "0.50"
    assert plain["dead"][0]["code"] == "no_such_page"
    assert plain["exit_code"] == 1


def test_a_report_can_be_read_by_people(asked: hf.Pipeline) -> None:
    text = str(run(asked, range(5)))
    assert "5 = 4 done + 0 skipped + 1 dead + 0 cancelled + 0 pending" in text
    assert "$0.50" in text
    assert "no_such_page" in text
    assert "<pre>" in run(asked)._repr_html_()


def test_a_report_without_a_run_says_how_the_batch_stands(asked: hf.Pipeline) -> None:
    run(asked, range(5))
    report = asked.report()
    assert report.state == "complete with dead letters"
    assert (report.this_run.done, report.this_run.seconds) == (0, 0.0)


def test_a_report_of_an_unknown_batch_names_the_known_ones(asked: hf.Pipeline) -> None:
    run(asked, range(2), batch="monday")
    with pytest.raises(hf.UsageError, match=r"no batch 'tuesday'.*'monday'"):
        asked.report("tuesday")
    with pytest.raises(hf.UsageError, match="no batch 'tuesday'"):
        asked.results("tuesday")


def test_a_resume_says_what_it_saved(restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(define), range(5))
    report = run(restart(define), range(8))
    assert (report.this_run.done, report.this_run.done_before, report.this_run.admitted) == (3, 4, 3)
    assert (report.saved.items, report.saved.usd) == (4, Decimal("0.40")), "what died is not kept"
    assert report.saved.seconds > 0


def test_an_unfinished_batch_says_what_is_left_and_what_it_will_cost(restart: Callable[..., hf.Pipeline]) -> None:
    report = run(restart(define), range(4, 24), budget=hf.Budget(usd="0.50", item="0.10"))
    assert report.forecast.left == 15
    assert report.forecast.usd == Decimal("1.50")


@pytest.mark.promise("P14")
def test_the_metrics_of_a_report_are_by_stage_and_by_model(asked: hf.Pipeline) -> None:
    report = run(asked, range(10))
    (stage,) = report.metrics.stages
    assert (stage.stage, stage.runs) == ("ask", 10)
    assert (stage.usd.count, stage.usd.sum, stage.tokens.sum) == (10, 1, 70)
    assert {model: share.attempts for model, share in stage.models.items()} == {"small": 5, "large": 5}


def test_results_come_in_the_order_of_the_items(book: hf.Pipeline) -> None:
    @book.stage
    def read(number: int) -> int:
        return -number

    numbers = [(n * 7919) % 2500 for n in range(2500)]
    report = run(book, numbers)
    results = list(report.results())
    assert [result.key for result in results] == numbers
    assert [result.output for result in results] == [-number for number in numbers]
    assert [result.number for result in results] == list(range(2500))


def test_results_are_of_the_last_stage_only_and_of_what_is_done(book: hf.Pipeline) -> None:
    @book.stage
    def first(number: int) -> str:
        return "first"

    @book.stage(retry=ONCE)
    def second(text: str, ctx: hf.Context) -> str | None:
        if ctx.key == 2:
            raise hf.Skip("blank")
        if ctx.key == 3:
            raise hf.Permanent("no")
        return None if ctx.key == 4 else "second"

    run(book, [1, 2, 3, 4])
    assert outputs(book) == {1: "second", 4: None}


def test_results_may_be_read_while_the_batch_runs(book: hf.Pipeline) -> None:
    seen: list[int] = []

    @book.stage
    def read(number: int) -> int:
        if number == 500:
            seen.append(len(list(book.results())))
        return number

    run(book, range(1000), workers=2)
    assert len(seen) == 1
    assert seen[0] < 1000


def test_progress_is_told_to_a_function(book: hf.Pipeline) -> None:
    seen: list[Any] = []

    @book.stage
    def read(number: int) -> int:
        return number

    report = run(book, range(100), progress=seen.append)
    assert report.is_complete
    last = seen[-1]
    assert (last.now.done, last.admitted, last.ingested) == (100, 100, True)


def test_a_progress_function_that_raises_does_not_stop_the_work(book: hf.Pipeline, caplog: Any) -> None:
    calls = Calls()

    @book.stage
    def read(number: int) -> int:
        return number

    def broken(figures: Any) -> None:
        calls(1)
        raise ValueError("the display is gone")

    assert run(book, range(100), progress=broken).is_complete
    assert len(calls) == 1
    assert "the display is gone" in caplog.text


def test_progress_goes_to_standard_error_in_lines_where_there_is_no_terminal(book: hf.Pipeline, capsys: Any) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    run(book, range(100), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "100 of 100 settled" in captured.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("batch", ["plain", "x[/i]y", "[red]", "100%", "{batch}"])
def test_progress_in_a_terminal_shows_any_name(book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch, batch: str) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    assert run(book, range(50), batch=batch, progress=True).is_complete
    assert batch in screen.getvalue()
    assert "50 of 50" in screen.getvalue()


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_progress_survives_a_program_without_standard_error(
    book: hf.Pipeline, monkeypatch: pytest.MonkeyPatch, stderr: str | None
) -> None:
    @book.stage
    def read(number: int) -> int:
        return number

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if stderr is None else closed)
    assert run(book, range(50), progress=True).is_complete


def test_a_report_comes_out_of_a_pickle_as_it_went_in(asked: hf.Pipeline) -> None:
    report = run(asked, range(5))
    again = pickle.loads(pickle.dumps(report))
    assert (again.as_dict(), str(again), again) == (report.as_dict(), str(report), report)
    assert copy.deepcopy(report).counts == report.counts
    with pytest.raises(hf.UsageError, match="has no store"):
        next(again.results())


@pytest.mark.parametrize(
    "error",
    [
        hf.Defer(30, "busy"), hf.Transient("later", code="http_503", after=7.0), hf.Permanent("gone", "no such page"),
        hf.Skip("blank"), hf.Bad("expected 2, found 1"), hf.Incomplete("not yet", {"done": 1}), hf.LeaseLost("taken"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_every_error_comes_out_of_a_pickle_as_it_went_in(error: hf.HoldfastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))
    assert str(copy.copy(error)) == str(error)


def test_a_reason_of_several_lines_takes_one_line_of_a_report(book: hf.Pipeline) -> None:
    @book.stage(retry=ONCE)
    def read(number: int) -> int:
        raise hf.Permanent("broken", "the first line\nthe second line" + 500 * " and more")

    (line,) = [each for each in str(run(book, [1])).splitlines() if "the first line" in each]
    assert line.startswith("  dead     1 at read: broken: the first line the second line and more")
    assert line.endswith("…")
    assert len(line) < 450
