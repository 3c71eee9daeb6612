"""State in one SQLite file: `store` has the verbs, each of the other files one thing that they rest on."""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
