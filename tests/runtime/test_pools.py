"""The threads that take assignments."""

import threading
from typing import Any

from holdfast.runtime.engine.assignment import Assignment
from holdfast.runtime.engine.pools import Finished, Threads


class Hanging:
    """A stage whose handler hangs until it is let go, and tells on which thread it was."""

    def __init__(self) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()
        self.thread = threading.current_thread()

    def run(self, work: Assignment) -> None:
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.ends.wait(60)


def test_threads_that_were_given_up_and_have_ended_are_forgotten() -> None:
    pool = Threads(1, Finished(), leave=lambda: None)
    for _ in range(5):
        stage: Any = Hanging()
        work = Assignment(0, [], 1, 0.0, None)
        pool.submit(stage, work)
        assert stage.begun.wait(60)
        pool.abandon(work)
        stage.ends.set()
        stage.thread.join(60)
    assert len(pool._threads) == 1
    pool.close()
