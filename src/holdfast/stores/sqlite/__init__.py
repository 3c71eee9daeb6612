"""State in one SQLite file: `store` has the verbs; each of the other modules has one part that they use."""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
