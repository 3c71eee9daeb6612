"""The root of a bucket store: made after the bucket has shown that it can compare and swap; it holds names and epoch.

A bucket that ignores conditions would let two owners write over each other, so before the first document is written a
probe is: created twice, and replaced under an old mark. Both must be refused. That happens once for each store. What
was written stays, some 30 bytes: credentials need not be allowed to delete anything.
"""

import secrets
import time
from collections.abc import Callable

import msgspec

from holdfast.core.errors import StoreUnavailable, StoreUnusable
from holdfast.stores.bucket import names
from holdfast.stores.bucket.documents import Root
from holdfast.stores.bucket.shelf import Held, Raced, Shelf
from holdfast.stores.buckets.base import Bucket, WriteLost, WriteUnknown

BEGINNING = 1_704_067_200_000_000
"""When time begins: 2024, in microseconds."""
LEAP = 1 << 40
"""Where the clock was set back, an epoch starts so much higher than the last."""
TURNS = 8


def open_root(shelf: Shelf) -> Held[Root]:
    """The root, made if it is missing. A store that was copied from elsewhere begins a new epoch: the fences of its
    chunks could otherwise be given out twice."""
    for _ in range(TURNS):
        held = shelf.read(Root, names.ROOT)
        if held is None:
            probe(shelf.bucket)
            held = shelf.create(names.ROOT, Root(url=shelf.bucket.url))
        if held is None:
            continue
        if held.document.url == shelf.bucket.url:
            shelf.epoch = held.document.epoch
            return held
        shelf.epoch = _after(held.document.epoch)
        try:
            return shelf.swap(held, msgspec.structs.replace(held.document, url=shelf.bucket.url))
        except Raced:
            continue
    raise StoreUnavailable(f"{shelf.bucket.url}: others keep changing it; try again later")


def is_there(bucket: Bucket) -> bool:
    """Whether a store is in the bucket; nothing is made."""
    return Shelf(bucket).read(Root, names.ROOT) is not None


def probe(bucket: Bucket) -> None:
    """Refuse a bucket that takes a write which it should have refused."""
    name = names.probe(secrets.token_hex(8))
    try:
        first = bucket.create(name, b'{"holdfast": "probe", "number": 1}')
        is_exclusive = _is_refused(lambda: bucket.create(name, b'{"holdfast": "probe", "number": 2}'))
        found = bucket.get(name)
        bucket.replace(name, b'{"holdfast": "probe", "number": 3}', found.mark if found is not None else first)
        is_compared = _is_refused(lambda: bucket.replace(name, b'{"holdfast": "probe", "number": 4}', first))
    except (WriteLost, WriteUnknown) as error:
        raise StoreUnavailable(f"{bucket.url} does not answer the first writes: {error}") from None
    if not (is_exclusive and is_compared):
        raise StoreUnusable(
            f"{bucket.url} cannot hold a store: it takes conditional writes without looking at their condition, so two "
            "owners could write over each other; use another bucket, or a database"
        )


def _is_refused(write: Callable[[], object]) -> bool:
    try:
        write()
    except WriteLost:
        return True
    return False


def _after(epoch: int) -> int:
    """A least fence that is higher than all fences of an epoch."""
    now = time.time_ns() // 1000 - BEGINNING
    return now if now > epoch else epoch + LEAP
