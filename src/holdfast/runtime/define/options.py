"""The options of a run, checked before anything happens."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from holdfast.core import canonical
from holdfast.core.course import share_of
from holdfast.core.errors import UsageError
from holdfast.core.lease import check_times
from holdfast.core.limits import SOURCE_PATIENCE, UNDO_SHARE
from holdfast.core.model import DeadLimit
from holdfast.runtime.define.policy import Budget
from holdfast.runtime.text import Duration, in_utc, moment, seconds
from holdfast.stores.base import Capabilities

WORKERS = 10_000
OnCodeChange = Literal["refuse", "keep", "rerun"]
Level = Literal["none", "quick", "full"]
Signals = Literal["raise", "report", "ignore"]
Identity = Literal["key", "content", "new"]
Changed = Literal["refuse", "keep", "rerun"]
KeyFrom = str | Callable[[Any], Any] | None


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a batch as the user passed it: a point in time, or a duration from the run that first passed it."""

    seconds: float | None = None
    at: float | None = None

    @staticmethod
    def of(value: Duration | datetime | None) -> "Until | None":
        if value is None:
            return None
        if not isinstance(value, datetime):
            return Until(seconds=seconds(value, "until"))
        if value.tzinfo is None:
            raise UsageError(f"until={value.isoformat()} has no time zone: add one, as in 2026-12-01T06:00+00:00")
        return Until(at=value.timestamp())

    @property
    def words(self) -> str:
        """The reason in the journal: the same words mean the same end."""
        return f"run until {in_utc(self.at)}" if self.at is not None else f"run until {self.seconds:g} s later"


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of a run."""

    batch: str
    key: KeyFrom
    workers: int
    cap: int | None
    item_cost: int | None
    tolerate: int | float
    """The number of dead letters that is fine at the end: a count, or a share as a float."""
    stop_beyond: DeadLimit | None
    """The number of items that may die before the run stops."""
    deadline: float | None
    until: Until | None
    lease: float
    verify: Level
    undo: float
    executor: Executor | str | None
    progress: bool | Callable[[Any], None] | None
    identity: Identity
    changed: Changed
    on_code_change: OnCodeChange | None
    seal: bool = False
    heartbeat: float | None = None
    signals: Signals = "raise"
    patience: float = SOURCE_PATIENCE
    allow_empty: bool = False

    @property
    def tolerates_all(self) -> bool:
        """True if every item may be a dead letter."""
        return isinstance(self.tolerate, float) and self.tolerate >= 1

    @staticmethod
    def check(
        *,
        batch: str,
        key: KeyFrom,
        workers: int = 16,
        budget: Budget | None = None,
        tolerate: int | str | None = None,
        stop_beyond: int | str | None = None,
        deadline: Duration | datetime | None = None,
        until: Duration | datetime | None = None,
        lease: Duration = "30s",
        verify: Level = "quick",
        undo: int | str = UNDO_SHARE,
        executor: Executor | str | None = None,
        progress: bool | Callable[[Any], None] | None = None,
        identity: Identity = "key",
        changed: Changed = "refuse",
        on_code_change: OnCodeChange | None = None,
        seal: bool = False,
        heartbeat: Duration | None = None,
        signals: Signals = "raise",
        patience: Duration = SOURCE_PATIENCE,
        allow_empty: bool = False,
    ) -> "Options":
        if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= WORKERS:
            raise UsageError(f"workers={workers!r}: pass a whole number from 1 to {WORKERS:,}")
        if not (executor is None or executor in ("threads", "processes") or isinstance(executor, Executor)):
            raise UsageError(f"executor={executor!r}: pass 'threads', 'processes' or a concurrent.futures.Executor")
        if budget is not None and not isinstance(budget, Budget):
            raise UsageError(f"budget={budget!r}: pass hf.Budget(usd=…)")
        if not (progress is None or isinstance(progress, bool) or callable(progress)):
            raise UsageError(f"progress={progress!r}: pass True, False or a function that takes the figures")
        if not isinstance(seal, bool):
            raise UsageError(f"seal={seal!r}: pass True to seal the batch once every item is accounted for, or False")
        if not isinstance(allow_empty, bool):
            raise UsageError(f"allow_empty={allow_empty!r}: pass True if a source without any item is fine, or False")
        beat = heartbeat_seconds(lease, heartbeat)
        check_level(verify)
        check_identity(key, identity, changed)
        check_code_change(on_code_change)
        check_signals(signals)
        limit = None if stop_beyond is None else dead_limit(stop_beyond)
        fine = tolerate if tolerate is not None else stop_beyond if stop_beyond is not None else 0
        return Options(
            batch=batch, key=key, workers=workers, tolerate=count_or_share(fine, "tolerate"), verify=verify,
            executor=executor, stop_beyond=limit,
            undo=count_or_share(undo, "undo"), progress=progress, identity=identity, changed=changed,
            on_code_change=on_code_change,
            seal=seal, cap=None if budget is None else canonical.to_units(budget.usd),
            item_cost=None if budget is None or budget.item is None else canonical.to_units(budget.item),
            deadline=None if deadline is None else moment(deadline), until=Until.of(until), lease=lease_seconds(lease),
            heartbeat=beat, signals=signals,
            patience=seconds(patience, "patience"), allow_empty=allow_empty,
        )  # fmt: skip


def count_or_share(said: object, name: str) -> int | float:
    """Return a number of items as an int, and a share, written "1%", as a float. A float is refused: 1 would mean one
    item, and 1.0 all items."""
    text = str(said).strip() if isinstance(said, str) else ""
    if type(said) is int and said >= 0:
        return said
    if text.isdecimal():
        return int(text)
    if re.fullmatch(r"\d+(\.\d+)?\s*%", text) and (share := float(text.rstrip("% ")) / 100) <= 1:
        return share
    raise UsageError(f"{name}={said!r}: write a number of items such as 5, or a share such as '1%'")


def dead_limit(stop_beyond: int | str) -> DeadLimit:
    """Return how many items may die before a run stops, in the form that a store takes."""
    found = count_or_share(stop_beyond, "stop_beyond")
    return DeadLimit(count=found, share=None) if isinstance(found, int) else DeadLimit(count=None, share=found)


def allowed(tolerate: int | float, expected: int) -> int:
    """Return how many dead letters are fine among this many items."""
    return tolerate if isinstance(tolerate, int) else share_of(tolerate, expected)


def lease_seconds(lease: Duration) -> float:
    """Return how long a lease lasts, checked."""
    found = seconds(lease, "lease")
    if not 0.05 <= found <= 86_400:
        raise UsageError(f"lease={lease!r}: a lease lasts from 0.05 s to a day")
    return found


def heartbeat_seconds(lease: Duration, heartbeat: Duration | None) -> float | None:
    """Return how often leases are renewed, checked; None if that was not passed."""
    if heartbeat is None:
        return None
    found = seconds(heartbeat, "heartbeat")
    check_times(lease_seconds(lease), found)
    return found


def check_capabilities(able: Capabilities, options: Options, receivers: Sequence[object]) -> None:
    """Refuse a run with options that its store does not support."""
    if options.cap is not None and not able.budget:
        raise _refused(
            "budget=", "money is counted over all chunks of a batch, but a bucket writes one chunk at a time"
        )
    if receivers and not able.events:
        raise _refused("events=", "events are delivered in one order over all chunks, which a bucket does not have")


def _refused(what: str, why: str) -> UsageError:
    return UsageError(f"{what} does not work with a store in a bucket: {why}. Leave it out, or use a database")


def check_identity(key: KeyFrom, identity: str, changed: str) -> None:
    """Refuse a key that is neither a field nor a function, and an unknown `identity` or `changed`."""
    if not (key is None or isinstance(key, str) or callable(key)):
        raise UsageError(f"key={key!r}: pass the name of a field, or a function of the item")
    if identity not in ("key", "content", "new"):
        raise UsageError(f'identity={identity!r}: pass "key", "content" or "new"')
    if changed not in ("refuse", "keep", "rerun"):
        raise UsageError(f'changed={changed!r}: use "refuse", "keep" or "rerun"')


def check_level(level: str) -> None:
    """Refuse an unknown `verify`."""
    if level not in ("none", "quick", "full"):
        raise UsageError(f'verify={level!r}: pass "none", "quick" or "full"')


def check_code_change(choice: str | None) -> None:
    """Refuse an unknown `on_code_change`."""
    if choice not in (None, "refuse", "keep", "rerun"):
        raise UsageError(f'on_code_change={choice!r}: use "keep", "rerun" or "refuse"')


def check_signals(signals: object) -> None:
    """Refuse an unknown `signals`."""
    if signals not in get_args(Signals):
        raise UsageError(
            f"signals={signals!r}: pass 'raise' (Ctrl-C drains, then raises hf.Interrupted), 'report' (it drains, and "
            "the report is returned) or 'ignore' (signals are left to you)"
        )
