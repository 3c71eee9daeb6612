"""The last items of a source: admitted while a worker was being told that there are none, they are run all the same."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.model import Claim, ClaimRequest
from holdfast.runtime.engine.control import Control
from holdfast.stores.base import Idle
from holdfast.stores.memory import MemoryStore
from tests.runtime.support import run

PATIENCE = 60.0


class Watched(Control):
    """A control whose `ingested` can be waited for."""

    read = threading.Event()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "ingested" and value:
            self.read.set()


class Dawdling(MemoryStore):
    """Its answer that nothing is pending reaches the worker when the whole source has been read."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def claim(self, want: ClaimRequest) -> Claim | Idle:
        answer = super().claim(want)
        if isinstance(answer, Idle) and not answer.pending and not self.asked.is_set():
            self.asked.set()
            assert Watched.read.wait(PATIENCE)
        return answer


@pytest.mark.promise("P1")
def test_an_old_answer_that_nothing_is_pending_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.engine.session.Control", Watched)
    Watched.read.clear()
    store = Dawdling()
    book = hf.Pipeline("book", store=store)

    @book.stage
    def read(number: int) -> int:
        return number

    def numbers() -> Iterator[int]:
        yield 1
        assert store.asked.wait(PATIENCE)
        yield 2

    report = run(book, numbers())
    assert (report.counts.done, report.state, report.run_again) == (2, "complete", False)


@pytest.mark.promise("P1")
def test_a_batch_that_has_no_items_yet_is_not_at_its_end_before_its_source_was_read() -> None:
    book = hf.Pipeline("book", store="memory:")

    @book.stage
    def read(number: int) -> int:
        return number

    report = run(book, iter(range(3)))
    assert (report.counts.done, report.state) == (3, "complete")
