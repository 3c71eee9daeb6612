"""The one place that makes suggested commands fit to be pasted: they name the store that this one was told of.

Suggestions stand in reports, stories and errors, which are written where nobody knows how the command was called. So
the store is put in where they are shown.
"""

from holdfast.runtime.commands import naming_store


class _Told:
    store: str | None = None


def remember(store: str | None) -> str | None:
    """Note the store that a command was told of; None where it goes by the default."""
    _Told.store = store
    return store


def pasteable(text: str) -> str:
    """A text in which every suggested command names that store."""
    return text if _Told.store is None else naming_store(text, _Told.store)
