"""`hf.open`: everything that the command can do, from Python."""

import json
import math
from collections.abc import Callable, Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.testing.rows import Rows

WHY = "because"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[hf.StoreHandle]:
    """Two batches: letters, of which two died, and the rows of a scan."""
    where = tmp_path / "state.db"
    letters = hf.Pipeline("letters", store=where)

    @letters.stage
    def read(letter: str) -> str:
        if letter.startswith("bad"):
            raise hf.Permanent(letter.split("-", maxsplit=1)[0] + "-" + letter[-1], "nothing on it")
        return letter.upper()

    @letters.stage
    def write(letter: str) -> str:
        return letter + "!"

    letters.run(["a", "bad-1", "b", "bad-2"], progress=False, tolerate="100%")
    totals = hf.Scan("totals", hf.Csv(_rows(tmp_path)), every=10, partitions=2, store=where)

    @totals.handler
    def add(rows: list[dict[str, str]], acc: int) -> int:
        return (acc or 0) + sum(int(row["n"]) for row in rows)

    totals.run(progress=False)
    with hf.open(where) as opened:
        yield opened


def _rows(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(50)), encoding="utf-8")
    return path


def test_batches_are_found_by_name(store: hf.StoreHandle) -> None:
    assert [batch.name for batch in store] == ["letters", "totals"]
    assert [batch.name for batch in store.batches(newest=1)] == ["totals"]
    assert (len(store), "letters" in store) == (2, True)
    assert not any(name in store for name in ("lettres", 7, "\ud800"))
    with pytest.raises(hf.UsageError, match="did you mean 'letters'"):
        store["lettres"]
    assert repr(store["letters"]).startswith("<batch 'letters' in ")
    assert "state.db" in repr(store)


def test_the_newest_batches_are_as_many_as_were_asked_for(store: hf.StoreHandle) -> None:
    assert [len(store.batches(newest=newest)) for newest in (0, 1, 2, 9)] == [0, 1, 2, 2]
    with pytest.raises(hf.UsageError, match="newest=-1: pass a whole number"):
        store.batches(newest=-1)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "events after a text": (lambda store: store.events(after="x"), "after='x': pass a whole number"),
    "a format nobody knows": (lambda store: store["letters"].export("x", format="xml"), "pass jsonl, csv, parquet"),
    "a seal of a text": (lambda store: store["letters"].seal("x"), "found='x': pass what reconcile"),
    "a repair of a text": (lambda store: store["letters"].repair("x", reason=WHY), "found='x': pass what reconcile"),
    "a result that is no JSON": (
        lambda store: store["totals"].cursors.settle(0, result=5, reason=WHY),
        "result=5: pass",
    ),
    "a cursor of a list": (lambda store: store["totals"].cursors.reset(0, to_cursor=[5], reason=WHY), "to_cursor="),
    "a key of bytes": (lambda store: store["totals"].cursors.reset(0, to_cursor=5, key=[b"5"], reason=WHY), "key=b'5'"),
    "an export to a number": (lambda store: store["letters"].export(5), "5 cannot be written to"),
    "an export to half a name": (lambda store: store["letters"].export("a\0b.csv"), "cannot be the name of a file"),
    "evidence in half a name": (lambda store: store["letters"].evidence("\ud800.zip"), "cannot be the name of a file"),
    "cursors from half a name": (lambda store: store.import_cursors("a", "a\0b", reason=WHY), "null"),
    "a raw output of a number": (
        lambda store: store["letters"].resolve("bad-1", raw_output=5, reason=WHY),
        "raw_output=5",
    ),
    "a batch that no store can hold": (lambda store: store["\ud800"], "there is no batch"),
    "a batch that is a number": (lambda store: store[5], "there is no batch 5"),
    "receivers that are a number": (lambda store: store.deliver(5), "events=5: "),
}


@pytest.mark.parametrize(("ask", "why"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_is_refused(store: hf.StoreHandle, ask: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(hf.UsageError) as caught:
        ask(store)
    assert why in str(caught.value)


def test_a_scan_is_not_taken_for_a_pipeline(store: hf.StoreHandle, tmp_path: Path) -> None:
    scan: Any = hf.Scan("totals", hf.Csv(_rows(tmp_path)), every=10, store=tmp_path / "state.db")
    pipeline: Any = hf.Pipeline("letters", store=tmp_path / "state.db")
    for wrong in (
        lambda: store["totals"].reconcile(source=scan),
        lambda: store["totals"].repair(store["totals"].reconcile(), source=scan, reason=WHY),
        lambda: hf.import_outputs(scan, reason=WHY),
        lambda: hf.import_pages(scan, tmp_path / "pages", reason=WHY),
    ):
        with pytest.raises(hf.UsageError, match="pass a pipeline"):
            wrong()
    for wrong in (
        lambda: hf.import_poller(pipeline, tmp_path / "state", reason=WHY),
        lambda: hf.import_checkpoints(pipeline, [], reason=WHY),
    ):
        with pytest.raises(hf.UsageError, match="pass a scan"):
            wrong()


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(hf.UsageError, match="there is no store"):
        hf.open(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    with hf.open(tmp_path / "new.db", must_exist=False) as store:
        assert len(store) == 0


def test_a_store_that_was_handed_over_open_stays_open(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("letters", store=tmp_path / "state.db")
    pipeline.stage(name="same")(lambda letter: letter)
    pipeline.run(["a"], progress=False)
    with hf.open(pipeline.store) as store:
        assert store["letters"].status().is_complete
    assert pipeline.report("letters").is_complete


def test_a_batch_tells_how_it_is(store: hf.StoreHandle) -> None:
    batch = store["letters"]
    seen = batch.status()
    assert (seen.state, seen.counts.done, seen.counts.dead) == ("complete with dead letters", 2, 2)
    assert (batch.stages, batch.pipeline, batch.is_scan) == (["read", "write"], "letters", False)
    assert batch.statistics().overall.runs == 6
    assert batch.set_back() == ""
    assert seen.as_dict()["state"] == seen.state


def test_items_are_read_by_state_and_stage(store: hf.StoreHandle) -> None:
    batch = store["letters"]
    assert [item.key for item in batch.items()] == ["a", "bad-1", "b", "bad-2"]
    assert [item.key for item in batch.items(state="dead", stage="read")] == ["bad-1", "bad-2"]
    assert [item.key for item in batch.items(state=hf.State.DONE, stage="write")] == []
    with pytest.raises(hf.UsageError, match="state='lost': use one of pending"):
        batch.items(state="lost")
    with pytest.raises(hf.UsageError, match="no stage 'rite': did you mean 'write'"):
        batch.items(stage="rite")


@pytest.mark.parametrize("number", ["²", "9" * 23, "9" * 5_000, "-1", "\u0661"])
def test_a_number_that_is_none_is_not_found(store: hf.StoreHandle, number: str) -> None:
    with pytest.raises(hf.UsageError, match="has no item"):
        store["letters"].item(f"#{number}")
    with pytest.raises(hf.UsageError, match="has no stage"):
        store["letters"].items(stage=number)


def test_a_stage_that_is_not_a_whole_number_is_not_found(store: hf.StoreHandle) -> None:
    stages: tuple[Any, ...] = (1.5, -1, 10**30)
    for stage in stages:
        with pytest.raises(hf.UsageError, match="has no stage"):
            store["letters"].items(stage=stage)
    assert len(list(store["letters"].items(stage=0))) == 2


def test_an_item_tells_its_story(store: hf.StoreHandle) -> None:
    item = store["letters"].item("bad-1")
    assert (item.state, item.stage, item.code, item.attempts, item.number) == ("dead", "read", "bad-1", 1, 1)
    assert (item.payload, item.raw_payload, item.outputs()) == ("bad-1", b'"bad-1"', {})
    assert "dead" in item.why().now
    assert item.why().last_act is None
    assert repr(item) == "<item 'bad-1' of 'letters': dead at 'read'>"
    assert store["letters"].item("#0").outputs()["write"] == {"epoch": 0, "output": "A!"}
    assert item.as_dict()["n"] == 1


def test_what_is_shown_is_done_or_left_alone(store: hf.StoreHandle) -> None:
    batch = store["letters"]
    shown = batch.dead(code="bad-1").redrive(dry_run=True)
    assert (shown.items, shown.question) == (1, "Redrive 1 dead letter of letters")
    assert [item.key for item in batch.dead()] == ["bad-1", "bad-2"]
    batch.dead("bad-1").discard(reason=WHY)
    late = shown.carry_out(reason=WHY)
    assert late.changed == 0
    assert batch.item("bad-1").state == "cancelled"


def test_an_act_needs_a_reason(store: hf.StoreHandle) -> None:
    for letters in (store["letters"].dead(), store["letters"].dead("bad-1")):
        with pytest.raises(hf.UsageError, match="reason"):
            letters.redrive(reason=" ")
    assert [item.state for item in store["letters"].dead()] == ["dead", "dead"]


def test_dead_letters_are_redriven_discarded_and_resolved(store: hf.StoreHandle) -> None:
    batch = store["letters"]
    done = batch.resolve("bad-1", output="BAD!", reason=WHY, actor="ada")
    assert (done.kind, done.changed) == ("resolved", 1)
    assert batch.item("bad-1").state == "done"
    assert batch.item("bad-1").why().last_act is not None
    assert batch.dead("bad-1", "bad-2").redrive(reason=WHY).left_alone == (("done, not dead", 1),)
    assert batch.item("bad-2").state == "pending"
    with pytest.raises(hf.UsageError, match="by their keys or by a code"):
        batch.dead("a", code="b")


class Page(BaseModel):
    text: str = Field(alias="Text")
    score: float | None = None
    day: date = date(2026, 1, 2)


def test_an_output_by_hand_is_encoded_like_that_of_a_handler(tmp_path: Path) -> None:
    book = hf.Pipeline("book", store=tmp_path / "state.db")

    @book.stage
    def read(n: int) -> Page:
        raise hf.Permanent("blank")

    book.run([1, 2], progress=False, tolerate="100%")
    with hf.open(book.store) as store:
        batch = store["book"]
        for output in (math.nan, {"Text": "x", "score": math.inf}, Page(Text="x", score=math.nan), object()):
            with pytest.raises(hf.UsageError, match="cannot be written as JSON"):
                batch.resolve(1, output=output, reason=WHY)
        with pytest.raises(hf.UsageError, match="not both"):
            batch.resolve(1, output="x", raw_output=b'"x"', reason=WHY)
        batch.resolve(1, output=Page(Text="x"), reason=WHY)
        batch.resolve(2, output={"text": "y", "day": date(2026, 2, 3)}, pipeline=book, reason=WHY)
    assert [each.output.text for each in book.results()] == ["x", "y"]


def test_a_batch_is_steered(store: hf.StoreHandle) -> None:
    batch = store["letters"]
    assert batch.pause(reason=WHY).changed
    assert (batch.pause(reason=WHY).changed, batch.pause(reason=WHY).mode) == (False, "paused")
    assert batch.unpause(reason=WHY).mode == "open"
    shown = batch.reset(to_stage="write", dry_run=True)
    assert shown["done"] == 2
    assert batch.reset("a", to_stage="write", reason=WHY).changed == 1
    assert batch.cancel(dry_run=True).items == 1
    assert batch.cancel(reason=WHY).changed == 1
    assert batch.status().state == "cancelled"


def test_a_batch_is_reconciled_sealed_and_reopened(store: hf.StoreHandle) -> None:
    batch = store["letters"]
    found = batch.reconcile(full=True)
    assert (found.is_explained, batch.state_after(found)) == (True, "complete with dead letters")
    with pytest.raises(hf.Refused, match="2 dead letters and tolerates 0"):
        batch.seal(found)
    sealed = batch.seal(found, tolerate="50%", reason=WHY, actor="ada")
    assert (sealed.act, sealed.changed) == ("sealed", True)
    assert batch.seal(tolerate=2).changed is False
    told = batch.seal_of()
    assert told is not None
    assert (told.by, told.reason) == ("ada", WHY)
    assert batch.reopen(reason=WHY).sealed_at is None
    assert batch.repair(dry_run=True).is_idle


def test_a_batch_fed_by_messages_is_expected_and_closed(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("letters", store=tmp_path / "state.db")
    pipeline.stage(name="same")(lambda letter: letter)
    pipeline.process("a")
    batch = hf.open(pipeline.store)["letters"]
    assert batch.expect(2).end is None
    closed = batch.close()
    assert (closed.end, closed.unexplained) == ("stopped", ("1 never created",))


def test_results_are_exported_and_proved(store: hf.StoreHandle, tmp_path: Path) -> None:
    batch = store["letters"]
    assert [(each.key, each.output) for each in batch.results()] == [("a", b'"A!"'), ("b", b'"B!"')]
    assert batch.export(tmp_path / "out.jsonl").rows == 2
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["output"] == "A!"
    assert batch.export(str(tmp_path / "dead.csv"), state="dead").format == "csv"
    assert batch.evidence(tmp_path / "pack.zip").items == 4
    assert batch.audit(full=True).holds
    assert store.flaws() == ()
    with pytest.raises(hf.UsageError, match="is an archive"):
        batch.evidence(tmp_path / "pack.tar")


def test_events_are_read_and_delivered(store: hf.StoreHandle) -> None:
    events = list(store.events())
    assert [event.number for event in events] == sorted(event.number for event in events)
    assert "item.dead" in {event.kind for event in store.events(batch="letters")}
    assert not list(store.events(after=events[-1].number))
    taken: list[dict[str, Any]] = []
    assert store.deliver(taken.append).events == len(events) == len(taken)
    assert store.deliver(taken.append).events == 0


def test_cursors_are_shown_moved_and_cloned(store: hf.StoreHandle, tmp_path: Path) -> None:
    batch = store["totals"]
    assert (batch.is_scan, batch.overview().rows, [part.rows for part in batch.partitions()]) == (True, 50, [27, 23])
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(batch.cursors.document()), encoding="utf-8")
    assert {past.rows for past, key in batch.cursors.history() if key == 0} == {10, 20, 27}
    shown = batch.cursors.reset(0, to_beginning=True, dry_run=True)
    assert (shown.items, shown.columns[2]) == (1, "would resume after")
    assert batch.cursors.reset(0, to_beginning=True, reason=WHY).noun == "partition"
    assert batch.partitions()[0].rows == 0
    assert batch.cursors.reset(to_file=saved, reason=WHY).changed >= 1
    assert batch.partitions()[0].rows == 27
    assert batch.cursors.clone("copy", reason=WHY).changed == 2
    assert store["copy"].overview().rows == 50
    assert store.import_cursors("again", saved, dry_run=True)["partitions"] == 2
    assert store.import_cursors("again", saved, reason=WHY).batch == "again"
    with pytest.raises(hf.UsageError, match="pass exactly one of"):
        batch.cursors.reset(reason=WHY)


def test_a_cursor_is_given_as_the_value_that_it_is(tmp_path: Path) -> None:
    """And a partition by its number, as it is listed."""
    scan = hf.Scan("numbers", Rows(list(range(30))), every=10, partitions=2, store=tmp_path / "state.db")
    scan.handler(lambda rows, acc: (acc or 0) + len(rows))
    scan.run(progress=False)
    with hf.open(tmp_path / "state.db") as store:
        cursors = store["numbers"].cursors
        shown = cursors.reset(1, to_cursor=20, acc="keep", dry_run=True)
        assert shown.as_dict() == cursors.reset("1", to_cursor="20", acc="keep", dry_run=True).as_dict()
    file = tmp_path / "checkpoint.json"
    file.write_text(json.dumps({"cursor": 10, "items_processed": 10}))
    shown = hf.import_checkpoints(scan, [(0, file)], batch="again", by_rows=True, dry_run=True)
    assert shown.items == 2


def test_rows_after_the_last_are_none() -> None:
    source = Rows([1, 2, 3], page=2)
    for after, until, found in ((9, None, []), (1, 9, [[2, 3]]), (0, 9, [[1, 2], [3]]), (2, 1, [])):
        pages = source.read(Cursor("row", after), None if until is None else Cursor("row", until))
        assert [page.rows for page in islice(pages, 9)] == found


def test_a_partition_is_reset_and_settled_by_hand(store: hf.StoreHandle) -> None:
    batch = store["totals"]
    assert batch.has_partitions()
    assert batch.reset(1, reason=WHY).noun == "partition"
    assert batch.item("1").state == "pending"
    settled = batch.cursors.settle(1, result=b"7", reason=WHY)
    assert (settled.kind, batch.item("1").state) == ("resolved", "done")


def test_orphans_are_listed_and_resolved(store: hf.StoreHandle) -> None:
    found = store.orphans()
    assert (found.total, list(found), found.as_dict()["orphans"]) == (0, [], 0)
    with pytest.raises(hf.UsageError, match="no strategy 'forget'"):
        store["letters"].resolve_orphans("forget", reason=WHY)
    assert store["letters"].resolve_orphans(dry_run=True).is_idle
    assert store["letters"].lift_blame(dry_run=True).is_idle


def test_a_plan_is_that_of_the_pipeline(store: hf.StoreHandle, tmp_path: Path) -> None:
    letters = hf.Pipeline("letters", store=tmp_path / "state.db")
    letters.stage(name="read")(lambda letter: letter)
    letters.stage(name="write")(lambda letter: letter)
    assert store["letters"].plan(letters, items=["c"], on_code_change="keep").count("run") == 1


@pytest.mark.parametrize("folder", ["", ".", "here"])
def test_the_doctor_is_not_sent_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(hf.UsageError, match="is a directory: name the file of the store"):
        hf.doctor(folder)


def test_the_doctor_looks_at_a_place(tmp_path: Path) -> None:
    assert hf.doctor(tmp_path / "state.db").level in ("ok", "warn")
    with pytest.raises(hf.UsageError, match="in memory has nothing to check"):
        hf.doctor("memory:")
    assert "commit.before" in hf.fault_points()


def test_what_is_answered_can_be_printed(store: hf.StoreHandle) -> None:
    batch = store["letters"]
    assert str(batch.status()) == (
        "letters: complete with dead letters\n  items 4 = 2 done + 0 skipped + 2 dead + 0 cancelled + 0 pending"
    )
    assert str(batch.audit()).startswith("letters: it holds. ")
    assert str(batch.reconcile()) == "letters: every item is accounted for"
    preview = batch.dead("bad-1").discard(dry_run=True)
    assert str(preview) == "1 dead letter of letters (bad-1) would be given up: it counts as cancelled."
    assert str(preview.carry_out(reason=WHY)) == "discarded: 1 item of letters"
    assert str(batch.dead("bad-1").discard(reason=WHY)).endswith("left alone: 1 (cancelled, not dead)")
    assert str(batch.reset(dry_run=True)).splitlines()[1].startswith("  items: ")
