"""A correct program: operating a store, and every error. It is type-checked and never run."""

from collections.abc import Iterator
from typing import Any, assert_type

import holdfast as hf


def operate(book: hf.Pipeline, stock: hf.Scan) -> None:
    with hf.open("state.db", must_exist=False) as store:
        assert_type(store, hf.StoreHandle)
        batch = store["book"]
        assert_type(batch, hf.BatchHandle)
        assert_type(store.batches(newest=3), list[hf.BatchHandle])
        assert_type(store.events(), Iterator[hf.NumberedEvent])
        assert_type(store.orphans(), hf.FoundOrphans)
        assert_type(batch.status(), hf.Status)
        assert_type(batch.status().state, hf.BatchState)
        assert_type(batch.statistics(), hf.Statistics)
        assert_type(batch.plan(book), hf.Plan)
        assert_type(batch.reconcile(source=book), hf.Reconciliation)
        assert_type(batch.close(), hf.BatchChange)
        assert_type(batch.pause(reason="night"), hf.BatchChange)
        assert_type(batch.dead("a", 3, code="blank"), hf.DeadLetters)
        assert_type(batch.dead().redrive(dry_run=True), hf.Preview)
        assert_type(batch.dead().redrive(reason="mended"), hf.ActResult)
        assert_type(batch.cursors, hf.CursorHandle)
        assert_type(batch.cursors.reset(to_beginning=True, reason="again"), hf.ActResult)
        item = batch.item("a")
        assert_type(item, hf.ItemHandle)
        assert_type(item.state, hf.State)
        assert_type(item.why(), hf.ItemStory)
        assert_type(hf.import_poller(stock, "poller.json", dry_run=True), hf.Preview)
        hf.import_checkpoints(stock, [(None, "checkpoint.json")], by_rows=True, reason="moved")
        hf.import_pages(book, "pages.json", key="number")
        hf.import_outputs(book, reason="the store was lost")
    hf.doctor("state.db", folders=["out"])
    assert_type(hf.fault_points(), dict[str, str])


ERRORS: tuple[type[BaseException], ...] = (
    hf.Bad, hf.ChainBroken, hf.CommitUnknown, hf.Conflict, hf.Damaged, hf.DefinitionChanged, hf.DiedAlike,
    hf.FingerprintChanged, hf.HoldfastError, hf.Incomplete, hf.Interrupted, hf.LeaseLost, hf.NotConverged, hf.NotOurs,
    hf.PayloadChanged, hf.Refused, hf.ResourceError, hf.SchemaTooNew, hf.SinkError, hf.SourceChanged, hf.StoreError,
    hf.StoreUnavailable, hf.StoreUnusable, hf.Superseded, hf.Undelivered, hf.UndoRefused, hf.UsageError,
)  # fmt: skip


def catch(book: hf.Pipeline) -> Any:
    try:
        return book.run()
    except hf.Interrupted as error:
        return error.report
    except hf.Incomplete as error:
        return error.report


def show(figures: hf.Figures) -> None:
    assert_type(figures.stages, tuple[hf.StageFigures, ...])
    for stage in figures.stages:
        assert_type(stage.seconds_left, float | None)


def watch(book: hf.Pipeline, stock: hf.Scan) -> None:
    book.run(progress=show)
    stock.run(progress=show)
    book.run(progress=lambda figures: print(figures.stages[0].passed))
