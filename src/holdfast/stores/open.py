"""From what a user writes as `store=` to a store."""

import os
from pathlib import Path

from holdfast.core.errors import UsageError
from holdfast.stores import filesystem
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

DEFAULT = ".holdfast/state.db"
LATER = ("postgresql", "postgres", "s3", "az", "gs", "file")


def open_store(where: "str | Path | Store | None" = None, *, must_exist: bool = False) -> Store:
    """The store at a path or URL; without one, at $HOLDFAST_STORE, else `.holdfast/state.db` in this directory."""
    where = _named(where)
    if not isinstance(where, str | Path):
        return where
    path = _path(str(where))
    if path is None:
        return MemoryStore()
    if must_exist and not filesystem.is_there(path):
        if filesystem.is_there(path.parent) and not os.access(path.parent, os.X_OK):
            raise UsageError(f"{path.parent} may not be read by this user: run as the user that owns the store")
        raise UsageError(
            f"there is no store at {path}: run a pipeline first, or name another with --store or $HOLDFAST_STORE"
        )
    return SqliteStore(path)


def path_of(where: "str | Path | Store | None" = None) -> Path | None:
    """The file in which a store is or would be; None where it is in memory, or open already."""
    where = _named(where)
    return _path(str(where)) if isinstance(where, str | Path) else None


def is_there(where: "str | Path | Store | None" = None) -> bool:
    """Whether there is a store to be opened; nothing is made."""
    where = _named(where)
    if not isinstance(where, str | Path):
        return True
    path = _path(str(where))
    return path is not None and filesystem.is_there(path)


def _named(where: "str | Path | Store | None") -> "str | Path | Store":
    return (os.environ.get("HOLDFAST_STORE") or DEFAULT) if where is None else where


def _path(text: str) -> Path | None:
    """The file that a path or URL names; None for a store in memory."""
    scheme, colon, rest = text.partition(":")
    if text in ("memory:", "memory://"):
        return None
    if colon and (scheme in LATER or (rest.startswith("//") and scheme != "sqlite")):
        raise UsageError(
            f"store {scheme}:… is not known to this version of Holdfast: name a file, for example {DEFAULT}"
        )
    return Path(rest.removeprefix("//") if scheme == "sqlite" else text).expanduser()
