"""One decision of the bucket store removed at a time: each broken version is noticed by a test of this folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core import lease
from holdfast.stores.bucket import cache as bucket_cache
from holdfast.stores.bucket import store as bucket
from holdfast.stores.bucket.cache import ChunkCache
from holdfast.stores.bucket.cas import DocumentStore
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.testing.conformance import checks
from holdfast.testing.conformance.kit import Kit
from tests.buckets import test_store, test_time
from tests.buckets.worker import store_on

Break = Callable[[pytest.MonkeyPatch], None]


def kit_on(shared: MemoryBucket, place: Path) -> Kit:
    return Kit(lambda place, clock, is_dead, draw: store_on(shared, clock, is_dead=is_dead), place)


def suite(name: str) -> Callable[[Path], None]:
    check = next(check for check in checks() if check.__name__ == name)
    return lambda place: check(kit_on(MemoryBucket(), place))


def story(test: Callable[[Kit, MemoryBucket], None]) -> Callable[[Path], None]:
    def tell(place: Path) -> None:
        shared = MemoryBucket()
        test(kit_on(shared, place), shared)

    return tell


def unfenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bucket, "_is_guarded", lambda held, commit: held.document.chunk.owner is not None)


def fence_not_raised(patch: pytest.MonkeyPatch) -> None:
    real = lease.grant

    def grant(chunk: Any, *args: Any, **facts: Any) -> Any:
        given = real(chunk, *args, **facts)
        return msgspec.structs.replace(given, chunk=msgspec.structs.replace(given.chunk, fence=max(1, chunk.fence)))

    patch.setattr(lease, "grant", grant)


def no_revision(patch: pytest.MonkeyPatch) -> None:
    """Neither a revision nor a write id: the same state has the same bytes, and the same etag."""
    patch.setattr(DocumentStore, "_written", lambda self, document, before: document)


def wall_clock(patch: pytest.MonkeyPatch) -> None:
    """The time that an owner wrote down is believed."""

    def may_claim(self: Any, seen: Any, now: float, *, is_dead: bool = False) -> bool:
        return lease.may_claim(seen.chunk, now=now, owner_is_dead=is_dead)

    patch.setattr(ChunkCache, "may_claim", may_claim)


def every_write_is_a_beat(patch: pytest.MonkeyPatch) -> None:
    """Whoever touches the document lengthens the lease of its owner."""
    real = bucket_cache.ChunkCache.saw

    def saw(self: Any, held: Any) -> None:
        document = msgspec.structs.replace(held.document, beat=held.document.revision)
        real(self, msgspec.structs.replace(held, document=document))

    patch.setattr(bucket_cache.ChunkCache, "saw", saw)


def garbage_is_real(patch: pytest.MonkeyPatch) -> None:
    """Every document of a chunk counts, whether or not anything leads to it."""

    def sweep(self: Any, held: Any, *_: Any) -> Any:
        batch = held.document.batch.id
        for listed in self._documents.names(bucket_cache.names.chunks(batch)):
            self.fresh(batch, bucket_cache.names.number_in(listed.name))
        return sorted((seen for (at, _), seen in self._seen.items() if at == batch), key=lambda seen: seen.chunk.lo)

    patch.setattr(bucket_cache.ChunkCache, "sweep", sweep)


def seal_without_marks(patch: pytest.MonkeyPatch) -> None:
    """The batch is sealed, its chunks do not know."""
    patch.setattr(ChunkCache, "mark", lambda self, seen, word: seen.chunk)


def an_act_is_no_sign_of_life(place: Path) -> None:
    """An operator redrives a dead letter while the lease of the owner runs out."""
    from holdfast.testing.conformance.kit import LEASE, failed, redrive

    kit = kit_on(MemoryBucket(), place)
    kit.admit("a", "b")
    claim = kit.claim("ann")
    kit.land(claim, [failed(kit.load(claim)[0], transient=False)])
    kit.clock.advance(LEASE - 1)
    kit.act("redriven", redrive(0, kit.place(0)))
    kit.clock.advance(2)
    kit.claim("bob")


CASES: list[tuple[Break, Callable[[Path], None]]] = [
    (unfenced, suite("a_stale_fence_cannot_commit")),
    (fence_not_raised, suite("the_fence_grows_over_release_expiry_and_death")),
    (no_revision,
     story(test_store.test_the_same_state_written_twice_has_two_marks_so_that_a_stale_writer_stays_out)),
    (wall_clock, lambda place: test_time.test_who_renews_is_never_taken_over(test_time.HOUR)),
    (every_write_is_a_beat, an_act_is_no_sign_of_life),
    (garbage_is_real, story(test_store.test_a_claim_that_lost_its_race_leaves_nothing_that_can_be_seen)),
    (seal_without_marks, story(test_store.test_an_act_between_two_steps_of_a_seal_stops_it)),
]  # fmt: skip


@pytest.mark.promise("C1", "C3", "C4", "C8", "A14")
@pytest.mark.parametrize(("broken", "tell"), CASES, ids=[broken.__name__ for broken, _ in CASES])
def test_a_broken_version_is_noticed(
    broken: Break, tell: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(tmp_path)
    broken(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        tell(tmp_path)
