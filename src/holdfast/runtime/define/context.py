"""The context of an attempt: what a handler can read and report about it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils
from pydantic import BaseModel, ValidationError

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.core.journal import Spend
from holdfast.core.limits import REQUEST_HINT_CHARS
from holdfast.core.model import Item, Key
from holdfast.runtime.define.schema import Invalid, explain

log = logging.getLogger("holdfast.handler")

MOST_UNITS = canonical.to_units(1_000_000)
MOST_TOKENS = 10**15
"""The most that one attempt can cost: sums over a batch stay far below the limits of a store."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The group of rows of a scan that its handler has in hand."""

    after: Cursor | None
    """The last row before the group; None where it begins with the first row there is."""
    until: Cursor | None
    """The last row of the group; None for a generator, which ends a group with its `yield`."""
    rows: int
    """How many rows of the partition come before the group."""
    count: int | None
    """How many rows the group has; None for a generator."""
    more: bool | None
    """Whether rows of the partition follow that are known now; None for a generator."""
    interval: int | str
    """After how many rows, or after which time, a checkpoint is made: as `every=` was given."""
    start: Cursor | None
    """The row before the partition; None where it begins with the first row there is."""
    end: Cursor | None
    """The last row of the partition; None where it is open, as in a scan that follows."""

    @property
    def identity(self) -> list[Any]:
        """What tells the group from every other one of its partition."""
        return [None if at is None else cursor.to_plain(at) for at in (self.after, self.until)] + [self.count]


class Context:
    """One attempt at one stage of one item, or at one group of rows of a scan. It has no way to the store."""

    __slots__ = (
        "_input_key", "_metrics", "_model", "_spend", "_stopping", "attempt", "batch", "deadline", "fence",
        "idempotency_key", "key", "log", "request_id", "segment", "stage",
    )  # fmt: skip

    def __init__(self, *, item: Item, batch: str, pipeline: str, stage: str, fence: int, timeout: float | None,
                 stopping: Callable[[], bool], metrics: type[BaseModel] | None) -> None:  # fmt: skip
        self.batch = batch
        self.key: Key = item.key
        self.stage = stage
        self.attempt = item.place.attempt + 1
        self.fence = fence
        self.request_id = str(uuid_utils.uuid7())
        self.idempotency_key = self._input_key = idempotency_key(pipeline, batch, stage, item)
        self.segment: Segment | None = None
        self.deadline = None if timeout is None else time.time() + timeout
        self.log = logging.LoggerAdapter(log, {"batch": batch, "item": item.n, "stage": stage, "attempt": self.attempt})
        self._stopping = stopping
        self._spend: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._model = metrics

    def __repr__(self) -> str:
        return f"<Context of item {self.key!r} of {self.batch!r}: attempt {self.attempt} at {self.stage!r}>"

    def take_up(self, segment: Segment) -> None:
        """Go to another group of rows: what identifies the attempt is that of the group from now on. The same group
        has the same names whenever it is handled."""
        self.segment = segment
        self.idempotency_key = canonical.fingerprint([self._input_key, *segment.identity])
        self.request_id = str(UUID(hex=canonical.fingerprint([self.idempotency_key, "request"])))

    @property
    def stopping(self) -> bool:
        """Whether the run is ending or the lease is lost: a long handler should come to an end."""
        return self._stopping()

    def spend(
        self,
        usd: Decimal | float | int | str = 0,
        tokens: int = 0,
        model: str = "",
        usage: dict[str, Any] | None = None,
    ) -> None:
        """Say what the attempt cost. Called again, it adds up. It counts even when the attempt fails."""
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            raise UsageError(f"tokens={tokens!r}: pass a whole number, 0 or more")
        said = self._spend
        units, tokens = said.get("usd", 0) + canonical.to_units(usd), said.get("tokens", 0) + tokens
        if units > MOST_UNITS or tokens > MOST_TOKENS:
            raise UsageError(
                f"usd={usd!r}, tokens={tokens!r}: that is more than one attempt can cost; check that the amount is in "
                "dollars"
            )
        said["usd"], said["tokens"] = units, tokens
        if model:
            said["model"] = canonical.storable(str(model)[:REQUEST_HINT_CHARS])
        if usage:
            said["usage"] = {**said.get("usage", {}), **_plain(usage)}

    def measure(self, **metrics: Any) -> None:
        """Keep numbers and facts of your own with the attempt; `@stage(metrics=Model)` says what is valid."""
        self._metrics.update(metrics)

    def said(self, n: int) -> Spend | None:
        """Return what the handler said, validated. Raises Invalid when its metrics do not fit their model."""
        metrics = self._metrics
        try:
            if self._model is not None and (metrics or self._model.model_fields):
                metrics = self._model(**metrics).model_dump(mode="json")
            if metrics:
                metrics = _plain(metrics)
        except ValidationError as error:
            raise Invalid(f"metrics: {explain(error)}", "invalid_metrics") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise Invalid(f"metrics: {error}: pass numbers, text, and lists of these", "invalid_metrics") from None
        return Spend(n, **self._spend, metrics=metrics) if self._spend or metrics else None

    def settle_up(self) -> None:
        """Begin to count again: what was said so far is on its way to the store."""
        self._spend, self._metrics = {}, {}

    def paid(self, n: int) -> Spend | None:
        """Return what an attempt cost that gave no output; its metrics too, where they are valid."""
        try:
            return self.said(n)
        except Invalid:
            return Spend(n, **self._spend) if self._spend else None


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as the journal can hold them: JSON, and no integer beyond 64 bits."""
    plain: dict[str, Any] = canonical.decode(canonical.encode(facts))
    msgspec.msgpack.encode(plain)
    return plain


def idempotency_key(pipeline: str, batch: str, stage: str, item: Item) -> str:
    """Return a key that is the same for every attempt at the same input, even after a crash or a rewind; a reset makes
    a new one."""
    resets = item.place.epoch - item.place.rewinds
    content = canonical.digest(b"", item.input).hex()
    return canonical.fingerprint([pipeline, batch, stage, canonical.key_text(item.key), resets, content])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that was buried, and why."""

    key: Key
    number: int
    stage: str
    code: str
    reason: str
    attempts: int
