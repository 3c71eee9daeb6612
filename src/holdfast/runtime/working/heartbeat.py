"""Staying alive: one thread renews every lease of this process in one write.

A renewal that finds another owner or fence marks the holding as lost: its handlers are told to stop and nothing of it
is committed. Several failed renewals in a row stop the run. A chunk on which nothing was committed for the grace
period is no longer renewed, so that a handler that hangs for ever does not hold it for ever.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.errors import StoreError
from holdfast.core.lease import check_times
from holdfast.core.model import ChunkId
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.runtime.working.holding import Holding

log = logging.getLogger("holdfast.heartbeat")

FAILURES = 3
BEATS_PER_LEASE = 3


class Heartbeat:
    """Renews leases until it is stopped."""

    def __init__(self, store: Store, lease: float, *, grace: float, on_trouble: Callable[[str], None],
                 every: float | None = None) -> None:  # fmt: skip
        self.every = lease / BEATS_PER_LEASE if every is None else every
        check_times(lease, self.every)
        self._store = store
        self._lease = lease
        self._grace = grace
        self._on_trouble = on_trouble
        self._holdings: dict[int, Holding] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures = 0
        self._told = False
        """The trouble with these failures was told."""
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def add(self, holding: "Holding") -> None:
        with self._lock:
            self._holdings[holding.lease.chunk] = holding

    def remove(self, holding: "Holding") -> None:
        with self._lock:
            if self._holdings.get(holding.lease.chunk) is holding:
                del self._holdings[holding.lease.chunk]

    def lose_all(self) -> None:
        """Give up every lease: their handlers are told to stop, and nothing of them is committed."""
        with self._lock:
            for holding in self._holdings.values():
                holding.lose()

    @property
    def keeps(self) -> frozenset[ChunkId]:
        """What this process goes on with, and does not want to be granted again."""
        with self._lock:
            return frozenset(h.lease.chunk for h in self._holdings.values() if self._is_live(h))

    def catch_up(self, now: float) -> None:
        """Renew at once what ran out while this process stood still, before somebody else takes it."""
        with self._lock:
            late = any(h.lease.expires < now and self._is_live(h) for h in self._holdings.values())
        if late:
            self.beat()

    def beat(self) -> None:
        """Renew once. Reading again decides whether a lease is lost: an own commit is no conflict."""
        with self._lock:
            live = [h for h in self._holdings.values() if self._is_live(h)]
        if not live:
            return
        try:
            kept = {lease.chunk: lease for lease in self._store.renew([h.lease for h in live], self._lease)}
        except StoreError as error:
            self._failures += 1
            log.warning("renewing %d leases failed (%d in a row): %s", len(live), self._failures, error)
            if self._failures >= FAILURES and not self._told:
                self._told = True  # once: whoever hears of it may look again at once
                self._on_trouble(f"{self._failures} heartbeats in a row failed: {error}")
            return
        self._failures, self._told = 0, False
        for holding in live:
            if holding.lease.chunk in kept:
                holding.lease = kept[holding.lease.chunk]
            else:
                holding.lose()

    def _is_live(self, holding: "Holding") -> bool:
        return not holding.lost and time.monotonic() - holding.progressed_at <= self._grace

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.beat()
            except Exception as error:  # noqa: BLE001 - a run whose leases nobody renews must not go on unawares
                self._on_trouble(f"its heartbeat failed: {type(error).__name__}: {error}")
                return
