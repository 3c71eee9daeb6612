"""Commands that change something: they show what they would do, and do it only when a person agrees."""

from pathlib import Path

import pytest

from holdfast.runtime.report import why
from tests.cli.conftest import Command, at_a_terminal
from tests.operations.world import World

ACTS = {
    "redrive": ["dead", "redrive", "moby-dick", "bad"],
    "redrive all": ["dead", "redrive", "moby-dick", "--all"],
    "discard": ["dead", "discard", "moby-dick", "--code", "http_404"],
    "resolve": ["dead", "resolve", "moby-dick", "bad", "--output", '{"text": "by hand"}'],
    "reset an item": ["reset", "moby-dick", "fine"],
    "reset a batch": ["reset", "moby-dick", "--to-stage", "correct"],
}


def everything(world: World) -> list[tuple[int, int]]:
    """The journal's length: nothing changes without an entry."""
    return [(chunk.id, chunk.seq) for chunk in world.store.chunks(world.id)]


@pytest.mark.parametrize("act", ACTS)
def test_without_a_terminal_and_without_yes_nothing_is_changed(world: World, holdfast: Command, act: str) -> None:
    before = everything(world)
    for more in ([], ["--reason", "because"], ["--yes"], ["--json"], ["--yes", "--reason", " "]):
        answer = holdfast(*ACTS[act], *more)
        assert answer.code == 2
        assert "nothing was changed" in answer.err
    assert everything(world) == before


@pytest.mark.parametrize("act", ACTS)
def test_a_dry_run_shows_and_changes_nothing(world: World, holdfast: Command, act: str) -> None:
    before = everything(world)
    assert "would" in holdfast(*ACTS[act], "--dry-run").out
    assert holdfast(*ACTS[act], "--dry-run", "--json").document["batch"] == "moby-dick"
    assert everything(world) == before


@pytest.mark.promise("E12")
@pytest.mark.parametrize("act", ACTS)
def test_with_yes_and_reason_it_is_done_and_doing_it_again_does_no_harm(
    world: World, holdfast: Command, act: str
) -> None:
    args = [*ACTS[act], "--yes", "--reason", "because", "--actor", "ada", "--json"]
    first = holdfast(*args)
    assert first.code == 0
    assert first.document["changed"] > 0
    after = everything(world)
    again = holdfast(*args)
    assert (again.code, again.document["changed"]) == (0, 0)
    assert everything(world) == after
    assert holdfast("audit", "verify").code == 0


def test_actor_and_reason_are_in_the_story(world: World, holdfast: Command) -> None:
    holdfast(*ACTS["redrive"], "--yes", "--reason", "the provider is back")
    last = why.tell(world.store, world.batch, "bad").events[-1]
    assert last.facts["reason"] == "the provider is back"
    assert "@" in last.facts["actor"]


def test_say_which_dead_letters(world: World, holdfast: Command) -> None:
    assert "--all" in holdfast("dead", "redrive", "moby-dick").err
    assert holdfast("dead", "redrive", "moby-dick", "bad", "--all", "--yes", "--reason", "x").code == 2


def test_nothing_to_do_is_no_error(world: World, holdfast: Command) -> None:
    answer = holdfast("dead", "redrive", "moby-dick", "fine")
    assert answer.code == 0
    assert "left alone: 1 (done, not dead)" in answer.out


@pytest.mark.parametrize("more", [["--dry-run"], ["--yes", "--reason", "x"]])
def test_to_resolve_what_is_not_dead_is_refused(world: World, holdfast: Command, more: list[str]) -> None:
    answer = holdfast("dead", "resolve", "moby-dick", "fine", "--output", "1", *more)
    assert answer.code == 2
    assert "item 'fine' of batch 'moby-dick' is done, not dead; nothing was changed" in answer.err
    assert "dead letters" not in answer.out


def test_an_act_on_no_dead_letter_does_not_say_that_any_are_settled(world: World, holdfast: Command) -> None:
    shown = holdfast("dead", "redrive", "moby-dick", "fine", "rest", "--dry-run").out
    assert shown == "Nothing to redrive: fine is done, rest is pending, of moby-dick.\n"


def test_an_output_from_a_file(world: World, holdfast: Command, here: Path) -> None:
    (here / "answer.json").write_text('{"text": "from a file"}')
    base = ["dead", "resolve", "moby-dick", "bad", "--yes", "--reason", "looked it up"]
    assert holdfast(*base, "--output", "@nope.json").code == 2
    assert holdfast(*base, "--output", "{no json").code == 2
    assert holdfast(*base, "--output", "@answer.json").code == 0
    assert holdfast("show", "moby-dick", "bad", "--json").document["outputs"]["correct"]["output"] == {
        "text": "from a file"
    }


def test_at_a_terminal_it_shows_asks_and_does_it(world: World, here: Path) -> None:
    before = everything(world)
    code, said = at_a_terminal(ACTS["reset an item"], here, answers=[("why?", "a test\n"), ("[y/N]", "y\n")])
    assert code == 0, said
    assert "would begin again at 'ocr'" in said
    assert "cost $0.25" in said
    assert everything(world) != before


def test_at_a_terminal_no_means_no(world: World, here: Path) -> None:
    before = everything(world)
    code, said = at_a_terminal([*ACTS["discard"], "--reason", "x"], here, answers=[("[y/N]", "n\n")])
    assert (code, "Nothing was changed." in said) == (1, True)
    assert everything(world) == before


@pytest.mark.parametrize("said", [["pause", "--dry-run"], ["reopen", "--dry-run"]])
def test_what_a_command_does_not_ask_is_no_option_of_it(world: World, holdfast: Command, said: list[str]) -> None:
    answer = holdfast(*said, "moby-dick", "--reason", "because")
    assert answer.code == 2
    assert f"No such option: {said[1]}" in answer.err
