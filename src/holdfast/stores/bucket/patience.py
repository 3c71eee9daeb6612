"""Patience with a bucket that does not answer for a while: a verb is asked again, for about half a minute.

Only what cannot be reached is waited for. What a bucket refuses (credentials, a bucket that is not there, a full disk)
would be refused again, and is told at once. Renewals are not patient: the heartbeat counts its own failures.
"""

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.stores.bucket.shelf import Shelf
from holdfast.stores.buckets.base import Away

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before a verb is asked again."""
log = logging.getLogger("holdfast.store")


class Shelved(Protocol):
    """Whatever keeps its documents on a shelf."""

    _shelf: Shelf


S = TypeVar("S", bound=Shelved)
P = ParamSpec("P")
R = TypeVar("R")


def patient(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A verb that may be asked again when nobody answered: it writes nothing, or is known by its own ids."""

    @functools.wraps(verb)
    def patiently(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        for seconds in PAUSES:
            try:
                return verb(self, *args, **kwargs)
            except Away as error:
                log.info("%s; it is asked again in %g s", error, seconds)
                self._shelf.rest(seconds)
        try:
            return verb(self, *args, **kwargs)
        except Away as error:
            raise Away(f"{error}; nobody answered for {sum(PAUSES):g} s and {len(PAUSES) + 1} tries") from error

    return patiently
