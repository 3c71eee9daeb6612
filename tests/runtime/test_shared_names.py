"""Two batches never overwrite each other's files: names belong to the first batch that recorded a file under them."""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

import holdfast as hf
from holdfast.core.verify import What
from holdfast.runtime.acts import Actor
from holdfast.runtime.define import definition
from holdfast.runtime.operate import audit, operations
from holdfast.runtime.recover import set_aside
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.sinks.name_notes import Names, NamesHolder
from holdfast.runtime.sinks.names import FOLDER
from holdfast.stores.base import find_batch

from .support import App, Calls, run

BY = Actor(name="tester", reason="a test")


def pipeline(
    calls: Calls, *, store: str = "state.db", name: str = "p", template: str = "out/{key}.txt", replaces: bool = False
) -> hf.Pipeline:
    made = hf.Pipeline(name, store=store)

    @made.stage(sink=hf.Files(template, replaces=replaces))
    def write(n: int, ctx: hf.Context) -> str:
        if n < 0:
            raise hf.Permanent("below_zero")
        calls((n, ctx.batch))
        return f"{n} of {ctx.batch}, call {len(calls)}"

    return made


def contents() -> dict[str, str]:
    return {path.name: path.read_text() for path in Path("out").iterdir() if path.is_file()}


@pytest.mark.parametrize("nth", [1, 2])
def test_a_disk_that_is_full_when_names_are_taken_is_told_and_the_next_run_works(
    nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, left, write = Calls(), iter(range(1, nth + 1)), Names.write

    def fill(names: Names, holder: NamesHolder) -> None:
        if next(left, None) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(names, holder)

    monkeypatch.setattr(Names, "write", fill)
    p = pipeline(calls)
    with pytest.raises(hf.StoreError, match=r"No space left.*check the disk, then run again"):
        run(p, [1, 2], batch="monday")
    assert len(calls) == 0
    assert run(p, [1, 2], batch="monday").is_complete


def test_a_second_batch_is_refused_before_anything_is_paid() -> None:
    calls = Calls()
    p = pipeline(calls)
    run(p, [1, 2, 3], batch="monday")
    before = contents()
    with pytest.raises(hf.Refused, match=r"'monday'.*\{batch\}.*replaces=True") as refused:
        run(p, [1, 2, 3], batch="tuesday")
    assert "out/{key}.txt" in str(refused.value)
    assert (len(calls), contents()) == (3, before)
    assert find_batch(p.store, "tuesday") is None
    assert run(p, [1, 2, 3], batch="monday").is_complete
    assert len(calls) == 3


def test_messages_are_refused_too() -> None:
    calls = Calls()
    p = pipeline(calls)
    p.process(1, batch="monday")
    with pytest.raises(hf.Refused, match="'monday'"):
        p.process(1, batch="tuesday")
    assert p.process(1, batch="monday").state == "done"
    assert p.process(2, batch="monday").state == "done"
    assert calls.seen == [(1, "monday"), (2, "monday")]


@pytest.mark.parametrize("template", ["out/{batch}/{key}.txt", "out/{batch}_{key}.txt"])
def test_with_batch_in_the_name_each_has_its_own(template: str) -> None:
    p = pipeline(Calls(), template=template)
    assert run(p, [1, 2], batch="monday").is_complete
    assert run(p, [1, 2], batch="tuesday").is_complete


@pytest.mark.parametrize("other", [{"store": "other.db"}, {"name": "q"}, {"store": "other.db", "name": "q"}])
def test_another_store_or_pipeline_is_refused(other: dict[str, str]) -> None:
    calls = Calls()
    run(pipeline(calls), [1], batch="monday")
    with pytest.raises(hf.Refused, match="'monday'"):
        run(pipeline(calls, **other), [1], batch="tuesday")  # type: ignore[arg-type]
    assert len(calls) == 1


def test_other_spellings_of_the_names_are_the_same_names(tmp_path: Path) -> None:
    calls = Calls()
    run(pipeline(calls), [1], batch="monday")
    for template in ("./out/{key}.txt", "out/{key:02d}.txt", f"{tmp_path}/out/{{key}}.txt"):
        with pytest.raises(hf.Refused):
            run(pipeline(calls, template=template), [1], batch="tuesday")
    assert run(pipeline(calls, template="out/{key}.json"), [1], batch="tuesday").is_complete


def test_names_under_which_nothing_was_recorded_are_free() -> None:
    calls = Calls()
    p = pipeline(calls)
    assert not run(p, [-1], batch="monday", tolerate=1).counts.done
    assert run(p, [1], batch="tuesday").is_complete
    with pytest.raises(hf.Refused, match="'tuesday'"):
        run(p, [1], batch="monday")


def test_the_store_knows_when_the_note_beside_the_files_is_gone() -> None:
    calls = Calls()
    p = pipeline(calls)
    run(p, [1], batch="monday")
    forget_names()
    with pytest.raises(hf.Refused, match="'monday'"):
        run(p, [1], batch="tuesday")
    assert run(p, [1], batch="monday").is_complete
    assert len(calls) == 1


def forget_names() -> None:
    """As an earlier version left the folder, or as somebody cleaned it."""
    for path in Path("out", FOLDER).rglob("*"):
        if path.is_file():
            path.unlink()


def test_a_folder_that_was_moved_away_leaves_the_names_free() -> None:
    calls = Calls()
    p = pipeline(calls)
    run(p, [1], batch="monday")
    Path("out").rename("archive")
    assert run(p, [1], batch="tuesday").is_complete
    assert Path("archive", "1.txt").exists()


def test_all_of_it_moved_elsewhere_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    (tmp_path / "one").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    first = pipeline(calls)
    run(first, [1, 2], batch="monday")
    first.store.close()
    (tmp_path / "one").rename(tmp_path / "two")
    monkeypatch.chdir(tmp_path / "two")
    again = pipeline(calls)
    assert run(again, [1, 2, 3], batch="monday").is_complete
    assert len(calls) == 3
    with pytest.raises(hf.Refused, match="'monday'"):
        run(again, [1], batch="tuesday")


def test_two_that_begin_at_once_have_one_winner() -> None:
    calls, barrier = Calls(), threading.Barrier(2)
    results: dict[str, object] = {}

    def begin(batch: str) -> None:
        p = pipeline(calls, store=f"{batch}.db")
        p.store  # noqa: B018 - opened before both begin
        barrier.wait(10)
        try:
            results[batch] = run(p, range(50), batch=batch)
        except hf.Refused as refused:
            results[batch] = refused

    threads = [threading.Thread(target=begin, args=(batch,)) for batch in ("monday", "tuesday")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    won = [batch for batch, result in results.items() if isinstance(result, hf.Report)]
    assert len(won) == 1
    assert {batch for _, batch in calls.seen} == set(won)


def test_a_batch_that_has_recorded_nothing_yet_holds_the_names_while_it_is_at_work() -> None:
    begun, go_on, found = threading.Event(), threading.Event(), []
    first = hf.Pipeline("p", store="state.db")

    @first.stage(name="write", sink=hf.Files("out/{key}.txt"))
    def wait(n: int) -> str:
        begun.set()
        go_on.wait(30)
        return "first"

    thread = threading.Thread(target=lambda: found.append(run(first, [1], batch="monday")))
    thread.start()
    assert begun.wait(30)
    for replaces in (False, True):
        with pytest.raises(hf.Refused, match="'monday'"):
            run(pipeline(Calls(), store="other.db", replaces=replaces), [1], batch="tuesday")
    go_on.set()
    thread.join(30)
    assert found[0].is_complete
    assert contents() == {"1.txt": "first"}


@pytest.mark.parametrize("way", ["run", "process", "recover"])
def test_names_that_are_taken_while_a_batch_is_opened_are_let_go_and_told_truly(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[IO[bytes]] = []
    keep, p = Names.keep, pipeline(Calls(), template="out/{batch}/{key}.txt")

    def remembered(names: Names) -> IO[bytes] | None:
        file = keep(names)
        kept.extend([file] if file is not None else [])
        return file

    def taken(*arguments: object, **options: object) -> object:
        opened = open_batch(*arguments, **options)
        (note,) = Path("out", FOLDER).glob("names-*")
        note.unlink()
        note.write_text(f'{{"pipeline":"p","batch":"monday","uid":"{32 * "f"}","template":"{{batch}}/{{key}}.txt"}}')
        return opened

    open_batch = p.store.open_batch
    if way == "recover":
        run(pipeline(Calls(), store="lost.db", template="out/{batch}/{key}.txt"), [1], batch="monday")
    else:
        Path("out/monday").mkdir(parents=True)
        Path("out/monday/1.txt").write_text("of the other")
    monkeypatch.setattr(Names, "keep", remembered)
    monkeypatch.setattr(p.store, "open_batch", taken)
    with pytest.raises(hf.Refused, match="in another store") as refused:
        {
            "run": lambda: run(p, [1], batch="monday"),
            "process": lambda: p.process(1, batch="monday"),
            "recover": lambda: p.recover([1], by=BY, batch="monday"),
        }[way]()
    assert kept
    assert all(file.closed for file in kept)
    assert "the batch was opened, but nothing else was done" in str(refused.value)
    assert find_batch(p.store, "monday").admitted == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["run", "process"])
def test_names_of_a_batch_that_is_refused_for_another_reason_are_let_go(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[IO[bytes]] = []
    keep, p = Names.keep, pipeline(Calls())
    run(p, [1], batch="monday")

    def remembered(names: Names) -> IO[bytes] | None:
        file = keep(names)
        kept.extend([file] if file is not None else [])
        return file

    monkeypatch.setattr(Names, "keep", remembered)
    monkeypatch.setattr(definition, "describe", lambda *_: (_ for _ in ()).throw(hf.Refused("a test")))
    with pytest.raises(hf.Refused, match="a test"):
        run(p, [1], batch="monday") if way == "run" else p.process(1, batch="monday")
    assert all(file.closed for file in kept)


# -- replaces=True ----------------------------------------------------------------------------------------------------


def test_replaces_takes_the_names_and_nobody_pays_twice() -> None:
    calls = Calls()
    p = pipeline(calls, replaces=True)
    for batch in ("monday", "tuesday", "monday", "tuesday", "monday"):
        report = run(p, [1, 2, 3], batch=batch)
        assert report.is_complete
        assert report.exit_code == 0
    assert len(calls) == 6
    assert all("tuesday" in text for text in contents().values())
    assert any("superseded" in told and "'tuesday'" in told for told in report.warnings)


def test_superseded_is_neither_missing_nor_different() -> None:
    calls = Calls()
    p = pipeline(calls, replaces=True)
    run(p, [1, 2, 3, 4], batch="monday")
    run(p, [1, 2, 3], batch="tuesday")
    Path("out/2.txt").unlink()  # of tuesday: missing there, and superseded on monday
    report = run(p, [1, 2, 3, 4], batch="monday", verify="full")
    assert (report.exit_code, len(calls)) == (0, 7)
    for full in (False, True):
        found = p.reconcile("monday", full=full)
        assert found.is_explained, found.findings
        assert (found.observed.superseded, found.observed.files) == (3, 1)
        assert not found.found.get(What.EXTRA)
    checked = audit.verify(p.store, find_batch(p.store, "monday"), full=True)  # type: ignore[arg-type]
    assert checked.holds, checked.findings
    assert checked.superseded == 3
    assert p.reconcile("tuesday").found[What.MISSING] == 1
    with pytest.raises(hf.Superseded, match="'tuesday'"):
        list(p.results("monday"))
    assert p.process(1, batch="monday").state == "done"
    assert len(calls) == 7


def test_a_superseded_batch_with_work_left_is_refused() -> None:
    calls = Calls()
    p = pipeline(calls, replaces=True)
    run(p, [1, 2], batch="monday")
    run(p, [1, 2], batch="tuesday")
    (monday,) = p.store.batches("monday")
    operations.reset(p.store, monday, BY, "1", to_stage="write")
    with pytest.raises(hf.Refused, match=r"'tuesday'.*cancel"):
        run(p, [1, 2], batch="monday")
    with pytest.raises(hf.Refused, match="'tuesday'"):
        p.process(3, batch="monday")
    assert len(calls) == 4


def test_the_source_of_a_superseded_batch_is_not_read() -> None:
    calls = Calls()
    p = pipeline(calls, replaces=True)
    run(p, [1, 2], batch="monday")
    run(p, [1, 2], batch="tuesday")
    assert run(p, [1, 2, 3], batch="monday").exit_code == 0
    assert len(calls) == 4


def test_a_staged_output_of_a_superseded_batch_never_takes_the_name_back() -> None:
    calls = Calls()
    p = pipeline(calls, replaces=True)
    run(p, [1], batch="monday")
    (monday,) = p.store.batches("monday")
    (output,) = p.store.outputs(monday.id)
    assert output.file is not None
    Path("out/1.txt").rename(Evidence.decode(output.file).staged)  # as a crash between commit and rename leaves it
    run(p, [1], batch="tuesday")
    assert run(p, [1], batch="monday").is_complete
    p.reconcile("monday", full=True)
    assert contents()["1.txt"].startswith("1 of tuesday")
    assert [result.output for result in p.results("monday")] == ["1 of monday, call 1"]


def test_sealed_outputs_are_never_replaced() -> None:
    calls = Calls()
    run(pipeline(calls), [1], batch="monday", seal=True)
    before = contents()
    for replaces in (False, True):
        with pytest.raises(hf.Refused, match="'monday'"):
            run(pipeline(calls, replaces=replaces), [1], batch="tuesday")
    assert (contents(), len(calls)) == (before, 1)


def test_a_plan_says_what_the_run_would_refuse() -> None:
    calls = Calls()
    p = pipeline(calls)
    run(p, [1], batch="monday")
    (obstacle,) = p.plan([1], batch="tuesday").obstacles
    assert "'monday'" in obstacle
    assert not pipeline(calls, replaces=True).plan([1], batch="tuesday").obstacles
    assert find_batch(p.store, "tuesday") is None
    assert run(p, [1], batch="monday").is_complete


# -- what has to keep working -----------------------------------------------------------------------------------------


def test_a_record_is_rebuilt_from_the_files_under_the_same_name_and_under_another(tmp_path: Path) -> None:
    calls = Calls()
    first = pipeline(calls)
    run(first, [1, 2], batch="monday")
    first.store.close()
    with set_aside(tmp_path / "state.db"):
        pass
    again = pipeline(calls)
    assert again.recover([1, 2], by=BY, batch="monday").recovered == {"write": 2}
    assert run(again, [1, 2], batch="monday").is_complete
    elsewhere = pipeline(calls, store="new.db")
    assert elsewhere.recover([1, 2], by=BY, batch="rebuilt", dry_run=True).recovered == {"write": 2}
    assert run(again, [1, 2], batch="monday").is_complete
    assert elsewhere.recover([1, 2], by=BY, batch="rebuilt").recovered == {"write": 2}
    assert run(elsewhere, [1, 2], batch="rebuilt").is_complete
    assert len(calls) == 2


def test_files_of_a_batch_in_this_store_are_not_rebuilt_as_those_of_another() -> None:
    calls = Calls()
    p = pipeline(calls)
    run(p, [1], batch="monday")
    with pytest.raises(hf.Refused, match="'monday'"):
        p.recover([1], by=BY, batch="tuesday")


def test_of_batches_that_shared_names_before_the_one_whose_files_are_there_has_them() -> None:
    """As an earlier version left them: both recorded, and the files are those of the second."""
    calls = Calls()
    p = pipeline(calls, replaces=True)
    run(p, [1, 2], batch="monday")
    run(p, [1, 2], batch="tuesday")
    forget_names()
    plain = pipeline(calls)
    assert run(plain, [1, 2], batch="monday").exit_code == 0
    assert run(plain, [1, 2], batch="tuesday").is_complete
    assert len(calls) == 4
    assert all("tuesday" in text for text in contents().values())


# -- names with {batch} that coincide all the same --------------------------------------------------------------------


def text_pipeline(
    calls: Calls, template: str = "out/{batch}-{key}.txt", *, store: str = "state.db", **options: bool
) -> hf.Pipeline:
    made = hf.Pipeline("p", store=store)

    @made.stage(sink=hf.Files(template, **options))
    def write(key: str, ctx: hf.Context) -> str:
        calls((key, ctx.batch))
        return f"{key} of {ctx.batch}, call {len(calls)}"

    return made


def test_two_batches_that_name_one_file_alike_never_share_it() -> None:
    calls = Calls()
    p = text_pipeline(calls)
    assert run(p, ["b-c"], batch="a", seal=True).is_complete
    before = contents()
    report = run(p, ["c", "d"], batch="a-b", tolerate=1)
    (letter,) = report.dead
    assert (letter.key, letter.code) == ("c", "name_taken")
    assert "out/a-b-c.txt" in letter.reason
    assert "batch 'a' of pipeline 'p'" in letter.reason
    assert "out/{batch}/{batch}-{key}.txt" in letter.reason
    assert contents() == before | {"a-b-d.txt": "d of a-b, call 2"}
    assert p.reconcile("a").is_explained


def test_the_same_template_serves_day_by_day() -> None:
    p = text_pipeline(Calls())
    for batch in ("2026-01", "2026-01-01", "2026-01-02"):
        assert run(p, ["01", "02"], batch=batch).exit_code == 0
    assert len(contents()) == 6


def test_a_redriven_item_is_refused_again_until_the_file_is_moved() -> None:
    calls = Calls()
    p = text_pipeline(calls)
    run(p, ["b-c"], batch="a")
    run(p, ["c"], batch="a-b", tolerate=1)
    (other,) = p.store.batches("a-b")
    operations.redrive(p.store, other, BY)
    assert run(p, ["c"], batch="a-b", tolerate=1).dead[0].code == "name_taken"
    assert calls.seen == [("b-c", "a")]
    Path("out/a-b-c.txt").rename("moved.txt")
    operations.redrive(p.store, other, BY)
    assert run(p, ["c"], batch="a-b").is_complete
    assert contents() == {"a-b-c.txt": "c of a-b, call 2"}


def test_an_item_that_is_made_again_replaces_its_own_file_beside_a_rival() -> None:
    calls = Calls()
    p = text_pipeline(calls)
    run(p, ["c"], batch="a-b")
    run(p, ["x"], batch="a")
    (own,) = p.store.batches("a-b")
    operations.reset(p.store, own, BY, "c", to_stage="write")
    assert run(p, ["c"], batch="a-b").is_complete
    assert contents()["a-b-c.txt"] == "c of a-b, call 3"


def reset(p: hf.Pipeline, batch: str, key: str) -> None:
    (found,) = p.store.batches(batch)
    operations.reset(p.store, found, BY, key, to_stage="write")


def lose_the_rename(p: hf.Pipeline, batch: str, older: Path) -> None:
    """As a crash between commit and rename leaves it: the output staged, and under its name the file from before."""
    (found,) = p.store.batches(batch)
    (output,) = p.store.outputs(found.id)
    assert output.file is not None
    evidence = Evidence.decode(output.file)
    Path(evidence.final).rename(evidence.staged)
    older.rename(evidence.final)


def test_a_run_that_was_killed_before_the_rename_replaces_its_own_older_file_later() -> None:
    calls = Calls()
    p = text_pipeline(calls)
    run(p, ["c"], batch="a-b")
    run(p, ["x"], batch="a")
    Path("older").hardlink_to("out/a-b-c.txt")
    reset(p, "a-b", "c")
    run(p, ["c"], batch="a-b")
    Path("oldest").hardlink_to("older")
    lose_the_rename(p, "a-b", Path("older"))
    again = text_pipeline(calls)
    assert run(again, ["c"], batch="a-b").is_complete
    assert contents()["a-b-c.txt"] == "c of a-b, call 3"
    lose_the_rename(again, "a-b", Path("oldest"))
    reset(again, "a-b", "c")
    assert run(again, ["c"], batch="a-b").is_complete
    assert (contents()["a-b-c.txt"], len(calls)) == ("c of a-b, call 4", 4)
    assert again.reconcile("a-b", full=True).is_explained


def test_an_item_that_is_made_again_never_replaces_the_file_of_a_rival() -> None:
    calls = Calls()
    p = text_pipeline(calls)
    run(p, ["c"], batch="a-b")
    Path("out/a-b-c.txt").rename("moved.txt")
    run(p, ["b-c"], batch="a")
    reset(p, "a-b", "c")
    report = run(p, ["c"], batch="a-b", tolerate=1)
    assert report.dead[0].code == "name_taken"
    assert contents() == {"a-b-c.txt": "b-c of a, call 2"}
    assert len(calls) == 2


PROCESSES = """
import os

import holdfast as hf
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.stores.base import find_batch

p = hf.Pipeline("p", store="state.db")

@p.stage(sink=hf.Files("out/{batch}-{key}.txt"), executor="processes")
def write(key: str, ctx: hf.Context) -> str:
    with open("calls", "a") as calls:
        print(key, ctx.batch, file=calls)
    return open("calls").read()

def again(batch: str, key: str) -> None:
    operations.reset(p.store, find_batch(p.store, batch), Actor(name="tester", reason="a test"), key, to_stage="write")

if __name__ == "__main__":
    options = {"workers": 1, "progress": False, "tolerate": 1}
    p.run(["c", "d"], batch="a-b", **options)
    p.run(["x"], batch="a", **options)
    again("a-b", "c")
    report = p.run(["c", "d"], batch="a-b", **options)
    assert report.is_complete, report
    assert open("out/a-b-c.txt").read().count("c a-b") == 2, open("out/a-b-c.txt").read()
    os.rename("out/a-b-d.txt", "moved.txt")
    p.run(["x", "b-d"], batch="a", **options)
    again("a-b", "d")
    assert p.run(["c", "d"], batch="a-b", **options).dead[0].code == "name_taken"
    assert open("calls").read().count("d a-b") == 1
"""


@pytest.mark.slow
def test_worker_processes_are_told_which_files_are_their_own(tmp_path: Path) -> None:
    done = App(tmp_path, PROCESSES).run()
    assert done.returncode == 0, done.stderr


def test_a_name_that_was_taken_while_the_handler_ran_is_not_replaced() -> None:
    """Both find the name free; the one that is later keeps its output staged, and says so."""
    calls = Calls()
    second = text_pipeline(calls)
    first = hf.Pipeline("p", store="state.db")

    @first.stage(name="write", sink=hf.Files("out/{batch}-{key}.txt"))
    def write(key: str) -> str:
        assert run(second, ["c"], batch="a-b").is_complete
        return "late"

    report = run(first, ["b-c"], batch="a")
    assert contents() == {"a-b-c.txt": "c of a-b, call 1"}
    assert report.exit_code == 1
    found = first.reconcile("a")
    assert not found.is_explained
    assert any("batch 'a-b'" in each.why for each in found.findings), found.findings
    assert second.reconcile("a-b").is_explained
    Path("out/a-b-c.txt").rename("moved.txt")
    assert run(first, ["b-c"], batch="a").is_complete
    assert contents() == {"a-b-c.txt": "late"}


def test_a_folder_that_another_template_names_does_not_help() -> None:
    calls = Calls()
    run(text_pipeline(calls, "out/{batch}/{key}.txt"), ["1"], batch="x")
    other = hf.Pipeline("q", store="other.db")

    @other.stage(sink=hf.Files("out/x/{key}.txt"))
    def write(key: str) -> str:
        raise AssertionError("it was paid")

    report = run(other, ["1"], batch="y", tolerate=1)
    assert report.dead[0].code == "name_taken"
    assert Path("out/x/1.txt").read_text() == "1 of x, call 1"


@pytest.mark.parametrize("template", ["out/{batch}/{key}.txt", "out/{stage}/{batch}-{key}.txt", "out/{key}.txt"])
def test_the_same_batch_in_another_store_is_refused(template: str) -> None:
    calls = Calls()
    run(text_pipeline(calls, template), ["1"], batch="monday", seal=True)
    other = text_pipeline(calls, template, store="other.db")
    with pytest.raises(hf.Refused, match=r"'monday'.*in another store.*another folder.*replaces=True"):
        run(other, ["1"], batch="monday")
    assert find_batch(other.store, "monday") is None
    assert "in another store" in other.plan(["1"], batch="monday").obstacles[0]
    with pytest.raises(hf.Refused, match="in another store"):
        other.process("1", batch="monday")
    assert len(calls) == 1
    assert run(text_pipeline(calls, template), ["1"], batch="monday", seal=True).exit_code == 0


@pytest.mark.parametrize("template", ["out/{batch}/{key}.txt", "out/{key}.txt"])
def test_a_store_that_was_in_memory_or_deleted_is_named_with_the_ways_to_continue(template: str) -> None:
    calls = Calls()
    run(text_pipeline(calls, template, store="memory:"), ["1"], batch="monday")
    second = text_pipeline(calls, template, store="memory:")
    with pytest.raises(hf.Refused) as refused:
        run(second, ["1"], batch="monday")
    assert str(refused.value) == (
        f"the files {template} of stage 'write' were recorded by batch 'monday' of pipeline 'p' in another store, "
        "which may have been deleted or in memory only; this batch of the same name would replace them; "
        "nothing was done. If that store still exists, use it. Otherwise move the files to another folder; or rebuild "
        "the batch from them (`holdfast import … --from-outputs`); or use hf.Files(…, replaces=True), and this "
        "batch makes them again"
    )
    assert len(calls) == 1
    assert run(text_pipeline(calls, template, store="memory:", replaces=True), ["1"], batch="monday").is_complete
    Path("out").rename("old")
    assert run(second, ["1"], batch="monday").is_complete


@pytest.mark.parametrize("template", ["out/{batch}/{key}.txt", "out/{key}.txt"])
def test_the_same_batch_in_another_store_replaces_and_the_first_is_superseded(template: str) -> None:
    calls = Calls()
    first = text_pipeline(calls, template, replaces=True)
    run(first, ["1"], batch="monday")
    other = text_pipeline(calls, template, store="other.db", replaces=True)
    assert run(other, ["1"], batch="monday").is_complete
    report = run(first, ["1"], batch="monday")
    assert (report.exit_code, len(calls)) == (0, 2)
    assert any("superseded" in told for told in report.warnings)
    found = first.reconcile("monday", full=True)
    assert found.is_explained, found.findings
    assert found.observed.superseded == 1
    assert other.reconcile("monday", full=True).is_explained


def test_a_store_that_was_moved_keeps_its_files() -> None:
    calls = Calls()
    first = text_pipeline(calls, "out/{batch}/{key}.txt")
    run(first, ["1"], batch="monday")
    first.store.close()
    Path("elsewhere").mkdir()
    for path in Path().glob("state.db*"):
        path.rename(Path("elsewhere", path.name))
    moved = text_pipeline(calls, "out/{batch}/{key}.txt", store="elsewhere/state.db")
    assert run(moved, ["1", "2"], batch="monday").is_complete
    assert len(calls) == 2


def test_a_note_of_an_older_version_still_says_whose_names_they_are() -> None:
    calls = Calls()
    p = pipeline(calls)
    run(p, [1], batch="monday")
    (note,) = Path("out", FOLDER).glob("names-*")
    note.write_text('{"pipeline":"p","batch":"monday"}\n')
    with pytest.raises(hf.Refused, match="'monday'"):
        run(p, [1], batch="tuesday")
    with pytest.raises(hf.Refused, match="'monday'"):
        run(pipeline(calls, store="other.db"), [1], batch="monday")
    assert run(p, [1, 2], batch="monday").is_complete
    assert len(calls) == 2
    assert '"uid"' in note.read_text()


def test_batches_that_an_older_version_ran_are_known_by_the_store() -> None:
    calls = Calls()
    p = text_pipeline(calls)
    run(p, ["b-c"], batch="a")
    forget_names()
    assert run(p, ["c"], batch="a-b", tolerate=1).dead[0].code == "name_taken"
    assert len(calls) == 1


def test_the_batches_of_a_store_are_not_read_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    p = text_pipeline(Calls())
    p.process("1", batch="a")
    reads: list[int] = []
    batches = p.store.batches

    def counted(name: str | None = None) -> object:
        reads.extend([1] if name is None else [])
        return batches(name)

    monkeypatch.setattr(p.store, "batches", counted)
    for key in ("1", "2", "3"):
        assert p.process(key, batch="a").state == "done"
    assert not reads
    p.process("1", batch="b")
    assert reads


def flock_of_nfs(real: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """There a lock for one alone needs a file that is open for writing."""

    def flock(handle: int, how: int) -> None:
        reads = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if how & fcntl.LOCK_EX and reads and not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(handle, how)

    return flock


def test_names_on_a_network_file_system_are_held_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", flock_of_nfs(fcntl.flock))
    p = pipeline(Calls(), replaces=True)
    run(p, [1], batch="monday")
    note = next(path for path in Path("out", FOLDER).iterdir() if path.name.startswith("names-"))
    with note.open("rb") as kept:
        fcntl.flock(kept.fileno(), fcntl.LOCK_SH)
        with pytest.raises(hf.Refused, match="'monday'"):
            run(p, [1], batch="tuesday")
    assert run(p, [1], batch="tuesday").is_complete


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOLCK])
def test_without_locks_the_note_alone_decides(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_handle: int, _how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    run(pipeline(Calls()), [1], batch="monday")
    with pytest.raises(hf.Refused, match="'monday'"):
        run(pipeline(Calls()), [1], batch="tuesday")
    assert run(pipeline(Calls(), replaces=True), [1], batch="tuesday").is_complete


def test_a_note_that_may_only_be_read_is_asked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(tmp_path, "out/{key}.txt", "{key}.txt", "write")
    names.path.write_bytes(b"{}")
    opened = Path.open

    def refuse_writing(path: Path, mode: str = "r", *args: object) -> object:
        if path == names.path and "+" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, mode, *args)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse_writing)
    assert not names.is_in_use()
    with opened(names.path, "rb") as kept:
        fcntl.flock(kept.fileno(), fcntl.LOCK_SH)
        assert names.is_in_use()


def test_a_superseded_batch_whose_source_was_not_read_to_its_end_is_refused() -> None:
    calls = Calls()
    p = pipeline(calls, replaces=True)

    def breaks() -> Iterator[int]:
        yield 1
        raise ValueError("line 2 is broken")

    with pytest.raises(ValueError, match="line 2"):
        run(p, breaks(), batch="monday")
    assert run(p, batch="monday").counts.done == 1
    run(p, [1], batch="tuesday")
    before = contents()
    with pytest.raises(hf.Refused, match=r"'monday' has work left.*superseded by batch 'tuesday'"):
        run(p, [1, 2], batch="monday")
    assert contents() == before
