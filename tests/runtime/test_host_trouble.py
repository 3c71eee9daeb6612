"""A machine in trouble is a reason to stop, and never an item's fault."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.retry import NO_THREAD, host_trouble
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate.operations import redrive
from holdfast.testing.rows import Rows
from tests.runtime.support import ONCE, App, run, walk_of


def chained(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


def met(error: BaseException, handled: BaseException) -> BaseException:
    error.__context__ = handled
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")
TROUBLE: dict[str, tuple[BaseException, str]] = {
    "a full disk": (FULL, "free some space"),
    "a quota": (OSError(errno.EDQUOT, "quota"), "free some space"),
    "open files": (OSError(errno.EMFILE, "too many"), "ulimit -n"),
    "open files of everybody": (OSError(errno.ENFILE, "too many"), "ulimit -n"),
    "a disk that fails": (OSError(errno.EIO, "i/o"), "check it"),
    "a disk that can only be read": (OSError(errno.EROFS, "read-only"), "mount it"),
    "no memory": (MemoryError(), "no memory left"),
    "no memory, of numpy": (type("_ArrayMemoryError", (MemoryError,), {})(), "no memory left"),
    "no thread": (RuntimeError(NO_THREAD), "ulimit -u"),
    "the cause": (chained(ValueError("page 3"), FULL), "free some space"),
    "met on the way": (met(KeyError("cache"), FULL), "free some space"),
    "in a group": (ExceptionGroup("several", [ValueError(), FULL]), "free some space"),
    "in what a client says": (chained(ConnectionError("refused"), OSError(errno.EMFILE, "too many")), "ulimit -n"),
}
FINE: dict[str, BaseException] = {
    "a missing file": FileNotFoundError(errno.ENOENT, "no file"),
    "another runtime error": RuntimeError("can't start new threads today"),
    "a handler's word": chained(hf.Permanent("no_room"), FULL),
    "a handler that has dealt with it": chained(ValueError("bad page"), hf.Permanent("x")),
    "an OSError without a number": OSError("requests"),
    "an OSError with an odd number": OSError("28", "x"),
}


@pytest.mark.promise("E2")
@pytest.mark.parametrize("case", TROUBLE)
def test_trouble_of_the_machine_is_known_and_what_to_do_about_it(case: str) -> None:
    error, remedy = TROUBLE[case]
    assert remedy in host_trouble(error)


@pytest.mark.parametrize("case", FINE)
def test_everything_else_is_the_items(case: str) -> None:
    assert host_trouble(FINE[case]) == ""


def test_what_was_suppressed_says_nothing() -> None:
    error = met(ValueError("dealt with"), FULL)
    error.__suppress_context__ = True  # as `from None` does
    assert host_trouble(error) == ""


@pytest.mark.promise("E2")
@pytest.mark.parametrize("case", ["a full disk", "no memory", "no thread", "the cause", "in a group"])
@pytest.mark.parametrize("kind", ["threads", "loop", "quick"])
def test_a_run_stops_says_what_to_do_and_buries_nobody(
    restart: Callable[..., hf.Pipeline], kind: str, case: str
) -> None:
    error, remedy = TROUBLE[case]
    broken = [True]

    def define(book: hf.Pipeline) -> None:
        def read(item: int, ctx: hf.Context) -> int:
            ctx.spend(usd="0.01")
            if broken and item == (1500 if kind == "quick" else 5):
                raise error
            return item

        async def read_async(item: int, ctx: hf.Context) -> int:
            return read(item, ctx)

        book.stage(name="read", retry=ONCE)(read_async if kind == "loop" else read)

    count = 2000 if kind == "quick" else 20
    with pytest.raises(hf.StoreError, match="then run again; nothing was buried for it") as caught:
        run(restart(define), range(count), workers=1)
    assert remedy in str(caught.value)
    assert "item 5 met" in str(caught.value) or "item 1500 met" in str(caught.value)
    report = restart(define).report()
    assert (report.counts.dead, report.counts.pending > 0) == (0, True)
    assert all(item.place.attempt == 0 for item in restart(define).store.items(1))
    broken.clear()
    assert run(restart(define), range(count)).is_complete


@pytest.mark.promise("E2", "C8")
@pytest.mark.parametrize("where", ["verifier", "sink"])
def test_checks_and_sinks_are_no_exception(book: hf.Pipeline, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @book.stage(retry=ONCE, sink=hf.Files("out/{batch}/{key}.json"))
    def read(item: int) -> int:
        return item

    if where == "verifier":

        @read.verify
        def fails(out: int) -> bool:
            raise MemoryError

    else:

        def stage(*_: Any) -> Any:
            raise MemoryError

        monkeypatch.setattr(type(read.sink), "stage", stage)
    with pytest.raises(hf.StoreError, match="no memory left"):
        run(book, range(3))
    assert book.report().counts.dead == 0


@pytest.mark.promise("E2")
def test_a_message_is_handed_over_again(book: hf.Pipeline) -> None:
    broken = [True]

    @book.stage(retry=ONCE)
    def read(item: int) -> int:
        if broken:
            raise FULL
        return item

    with pytest.raises(hf.StoreError, match="free some space, then hand the item over again"):
        book.process(7)
    assert book.report().counts.pending == 1
    broken.clear()
    assert book.process(7).state == "done"


@pytest.mark.promise("E2")
def test_a_handler_may_say_that_it_is_the_items_fault(book: hf.Pipeline) -> None:
    @book.stage
    def unpack(item: int) -> int:
        try:
            raise MemoryError
        except MemoryError as error:
            raise hf.Permanent("bomb", "it unpacks to more than there is") from error

    assert [letter.code for letter in run(book, [1]).dead] == ["bomb"]


# -- scans -----------------------------------------------------------------------------------------------------------


def scan_on_a_full_disk(broken: list[bool], **options: Any) -> hf.Scan:
    scan = walk_of("rows", Rows(range(12), page=4), store="memory:", every=2, retry=ONCE, **options)

    @scan.handler
    def handle(rows: list[int], acc: int) -> int:
        if broken and 6 in rows:
            raise FULL
        return acc + len(rows)

    return scan


@pytest.mark.promise("E2", "B7")
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("follow", [False, True])
def test_neither_a_range_nor_a_row_is_buried(follow: bool, isolate: bool) -> None:
    broken = [True]
    scan = scan_on_a_full_disk(broken, follow=follow, isolate=isolate)
    for _ in range(3):
        with pytest.raises(hf.StoreError, match="free some space, then run again; nothing was buried for it"):
            scan.tick() if follow else scan.run(progress=False)
    assert (scan.report().counts.dead, scan.report().rows) == (0, 6)
    broken.clear()
    assert (scan.tick() if follow else scan.run(progress=False)).exit_code == 0
    assert scan.report().rows == 12


@pytest.mark.promise("E2")
def test_a_redriven_row_stays_on_its_way() -> None:
    scan = hf.Follow("rows", Rows(range(4)), store="memory:", isolate=True, retry=ONCE)
    error: list[BaseException] = [ValueError("bad row")]

    @scan.handler
    def handle(rows: list[int]) -> None:
        if 2 in rows and error:
            raise error[0]

    assert scan.tick().dead == 1
    store = scan.pipeline.store
    redrive(store, store.batches()[0], Actor(name="ann", reason="fixed"))
    error[:] = [FULL]
    with pytest.raises(hf.StoreError, match="free some space"):
        scan.tick()
    assert scan.report().counts.dead == 0


PROCESSES = """
import errno, sys
import holdfast as hf
from holdfast.testing.rows import Rows

book = hf.Pipeline("book", store="state.db")
scan = hf.Scan("rows", Rows(range(12), page=4), store="state.db", every=2, retry=hf.Retry(attempts=1), isolate=True)

@book.stage(executor="processes", retry=hf.Retry(attempts=1))
def read(number: int) -> int:
    if number == 3:
        raise ValueError(number) from OSError(errno.ENOSPC, "No space left on device")
    return number

@scan.handler(executor="processes")
def handle(rows, acc: int) -> int:
    if 6 in rows:
        raise MemoryError
    return acc + len(rows)

if __name__ == "__main__":
    for run in (lambda: book.run(range(20), workers=2, progress=False), lambda: scan.run(progress=False)):
        try:
            run()
        except hf.StoreError as error:
            print(error)
    print(book.report().counts.dead, scan.report().counts.dead)
"""


@pytest.mark.slow
@pytest.mark.promise("E2")
def test_worker_processes_are_no_exception(folder: Path) -> None:
    ended = App(folder, PROCESSES).run()
    first, second, counts = ended.stdout.splitlines()
    assert "free some space, then run again" in first, ended.stderr
    assert "no memory left" in second
    assert counts == "0 0"
