"""Writes commits until it is known what became of each of them."""

from collections.abc import Callable, Sequence

from holdfast.core.errors import CommitUnknown
from holdfast.core.limits import SENDS
from holdfast.core.model import Commit
from holdfast.stores.base import CommitRefusal, Receipt, Store

UNKNOWN = Receipt(landed=False, reason=CommitRefusal.UNKNOWN)


class Sending:
    """Commits on their way to a store: which are still to be sent, and what is known of the others.

    After a lost reply every commit is looked up before it is judged. What did not land is sent again under its own id:
    a store takes it once, however late another copy of it arrives. So finished work is not done again because a reply
    was lost.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._commits = commits
        self._known: dict[bytes, Receipt] = {}
        self._sends = 0
        self.left = list(commits)

    def heard(self, receipts: Sequence[Receipt]) -> None:
        """The store answered: nothing is left to send."""
        self._known |= {commit.id: receipt for commit, receipt in zip(self.left, receipts, strict=True)}
        self.left = []

    def unheard(self, landed: Callable[[Commit], bool]) -> None:
        """No reply came; `landed` looks a commit up. After some times that is left as it is."""
        self._sends += 1
        self._known |= {commit.id: Receipt(landed=True) if landed(commit) else UNKNOWN for commit in self.left}
        again = self._sends < SENDS
        self.left = [commit for commit in self.left if again and not self._known[commit.id].landed]

    def receipts(self) -> list[Receipt]:
        """What became of each commit, in the order in which they were given."""
        return [self._known[commit.id] for commit in self._commits]


def write(store: Store, commits: Sequence[Commit]) -> list[Receipt]:
    """Write; returns what became of each commit."""
    sending = Sending(commits)
    while sending.left:
        try:
            sending.heard(store.commit(sending.left))
        except CommitUnknown:
            sending.unheard(store.landed)
    return sending.receipts()
