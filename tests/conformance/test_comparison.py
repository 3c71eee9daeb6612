"""Stores and the memory store under the same random calls: the same answers, the same journal, byte for byte."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.comparison import comparison

PROMISES = pytest.mark.promise("A1", "B7", "C1", "C3", "C8", "C12", "E12", "P1", "P8")
SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)

Sqlite = comparison(lambda place, **given: SqliteStore(place / "state.db", **given))


@PROMISES
def test_sqlite_answers_as_the_memory_store_does() -> None:
    run_state_machine_as_test(
        Sqlite, settings=settings(SETTINGS, max_examples=200, stateful_step_count=40, derandomize=True)
    )


@PROMISES
@pytest.mark.slow
def test_sqlite_answers_as_the_memory_store_does_in_long_stories() -> None:
    run_state_machine_as_test(Sqlite, settings=settings(SETTINGS, max_examples=500, stateful_step_count=60))


Bucket = comparison(
    lambda place, clock, **given: BucketStore(MemoryBucket(), clock=clock, monotonic=clock, at_once=1, **given)
)
Directory = comparison(
    lambda place, clock, **given: BucketStore(LocalBucket(place), clock=clock, monotonic=clock, at_once=1, **given)
)


@PROMISES
def test_a_bucket_answers_as_the_memory_store_does() -> None:
    run_state_machine_as_test(
        Bucket, settings=settings(SETTINGS, max_examples=40, stateful_step_count=40, derandomize=True)
    )


@PROMISES
@pytest.mark.slow
def test_a_bucket_answers_as_the_memory_store_does_in_long_stories() -> None:
    run_state_machine_as_test(Bucket, settings=settings(SETTINGS, max_examples=40, stateful_step_count=60))


@PROMISES
@pytest.mark.slow
def test_a_directory_answers_as_the_memory_store_does() -> None:
    run_state_machine_as_test(Directory, settings=settings(SETTINGS, max_examples=6, stateful_step_count=40))
