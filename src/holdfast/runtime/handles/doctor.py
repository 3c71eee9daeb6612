"""Checks of a place for a store, and the points at which tests can interrupt."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import UsageError
from holdfast.runtime.operate.doctor import Diagnosis, examine, examine_bucket
from holdfast.stores import faults, filesystem
from holdfast.stores.open import is_bucket, named, path_of

FAULT_MODES = faults.MODES


def doctor(store: str | Path | None = None, *, folders: Sequence[str | Path] = ()) -> Diagnosis:
    """Check what the guarantees depend on: SQLite, disk, permissions, space, clock, and leftover files. The store need
    not exist."""
    if is_bucket(store):
        return examine_bucket(str(named(store)))
    path = path_of(store)
    if path is None:
        raise UsageError("a store in memory has nothing to check: name a file with --store")
    filesystem.check_is_no_folder(path)
    return examine(path, folders=[Path(), *map(Path, folders)])


def fault_points() -> dict[str, str]:
    """Return the names of the points, around every durable step, at which a test can kill, pause or fail the
    process."""
    return dict(faults.POINTS)
