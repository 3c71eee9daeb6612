"""Cursors in the hands of operators: shown whole, moved with care, copied, put back. Fences never fall."""

import json
import sqlite3
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core import canonical, cursor, journal, sections
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Damaged, NotOurs, Refused, SchemaTooNew, UsageError
from holdfast.core.model import BatchMode, CommitRefusal, Receipt
from holdfast.runtime.operate import clones, state_document
from holdfast.runtime.operate import cursor_audit as audit
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.partitions import history, remarks, standings
from holdfast.runtime.report import overview as glance
from holdfast.runtime.sources.base import Span
from holdfast.stores import faults
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rows import Rows
from tests.operations.scanned import BY, Totals
from tests.operations.world import Clock, World

LOST = Receipt(landed=False, reason=CommitRefusal.LOST)


@pytest.fixture
def half(store: Store) -> Totals:
    """One partition of 1,000 rows that stands after 400."""
    totals = Totals(store, range(1000))
    totals.bad = {450}
    totals.run()
    totals.bad = set()
    assert totals.rows() == [400]
    return totals


def exported(totals: Totals, name: str = "totals") -> bytes:
    return json.dumps(state_document.document(totals.store, totals.batch(name))).encode()


# -- the document -----------------------------------------------------------------------------------------------------


def test_the_document_tells_everything(half: Totals, clock: Clock) -> None:
    acts.carry_out(half.store, half.batch(), acts.to_state(half.store, half.batch(), exported(half), "a"), BY)
    claim = half.claim()
    clock.advance(5)
    assert half.reach(claim, 500).landed
    clock.advance(2)
    half.store.renew([claim.lease], 30.0)
    told = state_document.document(half.store, half.batch())
    (part,) = told["partitions"]
    assert (told["version"], told["name"], told["source"]) == (1, "totals", {"kind": "rows"})
    assert told["source_fingerprint"].startswith("sha256:")
    at, lease = part["checkpoint"], part["lease"]
    assert (at["cursor"], at["rows"], at["acc"]) == ({"kind": "row", "value": 500, "tiebreaker": None}, 500, 1)
    assert (at["last_commit_rows"], len(at["last_commit_id"])) == (100, 32)
    assert at["updated_at"] == state_document.moment(clock() - 2)
    assert (lease["owner"], lease["fence"]) == (claim.lease.owner, claim.lease.fence)
    assert lease["acquired_at"] == state_document.moment(clock() - 7)
    assert lease["heartbeat_at"] == state_document.moment(clock())
    assert lease["expires_at"] == state_document.moment(clock() + 30)


@pytest.mark.promise("B11")
def test_the_history_has_one_entry_for_each_checkpoint_and_keeps_those_that_a_reset_undid(half: Totals) -> None:
    acts.carry_out(half.store, half.batch(), acts.to_beginning(half.store, half.batch()), BY)
    half.run()
    told = [(past.kind, past.rows) for past in history(half.store, half.batch())]
    first = [("checkpoint", rows) for rows in (100, 200, 300, 400)]
    again = [("checkpoint", rows) for rows in range(100, 1001, 100)]
    assert told == [*first, ("reset", 0), *again]


def test_a_batch_that_is_no_scan_has_no_cursors(store: Store, clock: Clock) -> None:
    world = World(store, clock)
    world.add("a")
    with pytest.raises(UsageError, match="not a scan"):
        state_document.document(store, world.batch)


# -- resets -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C15")
@pytest.mark.parametrize(
    ("text", "again", "skipped", "rows"), [("150", 250, 0, 150), ("400", 0, 0, 400), ("600", 0, 200, 400)]
)
def test_a_reset_to_a_cursor_says_what_comes_again_or_never(
    half: Totals, text: str, again: int, skipped: int, rows: int
) -> None:
    plan = acts.to_cursor(half.store, half.batch(), None, text, (), acc="keep")
    (turn,) = plan.parts
    assert (turn.shift.again, turn.shift.skipped, turn.shift.exact) == (again, skipped, True)
    assert acts.carry_out(half.store, half.batch(), plan, BY).changed == 1
    assert half.rows() == [rows]
    half.run()
    assert half.seen == [*range(int(text), 1000)]


@pytest.mark.promise("C3", "C8", "C13", "C15")
def test_whoever_is_at_work_is_fenced_off_by_a_reset(half: Totals) -> None:
    batch = half.batch()
    acts.carry_out(half.store, batch, acts.to_cursor(half.store, batch, None, "300", (), acc="keep"), BY)
    claim = half.claim()
    plan = acts.to_beginning(half.store, batch)
    assert plan.parts[0].owner is not None
    acts.carry_out(half.store, batch, plan, BY)
    assert half.reach(claim, 700) == LOST
    assert half.rows() == [0]
    assert half.fences()[0] > claim.lease.fence


@pytest.mark.promise("C3", "C8", "C15")
@pytest.mark.parametrize("to", ["beginning", "value", "saved"])
def test_every_way_to_move_a_cursor_fences_the_owner_and_stands_in_the_journal(half: Totals, to: str) -> None:
    batch, saved = half.batch(), exported(half)
    acts.carry_out(half.store, batch, acts.to_cursor(half.store, batch, None, "300", (), acc="keep"), BY)
    claim = half.claim()
    assert half.reach(claim, 500).landed
    plan = {
        "beginning": lambda: acts.to_beginning(half.store, batch),
        "value": lambda: acts.to_cursor(half.store, batch, None, "250", (), acc="keep"),
        "saved": lambda: acts.to_state(half.store, batch, saved, "saved.json"),
    }[to]()
    assert acts.carry_out(half.store, batch, plan, BY).changed == 1
    rows = {"beginning": 0, "value": 250, "saved": 400}[to]
    assert half.reach(claim, 600, version=1) == LOST
    assert (half.rows(), half.fences()) == ([rows], [claim.lease.fence + 1])
    *_, last = half.store.entries(half.store.chunks(batch.id)[0].id)
    header, body = journal.decode_header(last.head), sections.decode(last)
    assert isinstance(body, journal.Acted)
    assert (header.actor, body.reason) == ("ada", "because")
    position = body.items[0].position
    assert position is not None
    assert position.rows == rows
    clones.make(half.store, clones.clone(half.store, half.batch(), "copy"), BY)
    assert min(half.fences("copy")) > max(half.fences())
    assert half.rows("copy") == [rows]


def test_what_was_accumulated_is_never_mixed_without_a_word(half: Totals) -> None:
    with pytest.raises(UsageError, match="--acc keep"):
        acts.to_cursor(half.store, half.batch(), None, "200", ())
    dropped = acts.to_cursor(half.store, half.batch(), None, "200", (), acc="drop")
    acts.carry_out(half.store, half.batch(), dropped, BY)
    assert half.run().result == sum(range(200, 1000))


@pytest.mark.parametrize(
    ("text", "keys", "says", "why"),
    [
        ("abc", (), None, "not of type integer"),
        ("1.5", (), None, "not of type integer"),
        ("5", ("7",), None, "have no key"),
        ("5", (), "timestamp", "of type integer"),
        ("5000", (), None, "comes after the end"),
        ("-1", (), None, "comes before"),
    ],
)
def test_a_cursor_of_the_wrong_type_or_outside_changes_nothing(
    half: Totals, text: str, keys: tuple[str, ...], says: str | None, why: str
) -> None:
    before = exported(half)
    with pytest.raises(UsageError, match=why):
        acts.to_cursor(half.store, half.batch(), None, text, keys, type_name=says, acc="keep")
    assert json.loads(exported(half))["partitions"] == json.loads(before)["partitions"]


@pytest.mark.promise("C15")
def test_a_reset_to_a_saved_state_gives_that_state_again(half: Totals) -> None:
    saved = exported(half)
    assert half.run().exit_code == 1, "its partition is dead"
    acts.carry_out(half.store, half.batch(), acts.to_beginning(half.store, half.batch()), BY)
    half.run()
    assert half.rows() == [1000]
    plan = acts.to_state(half.store, half.batch(), saved, "saved.json")
    assert plan.parts[0].shift.again == 600
    acts.carry_out(half.store, half.batch(), plan, BY)
    assert half.run().result == sum(range(1000))
    assert half.seen == [*range(400, 1000)]


@pytest.mark.promise("C3", "C15")
def test_a_lease_is_broken_and_nothing_else_changes(half: Totals) -> None:
    batch = half.batch()
    nobody = acts.carry_out(half.store, batch, acts.to_same(half.store, batch), BY)
    assert dict(nobody.left_alone) == {"no owner holds it": 1}
    acts.carry_out(half.store, batch, acts.to_cursor(half.store, batch, None, "300", (), acc="keep"), BY)
    claim = half.claim()
    assert half.reach(claim, 500).landed
    assert acts.carry_out(half.store, batch, acts.to_same(half.store, batch), BY).changed == 1
    assert half.reach(claim, 600, version=1) == LOST
    assert half.rows() == [500]
    assert half.claim("host/boot/ns/1/2/bob").lease.fence == claim.lease.fence + 2


# -- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C3", "C15", "C16")
def test_a_clone_begins_where_the_other_stands_and_neither_moves_the_other(half: Totals) -> None:
    plan = clones.clone(half.store, half.batch(), "backfill")
    clones.make(half.store, plan, BY)
    assert min(half.fences("backfill")) > max(half.fences())
    assert half.batch("backfill").course is BatchMode.OPEN
    assert half.run("backfill").result == sum(range(1000))
    assert half.seen == [*range(400, 1000)]
    assert half.rows() == [400]


@pytest.mark.promise("C16")
def test_a_clone_is_never_put_over_another_batch(half: Totals) -> None:
    clones.make(half.store, clones.clone(half.store, half.batch(), "backfill"), BY)
    for name in ("totals", "backfill"):
        with pytest.raises(Refused, match="never replaces"):
            clones.clone(half.store, half.batch(), name)


@pytest.mark.promise("C15", "C16")
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", ["steer.after", "note.after", "add_items.after", "act.before", "act.after"])
def test_a_clone_that_was_cut_off_delivers_nothing_until_it_is_finished(
    half: Totals, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = clones.clone(half.store, half.batch(), "backfill")

    def die(reached: str) -> None:
        if reached == point:
            raise OSError("the process is gone")

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(Exception, match=r"gone|disk|store"):
            clones.make(half.store, plan, BY)
    left = half.batch("backfill")
    assert left.course is BatchMode.PAUSED
    half.run("backfill")
    assert half.seen == [], "a run takes up nothing that is half made"
    clones.make(half.store, clones.clone(half.store, half.batch(), "backfill"), BY)
    assert half.run("backfill").result == sum(range(1000))
    assert half.seen == [*range(400, 1000)]


@pytest.mark.promise("C3", "C15")
def test_an_exported_state_that_is_imported_elsewhere_is_the_same_under_a_higher_fence(half: Totals) -> None:
    saved = exported(half)
    there = Totals(MemoryStore(), range(1000))
    clones.make(there.store, clones.from_state(there.store, saved, "saved.json", "totals"), BY)
    before, after = json.loads(saved)["partitions"], json.loads(exported(there))["partitions"]
    for mine, theirs in zip(before, after, strict=True):
        for name in ("key", "after", "until", "expected_rows"):
            assert mine[name] == theirs[name]
        for name in ("cursor", "rows", "acc"):
            assert mine["checkpoint"][name] == theirs["checkpoint"][name]
        assert theirs["lease"]["fence"] > mine["lease"]["fence"]
    assert there.run().result == sum(range(1000))
    assert there.seen == [*range(400, 1000)]


# -- documents that are not what they should be -----------------------------------------------------------------------


def changed(data: bytes, **fields: object) -> bytes:
    plain = json.loads(data) | fields
    return json.dumps(state_document.seal({k: v for k, v in plain.items() if k != "digest"})).encode()


@pytest.mark.promise("C15", "C18")
def test_a_document_that_is_cut_off_foreign_or_from_the_future_changes_nothing(half: Totals) -> None:
    good = exported(half)
    part = json.loads(good)["partitions"][0]
    wrong_type = part | {"checkpoint": part["checkpoint"] | {"rows": "400"}}
    no_cursor = part | {"checkpoint": part["checkpoint"] | {"cursor": {"kind": "row"}}}
    strange = part | {"checkpoint": part["checkpoint"] | {"cursor": {"kind": "row", "value": {"$new": "1"}}}}
    bad: list[tuple[bytes, type[Exception]]] = [
        (b"", Damaged),
        (good[: len(good) // 2], Damaged),
        (good.replace(b"400", b"401"), Damaged),
        (b"[1, 2]", NotOurs),
        (json.dumps(state_document.document(half.store, half.batch(), "0")).encode(), NotOurs),
        (b'{"hello": 1}', NotOurs),
        (changed(good, version=2), SchemaTooNew),
        (changed(good, version=0), Refused),
        (changed(good, version="1"), NotOurs),
        (changed(good, more=1), NotOurs),
        (changed(good, partitions=[wrong_type]), NotOurs),
        (changed(good, partitions=[no_cursor]), UsageError),
        (changed(good, partitions=[strange]), UsageError),
        (changed(good, partitions=[part | {"lease": {"fence": -1}}]), NotOurs),
        (changed(good, source={"kind": "table"}), Refused),
        (changed(good, partitions=[part | {"until": None}]), Refused),
    ]
    before = (half.store.batches(), half.store.chunks(half.batch().id))
    for data, error in bad:
        with pytest.raises(error):
            acts.to_state(half.store, half.batch(), data, "saved.json")
    for data, error in bad[:14]:
        with pytest.raises(error):
            clones.from_state(half.store, data, "saved.json", "another")
    assert (half.store.batches(), half.store.chunks(half.batch().id)) == before


# -- audit ------------------------------------------------------------------------------------------------------------


def test_an_audit_finds_every_row_delivered(half: Totals) -> None:
    found = audit.audit(half.store, half.batch(), half.source)
    assert found.is_whole
    assert [(part.held, part.handled) for part in found.parts] == [(400, 400)]
    assert "All 400 rows" in found.sentence


def test_an_audit_names_the_stretch_that_a_person_skipped(half: Totals) -> None:
    acts.carry_out(half.store, half.batch(), acts.to_cursor(half.store, half.batch(), None, "600", (), acc="keep"), BY)
    half.run()
    found = audit.audit(half.store, half.batch(), half.source)
    assert not found.is_whole
    (gap,) = found.gaps
    assert (gap.after, gap.until, gap.held, gap.delivered) == (Cursor("row", 400), Cursor("row", 600), 200, 0)


def test_an_audit_finds_rows_that_came_late_where_they_are_missing(store: Store) -> None:
    source = Values([*range(0, 1000, 2)])
    totals = Totals(store, [])
    totals.scan.source = totals.scan.pipeline.stages[0].source = source  # type: ignore[attr-defined,assignment]
    totals.scan.run(progress=False)
    assert audit.audit(store, totals.batch(), source).is_whole
    source.values = sorted([*source.values, 301, 303])
    source.values.remove(900)
    found = audit.audit(store, totals.batch(), source)
    assert sum(part.missing for part in found.parts) == 2, "a row that was deleted makes up for none"
    assert sum(part.surplus for part in found.parts) == 1
    (gap,) = found.gaps
    assert gap.held - gap.delivered == 2
    assert gap.after is not None
    assert gap.until is not None
    assert gap.after.value < 301
    assert gap.until.value >= 303


def test_an_audit_keeps_a_long_past_in_little_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEPT", 8)
    totals = Totals(store, range(5000), every=50)
    totals.run()
    (at,) = standings(store, totals.batch())
    (one,) = audit.passes(lambda: history(store, totals.batch(), at.n), at)
    assert len(one.points) <= 10
    assert one.points[-1].rows == 5000
    assert audit.audit(store, totals.batch(), totals.source).is_whole


def test_an_audit_of_another_source_is_refused(half: Totals) -> None:
    with pytest.raises(Refused, match="not the one"):
        audit.audit(half.store, half.batch(), Values([]))


class Values:
    """Numbers in order; the cursor is the number itself."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def describe(self) -> dict[str, object]:
        return {"kind": "values"}

    def read(self, after: Cursor | None, until: Cursor | None) -> "list[ValuePage]":
        low, high = (-1 if after is None else after.value), (10**9 if until is None else until.value)
        found = [value for value in self.values if low < value <= high]
        return [ValuePage(found[at : at + 100]) for at in range(0, len(found), 100)]

    def split(self, parts: int) -> list[object]:
        assert parts == 1
        return [Span()]


class ValuePage:
    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def after(self, count: int) -> Cursor:
        return Cursor("value", self.rows[count - 1])


# -- at a glance ------------------------------------------------------------------------------------------------------


def test_a_glance_tells_rows_rate_cursor_and_lag(half: Totals, clock: Clock) -> None:
    batch = half.batch()
    acts.carry_out(half.store, batch, acts.to_cursor(half.store, batch, None, "300", (), acc="keep"), BY)
    claim = half.claim()
    for version, rows in enumerate((500, 600, 700)):
        clock.advance(10)
        assert half.reach(claim, rows, version=version).landed
    (seen,) = glance.glances(half.store, batch)
    assert (seen.state, seen.rows, seen.expected, seen.cursor) == ("running", 700, 1000, "row 700")
    assert seen.rate == pytest.approx(10.0)
    assert seen.lag == "300 rows left"
    (at,) = standings(half.store, batch)
    assert glance.partition_in_words(at) == "after row 700: 700 of 1,000 rows handled, 1 byte accumulated"


def test_the_entry_of_a_reset_says_by_what_it_went(half: Totals) -> None:
    acts.carry_out(half.store, half.batch(), acts.to_state(half.store, half.batch(), exported(half), "saved.json"), BY)
    (chunk,) = half.store.chunks(half.batch().id)
    body = sections.decode(half.store.entries(chunk.id)[-1])
    assert isinstance(body, journal.Acted)
    assert canonical.decode(body.note)["file"] == "saved.json"
    assert body.items[0].position is not None
    assert cursor.decode(body.items[0].position.cursor) == Cursor("row", 400)


@pytest.mark.promise("C3")
def test_a_fence_that_no_counting_leads_to_is_refused(half: Totals) -> None:
    """A store that is set back begins again above all fences that were counted: one from elsewhere must not be."""
    part = json.loads(exported(half))["partitions"][0]
    high = changed(exported(half), partitions=[part | {"lease": part["lease"] | {"fence": 1 << 50}}])
    with pytest.raises(Refused, match="too high"):
        acts.to_state(half.store, half.batch(), high, "saved.json")
    with pytest.raises(Refused, match="too high"):
        clones.from_state(half.store, high, "saved.json", "another")


def test_two_who_make_one_batch_from_different_states_do_not_mix_them(half: Totals) -> None:
    first = clones.clone(half.store, half.batch(), "backfill")
    acts.carry_out(half.store, half.batch(), acts.to_beginning(half.store, half.batch()), BY)
    second = clones.clone(half.store, half.batch(), "backfill")
    clones.make(half.store, first, BY)
    with pytest.raises(Refused, match="never replaces"):
        clones.make(half.store, second, BY)
    assert half.rows("backfill") == [400]


def test_a_state_that_is_put_back_leaves_alone_what_is_done_and_stands_there(store: Store) -> None:
    totals = Totals(store, range(1000), partitions=2)
    totals.bad = {750}
    totals.run()
    saved = exported(totals)
    done = acts.carry_out(store, totals.batch(), acts.to_state(store, totals.batch(), saved, "saved.json"), BY)
    assert (done.changed, done.left_alone) == (1, (("there already", 1),)), "what is dead continues, what is done stays"


def test_a_cursor_that_came_further_since_it_was_looked_at_is_left_alone(half: Totals) -> None:
    """What was shown is no longer what would be delivered again or skipped."""
    batch = half.batch()
    acts.carry_out(half.store, batch, acts.to_cursor(half.store, batch, None, "300", (), acc="keep"), BY)
    claim = half.claim()
    plan = acts.to_cursor(half.store, batch, None, "500", (), acc="keep")
    assert half.reach(claim, 700).landed
    done = acts.carry_out(half.store, batch, plan, BY)
    assert (done.changed, dict(done.left_alone)) == (0, {acts.MOVED: 1})
    assert half.rows() == [700]
    assert acts.carry_out(half.store, batch, acts.to_beginning(half.store, batch), BY).changed == 1


# -- totals and deliveries after a reset ------------------------------------------------------------------------------


def reset_to(totals: Totals, row: int, acc: str) -> acts.CursorMove:
    plan = acts.to_cursor(totals.store, totals.batch(), None, str(row), (), acc=acc)  # type: ignore[arg-type]
    acts.carry_out(totals.store, totals.batch(), plan, BY)
    return plan.parts[0]


@pytest.fixture
def whole(store: Store) -> Totals:
    totals = Totals(store, range(1000))
    assert totals.run().result == sum(range(1000))
    return totals


MISCOUNTS = "its total may leave rows out or count them twice"


@pytest.mark.parametrize(
    ("acc", "result"),
    [("drop", sum(range(370, 1000))), ("keep", sum(range(1000)) + sum(range(370, 1000)))],
)
def test_a_reset_that_spoils_a_total_says_so_before_and_ever_after(whole: Totals, acc: str, result: int) -> None:
    assert str(reset_to(whole, 370, acc)) == f"630 rows are delivered again; {MISCOUNTS}"
    for report in (whole.scan.report(), whole.run(), whole.scan.report()):
        (note,) = [each for each in report.warnings if "partition" in each]
        assert note.startswith("partition 0 was reset by ada on ")
        assert note.endswith(f": because; {MISCOUNTS}")
        assert f"  note     {note}" in str(report)
    assert report.result == result, "the note is true"
    reset = acts.to_beginning(whole.store, whole.batch())
    assert "its total begins empty" in str(reset.parts[0])
    acts.carry_out(whole.store, whole.batch(), reset, BY)
    report = whole.run()
    assert (report.result, [*report.warnings]) == (sum(range(1000)), []), "begun again, the total is whole"


def test_the_figures_and_the_sentence_of_an_audit_agree_after_a_reset(whole: Totals) -> None:
    reset_to(whole, 370, "drop")
    whole.run()
    found = audit.audit(whole.store, whole.batch(), whole.source)
    (part,) = found.parts
    assert (part.held, part.handled, part.passed, part.missing, part.twice) == (1000, 1000, 0, 0, 630)
    assert found.sentence.startswith("All 1,000 rows up to the cursors of totals were delivered; 630 rows were deliver")
    assert [str(note).endswith(MISCOUNTS) for note in found.notes] == [True]
    assert not found.is_whole


def test_rows_that_a_person_passed_by_are_not_delivered_by_a_later_reset_into_them(half: Totals) -> None:
    """Forward from 400 to 600, on to the end, and back to 500: rows 400 to 500 were never handled."""
    reset_to(half, 600, "keep")
    half.run()
    reset_to(half, 500, "keep")
    half.run()
    found = audit.audit(half.store, half.batch(), half.source)
    (part,) = found.parts
    assert (part.held, part.handled, part.passed, part.missing, part.twice) == (1000, 900, 100, 0, 400)
    assert "900 of 1,000 rows" in found.sentence
    assert "a person skipped 100 rows" in found.sentence
    (gap,) = found.gaps
    assert (gap.after, gap.until, gap.by_hand) == (Cursor("row", 400), Cursor("row", 500), True)
    assert [str(note).endswith(MISCOUNTS) for note in found.notes] == [True]
    assert not found.is_whole


@pytest.mark.parametrize("late", [True, False], ids=["one came late", "one was deleted"])
def test_an_audit_counts_rows_that_came_twice_of_those_that_both_passes_saw(late: bool, tmp_path: Path) -> None:
    """Between two passes the source got a row that the first one did not see, or lost one that it saw."""
    shop = sqlite3.connect(tmp_path / "shop.db")
    with shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at INTEGER NOT NULL)")
        shop.executemany("INSERT INTO orders VALUES (?, ?)", [(n, 10 * n) for n in range(1, 12)])
    table = hf.Table(f"sqlite:///{tmp_path}/shop.db", "orders", cursor="at", key="id", unsafe_cursor=True)
    scan = hf.Follow("orders", table, store="memory:", every=4)
    scan.handler(lambda rows, acc=0: acc + len(rows))
    assert scan.tick().total == 11
    with shop:
        shop.execute("INSERT INTO orders VALUES (12, 55)" if late else "DELETE FROM orders WHERE id = 6")
    store, batch = scan.pipeline.store, scan.pipeline.store.batches()[0]
    plan = acts.to_cursor(store, batch, None, "0", ["0"], acc="keep")
    acts.carry_out(store, batch, plan, BY)
    assert scan.tick().rows == (12 if late else 10)
    found = audit.audit(store, store.batches()[0], table)
    assert found.notes == tuple(remarks(store, store.batches()[0]))
    assert f"{11 if late else 10} rows were delivered again after a reset" in found.sentence
    shop.close()


# -- the lasting remark -----------------------------------------------------------------------------------------------


def noted(totals: Totals) -> list[str]:
    """Return what the remarks on all partitions say follows."""
    return [str(each).rpartition("; ")[2] for each in remarks(totals.store, totals.batch())]


def test_a_state_that_is_put_back_takes_the_remark_away_that_came_after_it(half: Totals) -> None:
    saved = exported(half)
    assert noted(half) == []
    reset_to(half, 130, "keep")
    half.run()
    spoiled = exported(half)
    assert noted(half) == [MISCOUNTS]
    for data, says in ((saved, []), (spoiled, [MISCOUNTS]), (saved, [])):
        acts.carry_out(half.store, half.batch(), acts.to_state(half.store, half.batch(), data, "saved.json"), BY)
        assert noted(half) == says


def test_without_a_total_only_a_step_beyond_what_was_walked_is_remarked_on(store: Store) -> None:
    def handler(rows: list[int]) -> None:
        if 450 in rows:
            raise hf.Permanent("bad", "no")

    scan = hf.Scan("totals", Rows(list(range(1000))), store=store, every=100)
    scan.handler(handler)
    scan.run(progress=False)
    batch = store.batches()[0]
    skipped = ["rows may have been skipped and never handled"]

    def reset(row: int) -> list[str]:
        acts.carry_out(store, batch, acts.to_cursor(store, batch, None, str(row), ()), BY)
        scan.run(progress=False)
        return [str(each).rpartition("; ")[2] for each in remarks(store, batch)]

    assert (reset(250), reset(333)) == ([], [])
    assert (reset(600), reset(700)) == (skipped, skipped)
    assert not audit.audit(store, batch, scan.source).is_whole
    assert not audit.audit(store, batch, scan.source).notes, "an audit counts them"
    assert (reset(350), reset(900)) == ([], skipped), "what comes again is handled, what was passed by is not"
