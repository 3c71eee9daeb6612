"""Commits whose reply is lost: sent again, looked up, and never taken for landed on a guess."""

from collections.abc import Sequence

import pytest

from holdfast.core import sections
from holdfast.core.errors import CommitUnknown
from holdfast.core.journal import GENESIS, Chain, Checkpointed, link
from holdfast.core.limits import SENDS
from holdfast.core.model import LANDED, BatchId, ChunkId, Commit, CommitRefusal, Entry, Receipt
from holdfast.runtime.engine.leases import write
from holdfast.stores.base import random_bytes
from holdfast.stores.memory import MemoryStore

pytestmark = pytest.mark.promise("C12")
LOST = Receipt(landed=False, reason=CommitRefusal.LOST)


class Mute(MemoryStore):
    """Does not reply the first times; some of what it was sent may be in its chains."""

    def __init__(self, *landed: bytes, silent: int = SENDS) -> None:
        super().__init__()
        self.there, self.silent = landed, silent
        self.sent: list[list[bytes]] = []

    def commit(self, commits: Sequence[Commit]) -> list[Receipt]:
        self.sent.append([commit.id for commit in commits])
        if len(self.sent) <= self.silent:
            raise CommitUnknown("no reply")
        return [LANDED if commit.id in self.there else LOST for commit in commits]

    def entries(self, chain: int, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        linked = [
            link(
                GENESIS,
                Chain(bytes(16), 1, chain),
                seq=seq,
                kind="kept",
                at=0.0,
                actor="a",
                fence=1,
                commit_id=name,
                encoded=sections.encode(Checkpointed(), bytes(16), 1, name, random_bytes),
            )
            for seq, name in enumerate(self.there, start=1)
        ]
        return linked[after : after + limit]


def commit(name: bytes) -> Commit:
    return Commit(id=name, chunk=ChunkId(1), batch=BatchId(1), uid=bytes(16), number=1, fence=1, grant=b"g",
                  version=0, kind="checkpoint", body=Checkpointed())  # fmt: skip


def test_silence_is_answered_by_sending_the_same_commits_again() -> None:
    store = Mute(b"b", silent=1)
    assert write(store, [commit(b"a"), commit(b"b")]) == [LOST, LANDED]
    assert store.sent == [[b"a", b"b"]] * 2


def test_a_commit_that_cannot_be_found_is_in_the_end_not_taken_for_landed() -> None:
    store = Mute()
    assert write(store, [commit(b"a")]) == [Receipt(landed=False, reason=CommitRefusal.UNKNOWN)]
    assert store.sent == [[b"a"]] * SENDS


def test_what_landed_is_found_in_its_chain_when_no_reply_ever_comes() -> None:
    store = Mute(b"b")
    receipts = write(store, [commit(b"a"), commit(b"b"), commit(b"c")])
    assert [receipt.landed for receipt in receipts] == [False, True, False]
    assert store.sent == [[b"a", b"b", b"c"]] * SENDS
