"""A run that has nothing to claim hears that others have written, and does not wait until it would have asked again."""

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.course import to_note
from holdfast.core.journal import Acted
from holdfast.core.model import BatchId, Claim, ClaimRequest
from holdfast.core.settle import NOTHING, commit
from holdfast.runtime.acts import Actor
from holdfast.runtime.engine import session
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.exchange import Rules, Wait
from holdfast.runtime.operate import operations
from holdfast.stores import owners
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import holder_of
from tests.runtime.support import run

NEVER = 3600.0
"""Seconds before the run would ask again by itself: no test takes that long."""


@pytest.fixture(autouse=True)
def _asks_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Rules", partial(Rules, idle_seconds=NEVER, look_seconds=NEVER))


def words(folder: Path) -> hf.Pipeline:
    made = hf.Pipeline("words", store=folder / "state.db")

    @made.stage
    def shout(word: str) -> str:
        return word.upper()

    return made


def hold(folder: Path) -> Callable[[], None]:
    """Let a word be pending and held, as it were by another process; returns how it is given back."""
    other, owner = SqliteStore(folder / "state.db"), owners.new_owner()
    made = words(folder)
    assert run(made, ["word"], batch="b").is_complete
    operations.reset(made.store, made.store.batches("b")[0], Actor(name="ann", reason="again"), "#0", to_stage="shout")
    claim = other.claim(ClaimRequest(batch=BatchId(1), owner=owner, limit=1, seconds=NEVER))
    assert isinstance(claim, Claim)

    def give_back() -> None:
        held = holder_of(claim, 0, NEVER)
        (receipt,) = other.commit([commit(held, NOTHING, commit_id=b"back".ljust(16), release=True)])
        assert receipt.landed
        other.close()

    return give_back


def listening(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what is set once a run listens for others."""
    waits, wait = threading.Event(), Desk._wait

    def noted(desk: Desk) -> Wait:
        found = wait(desk)
        if found.for_others:
            waits.set()
        return found

    monkeypatch.setattr(Desk, "_wait", noted)
    return waits


def test_an_idle_run_takes_up_what_another_process_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_back, waits = hold(tmp_path), listening(monkeypatch)
    other = threading.Thread(target=lambda: (waits.wait(), give_back()))
    other.start()
    assert run(words(tmp_path), batch="b").is_complete
    other.join()


def test_what_is_given_back_between_the_question_and_the_wait_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_back, claim, waits, told = [hold(tmp_path)], SqliteStore.claim, listening(monkeypatch), threading.Event()

    def answered(store: SqliteStore, want: ClaimRequest) -> Any:
        answer = claim(store, want)
        if told.is_set() and give_back and not isinstance(answer, Claim):
            give_back.pop()()
        return answer

    def tell() -> None:
        waits.wait()
        with contextlib.closing(SqliteStore(tmp_path / "state.db")) as other:
            told.set()
            other.amend(BatchId(1), to_note("warned", Acted(reason="so")), actor="bob")

    monkeypatch.setattr(SqliteStore, "claim", answered)
    beside = threading.Thread(target=tell)
    beside.start()
    assert run(words(tmp_path), batch="b").is_complete
    beside.join()


def test_an_idle_run_ends_when_another_process_has_settled_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_back, waits = hold(tmp_path), listening(monkeypatch)

    def finish() -> None:
        waits.wait()
        give_back()
        run(words(tmp_path), batch="b")

    other = threading.Thread(target=finish)
    other.start()
    assert run(words(tmp_path), batch="b").is_complete
    other.join()
