"""The leases of a process, and commits under them. One thread renews all leases in one write; a commit is on its way
until its result is known.

If a renewal finds another owner or fence, the lease is lost: its handlers are asked to stop, and nothing is committed
under it. Several failed renewals in a row stop the run. A lease under which nothing was committed for the grace period
is no longer renewed, so that a handler that hangs does not hold its chunk forever.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from holdfast.core.errors import CommitUnknown, StoreError
from holdfast.core.lease import check_times
from holdfast.core.limits import SENDS
from holdfast.core.model import LANDED, ChunkId, Commit, CommitRefusal, Lease, Receipt
from holdfast.runtime.engine.exchange import Beat
from holdfast.stores.base import Store, has_landed

log = logging.getLogger("holdfast.heartbeat")

FAILURES = 3
BEATS_PER_LEASE = 3


class HeldLease:
    """A lease as all threads of a process see it: those that work under it, and the thread that renews it."""

    __slots__ = ("lease", "lost", "progressed_at")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.lost = False
        self.progressed_at = time.monotonic()

    def progressed(self) -> None:
        """Note that a commit landed under it."""
        self.progressed_at = time.monotonic()


class Heartbeat:
    """Renews leases until it is stopped."""

    def __init__(self, store: Store, lease: float, *, grace: float, on_trouble: Callable[[str], None],
                 every: float | None = None) -> None:  # fmt: skip
        if every is not None:
            check_times(lease, every)
        self.every = lease / BEATS_PER_LEASE if every is None else every
        self._store = store
        self._lease = lease
        self._grace = grace
        self._on_trouble = on_trouble
        self._held: dict[ChunkId, HeldLease] = {}
        self._news: dict[ChunkId, HeldLease] = {}
        """Leases renewed or lost since the last call of `news`."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures = 0
        self._told = False
        """The trouble with these failures was reported."""
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def add(self, lease: Lease) -> HeldLease:
        """Renew a lease from now on."""
        held = HeldLease(lease)
        with self._lock:
            self._held[lease.chunk] = held
        return held

    def remove(self, held: HeldLease) -> None:
        """Stop renewing a lease."""
        with self._lock:
            if self._held.get(held.lease.chunk) is held:
                del self._held[held.lease.chunk]

    def lose_all(self) -> None:
        """Give up every lease: their handlers are asked to stop, and nothing is committed under them."""
        with self._lock:
            for held in self._held.values():
                held.lost = True
            self._news |= self._held

    def news(self) -> Beat | None:
        """Return the leases renewed or lost since the last call."""
        if not self._news:
            return None
        with self._lock:
            news, self._news = list(self._news.values()), {}
        return Beat([held.lease for held in news if not held.lost], [held.lease for held in news if held.lost])

    def beat(self) -> None:
        """Renew once. A second read decides whether a lease is lost, because a commit of this process is not a
        conflict."""
        with self._lock:
            live = [held for held in self._held.values() if self._is_live(held)]
        if not live:
            return
        try:
            kept = {lease.chunk: lease for lease in self._store.renew([held.lease for held in live], self._lease)}
        except StoreError as error:
            self._fail(len(live), error)
            return
        self._failures, self._told = 0, False
        with self._lock:
            for held in live:
                held.lost = held.lost or held.lease.chunk not in kept
                held.lease = kept.get(held.lease.chunk, held.lease)
            self._news |= {held.lease.chunk: held for held in live}

    def _fail(self, count: int, error: StoreError) -> None:
        self._failures += 1
        log.warning("renewing %d leases failed (%d in a row): %s", count, self._failures, error)
        if self._failures >= FAILURES and not self._told:
            self._told = True  # once: the receiver may check the store at once
            self._on_trouble(f"{self._failures} heartbeats in a row failed: {error}")

    def _is_live(self, held: HeldLease) -> bool:
        return not held.lost and time.monotonic() - held.progressed_at <= self._grace

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.beat()
            except Exception as error:  # noqa: BLE001 - a run must not continue when its leases are not renewed
                self._on_trouble(f"the heartbeat failed: {type(error).__name__}: {error}")
                return


UNKNOWN = Receipt(landed=False, reason=CommitRefusal.UNKNOWN)


class Sending:
    """Commits on their way to a store.

    After a lost reply the same commits are sent again: a store accepts each one once, by its id, and acknowledges those
    that had landed before. So finished work is not repeated because of a lost reply. If no reply ever comes, the chains
    are searched in the end, and commits that are not in them stay unknown.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._receipts: list[Receipt] = []
        self._sends = 0
        self.left = list(commits)

    def heard(self, receipts: Sequence[Receipt]) -> None:
        """Take the reply of the store: nothing is left to send."""
        self._receipts, self.left = list(receipts), []

    def unheard(self, landed: Callable[[Commit], bool]) -> None:
        """Note that no reply came: send again, a limited number of times. Then `landed` looks each commit up without
        writing anything."""
        self._sends += 1
        if self._sends >= SENDS:
            self.heard([LANDED if landed(commit) else UNKNOWN for commit in self.left])

    def receipts(self) -> list[Receipt]:
        """Return what became of each commit, in the order in which they were passed."""
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
    """Draw the id of a commit."""
    return os.urandom(16)
