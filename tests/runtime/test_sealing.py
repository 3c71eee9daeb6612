"""A sealed batch is finished: what comes later is refused, reported and shown, and it can be reopened."""

from itertools import cycle
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import journal, sections
from holdfast.core.canonical import decode
from holdfast.core.course import to_reopen
from holdfast.core.journal import Advanced, numbers
from holdfast.core.model import Batch, Claim, ClaimRequest, Commit, ItemNo, Output, chain_of_batch
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.report import lifecycle, status, why
from holdfast.runtime.report.reconcile import reconcile
from holdfast.stores.base import each_entry
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from tests.runtime.support import run

BY = Actor(name="op", reason="for the test")
ITEMS = ["a", "b", "c"]


@pytest.fixture
def book(book: hf.Pipeline) -> hf.Pipeline:
    @book.stage
    def read(letter: str) -> str:
        if letter == "bad":
            raise hf.Permanent("bad")
        return letter.upper()

    return book


def batch_of(book: hf.Pipeline) -> Batch:
    return lookup.batch_named(book.store, "book")


def kinds(book: hf.Pipeline) -> list[str]:
    entries = each_entry(book.store, chain_of_batch(batch_of(book).id))
    return [journal.decode_header(entry.head).kind for entry in entries]


@pytest.mark.promise("A14")
def test_a_batch_is_sealed_after_a_reconciliation_which_the_seal_keeps(book: hf.Pipeline) -> None:
    report = run(book, ITEMS, seal=True)
    assert report.exit_code == 0
    assert kinds(book)[-2:] == ["reconciled", "sealed"]
    *_, last = each_entry(book.store, chain_of_batch(batch_of(book).id))
    body = sections.decode(last)
    assert isinstance(body, journal.Sealed)
    kept = decode(body.reconciliation)
    assert kept["counts"] == {"expected": 3, "done": 3, "skipped": 0, "dead": 0, "cancelled": 0, "pending": 0}
    assert (kept["found"], kept["heads"]) == ({}, body.heads.hex())


@pytest.mark.promise("A14")
def test_a_sealed_batch_asked_to_run_says_since_when_by_whom_and_what_to_do(book: hf.Pipeline) -> None:
    run(book, ITEMS, seal=True)
    before = kinds(book)
    with pytest.raises(hf.Refused, match=r"was sealed at 20\d\d-.*Z by .* pid \d+: .*`holdfast reopen book"):
        run(book, [*ITEMS, "d"])
    assert kinds(book) == before
    report = run(book, ITEMS, seal=True)
    assert report.exit_code == 0, "asked to be sealed again, it is what it was"
    assert "0 done in " in str(report)
    assert ", 3 before" in str(report)
    assert (report.this_run.done_before, report.this_run.done, report.saved.items) == (3, 0, 3)
    assert book.report().this_run.done_before == 3
    with pytest.raises(hf.Refused, match="1 never created"):
        run(book, [*ITEMS, "d"], seal=True)
    assert kinds(book) == before


@pytest.mark.promise("A14")
@pytest.mark.parametrize(
    "act",
    [
        lambda store, batch: operations.redrive(store, batch, BY),
        lambda store, batch: operations.discard(store, batch, BY),
        lambda store, batch: operations.resolve(store, batch, BY, "a"),
        lambda store, batch: operations.reset(store, batch, BY, "a"),
    ],
)
def test_whatever_would_change_a_sealed_batch_is_refused_alike(book: hf.Pipeline, act: Any) -> None:
    run(book, [*ITEMS, "bad"], tolerate=1, seal=True)
    with pytest.raises(hf.Refused, match="holdfast reopen book"):
        act(book.store, batch_of(book))


@pytest.mark.promise("A14")
def test_a_batch_with_more_dead_letters_than_are_tolerated_is_not_sealed(book: hf.Pipeline) -> None:
    report = run(book, [*ITEMS, "bad"], seal=True)
    assert (report.exit_code, batch_of(book).sealed_at) == (1, None)
    assert "not sealed: 1 dead, 0 tolerated" in report.warnings
    found = book.reconcile()
    with pytest.raises(hf.Refused, match="1 dead letter and tolerates 0"):
        lifecycle.seal(book.store, batch_of(book), found, actor="op")
    assert lifecycle.seal(book.store, batch_of(book), found, actor="op", tolerated=1).sealed_at is not None


@pytest.mark.promise("A14")
def test_a_batch_that_changed_after_it_was_reconciled_is_not_sealed(book: hf.Pipeline) -> None:
    run(book, ITEMS)
    found = book.reconcile()
    operations.reset(book.store, batch_of(book), BY, "a")
    run(book)
    with pytest.raises(hf.Refused, match="it changed while it was reconciled: try again"):
        lifecycle.seal(book.store, batch_of(book), found, actor="op")
    assert batch_of(book).sealed_at is None


@pytest.mark.promise("A14")
def test_a_batch_that_is_not_explained_is_not_sealed(book: hf.Pipeline) -> None:
    run(book, ITEMS)
    operations.reset(book.store, batch_of(book), BY, "a")
    with pytest.raises(hf.Refused, match="is not sealed: 1 pending"):
        lifecycle.seal(book.store, batch_of(book), book.reconcile(), actor="op")


@pytest.mark.promise("A14")
def test_a_reopened_batch_goes_on_and_can_be_sealed_again(book: hf.Pipeline) -> None:
    run(book, ITEMS, seal=True)
    book.store.amend(batch_of(book).id, to_reopen("one more"), actor="op")
    assert run(book, [*ITEMS, "d"], seal=True).counts.done == 4
    assert kinds(book).count("sealed") == 2
    finished = [event.kind for event in book.store.events()].count("batch.finished")
    assert finished == 2


def late_commit(store: MemoryStore, batch: Batch) -> Commit:
    """What an owner brings that was away: an output for the first item, under the fence it was given."""
    claim = store.claim(ClaimRequest(batch=batch.id, owner="zombie", limit=10, seconds=30.0))
    assert isinstance(claim, Claim)
    late = Advanced(stage=0, items=numbers([0]), digests=b"", queued=bytes(4), seconds=bytes(4), finished=True)
    return Commit(id=b"late", batch=batch.id, uid=claim.uid, chunk=claim.lease.chunk, number=claim.number,
                  fence=claim.lease.fence, grant=claim.lease.grant, version=0, kind="checkpoint",
                  body=journal.Checkpointed(advanced=[late]),
                  outputs=(Output(ItemNo(0), 0, 0, b'"late"'),))  # fmt: skip


@pytest.mark.promise("A14", "C8")
def test_a_commit_after_the_seal_is_refused_noted_told_and_shown() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    book = hf.Pipeline("book", store=store)

    @book.stage
    def read(letter: str) -> str:
        return letter.upper()

    run(book, ITEMS)
    operations.reset(store, batch_of(book), BY, "a")
    late = late_commit(store, batch_of(book))
    clock.advance(1_000)
    run(book)
    lifecycle.seal(store, batch_of(book), reconcile(store, batch_of(book)), actor="op")
    (receipt,) = store.commit([late])
    assert (receipt.landed, receipt.reason) == (False, "sealed")
    assert lifecycle.note_late(store, [late], owner="zombie") == 1
    lifecycle.note_late(store, [late], owner="zombie")
    assert kinds(book)[-2:] == ["sealed", "late"], "once"
    seen = status.snapshot(store, batch_of(book))
    assert seen.seal is not None
    assert [(each.owner, each.items) for each in seen.seal.late] == [("zombie", (0,))]
    assert "after the batch was sealed" in str(why.tell(store, batch_of(book), "a"))
    assert "after the batch was sealed" not in str(why.tell(store, batch_of(book), "b"))
    warned = [decode(event.body) for event in store.events() if event.kind == "warning"]
    assert [each["code"] for each in warned] == ["late_commit"]
    assert book.reconcile().is_explained


@pytest.mark.promise("A14", "A15")
def test_a_batch_whose_end_came_before_its_source_was_read_is_sealed(book: hf.Pipeline) -> None:
    report = run(book, cycle(["a"]), until="300ms")
    assert (report.state, batch_of(book).ingested_at) == ("stopped", None)
    found = reconcile(book.store, batch_of(book))
    assert lifecycle.seal(book.store, batch_of(book), found, actor="op").sealed_at is not None


@pytest.mark.promise("A14")
def test_work_that_came_after_a_seal_is_counted_by_item_and_does_not_concern_the_next_seal() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    book = hf.Pipeline("book", store=store)
    book.stage(name="read")(str.upper)
    run(book, ITEMS)
    operations.reset(store, batch_of(book), BY, "a")
    late = late_commit(store, batch_of(book))
    clock.advance(1_000)
    run(book)
    lifecycle.seal(store, batch_of(book), reconcile(store, batch_of(book)), actor="op")
    assert lifecycle.note_late(store, [late, late], owner="zombie") == 1, "one item, however often it came"
    store.amend(batch_of(book).id, to_reopen("one more"), actor="op")
    assert run(book, [*ITEMS, "d"], seal=True).counts.done == 4
    seal = lifecycle.seal_of(store, batch_of(book))
    assert seal is not None
    assert seal.late == (), "it came after the other one"
