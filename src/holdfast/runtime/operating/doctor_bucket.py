"""What the promises of a store in a bucket rest on, checked: library, reach, credentials, documents, leases."""

import shlex
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.runtime.operating.doctor import Check, Diagnosis, Level, check_clock, check_leases
from holdfast.runtime.words import many
from holdfast.stores.base import Store
from holdfast.stores.bucket import BucketStore
from holdfast.stores.bucket import root as bucket_root
from holdfast.stores.buckets.base import Bucket
from holdfast.stores.buckets.local import LocalBucket, open_to_others
from holdfast.stores.open import bucket_at


def examine(url: str, *, wall: Callable[[], float] = time.time) -> Diagnosis:
    """Check a bucket and the store in it. Nothing is changed: no store is made, and the probe is not repeated."""
    bucket = bucket_at(url)
    checks = [_library(url), *_permissions(bucket), *check_clock(wall), *_look(bucket, wall)]
    return Diagnosis(store=bucket.url, checks=tuple(checks))


def _library(url: str) -> Check:
    if url.startswith("file:"):
        message = "a directory, with compare-and-swap by link and rename; for processes on one host"
        return Check(name="bucket", level=Level.OK, message=message)
    return Check(name="bucket", level=Level.OK, message=f"obstore {metadata.version('obstore')}")


def _permissions(bucket: Bucket) -> Iterator[Check]:
    """Of a directory, whether others on the host may read what is in it."""
    if not isinstance(bucket, LocalBucket):
        return
    folder = bucket.url.removeprefix("file://")
    wide = open_to_others(Path(folder))
    if not wide:
        yield Check(name="permissions", level=Level.OK, message="only its user may read and write it")
        return
    message = f"others on this host may look into it: into {wide}, for example"
    advice = f"payloads and outputs are in it: chmod -R go= {shlex.quote(folder)}"
    yield Check(name="permissions", level=Level.WARN, message=message, advice=advice)


def _look(bucket: Bucket, wall: Callable[[], float]) -> Iterator[Check]:
    try:
        if not bucket_root.is_there(bucket):
            message = f"{bucket.url} can be read, and there is no store in it yet; the first run makes it"
            yield Check(name="store", level=Level.OK, message=message)
            return
        store = BucketStore(bucket)
    except HoldfastError as error:  # it says what to do
        yield Check(name="store", level=Level.UNSAFE, message=str(error))
        return
    yield from _look_inside(store, wall)


def _look_inside(store: Store, wall: Callable[[], float]) -> Iterator[Check]:
    try:
        batches = store.batches()
        chunks = [chunk for batch in batches for chunk in store.chunks(batch.id)]
        message = f"{len(batches):,} batches in {many(len(chunks), 'chunk')}; every document could be read"
        yield Check(name="store", level=Level.OK, message=message)
        message = "compare-and-swap was tried when the store was made; no budget, no events, no window on it"
        yield Check(name="capabilities", level=Level.OK, message=message)
        yield check_leases(store, chunks, wall())
    except HoldfastError as error:
        yield Check(name="store", level=Level.UNSAFE, message=str(error))
    finally:
        store.close()
