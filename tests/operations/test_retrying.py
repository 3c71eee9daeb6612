"""`reset` of a scan: by default a partition goes on at its checkpoint."""

import pytest

from holdfast.core import canonical, journal, sections
from holdfast.core.errors import Transient, UsageError
from holdfast.core.model import State
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.partitions import history, standings
from holdfast.stores.base import Store
from tests.operations.scanned import BY, Totals

ROWS = range(10_000)
FOURTH = "3"
"""The fourth of five partitions: rows 6,000 to 7,999."""


@pytest.fixture
def failed(store: Store) -> Totals:
    """Worker 4 of 5 failed at 1,000 of 2,000."""
    totals = Totals(store, ROWS, partitions=5, every=200)
    totals.bad = {7000}
    report = totals.run()
    assert report.counts.dead == 1
    assert totals.rows() == [2000, 2000, 2000, 1000, 2000]
    totals.bad = set()
    return totals


@pytest.mark.promise("B12", "B13")
def test_a_reset_goes_on_at_the_checkpoint_and_does_exactly_the_rest(failed: Totals) -> None:
    batch = failed.batch()
    plan = acts.plan_retry(failed.store, batch, FOURTH)
    assert acts.retry(failed.store, batch, plan, BY, named=True).changed == 1
    (at,) = standings(failed.store, batch, FOURTH)
    assert (at.place.state, at.place.attempt, at.place.epoch, at.rows) == (State.PENDING, 0, 1, 1000)
    assert failed.run().result == sum(ROWS)
    assert failed.seen == [*range(7000, 8000)]


@pytest.mark.promise("B12", "B13")
def test_a_reset_from_the_start_does_all_of_it(failed: Totals) -> None:
    batch = failed.batch()
    plan = acts.plan_retry(failed.store, batch, FOURTH, from_start=True)
    assert plan.parts[0].shift.again == 1000
    assert acts.carry_out(failed.store, batch, plan, BY).changed == 1
    assert failed.run().result == sum(ROWS)
    assert failed.seen == [*range(6000, 8000)]


@pytest.mark.promise("B12", "C15")
def test_both_stand_in_the_journal_with_who_and_why(failed: Totals) -> None:
    batch = failed.batch()
    acts.retry(failed.store, batch, acts.plan_retry(failed.store, batch, FOURTH), BY, named=True)
    acts.carry_out(failed.store, batch, acts.plan_retry(failed.store, batch, FOURTH, from_start=True), BY)
    told = [
        (header.kind, header.actor, body.reason, body.items[0].position)
        for chunk in failed.store.chunks(batch.id)
        for entry in failed.store.entries(chunk.id)
        if isinstance(body := sections.decode(entry), journal.Acted) and (header := journal.decode_header(entry.head))
    ]
    assert told == [("reset", "ada", "because", None), ("reset", "ada", "because", journal.Position(3, 0))]


@pytest.mark.promise("B12")
def test_a_reset_of_what_is_done_clears_its_result_and_keeps_or_clears_its_checkpoint(failed: Totals) -> None:
    """Kept, nothing is left to handle, and the same comes of it; cleared, every row is handled again."""
    acts.retry(failed.store, failed.batch(), acts.plan_retry(failed.store, failed.batch()), BY, named=False)
    failed.run()
    done = [output.n for output in failed.store.outputs(failed.batch().id)]
    assert done == [0, 1, 2, 3, 4]
    for from_start, rows, again in ((False, 2000, []), (True, 0, [*range(2000, 4000)])):
        batch = failed.batch()
        plan = acts.plan_retry(failed.store, batch, "1", from_start=from_start)
        if from_start:
            assert acts.carry_out(failed.store, batch, plan, BY).changed == 1
        else:
            assert acts.retry(failed.store, batch, plan, BY, named=True).changed == 1
        (at,) = standings(failed.store, batch, "1")
        assert (at.place.state, at.place.attempt, at.rows) == (State.PENDING, 0, rows)
        valid = [
            (item.key, item.place.state) for item in failed.store.items(batch.id) if item.place.state is State.DONE
        ]
        assert [key for key, _ in valid] == [0, 2, 3, 4], "its result counts no more"
        assert failed.run().result == sum(ROWS)
        assert failed.seen == again


def test_a_reset_of_all_leaves_what_is_done_and_what_goes_on_anyway(failed: Totals) -> None:
    batch = failed.batch()
    plan = acts.plan_retry(failed.store, batch)
    done = acts.retry(failed.store, batch, plan, BY, named=False)
    assert (done.changed, done.left_alone) == (1, ((acts.DONE, 4),))
    again = acts.retry(failed.store, batch, acts.plan_retry(failed.store, batch), BY, named=False)
    assert dict(again.left_alone) == {acts.DONE: 4, acts.FRESH: 1}


def test_a_partition_is_settled_by_hand_with_a_result(failed: Totals) -> None:
    batch = failed.batch()
    result = acts.check_result(b" 1 ", "result.json")
    assert acts.settle(failed.store, batch, BY, FOURTH, result).changed == 1
    report = failed.run()
    assert (failed.seen, report.exit_code) == ([], 0)
    assert report.result == sum(ROWS) - sum(range(6000, 8000)) + 1
    assert acts.settle(failed.store, batch, BY, FOURTH, result).changed == 0


@pytest.mark.promise("A14")
def test_the_last_partition_that_is_settled_by_hand_ends_the_scan(failed: Totals) -> None:
    def ends() -> list[str]:
        told = [event for event in failed.store.events() if event.kind == "batch.finished"]
        return [canonical.decode(event.body)["end"] for event in told]

    assert ends() == ["complete with dead letters"]
    acts.settle(failed.store, failed.batch(), BY, FOURTH, b"0")
    assert ends() == ["complete with dead letters", "complete"]
    acts.settle(failed.store, failed.batch(), BY, FOURTH, b"0")
    assert len(ends()) == 2


@pytest.mark.promise("C8", "C13")
def test_a_partition_that_somebody_works_on_can_be_settled_and_its_owner_is_fenced(store: Store) -> None:
    totals = Totals(store, range(300))
    totals.bad = {150}
    totals.run()
    batch = totals.batch()
    acts.retry(store, batch, acts.plan_retry(store, batch), BY, named=True)
    claim = totals.claim()
    assert totals.reach(claim, 200).landed
    item = store.load(claim, None, 1, 1 << 20)
    assert acts.settle(totals.store, batch, BY, "0", None).changed == 1
    (at,) = standings(store, batch)
    assert at.place.state is State.SKIPPED
    told = [event.kind for event in store.events()] if store.capabilities.events else ["item.dead"] * 2
    assert told.count("item.dead") == 2, "it died, was tried again, and was taken out of its owner's hands"
    assert item
    assert totals.fences() == [claim.lease.fence + 1]


def test_a_result_that_is_no_json_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        acts.check_result(b"{nonsense", "result.json")


@pytest.mark.promise("A1", "B1", "B7")
def test_a_range_that_is_tried_again_in_the_same_run_goes_on_at_its_checkpoint(store: Store) -> None:
    totals = Totals(store, range(500), attempts=3)
    totals.bad = {350}

    def once(row: int) -> Exception:
        totals.bad.clear()
        return Transient(f"row {row}")

    totals.error = once
    assert totals.run().result == sum(range(500))
    assert totals.seen == [*range(500)]
    rows = [past.rows for past in history(store, totals.batch())]
    assert rows == sorted(rows)
