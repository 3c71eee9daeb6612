"""A run that others overtake: what they say of its batch while it is at work on the last items counts at its end."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import Refused
from holdfast.core.model import Batch
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.journal import forward
from holdfast.runtime.operate import operations
from holdfast.runtime.report import lifecycle
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from tests.runtime.support import run, run_until_all_wait

PATIENCE = 60.0


class Letters:
    """A pipeline whose first item is put off once; while it is handled again, something happens."""

    def __init__(self, store: Any) -> None:
        self.pipeline = hf.Pipeline("letters", store=store)
        self.meanwhile: Callable[[], object] | None = None
        self.tries, self.wait = 0, 0.001
        self.pipeline.stage(name="bind")(self._bind)

    def _bind(self, number: int) -> int:
        if number == 1:
            self.tries += 1
            if self.tries == 1:
                raise hf.Defer(self.wait, "later")
            assert self.meanwhile is not None
            self.meanwhile()
        return number

    def ends(self) -> int:
        """How often its end was put on record."""
        batch = lookup.batch_named(self.pipeline.store, "letters")
        return sum(1 for _ in forward(self.pipeline.store, batch, "reconciled"))


@pytest.fixture(params=["state.db", "memory"])
def letters(request: pytest.FixtureRequest, tmp_path: Path) -> Letters:
    return Letters(tmp_path / "state.db" if request.param == "state.db" else MemoryStore())


def the_last_message_comes(letters: Letters) -> None:
    letters.pipeline.expect("letters", 2)
    letters.meanwhile = lambda: letters.pipeline.process(2)


def a_person_closes_it(letters: Letters) -> None:
    letters.meanwhile = lambda: letters.pipeline.close(reason="there are no more")


@pytest.mark.promise("A14", "A15")
@pytest.mark.parametrize("story", [the_last_message_comes, a_person_closes_it])
def test_a_run_without_a_source_tells_an_end_that_came_while_it_was_at_work(
    letters: Letters, story: Callable[[Letters], None]
) -> None:
    assert letters.pipeline.process(1).run_again
    story(letters)
    report = run(letters.pipeline)
    assert (report.state, report.exit_code, letters.ends()) == ("complete", 0, 1)


@pytest.mark.promise("A14", "A15")
def test_a_run_that_is_refused_further_items_tells_the_end_of_those_that_came(letters: Letters) -> None:
    is_closed = threading.Event()

    def close() -> None:
        letters.pipeline.close(reason="there are no more")
        is_closed.set()

    def source() -> Iterator[int]:
        yield 1
        assert is_closed.wait(PATIENCE)
        yield 2

    letters.meanwhile = close
    with pytest.raises(Refused, match="was closed"):
        run(letters.pipeline, source())
    assert (letters.pipeline.report().state, letters.ends()) == ("complete", 1)


@pytest.mark.promise("A14")
def test_a_source_that_was_not_read_to_its_end_is_no_end_where_nobody_says_how_many_there_are(letters: Letters) -> None:
    def source() -> Iterator[int]:
        yield 2
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="the line is dead"):
        run(letters.pipeline, source())
    assert (letters.pipeline.report().state, letters.ends()) == ("open", 0)


@pytest.mark.promise("A14")
def test_what_others_finish_after_a_run_has_looked_is_compared_before_it_is_told_as_complete(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[hf.Report] = []
    letters.pipeline.after(told.append)
    note_halt = lifecycle.note_halt

    def others_finish(store: Store, batch: Batch, reason: str, **more: Any) -> None:
        note_halt(store, batch, reason, **more)
        letters.meanwhile = lambda: None
        operations.reset(store, batch, Actor(name="ann", reason="at once"), "1")
        assert letters.pipeline.process(1).state == "done"

    monkeypatch.setattr(lifecycle, "note_halt", others_finish)
    letters.wait = 3600.0
    report = run_until_all_wait(letters.pipeline, [1])
    assert (report.state, letters.ends(), [each.state for each in told]) == ("complete", 1, ["complete"])
    assert report.reconciliation is not None
