"""Outputs in files are looked at before they are believed, in both directions."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.sinks import disk
from holdfast.stores import faults
from holdfast.stores.base import find_batch
from tests.rights import as_an_ordinary_user
from tests.runtime.support import ONCE, App, Calls, codes, outputs, run, run_until_all_wait


class Text(BaseModel):
    number: int
    text: str


def definition(calls: Calls, price: str = "0.10") -> Callable[[hf.Pipeline], None]:
    def define(book: hf.Pipeline) -> None:
        @book.stage(sink=hf.Files("out/page_{key:04d}.json"))
        def read(number: int, ctx: hf.Context) -> Text:
            calls(number)
            ctx.spend(usd=price)
            return Text(number=number, text=f"page {number}")

    return define


def page(number: int) -> Path:
    return Path(f"out/page_{number:04d}.json")


def replace(path: Path, data: bytes, *, keep_time: bool = False) -> None:
    info = path.stat()
    path.write_bytes(data)
    if keep_time:
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def garble(path: Path) -> None:
    replace(path, path.read_bytes().replace(b"page", b"p4ge"))


def garble_unnoticed(path: Path) -> None:
    replace(path, path.read_bytes().replace(b"page", b"p4ge"), keep_time=True)


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


def folder_in_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere")


DAMAGE: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "missing": (remove, {"quick", "full"}),
    "cut short": (truncate, {"quick", "full"}),
    "garbled": (garble, {"quick", "full"}),
    "garbled, time kept": (garble_unnoticed, {"full"}),
    "touched": (touch, set()),
    "a link to nowhere": (link_to_nowhere, {"quick", "full"}),
}


@pytest.mark.promise("P4", "P5", "A6", "A5")
@pytest.mark.parametrize("verify", ["none", "quick", "full"])
@pytest.mark.parametrize(("damage", "found_by"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_output_is_made_again_and_no_other(
    restart: Callable[..., hf.Pipeline], damage: Callable[[Path], None], found_by: set[str], verify: str
) -> None:
    calls = Calls()
    run(restart(definition(calls)), range(12))
    damage(page(7))
    calls.clear()
    again = restart(definition(calls))
    report = run(again, range(12), verify=verify)
    assert calls.seen == ([7] if verify in found_by else [])
    assert report.this_run.rewound == len(calls)
    assert report.counts.done == 12
    if verify in found_by:
        assert outputs(again)[7] == Text(number=7, text="page 7")
        assert json.loads(page(7).read_bytes()) == {"number": 7, "text": "page 7"}
        record = again.store.items(find_batch(again.store, "book").id, lo=7, hi=8)[0]
        assert (record.place.epoch, record.place.rewinds) == (1, 1)


@pytest.mark.promise("P4")
def test_a_folder_in_the_place_of_an_output_does_not_stop_the_others(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    run(restart(definition(calls)), range(6))
    folder_in_place(page(2))
    (page(2) / "mine.txt").write_text("keep me")
    remove(page(4))
    calls.clear()
    report = run(restart(definition(calls)), range(6))
    assert calls.seen == [4], "what has something in its way is not paid for again, and stays as it is"
    assert (report.counts.done, report.exit_code, report.unverified) == (6, 1, 1)
    assert (report.findings[0].key, report.findings[0].stage) == (2, 0)
    assert "page_0002.json: there is a folder in its place" in report.findings[0].why
    assert "run again" in str(report)
    assert (page(2) / "mine.txt").read_text() == "keep me"
    assert page(4).is_file()
    (page(2) / "mine.txt").unlink()
    page(2).rmdir()
    assert run(restart(definition(calls)), range(6)).is_complete
    assert page(2).is_file()
    assert calls.seen == [4, 2]


@pytest.mark.promise("P4", "P15")
def test_a_folder_that_was_there_first_is_a_finding_and_what_was_made_is_kept(
    restart: Callable[..., hf.Pipeline],
) -> None:
    calls = Calls()
    (page(2) / "mine").mkdir(parents=True)
    report = run(restart(definition(calls)), range(4))
    assert (report.counts.done, report.exit_code, report.findings[0].key) == (4, 1, 2)
    assert "page_0002.json" in report.findings[0].why
    (page(2) / "mine").rmdir()
    page(2).rmdir()
    assert run(restart(definition(calls)), range(4)).is_complete
    assert page(2).is_file()
    assert sorted(calls.seen) == [0, 1, 2, 3], "what was made and staged is not made again"


@pytest.mark.promise("P4")
def test_an_output_that_cannot_be_read_is_a_finding(
    restart: Callable[..., hf.Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    run(restart(definition(calls)), range(4))
    read = disk.digest_of

    def deny(path: Path) -> bytes:
        if path.name == page(2).name:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    remove(page(1))
    calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "digest_of", deny)
        report = run(restart(definition(calls)), range(4), verify="full")
    assert calls.seen == [1]
    assert (report.exit_code, report.unverified, report.findings[0].key) == (1, 1, 2)
    assert "page_0002.json: it cannot be read: Permission denied" in report.findings[0].why
    assert run(restart(definition(calls)), range(4), verify="full").is_complete
    assert calls.seen == [1]


@pytest.mark.promise("P15")
def test_verifying_edits_and_deletes_no_output(restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(definition(Calls())), range(6))
    Path("out/notes.txt").write_text("mine")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in Path("out").iterdir() if path.is_file()}
    for verify in ("quick", "full", "none"):
        run(restart(definition(Calls())), range(6), verify=verify)
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before}


@pytest.mark.promise("P4", "P15")
def test_every_output_may_be_gone(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    run(restart(definition(calls)), range(30))
    for number in range(30):
        remove(page(number))
    assert run(restart(definition(calls)), range(30)).counts.done == 30
    assert len(calls) == 60
    assert len(list(Path("out").glob("*.json"))) == 30


@pytest.mark.promise("P5")
def test_what_costs_money_is_booked_for_what_is_made_again(restart: Callable[..., hf.Pipeline]) -> None:
    run(restart(definition(Calls())), range(5))
    remove(page(1))
    report = run(restart(definition(Calls())), range(5))
    assert str(report.totals.usd) == "0.60"
    assert str(report.this_run.usd) == "0.10"


@pytest.mark.promise("P5", "A8")
def test_an_output_that_was_staged_and_not_recorded_is_adopted_and_not_paid_again(folder: Path) -> None:
    app = App(
        folder,
        """
        import os, sys, time
        import holdfast as hf
        from holdfast.stores import faults

        book = hf.Pipeline("book")

        @book.stage(sink=hf.Files("out/{key}.txt"))
        def read(number: int, ctx: hf.Context) -> str:
            with open("paid.txt", "a") as file:
                file.write(f"{number}\\n")
            ctx.spend(usd=1)
            return f"page {number}"

        def die_when_all_are_staged(point):
            if point == "commit.before":
                while len([name for name in os.listdir("out/.holdfast") if name.startswith("~")]) < 8:
                    time.sleep(0.001)
                os.kill(os.getpid(), 9)

        if __name__ == "__main__":
            if "die" in sys.argv:
                faults.arm(die_when_all_are_staged)
            report = book.run(range(8), workers=8, progress=False)
            print(report.totals.usd, report.counts.done)
            sys.exit(report.exit_code)
        """,
    )
    assert app.run("die").returncode == -9
    assert not list(Path("out").glob("*.txt"))
    ended = app.run()
    assert ended.stdout.split() == ["8.00", "8"], ended.stderr
    assert sorted(Path("paid.txt").read_text().split()) == [str(n) for n in range(8)], "each was paid for once"
    files = {path.name: path.read_text() for path in Path("out").glob("*.txt")}
    assert files == {f"{n}.txt": f"page {n}" for n in range(8)}
    assert not [path for path in Path("out/.holdfast").iterdir() if not path.name.startswith("names-")]


@pytest.mark.promise("P6")
def test_an_output_that_was_recorded_and_not_published_is_published(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    book = restart(definition(calls))
    hits = []

    def die_once(point: str) -> None:
        if point == "sink.published" and not hits:
            hits.append(point)
            raise OSError(5, "the disk went away")

    faults.arm(die_once)
    try:
        run(book, range(3), workers=1)
    finally:
        faults.arm(None)
    report = run(restart(definition(calls)), range(3))
    assert (len(calls), report.counts.done) == (3, 3)
    assert all(page(number).is_file() for number in range(3))


@pytest.mark.promise("A5", "A6")
def test_an_input_in_a_file_that_is_gone_is_made_again(restart: Callable[..., hf.Pipeline]) -> None:
    calls = Calls()
    ready = False

    def define(book: hf.Pipeline) -> None:
        definition(calls)(book)

        @book.stage
        def finish(text: Text) -> str:
            if not ready:
                raise hf.Defer(0.1)
            return text.text

    run_until_all_wait(restart(define), range(6))
    remove(page(2))
    garble_unnoticed(page(3))
    calls.clear()
    ready = True
    again = restart(define)
    assert run(again, range(6)).counts.done == 6
    assert sorted(calls.seen) == [2, 3]
    assert outputs(again)[2] == "page 2"


@pytest.mark.promise("A15")
def test_an_output_that_is_damaged_again_and_again_is_buried_in_the_end(restart: Callable[..., hf.Pipeline]) -> None:
    for _ in range(4):
        run(restart(definition(Calls())), range(3))
        remove(page(1))
    report = run(restart(definition(Calls())), range(3))
    assert codes(report) == {1: "rewound_too_often"}
    assert report.counts.done == 2


@pytest.mark.promise("P5")
def test_full_finds_what_its_verifier_no_longer_accepts(restart: Callable[..., hf.Pipeline]) -> None:
    calls, least = Calls(), 0

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> int:
            return number + calls(number) * 100

        @read.verify
        def enough(out: int) -> bool:
            return out >= least

    run(restart(define), range(5))
    least = 102
    assert run(restart(define), range(5), verify="quick").this_run.rewound == 0
    again = restart(define)
    assert run(again, range(5), verify="full").this_run.rewound == 2
    assert outputs(again) == {0: 200, 1: 201, 2: 102, 3: 103, 4: 104}


def test_a_verifier_that_raises_undoes_nothing(restart: Callable[..., hf.Pipeline]) -> None:
    broken = False

    def define(book: hf.Pipeline) -> None:
        @book.stage(retry=hf.Retry(attempts=1))
        def read(number: int) -> int:
            return number

        @read.verify
        def rule(out: int) -> bool:
            if broken and out == 3:
                raise KeyError("no such rule")
            return True

    run(restart(define), range(5))
    broken = True
    report = run(restart(define), range(5), verify="full")
    assert (report.counts.done, report.this_run.rewound, report.exit_code) == (5, 0, 1)
    assert [(each.key, each.stage) for each in report.findings] == [(3, 0)]
    assert "it raised KeyError: 'no such rule'" in report.warnings[0]
    broken = False
    assert run(restart(define), range(5), verify="full").exit_code == 0


@pytest.mark.promise("P5", "P12")
def test_full_finds_an_output_that_was_changed_in_the_store(restart: Callable[..., hf.Pipeline], folder: Path) -> None:
    import apsw

    calls = Calls()

    def define(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> str:
            calls(number)
            return f"page {number}"

    run(restart(define), range(5))
    with apsw.Connection(str(folder / "state.db")) as db:
        db.execute("UPDATE outputs SET data = CAST(substr(data, 1, 16) || '\"p4ge 3\"' AS BLOB) "
                   "WHERE substr(data, 17) = CAST('\"page 3\"' AS BLOB)")  # fmt: skip
    calls.clear()
    again = restart(define)
    assert run(again, range(5), verify="full").this_run.rewound == 1
    assert calls.seen == [3]
    assert outputs(again)[3] == "page 3"


@pytest.mark.promise("P5")
def test_full_finds_what_no_longer_fits_its_schema(restart: Callable[..., hf.Pipeline]) -> None:
    def old(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> dict[str, Any]:
            return {"number": number} if number == 2 else {"number": number, "text": ""}

    def new(book: hf.Pipeline) -> None:
        @book.stage
        def read(number: int) -> Text:
            return Text(number=number, text="now with text")

    run(restart(old), range(4))
    again = restart(new)
    assert run(again, range(4), verify="full").this_run.rewound == 1
    assert outputs(again)[2].text == "now with text"


def test_a_sink_that_two_stages_would_share_is_refused(book: hf.Pipeline) -> None:
    book.stage(name="first", sink=hf.Files("out/{key}.json"))(lambda value: value)
    with pytest.raises(hf.UsageError, match="same files"):
        book.stage(name="second", sink=hf.Files("out/{key}.json"))(lambda value: value)


def test_an_output_folder_without_rights_stops_the_run_and_buries_nobody(book: hf.Pipeline) -> None:
    Path("out").mkdir(mode=0o500)

    @book.stage(sink=hf.Files("out/{key}.json"))
    def read(number: int) -> int:
        return number

    with as_an_ordinary_user(), pytest.raises(hf.StoreError, match="check the disk, then run again"):
        run(book, range(5))
    assert book.report().counts.pending == 5


def test_a_file_in_the_place_of_the_output_folder_stops_the_run_and_buries_nobody(
    restart: Callable[..., hf.Pipeline],
) -> None:
    Path("out").write_text("in the way")
    with pytest.raises(hf.StoreError, match="Not a directory"):
        run(restart(definition(Calls())), range(5))
    Path("out").unlink()
    assert run(restart(definition(Calls())), range(5)).counts.done == 5


@pytest.mark.promise("P4")
def test_what_a_person_gave_in_place_of_an_earlier_output_holds(book: hf.Pipeline) -> None:
    """The journal has two digests for that stage: the one of the act is the newer."""
    answers = iter(["by the handler"])

    @book.stage(retry=ONCE)
    def read(number: int) -> str:
        return next(answers)

    by = Actor(name="ann", reason="seen on paper")
    run(book, [1])
    operations.reset(book.store, book.store.batches()[0], by, "1")
    assert run(book).counts.dead == 1
    operations.resolve(book.store, book.store.batches()[0], by, "1", output=b'"by hand"')
    assert run(book, verify="full").this_run.rewound == 0
    assert book.reconcile(full=True).is_explained
    assert outputs(book) == {1: "by hand"}
