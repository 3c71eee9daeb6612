"""Replies that are lost, late or doubled: nothing is lost, and nothing counts twice."""

import pytest

from holdfast.core.errors import CommitUnknown
from holdfast.core.model import Claim, State
from holdfast.stores.base import has_landed
from holdfast.stores.bucket import cas as bucket_cas
from holdfast.stores.buckets.memory import Fate, MemoryBucket
from holdfast.testing.conformance.kit import Kit, done
from tests.buckets.worker import Worker, store_on

KEYS = ("a", "b", "c", "d", "e")


class Once:
    """Some writes in a row meet another fate, all others go well."""

    def __init__(self, first: int, count: int, fate: Fate) -> None:
        self.first, self.count, self.fate, self.seen = first, count, fate, 0

    def __call__(self, verb: str, name: str) -> Fate:
        self.seen += 1
        return self.fate if self.first <= self.seen < self.first + self.count else Fate.PLAIN


def live(bucket: MemoryBucket) -> Worker:
    worker = Worker(bucket)
    worker.admit(*KEYS)
    worker.work()
    bucket.deliver()
    worker.work()
    worker.seal()
    bucket.deliver()
    return worker


def check(worker: Worker) -> None:
    story = worker.check()
    assert [row.place.state for row in worker.store.items(worker.batch)] == [State.DONE] * len(KEYS)
    assert set(story.advanced.values()) == {1}
    (batch,) = worker.store.batches("book")
    assert batch.sealed_at is not None


def writes_of_a_life() -> int:
    counted = Once(0, 0, Fate.PLAIN)
    check(live(MemoryBucket(fate=counted)))
    return counted.seen


WRITES = writes_of_a_life()


@pytest.mark.promise("C9", "C12", "B7", "P8")
@pytest.mark.parametrize("count", [1, bucket_cas.TRIES])
@pytest.mark.parametrize("fate", [Fate.LOST_REQUEST, Fate.LOST_REPLY, Fate.LATE, Fate.TWICE, Fate.REFUSED])
def test_whatever_becomes_of_any_write_the_story_is_the_same(fate: Fate, count: int) -> None:
    """Every write of a whole life in turn; with `count`, as many in a row as are tried before it stays unknown. The
    probe comes first and is left alone: who meets trouble there opens the store again."""
    for first in range(3, WRITES + 1):
        check(live(MemoryBucket(fate=Once(first, count, fate))))


@pytest.mark.promise("C12")
@pytest.mark.catches("no read-back")
def test_without_reading_back_a_stored_write_is_taken_for_a_lost_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an SDK that sends twice makes of it: shown to be caught by the story above."""

    def blind(
        self: bucket_cas.DocumentStore, held: bucket_cas.HeldDocument, document: object, landed: object = None
    ) -> object:  # type: ignore[type-arg]
        made = self._written(document, held.document)  # type: ignore[type-var]
        try:
            mark = self.bucket.replace(held.name, bucket_cas.encode(made), held.mark)  # type: ignore[arg-type]
        except bucket_cas.WriteLost:
            raise bucket_cas.Raced from None
        return bucket_cas.HeldDocument(held.name, made, mark)

    monkeypatch.setattr(bucket_cas.DocumentStore, "swap", blind)
    wrong = 0
    for first in range(3, WRITES + 1):
        try:
            check(live(MemoryBucket(fate=Once(first, 1, Fate.TWICE))))
        except (AssertionError, Exception):  # noqa: BLE001 - any complaint will do
            wrong += 1
    assert wrong


@pytest.mark.promise("C12", "C10")
def test_a_commit_that_landed_and_was_followed_by_a_takeover_is_known_to_have_landed() -> None:
    bucket = MemoryBucket()
    kit = Kit(lambda place, clock, is_dead, draw: store_on(bucket, clock), None)  # type: ignore[arg-type]
    kit.admit("a")
    claim = kit.claim("ann")
    written = kit.commit_of(claim, [done(kit.load(claim)[0])])
    other = store_on(bucket, kit.clock, is_dead=lambda owner: owner == "ann")

    taken: list[object] = []
    read = bucket.get

    def lose(verb: str, name: str) -> Fate:
        return Fate.LOST_REPLY if verb == "replace" and not taken else Fate.PLAIN

    def take_over_first(name: str) -> object:
        """Before anybody reads back, the chunk has another owner."""
        bucket.get = read  # type: ignore[method-assign]
        taken.append(None)
        taken[0] = other.claim(kit.want("bob"))
        return read(name)

    bucket.fate, bucket.get = lose, take_over_first  # type: ignore[assignment, method-assign]
    assert [receipt.landed for receipt in kit.store.commit([written])] == [True]
    assert isinstance(taken[0], Claim)
    kit.check()


@pytest.mark.promise("C9")
def test_what_stays_unknown_is_said_to_be_unknown_and_lands_once() -> None:
    bucket = MemoryBucket()
    kit = Kit(lambda place, clock, is_dead, draw: store_on(bucket, clock), None)  # type: ignore[arg-type]
    kit.admit("a")
    claim = kit.claim("ann")
    written = kit.commit_of(claim, [done(kit.load(claim)[0])])
    bucket.fate = lambda verb, name: Fate.LATE if verb == "replace" else Fate.PLAIN
    with pytest.raises(CommitUnknown):
        kit.store.commit([written])
    assert not has_landed(kit.store, written)
    bucket.fate = None
    assert bucket.deliver() == 1
    assert has_landed(kit.store, written)
    assert [receipt.landed for receipt in kit.store.commit([written])] == [True]
    assert [chunk.version for chunk in kit.store.chunks(kit.batch)] == [1]
    kit.check()
