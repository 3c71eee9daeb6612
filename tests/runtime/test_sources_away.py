"""A source that is away: it is waited for, what was handled is kept, and nothing is buried for it."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.cursor import Cursor
from holdfast.runtime.sources import base
from holdfast.testing.rows import ListPage, Rows
from tests.runtime.support import App, run


class Moving:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Moving:
    made = Moving()
    monkeypatch.setattr(base, "time", made)
    return made


class Flaky(Rows):
    """Rows in pages of ten, of which one cannot be read so many times."""

    def __init__(self, times: int, error: Exception, at: int = 30) -> None:
        super().__init__(range(60), page=10)
        self.times, self.error, self.at = times, error, at

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[ListPage]:
        for page in super().read(after, until):
            if page.rows[0] == self.at and self.times:
                self.times -= 1
                raise self.error
            yield page


def shaped(shape: str, scan: hf.Scan, seen: list[int]) -> None:
    def rows(some: list[int]) -> None:
        seen.extend(some)

    def fold(some: list[int], acc: int = 0) -> int:
        seen.extend(some)
        return acc + sum(some)

    async def later(some: list[int], acc: int = 0) -> int:
        return fold(some, acc)

    def generate(part: hf.Partition) -> Iterator[int]:
        total = part.acc or 0
        for row in part:
            seen.append(row)
            total += row
        yield total

    scan.handler({"rows": rows, "fold": fold, "async": later, "generator": generate}[shape])


def made(source: Any, seen: list[int], shape: str = "fold", **options: Any) -> hf.Scan:
    scan = hf.Scan("orders", source, store=Path("state.db"), retry=hf.Retry(attempts=1), **options)
    shaped(shape, scan, seen)
    return scan


AWAY = [
    ConnectionRefusedError(111, "refused"),
    hf.Transient("restarting", code="source_unavailable"),
    hf.Transient("HTTP 502", code="http_502"),
    TimeoutError("no answer"),
]


@pytest.mark.promise("B7", "C11")
@pytest.mark.parametrize("shape", ["rows", "fold", "async", "generator"])
@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_an_outage_is_waited_for_and_no_row_comes_twice(clock: Moving, shape: str, error: Exception) -> None:
    seen: list[int] = []
    report = made(Flaky(5, error), seen, shape).run(progress=False)
    assert (report.exit_code, report.rows, seen) == (0, 60, list(range(60)))
    assert report.counts.dead == 0
    assert sum(clock.waits) == pytest.approx(0.5 + 1 + 2 + 4 + 8)


@pytest.mark.promise("B7", "C11")
@pytest.mark.parametrize("shape", ["rows", "fold", "async", "generator"])
def test_after_its_patience_the_run_ends_with_75_and_the_next_resumes(clock: Moving, shape: str) -> None:
    seen: list[int] = []
    source = Flaky(10**6, ConnectionRefusedError(111, "refused"))
    report = made(source, seen, shape).run(progress=False)
    assert (report.exit_code, report.state, report.reason) == (75, "interrupted", "away")
    assert sum(clock.waits) == pytest.approx(limits.SOURCE_PATIENCE)
    assert "Its source is away" in report.why
    assert "run again to resume" in " ".join(report.warnings)
    assert (report.counts.dead, report.counts.pending) == (0, 1)
    assert report.rows == (0 if shape == "generator" else 30), "what was handled is behind its checkpoint"
    source.times = 0
    again = made(source, seen, shape).run(progress=False)
    assert (again.exit_code, again.rows) == (0, 60)
    assert len(seen) == (90 if shape == "generator" else 60)


def test_how_long_is_an_option(clock: Moving) -> None:
    report = made(Flaky(10**6, AWAY[0]), []).run(progress=False, patience="7s")
    assert (report.exit_code, sum(clock.waits)) == (75, pytest.approx(7))
    clock.waits.clear()
    assert made(Flaky(1, AWAY[0]), []).run(progress=False, patience=0).exit_code == 75
    assert not clock.waits
    with pytest.raises(hf.UsageError, match="patience"):
        made(Flaky(0, AWAY[0]), []).run(patience="soon")


def test_a_source_that_is_away_from_the_start_is_waited_for(clock: Moving) -> None:
    class Down(Flaky):
        def split(self, parts: int) -> list[hf.Span]:
            if self.times:
                self.times -= 1
                raise self.error
            return super().split(parts)

    source = Down(3, AWAY[1], at=-1)
    assert made(source, [], partitions=3).run(progress=False).rows == 60
    assert sum(clock.waits) == pytest.approx(0.5 + 1 + 2)


def test_one_line_tells_of_an_outage_and_one_that_it_is_over(clock: Moving, caplog: pytest.LogCaptureFixture) -> None:
    made(Flaky(5, AWAY[0]), []).run(progress=False)
    said = [record.getMessage() for record in caplog.records if record.name == "holdfast.source"]
    assert len(said) == 2
    assert "is away, waiting for up to 5 min" in said[0]
    assert "is back after 15.5 s" in said[1]


def test_partitions_that_wait_for_one_source_tell_of_it_once(clock: Moving, caplog: pytest.LogCaptureFixture) -> None:
    """All four find it away before the first of them finds it back."""

    class Restarting(Rows):
        def __init__(self) -> None:
            super().__init__(range(60), page=10)
            self.begun, self.asked, self.lock = threading.Barrier(4), 0, threading.Lock()

        def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[ListPage]:
            with self.lock:
                self.asked += 1
                first = self.asked <= 4
            self.begun.wait(60)
            if first:
                raise AWAY[0]
            yield from super().read(after, until)

    assert made(Restarting(), [], partitions=4).run(progress=False, workers=4).rows == 60
    said = [record.getMessage() for record in caplog.records if record.name == "holdfast.source"]
    assert ["is away" in each for each in said] == [True, False], said


def test_an_answer_that_cannot_be_read_is_an_attempt_and_what_was_handled_before_is_kept(clock: Moving) -> None:
    seen: list[int] = []
    source = Flaky(1, hf.Transient("half a page", code="not_json"))
    report = made(source, seen).run(progress=False)
    assert [letter.code for letter in report.dead] == ["not_json"]
    assert (report.rows, clock.waits) == (30, [])


@pytest.mark.slow
def test_whoever_waits_ends_with_the_run() -> None:
    report = made(Flaky(10**6, AWAY[0]), []).run(progress=False, deadline="500ms", patience="1h")
    assert (report.exit_code, report.reason, report.counts.dead) == (75, "deadline", 0)


# -- throttled ------------------------------------------------------------------------------------------------------


class Api:
    """Thirty pages of a hundred rows; after every five it asks to wait."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        at = int(request.url.params.get("cursor", 0))
        self.asked += 1
        if self.asked % 6 == 0:
            return httpx.Response(429, headers={"Retry-After": "0.01"})
        self.served.append(at)
        found = {"data": [{"n": 100 * at + n} for n in range(100)], "next": at + 1 if at < 29 else None}
        return httpx.Response(200, content=json.dumps(found))

    def pages(self) -> hf.Pages:
        client = httpx.Client(transport=httpx.MockTransport(self))
        return hf.Pages("http://api.test/orders", rows="data", next="next", param="cursor", client=client)


@pytest.mark.parametrize("shape", ["rows", "fold", "generator"])
def test_a_throttled_api_makes_progress_whatever_the_interval_and_serves_no_page_twice(shape: str) -> None:
    api, seen = Api(), list[Any]()
    report = made(api.pages(), [], "rows", every=100_000)
    shaped_by_n(shape, report, seen)
    assert report.run(progress=False).rows == 3000
    assert api.served == list(range(30))
    assert seen == list(range(3000))


def shaped_by_n(shape: str, scan: hf.Scan, seen: list[Any]) -> None:
    def keep(rows: list[dict[str, int]]) -> None:
        seen.extend(row["n"] for row in rows)

    def fold(rows: list[dict[str, int]], acc: int = 0) -> int:
        keep(rows)
        return acc + len(rows)

    def generate(part: hf.Partition) -> Iterator[int]:
        for row in part:
            keep([row])
        yield 1

    scan.handler({"rows": keep, "fold": fold, "generator": generate}[shape])


def test_a_wait_that_is_longer_than_the_patience_is_told_where_a_scan_is_split(clock: Moving) -> None:
    class Throttled(Flaky):
        def split(self, parts: int) -> list[hf.Span]:
            raise hf.Defer(900)

    report = made(Throttled(0, AWAY[0]), [], partitions=3).run(progress=False)
    assert (report.exit_code, report.reason, clock.waits) == (75, "away", [])
    assert "asks to wait 15 min 00 s, longer than the 5 min 00 s of its patience" in " ".join(report.warnings)


# -- pipelines ------------------------------------------------------------------------------------------------------


def test_a_pipeline_waits_for_its_source_and_reads_on_where_it_was(book: hf.Pipeline, clock: Moving) -> None:
    fails, asked = [AWAY[0], AWAY[2]], list[Any]()

    @hf.Reader(page=10)
    def orders(after: int | None) -> Iterator[tuple[int, dict[str, int]]]:
        asked.append(after)
        for n in range(0 if after is None else after + 1, 100):
            if n == 40 and fails:
                raise fails.pop()
            yield n, {"n": n}

    @book.stage
    def double(row: dict[str, int]) -> int:
        return 2 * row["n"]

    report = run(book, orders, key="n")
    assert (report.exit_code, report.counts.done) == (0, 100)
    assert asked == [None, 39, 39]


def test_a_pipeline_that_is_told_to_wait_longer_than_its_patience_ends_with_75(
    book: hf.Pipeline, clock: Moving
) -> None:
    @hf.Reader(page=10)
    def orders(after: int | None) -> Iterator[tuple[int, dict[str, int]]]:
        for n in range(0 if after is None else after + 1, 50):
            if n == 40:
                raise hf.Defer(900)
            yield n, {"n": n}

    @book.stage
    def double(row: dict[str, int]) -> int:
        return 2 * row["n"]

    report = run(book, orders, key="n")
    assert (report.exit_code, report.reason, report.counts.expected, clock.waits) == (75, "away", 40, [])
    assert "asks to wait 15 min 00 s, longer than the 5 min 00 s of its patience" in " ".join(report.warnings)


@pytest.mark.parametrize("error", [hf.Defer(60), ConnectionRefusedError(111, "refused")])
def test_a_pipeline_that_stops_while_it_waits_for_its_source_raises_nothing_of_it(
    book: hf.Pipeline, error: Exception
) -> None:
    @book.stage
    def double(row: dict[str, int]) -> int:
        return 2 * row["n"]

    @hf.Reader(page=10)
    def orders(after: int | None) -> Iterator[tuple[int, dict[str, int]]]:
        yield 0, {"n": 0}
        signal.raise_signal(signal.SIGTERM)
        raise error

    assert run(book, orders, key="n").exit_code == 75


def test_a_pipeline_whose_source_stays_away_ends_with_75_and_keeps_what_was_read(
    restart: Callable[..., hf.Pipeline], clock: Moving
) -> None:
    def define(book: hf.Pipeline) -> None:
        @book.stage
        def same(row: dict[str, int]) -> int:
            return row["n"]

    gone = [True]

    @hf.Reader(page=10)
    def orders(after: int | None) -> Iterator[tuple[int, dict[str, int]]]:
        for n in range(0 if after is None else after + 1, 50):
            if n == 40 and gone:
                raise ConnectionRefusedError(111, "refused")
            yield n, {"n": n}

    report = run(restart(define), orders, key="n")
    assert (report.exit_code, report.reason, report.counts.expected) == (75, "away", 40)
    gone.clear()
    assert run(restart(define), orders, key="n").counts.done == 50


PROGRAM = """
    import pathlib
    import holdfast as hf

    @hf.Reader(page=10)
    def rows(after):
        for n in range(0 if after is None else after + 1, 60):
            if n == 30 and pathlib.Path("down").exists(): raise ConnectionRefusedError(111, "refused")
            yield n, n

    orders = hf.Scan("orders", rows, store="state.db", retry=hf.Retry(attempts=1))

    @orders.handler(executor="processes")
    def keep(some, acc: int) -> int:
        with open("seen", "a") as file: file.write("".join(f"{n}\\n" for n in some))
        return acc + len(some)

    if __name__ == "__main__":
        import sys
        report = orders.run(progress=False, patience=0)
        print(report.reason, report.rows, report.counts.dead)
        sys.exit(report.exit_code)
"""


@pytest.mark.slow
def test_a_range_in_a_process_of_its_own_does_the_same(folder: Path) -> None:
    app = App(folder, PROGRAM)
    (folder / "down").touch()
    ended = app.run()
    assert (ended.returncode, ended.stdout.split()) == (75, ["away", "30", "0"]), ended.stderr
    (folder / "down").unlink()
    assert app.run().returncode == 0
    assert (folder / "seen").read_text().split() == [str(n) for n in range(60)]
