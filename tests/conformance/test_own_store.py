"""The example of a store of one's own keeps what its page says: the proofs beside it run here, too."""

from examples.own_store.test_log_store import (
    test_every_check,
    test_every_promise_holds_in_every_world,
    test_it_answers_as_the_memory_store_does,
    test_what_is_killed_is_finished_by_the_next_run,
)

__all__ = [
    "test_every_check",
    "test_every_promise_holds_in_every_world",
    "test_it_answers_as_the_memory_store_does",
    "test_what_is_killed_is_finished_by_the_next_run",
]
