"""Files of items that are skipped or dead are looked at like those of items that are done."""

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.verify import What
from holdfast.runtime.acts import Actor
from holdfast.runtime.define.stage import sinks_among
from holdfast.runtime.operate import audit, operations, repair
from holdfast.runtime.report.reconcile import repairable

from .support import Calls, run

BY = Actor(name="tester", reason="a test")


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def finished(calls: Calls) -> hf.Pipeline:
    """Of four items one is skipped and one is dead at the second stage; each has a file of the first."""
    p = hf.Pipeline("p", store="state.db")

    @p.stage(sink=hf.Files("out/{key}.json"))
    def one(x: int) -> int:
        calls(x)
        return x

    @p.stage
    def two(x: int) -> int:
        if x == 1:
            raise hf.Skip("not needed")
        if x == 2:
            raise hf.Permanent("bad", "bad")
        return x

    run(p, range(4), batch="b")
    calls.clear()
    return p


def spoil() -> None:
    Path("out/1.json").unlink()
    Path("out/2.json").write_text("garbage")


@pytest.mark.promise("P4", "A5")
@pytest.mark.parametrize("verify", ["quick", "full"])
def test_a_run_makes_the_file_of_a_skipped_item_again_and_tells_of_the_dead_letter(
    finished: hf.Pipeline, calls: Calls, verify: str
) -> None:
    spoil()
    assert finished.plan(range(4), batch="b", verify=verify).counts["rewind"] == 1
    report = run(finished, range(4), batch="b", verify=verify, tolerate=1)
    assert calls.seen == [1], "a dead letter is left to a person"
    assert (report.exit_code, report.counts.skipped, report.counts.dead) == (1, 1, 1)
    assert Path("out/1.json").read_text() == "1\n"
    assert any("item 2" in told and "--repair" in told for told in report.warnings), report.warnings


@pytest.mark.promise("A14", "P15")
@pytest.mark.parametrize("full", [False, True])
def test_a_reconciliation_finds_them_and_counts_what_is_there(finished: hf.Pipeline, full: bool) -> None:
    before = finished.reconcile("b", full=full)
    assert (before.observed.outputs, before.observed.files, dict(before.found)) == (6, 4, {})
    spoil()
    found = finished.reconcile("b", full=full)
    assert {(each.what, each.key) for each in found.findings} == {(What.MISSING, 1), (What.DIFFERENT, 2)}
    assert (found.observed.outputs, found.observed.files) == (5, 3), "what is missing was not read"
    assert found.exit_code(1) == 1


def test_a_repair_has_both_made_again_and_the_audit_is_content(finished: hf.Pipeline, calls: Calls) -> None:
    spoil()
    (batch,) = finished.store.batches("b")
    wrong = audit.verify(finished.store, batch, full=True)
    assert len(wrong.findings) == 2
    assert all("--full --repair" in each.message for each in wrong.findings)
    findings = repairable(finished.store, batch, sinks_among(finished.stages), "full")
    assert repair.preview_repair(finished.store, batch, finished.reconcile("b", full=True), findings).items == 2
    assert repair.repair(finished.store, batch, findings, BY).changed == 2
    run(finished, range(4), batch="b", tolerate=1)
    assert sorted(calls.seen) == [1, 2]
    assert finished.reconcile("b", full=True).exit_code(1) == 0
    (again,) = finished.store.batches("b")
    assert audit.verify(finished.store, again, full=True).holds


def test_a_message_of_a_skipped_item_has_its_file_made_again(finished: hf.Pipeline, calls: Calls) -> None:
    spoil()
    assert finished.process(1, batch="b").state == "skipped"
    assert finished.process(2, batch="b").state == "dead"
    assert calls.seen == [1]
    assert Path("out/1.json").exists()
    assert Path("out/2.json").read_text() == "garbage"


def test_files_of_what_was_called_off_are_nobodys_business(finished: hf.Pipeline) -> None:
    (batch,) = finished.store.batches("b")
    operations.discard(finished.store, batch, BY, ["2"])
    Path("out/2.json").unlink()
    found = finished.reconcile("b", full=True)
    assert found.exit_code() == 0
    assert (found.observed.outputs, found.observed.files) == (5, 3)
