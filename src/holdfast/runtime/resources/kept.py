"""Resources that last as long as the process: opened by the first run that needs them, kept for the next."""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.limits import CLOSE_SECONDS
from holdfast.runtime.resources.definition import Resource
from holdfast.runtime.resources.lifetime import Held

if TYPE_CHECKING:
    from holdfast.runtime.pipeline import Pipeline

log = logging.getLogger("holdfast.resources")


@dataclass
class _Entry:
    held: Held
    owner: "weakref.ref[Pipeline]"
    users: int = 0

    def is_stale(self, resource: Resource) -> bool:
        """Whether nobody can ask for it again: it was defined again, or its pipeline is gone."""
        owner = self.owner()
        return owner is None or owner.resources.get(resource.name) is not resource


class _Process:
    lock = threading.Lock()
    """Guards the entries and their users, never while something is opened; a resource's own lock is for that."""
    entries: dict[Resource, _Entry] = {}  # noqa: RUF012 - there is one process


def take(resource: Resource, owner: "Pipeline", begin: Callable[[], Held], is_lost: Callable[[Held], bool]) -> Held:
    """Return the one of this process, opened if need be; `leave` it in the end."""
    with resource.opening:
        with _Process.lock:
            entry = _Process.entries.get(resource)
            if entry is not None and not is_lost(entry.held):
                entry.users += 1
                return entry.held
        entry = _Entry(begin(), weakref.ref(owner), users=1)
        with _Process.lock:
            _Process.entries[resource] = entry
        return entry.held


def leave(resource: Resource, held: Held) -> None:
    """Need it no longer. It stays open, unless nobody can ask for it again."""
    with _Process.lock:
        entry = _Process.entries.get(resource)
        if entry is not None and entry.held is held:
            entry.users -= 1
    sweep()


def sweep() -> None:
    """Close what nobody uses and nobody can ask for again."""
    with _Process.lock:
        stale = {r: e for r, e in _Process.entries.items() if not e.users and e.is_stale(r)}
        for resource in stale:
            del _Process.entries[resource]
    _close(stale)


def close_all() -> None:
    """Close everything, the last first: the process ends. What a run still uses, which was left alone on a thread, dies
    with it."""
    with _Process.lock:
        unused = {r: e for r, e in _Process.entries.items() if not e.users}
        _Process.entries = {r: e for r, e in _Process.entries.items() if e.users}
    _close(unused)


def _close(entries: Mapping[Resource, _Entry]) -> None:
    for resource, entry in reversed([*entries.items()]):
        try:
            entry.held.close(CLOSE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - the others are to be closed, whatever it is
            log.warning("%s was not closed: %s: %s", resource.what, type(error).__name__, error)


def _forget() -> None:
    """A child that was forked opens its own, and leaves those of its parent alone."""
    _Process.lock = threading.Lock()
    _Process.entries = {}


os.register_at_fork(after_in_child=_forget)
atexit.register(close_all)
