"""Handlers of scans that behave oddly: never a success for rows that nobody handled."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import reset
from holdfast.runtime.scan.tick import Ended
from holdfast.stores.open import open_store
from holdfast.testing.rows import Rows
from tests.runtime.support import SOON, wait_for, walk_of


def scan_of(handler: Any, store: Any = "memory:", rows: int = 20, **options: Any) -> hf.Scan:
    scan = walk_of("odd", Rows(range(rows), page=4), store=store, **{"every": 5, "retry": SOON, **options})
    scan.handler(handler)
    return scan


def ignores_its_rows(part: Any) -> Iterator[int]:
    yield 1


def returns_early(part: Any) -> Iterator[int]:
    for row in part:
        yield row
        if row == 7:
            return


async def returns_early_async(part: Any) -> Any:
    async for row in part:
        yield row
        if row == 7:
            return


@pytest.mark.promise("B7")
@pytest.mark.parametrize(
    ("handler", "rows"),
    [(ignores_its_rows, 0), (returns_early, 8), (returns_early_async, 8)],
    ids=lambda x: str(x)[:25],
)
def test_a_generator_that_leaves_rows_behind_has_not_done_its_range(handler: Any, rows: int) -> None:
    report = scan_of(handler).run(progress=False)
    assert (report.exit_code, report.counts.done, report.result) == (1, 0, None)
    (letter,) = report.dead
    assert letter.code == "rows_left"
    assert f"returned after {rows} rows" in letter.reason


@pytest.mark.promise("B7")
@pytest.mark.parametrize(
    ("handler", "rows"),
    [(ignores_its_rows, 0), (returns_early, 8), (returns_early_async, 8)],
    ids=lambda x: str(x)[:25],
)
def test_a_generator_that_follows_and_leaves_rows_behind_has_not_caught_up(handler: Any, rows: int) -> None:
    scan = scan_of(handler, follow=True)
    told = scan.tick()
    assert (told.ended, told.rows, told.exit_code) == (Ended.DEAD, rows, 1)
    assert told.why.startswith("rows_left")
    assert f"returned after {rows} rows" in told.why
    assert scan.tick().ended is Ended.DEAD, "it stays so until a person acts"


@pytest.mark.parametrize("follow", [False, True])
def test_a_generator_that_returns_because_the_run_ends_is_left_at_its_checkpoint(follow: bool) -> None:
    def obeys(part: Any, ctx: hf.Context) -> Iterator[int]:
        for row in part:
            if row < 8:
                yield row
            if row == 12:
                os.kill(os.getpid(), signal.SIGTERM)
                wait_for(lambda: ctx.stopping)
            if ctx.stopping:
                return

    scan = scan_of(obeys, follow=follow)
    told = scan.tick() if follow else scan.run(progress=False)
    assert (told.exit_code, told.rows) == (75, 8)
    scan.handler(lambda rows, acc: len(rows) + (0 if acc is None else acc))
    again = scan.tick() if follow else scan.run(progress=False, on_code_change="keep")
    assert (again.exit_code, scan.report().rows) == (0, 20)


def test_yields_before_the_first_row_and_after_the_last_write_nothing(folder: Path) -> None:
    def talks(part: Any) -> Iterator[int]:
        count = 0
        yield count
        for _ in part:
            count += 1
            if count == 10:
                yield count
                yield count
        yield count
        yield count

    scan = scan_of(talks, store=folder / "state.db")
    assert scan.run(progress=False).result == 20
    (chunk,) = scan.pipeline.store.chunks(1)
    assert chunk.version == 2, "a checkpoint, and the completion"


def test_what_is_done_to_an_accumulator_after_its_checkpoint_is_not_in_it() -> None:
    """A retry begins with what was yielded, not with what the same object became since."""
    begun: list[Any] = []

    def keep(part: Any) -> Iterator[list[Any]]:
        acc = [] if part.acc is None else part.acc
        begun.append(list(acc))
        for row in part:
            acc.append(row)
            if row == 9:
                yield acc
                acc.append("never checkpointed")
                if len(begun) == 1:
                    raise hf.Transient("once")
        yield acc

    report = scan_of(keep).run(progress=False)
    assert begun == [[], list(range(10))]
    assert report.result == list(range(20))


def test_an_acc_by_name_only_is_refused_when_it_is_defined() -> None:
    def fold(rows: list[Any], *, acc: int = 0) -> int:
        return acc

    with pytest.raises(hf.UsageError, match="'acc' by name only"):
        scan_of(fold)


@pytest.mark.promise("B10", "C8")
def test_two_runs_of_one_scan_at_once_share_its_ranges_and_agree(folder: Path) -> None:
    def add(rows: list[int], acc: int) -> int:
        return acc + sum(rows)

    results: list[Any] = []

    def run() -> None:
        scan = scan_of(add, store=open_store(str(folder / "state.db")), rows=2000, partitions=8, every=10)
        scan.converge(sum)
        results.append(scan.run(progress=False, workers=2))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(each.result, each.rows, each.exit_code) for each in results] == [(sum(range(2000)), 2000, 0)] * 3
    assert sum(each.this_run.done for each in results) == 8


def half_done(folder: Path) -> hf.Scan:
    """A scan in its middle."""

    def stops(rows: list[int], acc: int) -> int:
        if 10 in rows:
            raise hf.Defer(3600)
        return acc + sum(rows)

    scan = scan_of(stops, store=folder / "state.db")
    assert scan.run(progress=False, deadline="2s").rows == 10
    return scan


def go_on(scan: hf.Scan) -> None:
    store = scan.pipeline.store
    reset(store, store.batches()[0], Actor(name="ann", reason="now"))


def test_what_was_accumulated_and_does_not_fit_the_new_handler_is_told_in_plain_words(folder: Path) -> None:
    go_on(half_done(folder))

    def other(rows: list[int], acc: dict[str, int]) -> dict[str, int]:
        return acc

    scan = scan_of(other, store=folder / "state.db")
    with pytest.raises(hf.UsageError, match="the stored accumulator does not fit its type"):
        scan.run(progress=False)
    assert scan.report().counts.dead == 0


def test_changed_code_goes_on_is_told_and_can_be_accepted_or_refused_but_not_run_again(folder: Path) -> None:
    go_on(half_done(folder))

    def mended(rows: list[int], acc: int) -> int:
        return acc + sum(rows)

    scan = scan_of(mended, store=folder / "state.db", every=3, partitions=4)
    with pytest.raises(hf.UsageError, match=r"holdfast reset odd --from-start"):
        scan.run(progress=False, on_code_change="rerun")
    with pytest.raises(hf.Refused, match=r"holdfast reset odd --from-start") as refused:
        scan.run(progress=False, on_code_change="refuse")
    assert "rerun" not in str(refused.value)
    report = scan.run(progress=False, on_code_change="keep")
    assert (report.result, report.rows, report.counts.done, report.warnings) == (sum(range(20)), 20, 1, ())


def adds(rows: Any, acc: Any) -> Any:
    return acc + len(rows)


async def adds_async(rows: Any, acc: Any) -> Any:
    return acc + len(rows)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("handler", [adds, adds_async])
def test_a_fold_that_nobody_told_what_to_begin_with_is_told_how_to_say_it(handler: Any, isolate: bool) -> None:
    report = scan_of(handler, rows=2, isolate=isolate).run(progress=False)
    reasons = [letter.reason for letter in report.dead]
    assert reasons
    for reason in reasons:
        assert "starts with None: write acc: int = 0, or handler(initial=0)" in reason


def test_a_fold_that_stumbles_over_its_rows_is_told_nothing_of_the_kind() -> None:
    def stumbles(rows: Any, acc: int) -> int:
        return acc + rows[0]["n"]  # type: ignore[no-any-return]

    (letter,) = scan_of(stumbles, rows=2).run(progress=False).dead
    assert "starts with" not in letter.reason


@pytest.mark.parametrize("every", ["often", "", "0s", 0, -5, 0.0, None, True])
def test_an_interval_that_is_none_is_refused_with_all_that_may_be_said(every: Any) -> None:
    with pytest.raises(hf.UsageError, match=r"how many rows .* '5s' .* 'auto'"):
        hf.Scan("odd", Rows([1]), every=every)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s.csv", r"pass hf\.Csv\('s\.csv'\)"),
        (Path("s.parquet"), r"pass hf\.Parquet\('s\.parquet'\)"),
        ("s3://bucket/in", r"pass hf\.Objects"),
        ("postgresql://me:secret@host/db", r"hf\.Table"),
        ("/", r"pass hf\.Folder\('/'\)"),
        ("orders", r"such as hf\.Csv\(path\)"),
        ([1, 2], r"hf\.Pipeline"),
        (7, r"such as hf\.Csv\(path\)"),
    ],
)
def test_what_is_no_source_is_refused_with_the_one_that_was_meant(given: Any, meant: str) -> None:
    with pytest.raises(hf.UsageError, match=meant) as caught:
        hf.Scan("odd", given)
    assert "secret" not in str(caught.value)
