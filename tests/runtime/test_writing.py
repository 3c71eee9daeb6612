"""Commits whose reply is lost: looked up, sent again, and never taken for landed on a guess."""

from collections.abc import Sequence

import pytest

from holdfast.core.errors import CommitUnknown
from holdfast.core.limits import SENDS
from holdfast.core.model import BatchId, ChunkId, Commit
from holdfast.runtime.working.writing import write
from holdfast.stores.base import CommitRefusal, Receipt
from holdfast.stores.memory import MemoryStore

pytestmark = pytest.mark.promise("C12")


class Mute(MemoryStore):
    """Never replies; some of what it was sent may have landed."""

    def __init__(self, *landed: bytes) -> None:
        super().__init__()
        self.there = set(landed)
        self.sent: list[list[bytes]] = []

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        self.sent.append([commit.id for commit in commits])
        raise CommitUnknown("no reply")

    def landed(self, commit: Commit) -> bool:
        return commit.id in self.there


def commit(name: bytes) -> Commit:
    return Commit(id=name, chunk=ChunkId(1), batch=BatchId(1), fence=1, version=0, kind="checkpoint", body=b"")


def test_a_commit_that_cannot_be_found_is_sent_again_and_in_the_end_not_taken_for_landed() -> None:
    store = Mute()
    assert write(store, [commit(b"a")]) == [Receipt(landed=False, reason=CommitRefusal.UNKNOWN)]
    assert store.sent == [[b"a"]] * SENDS


def test_what_landed_is_known_and_only_the_rest_is_sent_again() -> None:
    store = Mute(b"b")
    receipts = write(store, [commit(b"a"), commit(b"b"), commit(b"c")])
    assert [receipt.landed for receipt in receipts] == [False, True, False]
    assert store.sent == [[b"a", b"b", b"c"], [b"a", b"c"], [b"a", b"c"]]
