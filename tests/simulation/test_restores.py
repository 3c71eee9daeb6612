"""A store that is set back while processes work: a restored copy, or a standby that lacks the last writes.

What was acknowledged since the copy is gone, and no store can know it. But whoever held a chunk before cannot get its
work booked to the one who was granted the same fence again.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import lease, settle
from holdfast.core.model import Claim, CommitRefusal, Receipt
from holdfast.stores.base import Store
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import Kit, done
from holdfast.testing.replay import Violation
from holdfast.testing.simulator import simulate_restores
from holdfast.testing.simulator.restores import copy_of, set_back
from tests.simulation.conftest import seeds_of_this_commit

WORLDS = 1_500
LOST = [Receipt(landed=False, reason=CommitRefusal.LOST)]


@pytest.mark.promise("C3", "C8", "C13")
@pytest.mark.parametrize("first", [0, "of this commit"])
def test_no_commit_is_booked_to_another_owner_after_a_restore(first: int | str, tally: Callable[..., None]) -> None:
    start = first if isinstance(first, int) else seeds_of_this_commit()
    total: Counter[str] = Counter()
    for seed in range(start, start + WORLDS):
        try:
            total += simulate_restores(seed).counts
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert total["restores"] > WORLDS
    assert total["commits refused"] > WORLDS / 3
    tally(worlds=WORLDS, restores=total["restores"])


def only_the_fence(guard: settle.Guard, commit: Any) -> bool:
    return guard.owner is not None and guard.fence == commit.fence


def test_without_the_id_of_the_grant_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle.Guard, "_is_of", only_the_fence)
    with pytest.raises(Violation, match=r"booked to|granted as another"):
        [simulate_restores(seed) for seed in range(500)]


def test_without_it_a_lease_of_another_would_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners have names of their own, so a store that forgets both is needed for it."""
    monkeypatch.setattr(lease, "is_held_by", lambda chunk, held: chunk.fence == held.fence)
    with pytest.raises(Violation, match="renewed a lease of another grant"):
        [simulate_restores(seed) for seed in range(1000)]


# -- real copies --------------------------------------------------------------------------------------------------


class Copies:
    """A store, and a copy of it that takes its place."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.kit = Kit(self.make, folder / "live")
        self.memory: dict[str, Any] = {}

    def make(self, place: Path, *, clock: Callable[[], float], **given: Any) -> Store:
        place.mkdir(exist_ok=True)
        if self.kind == "sqlite":
            return SqliteStore(place / "state.db", clock=clock, **given)
        if self.kind == "bucket":
            return BucketStore(LocalBucket(place / "bucket"), clock=clock, monotonic=clock, **given)
        return MemoryStore(clock=clock, **given)

    def copy(self) -> None:
        if isinstance(self.kit.store, MemoryStore):
            self.memory = copy_of(self.kit.store)
            return
        self.kit.store.close()
        shutil.copytree(self.folder / "live", self.folder / "copy")
        self.kit.store = self.kit.open_again()

    def restore(self) -> None:
        """Put the copy back, in the same place, with the note beside it: as the file of a standby, it does not know
        what it lacks."""
        if isinstance(self.kit.store, MemoryStore):
            set_back(self.kit.store, self.memory)
            return
        self.kit.store.close()
        for file in sorted((self.folder / "live").rglob("*")):
            if file.is_file():
                file.unlink()
        shutil.copytree(self.folder / "copy", self.folder / "live", dirs_exist_ok=True)
        self.kit.store = self.kit.open_again()


@pytest.mark.promise("C3", "C8", "C13")
@pytest.mark.parametrize("kind", ["memory", "sqlite", "bucket"])
def test_a_copy_that_grants_the_same_fence_books_no_commit_to_another(kind: str, tmp_path: Path) -> None:
    copies = Copies(kind, tmp_path)
    kit = copies.kit
    kit.admit(*"ab")
    copies.copy()
    before = kit.claim("ann", 1)
    commit = kit.commit_of(before, [done(kit.load(before)[0])])
    copies.restore()
    after = kit.claim("bob", 1)
    assert after.lease.grant != before.lease.grant
    forced = _with_the_same_numbers(commit, after)
    assert kit.store.commit([forced]) == LOST, "the same chunk, fence and version, but not the same grant"
    assert kit.store.commit([commit]) == LOST
    assert kit.store.renew([_with_the_same_fence(before, after)], 60) == []
    kit.land(after, [done(kit.load(after)[0])], release=True)
    kit.check()
    kit.store.close()


def _with_the_same_numbers(commit: Any, claim: Claim) -> Any:
    return lease.msgspec.structs.replace(
        commit, uid=claim.uid, chunk=claim.lease.chunk, number=claim.number, fence=claim.lease.fence
    )


def _with_the_same_fence(before: Claim, after: Claim) -> Any:
    return lease.msgspec.structs.replace(after.lease, grant=before.lease.grant)
