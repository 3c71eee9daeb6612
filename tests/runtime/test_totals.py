"""Batches that messages feed come to an end: by the number of items that was declared, or because they were closed; and
whoever settles the last item, a message or a person, publishes it."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import sections
from holdfast.core.acts import Strategy
from holdfast.core.canonical import decode
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import State
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations, resolution
from holdfast.runtime.operate.audit import verify
from holdfast.runtime.report import reconcile, status
from holdfast.stores import faults
from holdfast.stores.base import each_item, is_settled, outbox_of
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.rows import load
from tests.runtime.support import run

SQL = load("statements.sql")
BY = Actor(name="ann", reason="because")


class Killed(BaseException):
    """The process is gone at this point."""


@pytest.fixture(params=["state.db", "bucket"])
def letters(request: pytest.FixtureRequest, tmp_path: Path) -> hf.Pipeline:
    where = tmp_path / "state.db" if request.param == "state.db" else f"file://{tmp_path}/bucket"
    return define(where)


def define(where: Any, **options: Any) -> hf.Pipeline:
    made = hf.Pipeline("letters", store=where, **options)

    @made.stage(retry=hf.Retry(attempts=2, wait=("1h", "1h"), within="5h"))
    def bind(number: int) -> str:
        if number == 13:
            raise hf.Permanent("unlucky")
        if number == 50:
            raise hf.Transient("later")
        return f"letter {number}"

    return made


def ends(letters: hf.Pipeline) -> list[dict[str, Any]]:
    """The ends that were noted, and on a database published, each with what was found. One with findings is published
    only where they are that too few of those came that were expected."""
    store = letters.store
    batch = store.batches()[0]
    noted = [decode(body.note) for body in bodies(letters, "reconciled")]
    noted = [
        each for each in noted if not each["found"] or (set(each["found"]) == {"never created"} and "expected" in each)
    ]
    if store.capabilities.events:
        told = [decode(event.body) for event in outbox_of(store).events() if event.kind == "batch.finished"]
        assert len(told) == len(noted)
        assert [each["counts"] for each in told] == [each["counts"] for each in noted]
    assert verify(store, batch).findings == ()
    return noted


def bodies(letters: hf.Pipeline, kind: str) -> list[Any]:
    from holdfast.core import journal
    from holdfast.core.model import chain_of_batch

    entries = letters.store.entries(chain_of_batch(letters.store.batches()[0].id))
    return [sections.decode(e) for e in entries if journal.decode_header(e.head).kind == kind]


@pytest.mark.promise("A14", "A15")
def test_the_last_expected_message_ends_the_batch(letters: hf.Pipeline) -> None:
    letters.expect(None, 3)
    for number in (1, 2, 2):
        letters.process(number)
    report = letters.report()
    assert (report.state, ends(letters)) == ("open", [])
    assert report.why.startswith("1 of 3 expected items have not come: wait for them, or `holdfast close ")
    assert letters.reconcile().unexplained == ("1 of 3 expected items have not come",)
    letters.process(3)
    assert [each["counts"]["done"] for each in ends(letters)] == [3]
    report = letters.report()
    assert (report.state, report.exit_code) == ("complete", 0)
    assert letters.reconcile().is_explained
    assert len(ends(letters)) == 1


@pytest.mark.promise("A14")
def test_expect_after_the_last_message_ends_it_at_once(letters: hf.Pipeline) -> None:
    for number in (1, 13):
        letters.process(number)
    letters.expect(None, 2)
    assert len(ends(letters)) == 1
    assert letters.report().state == "complete with dead letters"


def test_the_same_number_does_nothing_and_another_needs_a_reason(letters: hf.Pipeline) -> None:
    letters.expect(None, 2)
    before = letters.store.batches()
    letters.expect(None, 2)
    assert letters.store.batches() == before
    with pytest.raises(UsageError, match="changing that needs a reason"):
        letters.expect(None, 3)
    letters.expect(None, 3, reason="one was forgotten", actor="ann")
    assert [(body.expected, body.reason) for body in bodies(letters, "steered")] == [(2, ""), (3, "one was forgotten")]
    for wrong in (-1, True, "3", 2.0):
        with pytest.raises(UsageError, match="a batch has between 0 and"):
            letters.expect(None, wrong)  # type: ignore[arg-type]


@pytest.mark.promise("A14", "E3")
def test_more_than_expected_are_taken_and_are_a_finding(letters: hf.Pipeline) -> None:
    letters.expect(None, 1)
    for number in (1, 2):
        assert letters.process(number).state == "done"
    found = letters.reconcile()
    assert (found.unexplained, found.exit_code()) == (("1 unexpected",), 1)
    assert "expect" in found.findings[0].remedy
    assert letters.report().state == "finished with findings"
    assert [each["counts"]["done"] for each in ends(letters)] == [1]
    letters.expect(None, 2, reason="two were sent")
    assert letters.report().state == "complete"
    assert [each["counts"]["done"] for each in ends(letters)] == [1, 2]


@pytest.mark.promise("A14", "A15")
def test_no_end_is_told_of_a_batch_to_which_more_came_than_expected(
    letters: hf.Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """Not of the first that is too many, not of those after it, not by a person who compares, settles or closes."""
    letters.expect(None, 2)
    with letters.processor() as others:  # one came, and whoever took it is not done yet
        letters.store.add_items(others.batch.id, [others.ingester.freeze(60, None)])
    with caplog.at_level(logging.WARNING):
        for number in (1, 13, 4, 13, 4, 60):
            letters.process(number)
    assert caplog.text.count("more items arrived than the 2 expected") == 2, "item 13, and 13 again"
    operations.discard(letters.store, lookup.batch_named(letters.store, "letters"), BY, ["13"])
    letters.reconcile()
    letters.close()
    assert ends(letters) == []
    assert letters.report().state == "finished with findings"
    if letters.store.capabilities.events:
        told = [decode(event.body)["code"] for event in outbox_of(letters.store).events() if event.kind == "warning"]
        assert told == ["more_than_expected"]
    letters.expect(None, 4, reason="four were sent")
    assert [each["counts"]["expected"] for each in ends(letters)] == [4]


def test_items_beyond_the_expected_number_do_not_compare_the_batch(
    letters: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.expect(None, 1)
    letters.process(1)
    monkeypatch.setattr(reconcile, "reconcile", None)
    for number in (2, 3, 2):
        assert letters.process(number).state == "done"


@pytest.mark.promise("A14")
def test_a_source_that_grew_after_the_end_is_a_finding_and_no_second_end(letters: hf.Pipeline) -> None:
    run(letters, [1, 2])
    assert letters.reconcile(items=[1, 2, 3]).unexplained == ("1 never created",)
    assert [each["counts"]["done"] for each in ends(letters)] == [2]


@pytest.mark.promise("A14")
def test_a_source_with_more_items_than_expected_has_no_end_to_tell(letters: hf.Pipeline) -> None:
    letters.expect(None, 1)
    report = run(letters, [1, 2])
    assert (report.state, report.exit_code, every_end(letters)) == ("finished with findings", 1, [])


def every_end(letters: hf.Pipeline) -> list[Any]:
    return [decode(event.body) for event in outbox_of(letters.store).events() if event.kind == "batch.finished"]


@pytest.mark.promise("A14", "A15")
def test_a_closed_batch_that_lacks_items_is_stopped_and_says_how_many(letters: hf.Pipeline) -> None:
    letters.expect(None, 3)
    letters.process(1)
    letters.close()
    assert [(each["found"], each["counts"]["done"]) for each in ends(letters)] == [({"never created": 2}, 1)]
    report = letters.report()
    assert (report.state, report.exit_code) == ("stopped", 1)
    assert report.why.startswith("2 of 3 expected items never came")
    found = letters.reconcile()
    assert (found.end, found.unexplained, found.exit_code()) == ("stopped", ("2 never created",), 1)
    assert found.findings[0].why == "3 items were expected, 1 came"
    named = letters.reconcile(items=[1, 2, 3])
    assert (named.unexplained, sorted(str(f.key) for f in named.findings)) == (("2 never created",), ["2", "3"])
    assert len(ends(letters)) == 1
    letters.expect(None, 1, reason="the other two were withdrawn")
    assert letters.report().state == "complete"


@pytest.mark.promise("A15")
def test_an_open_batch_ends_when_it_is_closed(letters: hf.Pipeline) -> None:
    for number in (1, 50):
        letters.process(number)
    letters.close(reason="that was all")
    letters.close()
    assert (ends(letters), letters.report().state) == ([], "open")
    batch = lookup.batch_named(letters.store, "letters")
    operations.reset(letters.store, batch, BY, "50")
    resolution.resolve_orphans(letters.store, batch, BY, Strategy.FAIL, ["50"])  # it is no orphan: left alone
    assert ends(letters) == []
    letters.cancel(reason="enough")
    assert [each["counts"]["cancelled"] for each in ends(letters)] == [1]


@pytest.mark.promise("A14")
def test_a_new_key_is_refused_by_a_closed_batch_and_a_known_one_is_not(
    letters: hf.Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    letters.process(1)
    letters.close()
    handle = hf.lambda_handler(letters)
    sent = {"Records": [{"messageId": f"m{n}", "body": json.dumps(n)} for n in (1, 2, 3)]}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert handle(sent) == {"batchItemFailures": [{"itemIdentifier": "m2"}, {"itemIdentifier": "m3"}]}
    assert "message m2 will be delivered again: Refused" in caplog.text
    assert "batch letters: new items arrived after the batch was closed" in caplog.text
    with pytest.raises(Refused, match="takes no new items"):
        letters.process(4)
    assert letters.store.batches()[0].admitted == 1
    if letters.store.capabilities.events:
        warned = [decode(event.body)["code"] for event in outbox_of(letters.store).events() if event.kind == "warning"]
        assert warned == ["came_after_close"]
    assert len(ends(letters)) == 1
    with pytest.raises(Refused, match="was closed"):
        run(letters, [1, 2])


def test_a_plan_says_that_a_closed_batch_would_refuse_what_is_new(letters: hf.Pipeline) -> None:
    letters.process(50)
    letters.close()
    assert letters.plan([50]).obstacles == ()
    assert letters.plan([50, 51]).obstacles == ("batch 'letters' was closed: it takes no new items",)


def test_a_handler_puts_its_number_on_record_once(letters: hf.Pipeline) -> None:
    handle = hf.lambda_handler(letters, expected=2)
    sent = {"Records": [{"messageId": "m", "body": "1"}]}
    handle(sent)
    handle(sent)
    assert lookup.batch_named(letters.store, "letters").expected == 2
    letters.expect(None, 1, reason="one was withdrawn")
    handle(sent)
    assert lookup.batch_named(letters.store, "letters").expected == 1
    assert len(ends(letters)) == 1
    with pytest.raises(UsageError, match="between 0 and"):
        hf.lambda_handler(letters, expected=-1)


@pytest.mark.promise("A14")
def test_a_source_with_fewer_items_than_expected_is_found_out(letters: hf.Pipeline) -> None:
    letters.expect(None, 3)
    report = run(letters, [1, 2])
    assert (report.state, report.exit_code) == ("stopped", 1)
    assert report.reconciliation is not None
    assert report.reconciliation.unexplained == ("1 never created",)
    letters.process(3)
    assert letters.report().state == "complete"


def test_a_batch_without_a_source_is_not_told_that_it_was_not_read(letters: hf.Pipeline) -> None:
    letters.process(1)
    why = letters.report().why
    assert "holdfast close " in why
    assert "holdfast expect " in why
    assert "not read to its end" not in why
    assert letters.reconcile().unexplained == ("more items may come: no source was read to its end, nor was it closed",)
    letters.expect(None, 3)
    assert letters.reconcile().unexplained == ("2 of 3 expected items have not come",)


def test_a_batch_whose_source_is_at_hand_is_told_that_it_was_not_read(tmp_path: Path) -> None:
    letters = define(tmp_path / "state.db", source=[1, 2])
    letters.process(1)
    assert letters.reconcile().unexplained == ("1 never created", "the source was not read to its end")


@pytest.mark.promise("A14", "A15")
@pytest.mark.parametrize("act", ["discard", "resolve", "cancel"])
def test_a_person_who_settles_the_last_item_ends_the_batch(letters: hf.Pipeline, act: str) -> None:
    run(letters, [1, 50] if act == "cancel" else [1, 13], deadline="1s")
    store, batch = letters.store, lookup.batch_named(letters.store, "letters")
    before = len(ends(letters))
    if act == "cancel":
        letters.cancel(reason="enough")
    else:
        getattr(operations, act)(store, batch, BY, "13" if act == "resolve" else ["13"])
    assert len(ends(letters)) == before + 1
    operations.discard(store, batch, BY)  # nothing to discard: nothing to tell
    assert len(ends(letters)) == before + 1


def test_a_resolved_orphan_ends_the_batch(tmp_path: Path) -> None:
    letters = define(tmp_path / "state.db")
    letters.expect(None, 2)
    for number in (1, 50):
        letters.process(number)
    batch, store = letters.store.batches()[0], letters.store
    assert isinstance(store, SqliteStore)
    store.now = lambda: batch.opened_at + 1e6
    assert [item.key for item in each_item(store, batch.id, state=State.PENDING)] == [50]
    assert resolution.resolve_orphans(store, batch, BY, Strategy.FAIL).changed == 1
    assert [each["counts"]["dead"] for each in ends(letters)] == [1]
    assert status.snapshot(store, lookup.batch_named(store, "letters")).end == "complete with dead letters"


# -- killed before it looked ------------------------------------------------------------------------------------------


def killed_at(point: str, call: Callable[[], object]) -> bool:
    """Whether the call came to that point, and was gone there."""

    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    faults.arm(die)
    try:
        call()
    except Killed:
        return True
    finally:
        faults.arm(None)
    return False


def after_death(path: Path) -> SqliteStore:
    """The store as the next process sees it: everybody who held something is gone."""
    return SqliteStore(path, is_dead=lambda owner: True)


def reached(call: Callable[[], object]) -> list[str]:
    points: list[str] = []
    faults.arm(points.append)
    try:
        call()
    finally:
        faults.arm(None)
    return list(dict.fromkeys(points))


@pytest.mark.promise("A14", "A15", "P10")
@pytest.mark.parametrize("later", ["message", "another message", "command", "run", "reconcile"])
def test_whoever_comes_next_ends_what_a_killed_process_left(tmp_path: Path, later: str) -> None:
    where = tmp_path / "counted.db"
    first = define(where)
    first.expect(None, 2)
    first.process(1)
    points = reached(lambda: first.process(2))
    assert {"add_items.before", "commit.after", "note.after"} <= set(points)
    for at, point in enumerate(point for point in points if point.startswith(("add_items", "claim", "commit", "note"))):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        letters = define(folder / "state.db")
        letters.expect(None, 2)
        letters.process(1)
        assert killed_at(point, lambda letters=letters: letters.process(2)), point  # type: ignore[misc]
        letters.store.close()
        letters = define(after_death(folder / "state.db"))
        batch = lookup.batch_named(letters.store, "letters")
        was_settled = batch.ingested_at is not None and is_settled(letters.store, batch.id)
        after(letters, later, was_settled=was_settled)
        if was_settled or later == "message":
            assert len(ends(letters)) == 1, point
        letters.process(2)
        letters.process(1)
        assert len(ends(letters)) == 1, point
        letters.store.close()


def after(letters: hf.Pipeline, later: str, *, was_settled: bool) -> None:
    """What happens next, if there is something that it could end."""
    if later in ("message", "another message"):
        letters.process(2 if later == "message" else 1)
    elif not was_settled:
        return
    elif later == "command":
        operations.discard(letters.store, letters.store.batches()[0], BY)
    elif later == "reconcile":
        letters.reconcile()
    else:
        letters.run(batch="letters", progress=False)


@pytest.mark.promise("A14")
def test_a_second_end_that_a_killed_process_left_is_seen_by_the_message_that_comes_again(tmp_path: Path) -> None:
    """The batch had ended before, so that the last word on it is an end; but not the one after the redrive."""
    letters = define(tmp_path / "state.db")
    letters.expect(None, 2)
    for number in (1, 13):
        letters.process(number)
    batch = lookup.batch_named(letters.store, "letters")
    operations.redrive(letters.store, batch, BY)
    assert len(ends(letters)) == 1
    assert killed_at("commit.after", lambda: letters.process(13))
    letters.store.close()
    letters = define(after_death(tmp_path / "state.db"))
    assert len(ends(letters)) == 1
    letters.process(13)
    assert len(ends(letters)) == 2


# -- what the look costs ----------------------------------------------------------------------------------------------


def statements(store: SqliteStore, call: Callable[[], object]) -> list[str]:
    """Every statement that a call executes."""
    seen: list[str] = []
    connection = store._file._db

    def trace(facts: dict[str, Any]) -> None:
        seen.append(facts["sql"])

    import apsw

    connection.trace_v2(apsw.SQLITE_TRACE_STMT, trace)
    try:
        call()
    finally:
        connection.trace_v2(0, None)
    return seen


@pytest.mark.promise("A14")
def test_a_message_costs_the_same_however_many_came_before_it(tmp_path: Path) -> None:
    letters = define(tmp_path / "state.db")
    store = letters.store
    assert isinstance(store, SqliteStore)
    letters.expect(None, 1000)
    letters.process(50)  # it waits: there is something left
    counted = [len(statements(store, lambda n=n: letters.process(n))) for n in range(100, 140)]  # type: ignore[misc]
    letters.close()
    counted += [len(statements(store, lambda n=n: letters.process(n))) for n in range(100, 110)]  # type: ignore[misc]
    assert len(set(counted[:40])) == 1
    plan = [row[3] for row in store._file._db.execute(f"EXPLAIN QUERY PLAN {SQL['pending_chunks']}", (1, 1))]
    assert any("chunks_open" in step for step in plan), plan
    assert not any("B-TREE" in step for step in plan), plan


def test_messages_that_come_again_after_the_end_do_not_compare_the_batch_each_time(
    letters: hf.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.expect(None, 2)
    for number in (1, 2):
        letters.process(number)
    looks: list[str] = []
    whole = reconcile.reconcile

    def counted(*args: Any, **kwargs: Any) -> Any:
        looks.append("look")
        return whole(*args, **kwargs)

    monkeypatch.setattr(reconcile, "reconcile", counted)
    for _ in range(3):
        for number in (1, 2):
            letters.process(number)
    assert looks == []
    assert len(ends(letters)) == 1


def test_a_bucket_is_looked_through_only_once_all_items_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = define(f"file://{tmp_path}/bucket")
    letters.expect(None, 3)
    store = letters.store
    asked: list[int] = []
    whole = type(store).chunks

    def counted(self: Any, batch: Any, **named: Any) -> Any:
        asked.extend([1] if named.get("pending") else [])
        return whole(self, batch, **named)

    monkeypatch.setattr(type(store), "chunks", counted)
    for number in (1, 2):
        letters.process(number)
    assert asked == []
    letters.process(3)
    assert asked == [1]
