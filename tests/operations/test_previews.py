"""A preview is carried out on the items that it showed, as they were then, and on no others."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.runtime.acts import PreviewedItems
from holdfast.stores.memory import MemoryStore
from tests.operations.scanned import Totals

WHY = "because"
Run = Callable[..., hf.Report]


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def run(where: Path) -> Run:
    """Runs the batch `letters`; those that begin with `bad` die, and how often each was tried is counted."""

    def go(*letters: str, fixed: tuple[str, ...] = (), **options: Any) -> hf.Report:
        pipeline = hf.Pipeline("letters", store=where)

        @pipeline.stage
        def read(letter: str) -> str:
            if letter.startswith("bad") and letter not in fixed:
                raise hf.Permanent("blank", "nothing on it")
            return letter

        return pipeline.run(letters or None, progress=False, tolerate="100%", **options)

    return go


def states(batch: hf.BatchHandle) -> dict[Any, str]:
    return {item.key: item.state.value for item in batch.items()}


@pytest.mark.parametrize("act", ["discard", "redrive"])
def test_letters_that_died_later_are_not_touched(where: Path, run: Run, act: str) -> None:
    run("bad-1", "a")
    with hf.open(where) as store:
        batch = store["letters"]
        preview = getattr(batch.dead(), act)(dry_run=True)
        assert (preview.items, preview.first) == (1, ("bad-1",))
        run("bad-1", "a", "bad-2", "bad-3")
        done = preview.carry_out(reason=WHY)
        assert (done.changed, done.overtaken) == (1, 2)
        assert [states(batch)[key] for key in ("bad-2", "bad-3")] == ["dead", "dead"]
        assert batch.dead().discard(reason=WHY).changed == 2


@pytest.mark.parametrize("act", ["discard", "redrive", "resolve", "reset"])
def test_a_letter_that_was_tried_again_meanwhile_is_left_alone(where: Path, run: Run, act: str) -> None:
    run("bad-1", "a")
    with hf.open(where) as store:
        batch = store["letters"]
        if act in ("discard", "redrive"):
            preview = getattr(batch.dead("bad-1"), act)(dry_run=True)
        else:
            preview = getattr(batch, act)("bad-1", dry_run=True)
        assert preview.items == 1
        batch.dead().redrive(reason="another operator")
        run(fixed=("bad-1",))
        assert states(batch)["bad-1"] == "done"
        assert preview.carry_out(reason=WHY).changed == 0
        assert states(batch)["bad-1"] == "done"


def test_a_reset_begins_no_item_again_that_was_not_shown(where: Path, run: Run) -> None:
    run("a")
    with hf.open(where) as store:
        batch = store["letters"]
        preview = batch.reset(dry_run=True)
        run("a", "b", "c")
        assert (preview.items, preview.carry_out(reason=WHY).changed) == (1, 1)
        assert states(batch) == {"a": "pending", "b": "done", "c": "done"}
        run()
        assert preview.carry_out(reason=WHY).changed == 0, "carried out again, it finds another epoch"
        assert batch.reset(reason=WHY).changed == 3, "without a preview, all that are there"


def test_a_repair_sends_back_what_it_showed_though_more_is_missing_now(tmp_path: Path, where: Path) -> None:
    pages = hf.Pipeline("pages", store=where)

    @pages.stage(sink=hf.Files(tmp_path / "out" / "{key}.txt"))
    def page(n: int) -> str:
        return str(n)

    pages.run(range(150), progress=False)
    (tmp_path / "out" / "7.txt").unlink()
    with hf.open(where) as store:
        batch = store["pages"]
        preview = batch.repair(dry_run=True)
        assert (preview.items, preview["done"]) == (1, 150)
        for left in (tmp_path / "out").glob("*.txt"):
            left.unlink()
        assert preview.carry_out(reason=WHY).changed == 1
        with pytest.raises(hf.Refused, match="149 items"):
            batch.repair(reason=WHY)


def test_a_repair_takes_no_reconciliation_of_another_batch(where: Path, run: Run) -> None:
    run("a")
    run("a", batch="others")
    with hf.open(where) as store, pytest.raises(hf.UsageError, match="a reconciliation of 'others', not of 'letters'"):
        store["letters"].repair(store["others"].reconcile(), reason=WHY)


def test_an_item_that_is_named_twice_is_counted_once(where: Path, run: Run) -> None:
    run("bad-1", "a")
    with hf.open(where) as store:
        preview = store["letters"].dead("bad-1", "bad-1", "#0").discard(dry_run=True)
        done = preview.carry_out(reason=WHY)
        assert (preview.items, done.changed, done.left_alone) == (1, 1, ())


NOT_WORDS = [b"x", 5, "x" * 3_000, "\ud800"]


@pytest.mark.parametrize(("which", "wrong"), [("reason", None), *product(("reason", "actor"), NOT_WORDS)])
def test_reason_and_actor_are_text_that_the_journal_can_hold(where: Path, run: Run, wrong: Any, which: str) -> None:
    run("bad-1", "a")
    words = {"reason": WHY, "actor": "me"} | {which: wrong}
    with hf.open(where) as store:
        batch = store["letters"]
        acts: list[Callable[..., Any]] = [
            batch.dead().redrive, batch.pause, batch.close, lambda **by: batch.expect(7, **by), batch.reset,
            lambda **by: batch.seal(tolerate=5, **by), batch.cancel, batch.lift_blame,
        ]  # fmt: skip
        for act in acts:
            with pytest.raises(hf.UsageError, match=f"{which}.*nothing was changed"):
                act(**words)
        assert batch.audit().holds
        assert states(batch) == {"bad-1": "dead", "a": "done"}


def test_the_story_of_an_item_is_its_own_though_a_key_looks_like_its_number(where: Path, run: Run) -> None:
    run("bad-1", "#0")
    with hf.open(where) as store:
        assert store["letters"].item("bad-1").why().state == "dead"
        assert store["letters"].item("#0").why().state == "done"


def test_a_pipeline_of_another_store_is_not_asked(tmp_path: Path, where: Path, run: Run) -> None:
    run("a")
    other = hf.Pipeline("letters", source=["a", "b"], store=tmp_path / "other.db")

    @other.stage
    def read(letter: str) -> str:
        return letter

    other.run(progress=False)
    with hf.open(where) as store:
        for ask in (lambda: store["letters"].plan(other), lambda: store["letters"].reconcile(source=other)):
            with pytest.raises(hf.UsageError, match=r"keeps its state in .*other\.db"):
                ask()
        other.use_store(where)
        assert store["letters"].plan(other).count("run") == 1


def test_items_may_come_in_any_order() -> None:
    shown = PreviewedItems()
    for n in (0, 1, 1000, 1001, 500, 501):
        shown.add(n, ("dead", n))
    assert all(shown.has(n, ("dead", n)) for n in (0, 1, 500, 501, 1000, 1001))
    assert not any(shown.has(n, ("done", n)) for n in (0, 500, 1001))
    assert not any(shown.has(n, ("dead", n)) for n in (2, 499, 502, 2000))
    shown.add(250, ("dead", 250))
    assert shown.has(250, ("dead", 250))


def test_a_partition_that_a_preview_left_alone_stays_with_its_owner() -> None:
    store = MemoryStore()
    totals = Totals(store, range(1000), partitions=2)
    totals.bad = {10}
    totals.run()
    with hf.open(store) as opened:
        cursors = opened["totals"].cursors
        cursors.resume(1, reason="once more")
        preview = cursors.resume(dry_run=True)
        assert preview.items == 1
        totals.claim()
        before = totals.fences()
        assert preview.carry_out(reason=WHY).changed == 1
        assert totals.fences()[1] == before[1], "its owner works on"
