"""Checks of a place for a store, and the points at which tests can interrupt."""

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import UsageError
from holdfast.runtime.operate.doctor import Diagnosis, examine, examine_bucket
from holdfast.stores import faults
from holdfast.stores.open import DEFAULT, is_bucket, path_of

FAULT_MODES = faults.MODES


def doctor(store: str | Path | None = None, *, folders: Sequence[str | Path] = ()) -> Diagnosis:
    """Check what the guarantees depend on: SQLite, disk, permissions, space, clock, and leftover files. The store need
    not exist."""
    text = str(store) if store is not None else os.environ.get("HOLDFAST_STORE") or DEFAULT
    if is_bucket(text):
        return examine_bucket(text)
    path = path_of(text)
    if path is None:
        raise UsageError("a store in memory has nothing to check: name a file with --store")
    return examine(path, folders=[Path(), *map(Path, folders)])


def fault_points() -> dict[str, str]:
    """Return the names of the points, around every durable step, at which a test can kill, pause or fail the
    process."""
    return dict(faults.POINTS)
