"""The check that a place is safe for a store, and the list of fault points for tests."""

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import UsageError
from holdfast.runtime.operate.doctor import Diagnosis, examine, examine_bucket
from holdfast.stores import faults
from holdfast.stores.open import DEFAULT, is_bucket, path_of

FAULT_MODES = faults.MODES


def doctor(store: str | Path | None = None, *, folders: Sequence[str | Path] = ()) -> Diagnosis:
    """Check what the promises rest on: library, disk, permissions, space, clock, and leftovers in this folder and
    others. The store need not be there."""
    text = str(store) if store is not None else os.environ.get("HOLDFAST_STORE") or DEFAULT
    if is_bucket(text):
        return examine_bucket(text)
    path = path_of(text)
    if path is None:
        raise UsageError("a store in memory has nothing to check: name a file with --store")
    return examine(path, folders=[Path(), *map(Path, folders)])


def fault_points() -> dict[str, str]:
    """Return the named points at every durable step where a test can kill, stop or fail the process."""
    return dict(faults.POINTS)
