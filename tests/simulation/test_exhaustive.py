"""Small worlds in which everything that can happen does happen, and every promise holds in every state."""

import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from holdfast.core.errors import UsageError
from tests.model.exhaustive import Counterexample, Scope, explore
from tests.model.exhaustive.shelf import Shelf
from tests.model.mutants import BY_EXPLORING, BY_SIMULATION, Mutant

EVERYTHING = pytest.mark.promise(
    "A1", "A4", "A7", "B7", "C1", "C3", "C8", "C10", "C11", "C12", "C13", "E12", "P1", "P8"
)
FAILING = ("done", "transient", "permanent", "skip")

QUICK = {
    "two commits on their way": Scope(stages=1, letters=2),
    "every outcome of a stage": Scope(stages=1, letters=1, fates=FAILING, attempts=2),
    "paused and stopped": Scope(stages=1, letters=1, acts=("pause", "stop"), act_count=2),
}
WHOLE = {
    "two stages": Scope(stages=2, letters=2),
    "two items": Scope(items=2, stages=1, letters=1),
    "an operator": Scope(stages=1, letters=1, fates=("done", "permanent"), acts=("redrive", "reset!", "cancel")),
    "sealed and reopened": Scope(stages=1, letters=1, acts=("seal", "reopen", "reset"), act_count=2),
    "sent on its way twice": Scope(stages=1, letters=1, acts=("requeue!",), act_count=2),
    "leaving early": Scope(stages=1, letters=1, fates=("done", "transient"), attempts=2, lets_go=True),
}
AT_FIRST = {
    "two items and two stages": Scope(items=2, letters=2, fates=("done", "lost")),
    "three items, cut, and an operator": Scope(items=3, limit=2, fates=("done", "permanent"), acts=("reset", "reset!")),
}
"""Too large to be seen to their end; all that can happen in the first moves is."""


@EVERYTHING
@pytest.mark.parametrize("name", QUICK)
def test_every_state_keeps_every_promise(name: str, tally: Callable[..., None]) -> None:
    see_all(QUICK[name], tally)


@EVERYTHING
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WHOLE)
def test_every_state_of_larger_worlds_keeps_every_promise(name: str, tally: Callable[..., None]) -> None:
    see_all(WHOLE[name], tally)


@EVERYTHING
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", AT_FIRST)
def test_the_first_moves_of_every_story_keep_every_promise(name: str, tally: Callable[..., None]) -> None:
    seen = explore(AT_FIRST[name], most=100_000)
    assert seen.deepest >= 10
    tally(states=seen.states, moves=seen.moves)


def see_all(scope: Scope, tally: Callable[..., None]) -> None:
    seen = explore(scope)
    assert seen.complete
    assert seen.finished
    tally(states=seen.states, moves=seen.moves)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "scope",
    [
        Scope(stages=1, letters=1, fates=("done", "transient"), attempts=2),
        Scope(stages=1, letters=1, acts=("reset!",)),
        Scope(stages=1, letters=1, acts=("pause", "stop", "seal"), act_count=1),
    ],
)
def test_stores_of_one_kind_have_one_future(scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever store stands for its kind, the first that was met or the latest, the same worlds follow."""
    with_the_first = explore(scope)
    put = Shelf._put

    def put_the_latest(shelf: Shelf) -> int:
        number, store = put(shelf), shelf._store
        shelf.states[number] = msgspec.structs.replace(
            shelf.states[number],
            chunks=store._chunks,
            places=store._places,
            outputs=store._outputs,
            entries=store._entries,
            batches=store._batches,
            events=store._events,
            landed=shelf._landed,
        )
        return number

    monkeypatch.setattr(Shelf, "_put", put_the_latest)
    assert explore(scope) == with_the_first


# -- the search can fail ------------------------------------------------------------------------------------------

ACTS = Scope(letters=1, acts=("reset", "reset!", "cancel", "cancel!"))
FATES = Scope(letters=1, fates=("done", "transient", "permanent", "skip"), attempts=2)
STOPPED = Scope(stages=1, letters=1, acts=("pause", "stop"))
SEALED = Scope(stages=1, letters=1, acts=("cancel", "seal", "pause", "reset"), act_count=2)
REQUEUED = Scope(stages=1, letters=1, acts=("requeue", "requeue!"), act_count=2)
CUT = Scope(items=2, limit=1, stages=1, letters=1)

BROKEN = {
    "unfenced": ("a_commit_is_taken_whatever_its_fence", 7),
    "unversioned": ("a_commit_is_taken_whatever_its_version", 6),
    "acknowledge before commit": ("a_small_worker_goes_on_before_its_commit_is_durable", 4),
    "fence not raised": ("a_grant_does_not_raise_the_fence", 3),
    "no read-back": ("a_small_worker_takes_silence_for_success", 6),
}
"""By the name of a broken version: the mutant, and in how many moves it does harm."""

ALSO = {
    "a_small_worker_reads_the_version_back_and_commits_again": Scope(),
    "a_small_worker_drops_nothing_when_it_is_refused": Scope(),
    "a_commit_that_landed_is_not_remembered": Scope(),
    "a_release_lowers_the_fence": Scope(),
    "a_renewal_changes_nothing": Scope(),
    "deaths_in_company_condemn_an_item": Scope(),
    "outputs_are_written_but_places_are_not": FATES,
    "attempts_are_not_counted": FATES,
    "attempts_are_not_limited": FATES,
    "a_retry_changes_the_totals": FATES,
    "a_skipped_item_is_not_counted": FATES,
    "a_claim_tells_of_no_attempts": FATES,
    "an_act_does_not_look_at_what_it_was_decided_for": ACTS,
    "an_act_does_not_look_at_the_stage": ACTS,
    "an_act_changes_what_is_in_flight": ACTS,
    "seizing_does_not_raise_the_fence": ACTS,
    "a_child_does_not_link_its_parent": CUT,
    "a_paused_batch_is_worked_on": STOPPED,
    "steering_leaves_no_entry": STOPPED,
    "a_cancelled_batch_goes_on": Scope(stages=1, letters=1, acts=("stop", "pause"), act_count=2),
    "a_batch_is_sealed_with_pending_items": SEALED,
    "an_act_is_taken_after_the_seal": SEALED,
    "a_sealed_batch_is_steered": SEALED,
    "the_seal_does_not_cover_the_heads": SEALED,
    "an_item_is_sent_on_its_way_without_fencing_its_owner": REQUEUED,
}


def mutant(name: str) -> Mutant:
    return (BY_EXPLORING | BY_SIMULATION)[name]


def broken(version: str) -> Counterexample:
    with mutant(BROKEN[version][0])(), pytest.raises(Counterexample) as found:
        explore(Scope(), most=30_000)
    return found.value


@EVERYTHING
@pytest.mark.parametrize(
    "version",
    [
        pytest.param("unfenced", marks=pytest.mark.catches("unfenced")),
        pytest.param("unversioned", marks=pytest.mark.catches("unversioned")),
        pytest.param("acknowledge before commit", marks=pytest.mark.catches("acknowledge before commit")),
        pytest.param("fence not raised", marks=pytest.mark.catches("fence not raised")),
        pytest.param("no read-back", marks=pytest.mark.catches("no read-back")),
    ],
)
def test_a_broken_version_does_harm_within_a_few_moves(version: str, tally: Callable[..., None]) -> None:
    assert broken(version).length == BROKEN[version][1]
    tally(mutants=1)


@pytest.mark.parametrize("name", ALSO)
def test_one_decision_removed_is_noticed(name: str, tally: Callable[..., None]) -> None:
    with mutant(name)(), pytest.raises(Counterexample):
        explore(ALSO[name], most=30_000)
    tally(mutants=1)


def test_every_broken_worker_is_noticed() -> None:
    tried = {name for name, _ in BROKEN.values()} | set(ALSO)
    assert {name for name in BY_EXPLORING if "_small_worker_" in name} <= tried


def test_a_batch_that_cannot_come_to_its_end_is_noticed() -> None:
    with (
        mutant("an_expired_lease_is_never_taken")(),
        pytest.raises(Counterexample, match="no item can come to its end"),
    ):
        explore(Scope(stages=1, letters=1))


def test_the_shortest_story_is_told() -> None:
    why, count, *story = str(broken("unfenced")).splitlines()
    assert why == "a commit was taken from an owner whose chunk was granted to somebody else"
    assert count == "after 7 moves:"
    assert story[0] == "   1. ann claims chunk 1, items 0 to 0"
    assert story[-1] == "   7. a commit arrives"
    assert {line.split(". ", 1)[1] for line in story} >= {
        "the lease of chunk 1 expires",
        "bob claims chunk 1, items 0 to 0",
        "ann sends its commit",
    }


def test_a_word_that_means_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="dnoe"):
        Scope(fates=("dnoe",))
    with pytest.raises(UsageError, match="restart"):
        Scope(acts=("restart",))


def test_a_world_can_be_explored_from_the_command_line() -> None:
    command = [sys.executable, "-m", "tests.model.exhaustive", "--stages", "1", "--letters", "1", "--most", "2000"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.startswith("the first 2,00")
