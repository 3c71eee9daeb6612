"""Commits on their way to a store, until it is known what became of each of them."""

import os
from collections.abc import Callable, Sequence

from holdfast.core.errors import CommitUnknown
from holdfast.core.limits import SENDS
from holdfast.core.model import Commit, CommitRefusal
from holdfast.stores.base import LANDED, Receipt, Store, has_landed

UNKNOWN = Receipt(landed=False, reason=CommitRefusal.UNKNOWN)


class Sending:
    """Commits on their way to a store.

    After a lost reply the same commits are sent again: a store takes each once, by its id, and answers for those that
    had landed before. So finished work is not done again because a reply was lost. Where no reply ever comes, the
    chains are looked at in the end, and what is not in them is left as unknown.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._receipts: list[Receipt] = []
        self._sends = 0
        self.left = list(commits)

    def heard(self, receipts: Sequence[Receipt]) -> None:
        """Take the answer of the store: nothing is left to send."""
        self._receipts, self.left = list(receipts), []

    def unheard(self, landed: Callable[[Commit], bool]) -> None:
        """No reply came: send again, some times. Then `landed` looks each commit up without writing anything."""
        self._sends += 1
        if self._sends >= SENDS:
            self.heard([LANDED if landed(commit) else UNKNOWN for commit in self.left])

    def receipts(self) -> list[Receipt]:
        """Return what became of each commit, in the order in which they were given."""
        return self._receipts


def write(store: Store, commits: Sequence[Commit]) -> list[Receipt]:
    """Write commits and return what became of each."""
    sending = Sending(commits)
    while sending.left:
        try:
            sending.heard(store.commit(sending.left))
        except CommitUnknown:
            sending.unheard(lambda commit: has_landed(store, commit))
    return sending.receipts()


def new_commit_id() -> bytes:
    return os.urandom(16)
