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
from holdfast.core.envelope import Envelope
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
    """The group of rows of a scan that a handler is working on."""

    after: Cursor | None
    """The cursor of the last row before the group; None if the group begins with the first row of the source."""
    until: Cursor | None
    """The cursor of the last row of the group; None for a generator, whose group ends with its next `yield`."""
    rows: int
    """How many rows of the partition come before the group."""
    count: int | None
    """How many rows the group has; None for a generator."""
    more: bool | None
    """Whether the partition is known to have rows after the group; None for a generator."""
    interval: int | str
    """How often a checkpoint is made, as given by `every=`: `1000`, `"5s"`, `"auto"`."""
    start: Cursor | None
    """The cursor of the last row before the partition; None if the partition begins with the first row."""
    end: Cursor | None
    """The cursor of the last row of the partition; None if it is open, as with `hf.Follow`."""

    @property
    def identity(self) -> list[Any]:
        """What tells the group from every other one of its partition."""
        return [None if at is None else cursor.to_plain(at) for at in (self.after, self.until)] + [self.count]


class Context:
    """The context of one attempt: at one stage of one item, or at one group of rows of a scan.

    In a scan, `idempotency_key` and `request_id` belong to the group of rows. They are repeated after a crash only if
    `every=` is a number of rows: with a time or `"auto"`, repeated rows may come in other groups.
    """

    __slots__ = (
        "_envelope", "_input_key", "_metrics", "_model", "_spend", "_stopping", "attempt", "batch", "deadline", "fence",
        "idempotency_key", "key", "log", "request_id", "segment", "stage",
    )  # fmt: skip

    def __init__(self, *, item: Item, batch: str, pipeline: str, stage: str, fence: int, timeout: float | None,
                 stopping: Callable[[], bool], metrics: type[BaseModel] | None,
                 envelope: Callable[[], Envelope] | None = None) -> None:  # fmt: skip
        self.batch = batch
        """The name of the batch."""
        self.key: Key = item.key
        """The key of the item; in a scan, of the partition."""
        self.stage = stage
        """The name of the stage."""
        self.attempt = item.place.attempt + 1
        """The number of this attempt, from 1, in the current epoch of the item."""
        self.fence = fence
        """A number that grows with every claim. Pass it to systems that can refuse an older one."""
        self.request_id = str(uuid_utils.uuid7())
        """An id of this attempt alone, for logs."""
        self.idempotency_key = self._input_key = idempotency_key(pipeline, batch, stage, item)
        """The same for every attempt at the same input, before and after a crash; a reset makes a new one."""
        self.segment: Segment | None = None
        """The group of rows at hand, in a scan; None in a pipeline."""
        self.deadline = None if timeout is None else time.time() + timeout
        """When the timeout of this attempt ends, in seconds since 1970; None without a timeout."""
        self.log = logging.LoggerAdapter(log, {"batch": batch, "item": item.n, "stage": stage, "attempt": self.attempt})
        """A logger whose records carry batch, item, stage and attempt."""
        self._stopping = stopping
        self._envelope = envelope
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
    def envelope(self) -> Envelope:
        """How the item came: when, from which source, validated by which schema, with which digests. It was recorded
        when the item was admitted, and is read when you ask for it. Rows of a scan have none."""
        if self._envelope is None:
            raise UsageError("ctx.envelope: only items of a pipeline have an envelope, not rows of a scan")
        return self._envelope()

    @property
    def stopping(self) -> bool:
        """Whether the run is ending or the lease was lost. A long handler should check this and return early."""
        return self._stopping()

    def spend(
        self,
        usd: Decimal | float | int | str = 0,
        tokens: int = 0,
        model: str = "",
        usage: dict[str, Any] | None = None,
    ) -> None:
        """Record what the attempt cost. Repeated calls add up, and count even if the attempt fails.

        Args:
            usd: Dollars, up to a million per attempt.
            tokens: Tokens, as a whole number.
            model: The name of the model; statistics are kept per model.
            usage: Other facts about the usage, as plain values.
        """
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
        """Store your own numbers and facts with the attempt. `@stage(metrics=Model)` validates them."""
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
    content = canonical.digest(item.input).hex()
    return canonical.fingerprint([pipeline, batch, stage, canonical.key_text(item.key), resets, content])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that was buried, and why."""

    key: Key
    """The key of the item."""
    number: int
    """Its number in the batch, from 0."""
    stage: str
    """The stage at which it failed."""
    code: str
    """The code of the error, such as `http_400`, `timeout` or the name of an exception."""
    reason: str
    """The error in words."""
    attempts: int
    """How many attempts it used at that stage."""
