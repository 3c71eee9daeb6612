"""The report of a run, `holdfast status` and `holdfast reconcile` say the same of a batch, in the same word."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import journal
from holdfast.core.course import to_note, to_steer
from holdfast.core.model import Batch, BatchMode, chain_of_batch
from holdfast.runtime.report import lifecycle
from holdfast.stores.base import ENTRIES_AT_A_TIME, each_entry, find_batch
from tests.cli.conftest import Command

WHERE = Path(".holdfast") / "state.db"


def letters(**options: Any) -> hf.Pipeline:
    made = hf.Pipeline("letters", store=WHERE)

    @made.stage(retry=hf.Retry(attempts=1), **options)
    def bind(number: int, ctx: hf.Context) -> str:
        ctx.spend(usd="0.10")
        if number == 13:
            raise hf.Permanent("unlucky")
        return f"letter {number}"

    return made


def run(items: Iterable[int], **options: Any) -> hf.Report:
    return letters().run(items, workers=1, progress=False, **options)


def scan(lines: int, **options: Any) -> hf.Report:
    Path("orders.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(lines)))
    made = hf.Scan("letters", hf.Csv("orders.csv"), store=WHERE, partitions=2, every=1)

    @made.handler
    def add(rows: list[Any], acc: int = 0, *, ctx: hf.Context) -> int:
        ctx.spend(usd="0.10")
        return acc + len(rows)

    return made.run(progress=False, workers=1, **options).run


def more_than_expected() -> hf.Report:
    letters().expect(None, 1)
    return run([1, 2])


def fewer_than_expected() -> hf.Report:
    letters().expect(None, 3)
    return run([1, 2])


def paused_by_a_person() -> hf.Report:
    run([1, 2], budget=hf.Budget(usd="0.10"))
    letters().pause("letters", reason="later")
    return letters().report()


def messages_beyond_the_number() -> hf.Report:
    letters().expect(None, 1)
    for number in (1, 2):
        letters().process(number)
    return letters().report()


def given_up_before_it_was_read() -> hf.Report:
    letters().process(1)
    letters().cancel("letters", reason="enough")
    return letters().report()


def halted_before_its_end_came(*reasons: str) -> hf.Report:
    """The last of these runs began nothing, and then the end of the batch came."""
    made, batch = letters(), halted_by_its_budget()
    made.store.amend(
        batch.id, to_steer(BatchMode.OPEN, reason="run until noon", ends_at=made.store.now() - 1.0), actor="a"
    )
    for reason in ("budget", *reasons):
        lifecycle.note_halt(made.store, batch, reason, actor="a")
    assert lifecycle.halted_by(made.store, find_batch(made.store, "letters") or batch, []) == ("budget", *reasons)[-1]
    return made.report()


def halted_by_its_budget() -> Batch:
    run(range(9), budget=hf.Budget(usd="0.35"))
    batch = find_batch(letters().store, "letters")
    assert batch is not None
    return batch


def pages() -> hf.Pipeline:
    made = hf.Pipeline("letters", store=WHERE)

    @made.stage(sink=hf.Files("out/{key}.json"))
    def bind(number: int, ctx: hf.Context) -> str:
        ctx.spend(usd="0.10")
        return f"letter {number}"

    return made


def a_file_is_missing_at_its_end() -> hf.Report:
    made = pages()
    made.run(range(4), workers=1, progress=False, budget=hf.Budget(usd="0.20"))
    (batch,) = made.store.batches("letters")
    made.store.amend(
        batch.id, to_steer(BatchMode.OPEN, reason="run until noon", ends_at=made.store.now() - 1.0), actor="a"
    )
    next(Path("out").glob("*.json")).unlink()
    report = made.run(range(4), progress=False)
    assert "1 missing" in report.why
    return report


def something_stands_in_the_place_of_a_file(runs: int) -> hf.Report:
    (Path("out") / "2.json" / "mine").mkdir(parents=True, exist_ok=True)
    reports = [pages().run(range(4), workers=1, progress=False) for _ in range(runs)]
    assert [(len(each.findings), each.unverified, each.exit_code) for each in reports] == [(1, 1, 1)] * runs
    return reports[-1]


STORIES: dict[str, tuple[Callable[[], hf.Report], str]] = {
    "nothing came": (lambda: run([]), "empty"),
    "nothing came, and that is fine": (lambda: run([], allow_empty=True), "complete"),
    "fine once, and run again": (lambda: run([], allow_empty=run([], allow_empty=True) is None), "complete"),
    "no row came": (lambda: scan(0), "empty"),
    "no row came, and that is fine": (lambda: scan(0, allow_empty=True), "complete"),
    "some rows came": (lambda: scan(3), "complete"),
    "the budget of a scan": (lambda: scan(30, budget=hf.Budget(usd="0.35")), "paused"),
    "the budget of a pipeline": (lambda: run(range(9), budget=hf.Budget(usd="0.35")), "paused"),
    "too many dead letters": (lambda: run([13, *range(9)], stop_beyond=0), "over tolerance"),
    "the budget, and then its end": (halted_before_its_end_came, "stopped"),
    "the budget, a deadline, and then its end": (lambda: halted_before_its_end_came("deadline"), "stopped"),
    "the budget, a pause, and then its end": (lambda: halted_before_its_end_came("paused"), "stopped"),
    "files: one is missing at its end": (a_file_is_missing_at_its_end, "stopped"),
    "files: one has no name": (lambda: something_stands_in_the_place_of_a_file(1), "finished with findings"),
    "files: one still has no name": (lambda: something_stands_in_the_place_of_a_file(3), "finished with findings"),
    "a person paused it": (paused_by_a_person, "paused"),
    "more than expected": (more_than_expected, "finished with findings"),
    "messages beyond the number": (messages_beyond_the_number, "finished with findings"),
    "fewer than expected": (fewer_than_expected, "stopped"),
    "cancelled": (given_up_before_it_was_read, "cancelled"),
    "all are done": (lambda: run([1, 2]), "complete"),
    "one died": (lambda: run([1, 13]), "complete with dead letters"),
}


@pytest.mark.promise("A14", "A15")
@pytest.mark.parametrize("story", STORIES)
def test_three_screens_say_the_same_word(here: Path, holdfast: Command, story: str) -> None:
    tell, word = STORIES[story]
    report = tell()
    assert report.state == word
    if story.startswith("files") and word != "stopped":
        assert holdfast("reconcile", "letters", "--json").document["state"] == word
        return  # others did not look at the files
    assert holdfast("status", "letters", "--json").document["state"] == word
    assert holdfast("reconcile", "letters", "--json").document["state"] == word
    assert holdfast("status", "letters").out.splitlines()[0].startswith(f"letters  {word} ·")
    assert f" {word} " in holdfast("status").out
    compared = holdfast("reconcile", "letters")
    assert word.startswith("complete") or f"state {word}" in " ".join(compared.out.split())
    assert (compared.code == 0) is (report.exit_code == 0 or word == "cancelled")
    if "row" not in story and "scan" not in story and "files" not in story:
        assert letters().report().state == word


def test_a_batch_to_which_nothing_came_has_no_end(here: Path, holdfast: Command) -> None:
    assert run([]).state == "empty"
    said = holdfast("status", "letters", "--json").document
    assert (said["end"], said["state"]) == (None, "empty")
    assert "empty" in holdfast("status", "letters", "--watch").out, "there is nothing to wait for"


@pytest.mark.parametrize("story", ["the budget, and then its end", "the budget, a deadline, and then its end"])
def test_no_screen_advises_a_run_that_would_cancel_the_rest(here: Path, holdfast: Command, story: str) -> None:
    STORIES[story][0]()
    assert "then run it" not in holdfast("status", "letters").out


def entries() -> list[tuple[str, bytes]]:
    """Every entry of the batch's own chain."""
    store = letters().store
    (batch,) = store.batches("letters")
    return [(journal.decode_header(e.head).kind, e.body) for e in each_entry(store, chain_of_batch(batch.id))]


@pytest.mark.parametrize("seal", [False, True])
def test_running_a_complete_batch_again_leaves_its_journal_as_it_is(here: Path, seal: bool) -> None:
    used_up = hf.Budget(usd="0.20")
    assert run([1, 2], budget=used_up, seal=seal).state == "complete"
    before = entries()
    assert before[-1][0] == ("sealed" if seal else "reconciled"), "nothing stands behind the end"
    for _ in range(2):
        assert run([1, 2], budget=used_up, seal=seal).state == "complete"
    assert entries() == before


def test_the_same_halt_is_noted_once_while_nothing_comes_further(here: Path) -> None:
    for _ in range(3):
        assert run(range(9), budget=hf.Budget(usd="0.35")).state == "paused"
    assert [kind for kind, _ in entries()].count("halted") == 1
    assert run(range(9), budget=hf.Budget(usd="0.55")).state == "paused"
    assert [kind for kind, _ in entries()].count("halted") == 2


def test_a_halt_is_remembered_behind_many_notes(here: Path, holdfast: Command) -> None:
    batch, store = halted_by_its_budget(), letters().store
    for number in range(3 * ENTRIES_AT_A_TIME):
        store.amend(batch.id, to_note("late", journal.Acted(reason=f"{number}")), actor="a")
    assert holdfast("status", "letters", "--json").document["state"] == "paused"
    assert letters().report().state == "paused"
