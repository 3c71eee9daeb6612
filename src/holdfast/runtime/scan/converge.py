"""The convergence of the results of all partitions: recorded once, and repeated when the results change.

The value that `converge` returned is an entry in the chain of the batch, with a fingerprint of the results and of the
function. If that entry exists, the function is not called again. Two processes may both have called it; the entry that
is first in the chain decides. After a kill before the entry is durable, the next run calls the function again.
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical, journal
from holdfast.core.course import to_note
from holdfast.core.errors import NotConverged, UsageError
from holdfast.core.limits import RESULT_BYTES
from holdfast.core.model import Batch, Kind, State
from holdfast.runtime import event_loop
from holdfast.runtime.define.calls import current_batch
from holdfast.runtime.define.stage import code_of
from holdfast.runtime.journal import forward
from holdfast.runtime.partitions import kind_by_number
from holdfast.runtime.text import command
from holdfast.stores import owners
from holdfast.stores.base import Store, each_checkpoint, each_item, each_output

KIND = "converged"
FAILED = "not_converged"
"""The kind of an entry that says why there is no result."""
WHY_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The results that are to be brought together."""

    states: dict[State, int]
    """The number of partitions by state, without rows that were buried."""
    admitted: bool
    """Whether all partitions are known: a process may have died while it split the source."""
    rows: int
    """Rows behind the checkpoints."""
    parts: tuple[bytes, ...]
    """The stored results of the partitions in their order, followed by those of redriven rows."""

    @property
    def is_whole(self) -> bool:
        """Whether all partitions are done; a source may have none."""
        return self.admitted and self.states.keys() <= {State.DONE}

    def decoded(self) -> tuple[Any, ...]:
        """Return the results, decoded again: changes to them do not affect other callers."""
        return tuple(canonical.decode_typed(data, "the result") for data in self.parts)

    def missing(self) -> str:
        """Return which partitions have no result, in words."""
        found = [f"{count:,} {state}" for state, count in self.states.items() if state is not State.DONE]
        return f"of {sum(self.states.values()):,} partitions {' and '.join(found)}"


@dataclass(frozen=True, slots=True)
class Converged:
    """The recorded result of `converge`."""

    result: Any


def gather(store: Store, batch: Batch) -> Gathered:
    """Return the states and results of the partitions of a batch."""
    states: dict[State, int] = {}
    done: dict[int, bool] = {}
    kind_at = kind_by_number(store.chunks(batch.id))
    for item in each_item(store, batch.id):
        if kind_at(item.n) is not Kind.ROWS:
            states[item.place.state] = states.get(item.place.state, 0) + 1
        if item.place.state is State.DONE:
            done[item.n] = kind_at(item.n) is Kind.ROWS
    rows, gone = 0, set[int]()
    for at in each_checkpoint(store, batch.id):
        rows += 0 if kind_at(at.n) is Kind.ROWS else at.rows
        if not at.rows and done.get(at.n):  # the row was moved or deleted before it was redriven: it has no result
            gone.add(at.n)
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for output in each_output(store, batch.id, stage=0):
        if output.n in done and output.n not in gone and output.data is not None:
            parts[done[output.n]].append(output.data)
    return Gathered(states=states, admitted=batch.ingested_at is not None, rows=rows, parts=(*parts[0], *parts[1]))


def outstanding(store: Store, batch: Batch) -> str:
    """Return the last recorded reason why the results of a batch are not brought together; empty if there is none."""
    why = ""
    for entry in forward(store, batch, KIND, FAILED):
        why = entry.told(journal.Acted).reason if entry.kind == FAILED else ""
    return why


class Convergence:
    """The user's function, and what is recorded about it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.what = f"converge {getattr(function, '__name__', type(function).__name__)!r}"
        _check(function, self.what)

    def found(self, store: Store, batch: Batch, parts: Sequence[bytes]) -> Converged | None:
        """Return the recorded result for exactly these parts, or None; no code of the user runs."""
        wanted = self._fingerprint(parts)
        for entry in forward(store, batch, KIND):
            fact = entry.note
            if fact["parts"] == wanted:
                return Converged(canonical.from_plain(fact["result"], "the result"))
        return None

    def ensure(self, store: Store, pipeline: str, batch: Batch, gathered: Gathered) -> Converged:
        """Return the result for the parts: the recorded one, else by calling the function. Raises NotConverged."""
        found = self.found(store, batch, gathered.parts)
        if found is not None:
            return found
        try:
            result = self.call(gathered.decoded(), (pipeline, batch.name))
        except Exception as error:
            self._tell(store, batch, f"{self.what} raised {type(error).__name__}: {error}")
            raise NotConverged(
                f"batch {batch.name!r}: all its partitions are done, but {self.what} raised {type(error).__name__}: "
                f"{error}. It was called with {_in_words(gathered.decoded())}, which are kept: correct it, or a result "
                f"(`{command('reset', batch.name, 'PARTITION')}`), and run again"
            ) from error
        body = journal.Acted(reason=f"of {len(gathered.parts):,} parts", note=self._fact(batch, gathered.parts, result))
        store.amend(batch.id, to_note(KIND, body, once=True), actor=owners.new_owner())
        found = self.found(store, batch, gathered.parts)  # another process may have been first: its entry counts
        assert found is not None
        return found

    def _tell(self, store: Store, batch: Batch, why: str) -> None:
        """Record that it failed, for status and reports."""
        if batch.sealed_at is None:
            body = journal.Acted(reason=canonical.storable(why)[:WHY_CHARS])
            store.amend(batch.id, to_note(FAILED, body), actor=owners.new_owner())

    def call(self, parts: Sequence[Any], within: tuple[str, str]) -> Any:
        """Return the function's result for some parts; a coroutine is awaited on the event loop."""
        before = current_batch.get()
        current_batch.set(within)  # it must not run the scan it belongs to
        try:
            return event_loop.call(self.function, list(parts))
        finally:
            current_batch.set(before)

    def _fingerprint(self, parts: Sequence[bytes]) -> str:
        digests = [hashlib.sha256(part).hexdigest() for part in parts]
        return canonical.fingerprint([code_of(self.function), digests])

    def _fact(self, batch: Batch, parts: Sequence[bytes], result: Any) -> bytes:
        try:
            fact = canonical.encode(
                {"parts": self._fingerprint(parts), "result": canonical.to_plain(result, f"what {self.what} returned")}
            )
        except UsageError as error:
            raise NotConverged(f"batch {batch.name!r}: {error}; return plain values, or write it to a file") from None
        if len(fact) > RESULT_BYTES:
            raise NotConverged(
                f"batch {batch.name!r}: {self.what} returned {len(fact):,} bytes, more than the limit of "
                f"{RESULT_BYTES:,}: write the result to a file and return its name"
            )
        return fact


def _in_words(parts: Sequence[Any]) -> str:
    kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in parts))
    return f"the results of {len(parts):,} partitions, of type {kinds}" if parts else "no results"


def _check(function: Callable[..., Any], what: str) -> None:
    if not callable(function):
        raise UsageError(f"converge({function!r}): pass a function of the parts")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{what} is a generator: return the result")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some built-in functions have no signature
    try:
        signature.bind([])
    except TypeError:
        raise UsageError(f"{what}{signature} cannot be called with the parts alone: write (parts) -> result") from None
