"""`holdfast orphans`, `holdfast events` and what they leave behind."""

import json
from pathlib import Path

import pytest

from holdfast.core.course import to_steer
from holdfast.core.limits import DEAD_AGE, ORPHAN_GRACE, REQUEUES
from holdfast.core.model import BatchMode
from tests.cli.conftest import Command, python
from tests.operations.world import World

RESOLVE = ("orphans", "moby-dick", "--resolve")
AGREED = ("--yes", "--reason", "because", "--actor", "ada", "--json")


@pytest.fixture
def later(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The same batch long after; `rest` is an orphan, `bad` and `worse` are not old enough."""
    touch(world, ORPHAN_GRACE + 60.0)
    return world


def touch(world: World, seconds: float) -> None:
    """Make everything in the store so much older."""
    import apsw

    database = apsw.Connection(str(world.store.url))
    database.execute("UPDATE chunks SET touched_at = touched_at - ?", (seconds,))
    database.close()


def test_nothing_stuck_ends_with_0(world: World, holdfast: Command) -> None:
    answer = holdfast("orphans")
    assert (answer.code, answer.out) == (0, "The store: nothing is stuck.\n")
    assert holdfast("orphans", "moby-dick", "--json").document["orphans"] == 0


@pytest.mark.promise("A10")
def test_what_is_stuck_is_listed_and_ends_with_1(later: World, holdfast: Command) -> None:
    answer = holdfast("orphans")
    assert answer.code == 1
    assert "moby-dick  rest  ocr    stuck" in answer.out
    assert "1 item stuck: 1 stuck." in answer.out
    plain = holdfast("orphans", "moby-dick", "--json").document
    assert plain["kinds"] == {"stuck": 1, "stranded": 0, "unanswered": 0}
    assert plain["items"][0]["key"] == "rest"
    assert plain["items"][0]["owner"] == "host-a pid 4711"


def test_a_list_is_limited_and_says_how_many_there_are(world: World, holdfast: Command) -> None:
    world.add(*range(30))
    world.store.amend(world.id, to_steer(BatchMode.CANCELLED, reason="enough"), actor="ada")
    answer = holdfast("orphans", "--limit", "4")
    assert "31 items stuck: 31 stranded, the first 4 shown." in answer.out
    assert len(holdfast("orphans", "--limit", "4", "--json").document["items"]) == 4


def test_an_unknown_strategy_lists_what_there_is_and_changes_nothing(later: World, holdfast: Command) -> None:
    answer = holdfast(*RESOLVE, "redo", *AGREED)
    assert answer.code == 2
    assert "requeue, fail, review" in answer.err
    assert holdfast("orphans", "--resolve", "fail", *AGREED).code == 2
    assert holdfast("orphans", "moby-dick", "--item", "rest").code == 2


@pytest.mark.promise("A11", "A12", "A13")
@pytest.mark.parametrize("strategy", ["requeue", "fail", "review"])
def test_resolving_shows_asks_does_and_may_be_repeated(later: World, holdfast: Command, strategy: str) -> None:
    for more in ([], ["--reason", "because"], ["--yes"]):
        refused = holdfast(*RESOLVE, strategy, *more)
        assert (refused.code, "nothing was changed" in refused.err) == (2, True)
    shown = holdfast(*RESOLVE, strategy, "--dry-run")
    assert "1 orphan of moby-dick (rest) would be resolved" in shown.out
    assert holdfast(*RESOLVE, strategy, "--dry-run", "--json").document["items"] == 1
    assert holdfast(*RESOLVE, strategy, *AGREED).document["changed"] == 1
    assert holdfast(*RESOLVE, strategy, *AGREED).document["changed"] == 0
    assert holdfast(*RESOLVE, strategy, "--item", "rest", *AGREED).document["changed"] == 0
    assert holdfast("audit", "verify").code == 0
    kinds = [event["type"] for event in holdfast("events", "--json").document["events"]]
    assert kinds.count("dev.holdfast.orphan.resolved") == 1
    assert kinds.count("dev.holdfast.warning") == (strategy != "requeue")


def test_what_was_sent_to_review_shows_what_it_was_doing(later: World, holdfast: Command) -> None:
    holdfast(*RESOLVE, "review", *AGREED)
    shown = holdfast("dead", "show", "moby-dick", "rest")
    assert "stuck at 'ocr' without progress since" in shown.out
    assert holdfast("dead", "show", "moby-dick", "rest", "--json").document["context"]["owner"] == "host-a pid 4711"
    why = holdfast("why", "moby-dick", "rest").out.splitlines()
    assert why[1].split()[:6] == ["now", "waits", "for", "a", "review", "at"]


def test_whoever_requeues_after_the_end_of_a_batch_hears_of_it(later: World, holdfast: Command) -> None:
    later.store.amend(later.id, to_steer(BatchMode.OPEN, reason="run until", ends_at=later.clock() - 1), actor="ada")
    assert "with a later --until, or the next run cancels" in holdfast(*RESOLVE, "requeue", "--dry-run").out
    assert "with a later --until" in holdfast(*RESOLVE, "requeue", "--dry-run", "--json").document["warning"]
    assert "later" not in holdfast(*RESOLVE, "fail", "--dry-run").out
    assert "with a later --until" in holdfast(*RESOLVE, "requeue", *AGREED).document["warning"]


def test_what_was_requeued_too_often_is_said_to_be_buried(later: World, holdfast: Command) -> None:
    said = AGREED[:-1]
    for _ in range(REQUEUES):
        assert "requeued: 1 item" in holdfast(*RESOLVE, "requeue", *said).out
        touch(later, ORPHAN_GRACE + 60.0)
    assert "requeued too often" in holdfast(*RESOLVE, "requeue", "--dry-run").out
    answer = holdfast(*RESOLVE, "requeue", *said)
    assert "requeued: 0 items" in answer.out
    assert "buried: 1, requeued too often: holdfast dead list moby-dick" in answer.out


def test_old_dead_letters_are_told_how_to_be_answered(world: World, holdfast: Command) -> None:
    from holdfast.stores.sqlite import SqliteStore

    assert isinstance(world.store, SqliteStore)
    world.clock.advance(-2 * DEAD_AGE)
    old = World(world.store, world.clock, batch="old")
    old.add_invalid("odd")
    answer = holdfast("orphans", "old")
    assert answer.code == 1
    assert "unanswered" in answer.out
    assert "holdfast dead list old" in answer.out
    result = holdfast("orphans", "old", "--resolve", "fail", *AGREED)
    assert (result.code, result.document["changed"]) == (0, 0)


def test_what_is_stuck_in_several_batches_is_told_batch_by_batch(world: World, holdfast: Command) -> None:
    world.clock.advance(-2 * DEAD_AGE)
    World(world.store, world.clock, batch="old").add_invalid("odd")
    for name in ("first", "second", "third"):
        World(world.store, world.clock, batch=name).add("page")
    (third,) = world.store.batches("third")
    world.store.amend(third.id, to_steer(BatchMode.CANCELLED, reason="so"), actor="ann")
    world.clock.advance(2 * DEAD_AGE)
    answer = holdfast("orphans")
    assert answer.code == 1
    advice = [line for line in answer.out.splitlines() if "holdfast " in line]
    assert [line.split(" --resolve")[0].split(", then")[0] for line in advice] == [
        "stuck: run first again, or holdfast orphans first",
        "stuck: run second again, or holdfast orphans second",
        "stranded in a cancelled batch: holdfast orphans third",
        "unanswered dead letters: holdfast dead list old",
    ]
    batches = holdfast("orphans", "--json").document["batches"]
    assert list(batches) == ["old", "first", "second", "third"]
    assert batches["third"] == {"stuck": 0, "stranded": 1, "unanswered": 0}


# -- events ---------------------------------------------------------------------------------------------------------


def test_events_are_listed_and_paged(world: World, holdfast: Command) -> None:
    answer = holdfast("events")
    assert answer.code == 0
    assert "item.dead" in answer.out
    assert "moby-dick/bad" in answer.out
    first = holdfast("events", "moby-dick", "--limit", "1", "--json").document
    assert (len(first["events"]), first["more"]) == (1, True)
    rest = holdfast("events", "--after", str(first["events"][0]["number"]), "--json").document
    assert [event["data"]["key"] for event in rest["events"]] == ["bad", "worse"]
    assert "No events after number 99" in holdfast("events", "--after", "99").out


def test_events_are_delivered_by_hand_once(world: World, here: Path, holdfast: Command) -> None:
    target = f"file:{here}/told.jsonl"
    assert holdfast("events", "--deliver", target, "--json").document["delivered"] == 3
    assert holdfast("events", "--deliver", target).out == f"0 events delivered to file {here}/told.jsonl\n"
    lines = [json.loads(line) for line in (here / "told.jsonl").read_text().splitlines()]
    assert [event["type"] for event in lines] == ["dev.holdfast.batch.opened", *["dev.holdfast.item.dead"] * 2]
    assert len(holdfast("events", "--deliver", "-").out.splitlines()) == 3


def test_a_receiver_that_is_down_is_told_without_its_secret_and_ends_with_75(world: World, holdfast: Command) -> None:
    answer = holdfast("events", "--deliver", "http://ada:pass@127.0.0.1:9/hook?key=hush")
    assert answer.code == 75
    assert "http://127.0.0.1:9/" in answer.err
    assert "pass" not in answer.err
    assert "hush" not in answer.err


def test_delivering_takes_nothing_else(world: World, holdfast: Command) -> None:
    assert holdfast("events", "moby-dick", "--deliver", "-").code == 2
    assert holdfast("events", "--deliver", "carrier-pigeon").code == 2


def test_a_run_tells_who_it_is_told_to(here: Path) -> None:
    (here / "app.py").write_text(
        "import holdfast as hf\n"
        "book = hf.Pipeline('book', source=[1, 2])\n"
        "@book.stage\n"
        "def read(page: int) -> int:\n"
        "    raise KeyError(page)\n"
    )
    answer = python("run", "app.py:book", "--no-progress", "--events", "-", "--events", "file:told.jsonl", cwd=here)
    assert answer.code == 1, answer.err
    rest = python("events", "--deliver", "-", cwd=here)  # on a busy machine something may be left
    python("events", "--deliver", "file:told.jsonl", cwd=here)
    for text in (answer.out + rest.out, (here / "told.jsonl").read_text()):
        told = {line for line in text.splitlines() if '"type":"dev.holdfast.item.dead"' in line}
        assert len(told) == 2
