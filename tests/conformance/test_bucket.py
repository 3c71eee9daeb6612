"""The bucket store passes the suite that every store passes, but for what it says it cannot do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.base import Bucket
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.testing.conformance import conformance

WITHOUT = ("budget", "events")
_in_memory: dict[Path, MemoryBucket] = {}


def on(bucket: Bucket, clock: Callable[[], float], **given: Any) -> BucketStore:
    """A store whose process sees time pass as the check says."""
    return BucketStore(bucket, clock=clock, monotonic=clock, **given)


def in_memory(place: Path, **given: Any) -> BucketStore:
    return on(_in_memory.setdefault(place, MemoryBucket()), **given)


def in_a_directory(place: Path, **given: Any) -> BucketStore:
    return on(LocalBucket(place / "bucket"), **given)


test_bucket_in_memory = conformance(in_memory, without=WITHOUT, mark=pytest.mark.promise)
test_bucket_in_a_directory = conformance(in_a_directory, without=WITHOUT, mark=pytest.mark.promise)
