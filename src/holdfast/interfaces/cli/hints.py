"""The one place that makes suggested commands fit to be pasted: they name the store that this one was told of, and
arguments are called as options.

Suggestions stand in reports, stories and errors, which are written where nobody knows how the command was called. So
the store and the options are put in where they are shown.
"""

import logging
from typing import Any

from holdfast.runtime.commands import as_options, naming_store


class _Told:
    store: str | None = None


def remember(store: str | None) -> str | None:
    """Note the store that a command was told of; None where it goes by the default."""
    _Told.store = store
    return store


def pasteable(text: str) -> str:
    """A text in which every suggested command names that store, and arguments are options."""
    spelled = as_options(text)
    return spelled if _Told.store is None else naming_store(spelled, _Told.store)


def all_pasteable(told: Any) -> Any:
    """The same for what a document says in one text or in several."""
    return pasteable(told) if isinstance(told, str) else [pasteable(each) for each in told]


class _Pasteable(logging.Formatter):
    """Warnings of a run as the command shows them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is theirs
        return pasteable(super().formatMessage(record))


def spell_warnings() -> None:
    """Have the log, where the program that is run set up none, tell warnings as the command does."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Pasteable())
