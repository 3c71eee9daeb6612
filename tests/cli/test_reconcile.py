"""`holdfast reconcile` and `holdfast reopen`, as a person types them."""

import os
import shlex
import textwrap
from pathlib import Path

import pytest

from holdfast.runtime.sinks.base import Evidence
from holdfast.stores.open import open_store
from tests.cli.conftest import Command
from tests.operations.world import World

APP = """
    import holdfast as hf

    book = hf.Pipeline("book", source=lambda: range(20))

    @book.stage(sink=hf.Files("out/{key}.json"))
    def write(number: int) -> int:
        if number == 13:
            raise hf.Permanent("unlucky")
        return number

    bare = hf.Pipeline("bare")
    bare.stage(sink=hf.Files("out/{key}.json"), name="write")(write.function)
"""


@pytest.fixture
def app(here: Path, holdfast: Command) -> str:
    (here / "app.py").write_text(textwrap.dedent(APP), encoding="utf-8")
    assert holdfast("run", "app.py:book", "--no-progress", "--tolerate", "1").code == 0
    return "app.py:book"


@pytest.mark.promise("A14")
def test_a_batch_is_explained_and_dead_letters_count_only_beyond_what_is_tolerated(app: str, holdfast: Command) -> None:
    answer = holdfast("reconcile", "book", "--tolerate", "1", "--source", app)
    assert answer.code == 0
    assert "every item is accounted for" in answer.out
    assert "20 = 19 done + 0 skipped + 1 dead + 0 cancelled + 0 pending" in answer.out
    assert "20 keys compared" in answer.out
    strict = holdfast("reconcile", "book")
    assert strict.code == 1
    assert "1, tolerated are 0: holdfast dead list book" in strict.out


@pytest.mark.promise("A14")
def test_what_is_wrong_is_named_with_the_item_the_file_and_what_to_do(app: str, here: Path, holdfast: Command) -> None:
    (here / "out/5.json").unlink()
    (here / "out/99.json").write_text("mine")
    answer = holdfast("reconcile", "book")
    assert answer.code == 1
    assert "not explained: 1 missing, 1 extra" in answer.out
    missing, extra = (line for line in answer.out.splitlines() if "out/" in line)
    assert missing.split()[:4] == ["missing", "5", "write", "out/5.json"]
    assert "Holdfast never does" in extra
    assert "Next: holdfast reconcile book --repair" in answer.out
    document = holdfast("reconcile", "book", "--json").document
    assert (document["explained"], document["exit_code"], document["found"]["missing"]) == (False, 1, 1)
    assert document["findings"][0]["file"] == "out/5.json"


@pytest.mark.promise("A14", "P15")
def test_leftovers_are_shown_and_are_no_finding(app: str, here: Path, holdfast: Command) -> None:
    store = open_store(here / ".holdfast/state.db")
    (output,) = store.outputs(store.batches()[0].id, lo=5, hi=6)
    store.close()
    assert output.file is not None
    origin, _, *rest = Evidence.decode(output.file).staged.rsplit(".", 4)
    left = here / ".".join([origin, "99", *rest])
    left.write_text("made by an owner that was fenced out")
    answer = holdfast("reconcile", "book", "--tolerate", "1", "--seal")
    assert answer.code == 0, answer.out
    assert "1 staged file in .holdfast/, of attempts that were overtaken; nothing needs them" in answer.out
    assert holdfast("reconcile", "book", "--json").document["observed"]["leftovers"] == 1
    assert left.exists()


@pytest.mark.promise("A14")
def test_a_batch_that_is_not_finished_is_not_explained(world: World, holdfast: Command) -> None:
    answer = holdfast("reconcile", "moby-dick")
    assert answer.code == 1
    assert "not explained: 1 pending" in answer.out
    assert "1 ready + 0 claimed + 0 waiting + 0 orphaned" in answer.out


@pytest.mark.promise("P15")
def test_a_repair_shows_its_plan_asks_and_sends_back(app: str, here: Path, holdfast: Command) -> None:
    (here / "out/5.json").unlink()
    (here / "out/99.json").write_text("mine")
    asked = holdfast("reconcile", "book", "--repair")
    assert (asked.code, "pass --yes and --reason" in asked.err) == (2, True)
    assert "1 item would begin again at 'write'" in asked.out
    assert "Left alone: 1 extra. Nothing is ever deleted." in asked.out
    planned = holdfast("reconcile", "book", "--repair", "--dry-run", "--json").document
    assert (planned["repair"]["changed"], planned["repair"]["plan"]["rewound"]) == (0, 1)
    done = holdfast("reconcile", "book", "--repair", "--yes", "--reason", "a disk was lost")
    assert "1 item went back: run the batch to make them again." in done.out
    assert holdfast("run", app, "--no-progress", "--tolerate", "1").code == 0
    assert (here / "out/5.json").exists()
    assert (here / "out/99.json").read_text() == "mine"
    (here / "out/99.json").unlink()
    assert "nothing that a repair could fix" in holdfast("reconcile", "book", "--repair").out


@pytest.mark.promise("P15")
def test_a_repair_does_not_undo_much_unless_it_is_told_so(
    app: str, here: Path, holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.verify.UNDO_ITEMS", 1)
    (here / "out").rename(here / "moved")
    sure = ("--repair", "--yes", "--reason", "so be it")
    refused = holdfast("reconcile", "book", *sure)
    assert refused.code == 1
    assert "19 items of batch 'book' would go back, 100%" in refused.err
    assert "pass --undo 100%" in refused.err
    assert holdfast("status", "book", "--json").document["counts"]["pending"] == 0
    assert "19 items went back" in holdfast("reconcile", "book", *sure, "--undo", "100%").out


def suggested(shown: str) -> list[list[str]]:
    """The commands of the line that begins with Next, as a person types them: with a reason, and agreeing."""
    (line,) = [line.removeprefix("Next: ") for line in shown.splitlines() if line.startswith("Next: ")]
    typed = [shlex.split(each.removesuffix("--reason …"))[1:] for each in line.split(" · ")]
    return [[*each, "--reason", "as it was suggested", "--yes"] for each in typed]


@pytest.mark.promise("A14", "P15")
@pytest.mark.parametrize("lost", ["one file", "all files"])
@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("store", [(), ("--store", ".holdfast/state.db")], ids=["default", "named"])
def test_what_is_suggested_works_when_it_is_typed(
    app: str, here: Path, holdfast: Command, monkeypatch: pytest.MonkeyPatch, lost: str, sealed: bool,
    store: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.setattr("holdfast.core.verify.UNDO_ITEMS", 5)
    if sealed:
        assert holdfast("reconcile", "book", "--seal", "--tolerate", "1").code == 0
    for path in sorted((here / "out").glob("*.json"))[: 1 if lost == "one file" else None]:
        path.unlink()
    shown = holdfast("reconcile", "book", *store).out
    commands = suggested(shown)
    assert [each[0] for each in commands] == (["reopen", "reconcile"] if sealed else ["reconcile"])
    assert ("--undo" in commands[-1], "first see that the disk is there" in shown) == (lost == "all files",) * 2
    assert all(("--store" in each) is bool(store) for each in commands)
    answers = [holdfast(*each) for each in commands]
    assert "went back: run the batch" in answers[-1].out
    assert holdfast("run", app, "--no-progress", "--tolerate", "1").code == 0
    assert holdfast("reconcile", "book", "--tolerate", "1").code == 0


def test_a_repair_of_what_only_a_full_look_sees_is_suggested_with_it(app: str, here: Path, holdfast: Command) -> None:
    path = here / "out" / "5.json"
    before = path.stat()
    path.write_text(path.read_text().replace("5", "6", 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (repair,) = suggested(holdfast("reconcile", "book", "--full", "--source", app).out)
    assert {"--full", "--source"} <= set(repair)
    assert "1 item went back" in holdfast(*repair).out


@pytest.mark.promise("A14")
def test_a_batch_is_sealed_shown_refuses_and_is_reopened(app: str, holdfast: Command) -> None:
    not_yet = holdfast("reconcile", "book", "--seal")
    assert (not_yet.code, "not sealed: it has 1 dead letter" in not_yet.err) == (1, True)
    sealed = holdfast("reconcile", "book", "--seal", "--tolerate", "1", "--actor", "ann", "--reason", "read by two")
    assert (sealed.code, "book is sealed" in sealed.out) == (0, True)
    assert holdfast("reconcile", "book", "--seal", "--tolerate", "1").code == 0, "done again, it changes nothing"
    shown = holdfast("status", "book").out
    assert "sealed with dead letters" in shown
    assert "by ann: read by two" in shown
    document = holdfast("status", "book", "--json").document
    assert document["seal"] | {"at": 0} == {"at": 0, "by": "ann", "reason": "read by two", "late": []}
    for command in (
        ("run", app, "--no-progress"),
        ("dead", "redrive", "book", "--all", "--yes", "--reason", "x"),
        ("reset", "book", "--yes", "--reason", "x"),
        ("reconcile", "book", "--repair"),
    ):
        refused = holdfast(*command)
        assert (refused.code, "was sealed at" in refused.err) == (1, True), command
        assert "by ann: it is finished" in refused.err
        assert "holdfast reopen book --reason" in refused.err
    assert holdfast("reopen", "book").code == 2
    assert "by ann (read by two)" in holdfast("reopen", "book", "--yes", "--reason", "one more").out
    assert holdfast("reopen", "book", "--yes", "--reason", "again").code == 2
    assert holdfast("run", app, "--no-progress", "--tolerate", "1", "--seal").code == 0
    assert holdfast("run", app, "--no-progress", "--tolerate", "1", "--seal").code == 0
    assert holdfast("audit", "verify", "book").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("reconcile", "nobody"), 2, "there is no batch 'nobody'"),
        (("reconcile", "book", "--undo", "much"), 2, "--undo much: write a number of items"),
        (("reconcile", "book", "--tolerate", "much"), 2, "--tolerate much: write a number of items"),
        (("reconcile", "book", "--repair", "--seal"), 2, "nothing to seal yet"),
        (("reconcile", "book", "--source", "app.py:bare"), 2, "belongs to pipeline 'book'"),
        (("reconcile", "book", "--source", "nowhere.py"), 2, "there is no file nowhere.py"),
        (("reopen", "book", "--yes", "--reason", "x"), 2, "is not sealed: nothing to reopen"),
    ],
)
def test_bad_input_is_told_by_what_it_is(
    app: str, holdfast: Command, arguments: tuple[str, ...], code: int, said: str
) -> None:
    answer = holdfast(*arguments)
    assert (answer.code, said in answer.err) == (code, True), answer.err


@pytest.mark.promise("A14")
def test_the_command_publishes_an_end_that_no_run_has_seen(app: str, here: Path, holdfast: Command) -> None:
    assert holdfast("dead", "discard", "book", "--all", "--yes", "--reason", "not needed").code == 0
    assert holdfast("reconcile", "book").code == 0
    store = open_store(here / ".holdfast/state.db")
    kinds = [event.kind for event in store.events()]
    store.close()
    assert kinds.count("batch.finished") == 2


def test_a_quick_look_says_what_it_does_not_look_at(world: World, holdfast: Command) -> None:
    store = world.store
    other = World(store, world.clock, batch="plain")
    other.add("a", "b")
    other.finish()
    shown = holdfast("reconcile", "plain").out
    assert "2 outputs looked at, 0 of them in files; of done items the last output and files only" in shown
    assert "4 outputs read, 0 of them in files\n" in holdfast("reconcile", "plain", "--full").out
