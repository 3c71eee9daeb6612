"""The data types of a benchmark: a case has probes and goals, a probe gives readings.

Only the standard library is imported: this module also runs in the environments of the peers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(kw_only=True)
class Reading:
    """The measurement of one process. A probe fills the first five fields, the harness the others."""

    items: int
    seconds: float
    ideal_seconds: float | None = None  # for handlers that wait: the time with perfect overlap
    payload_bytes: int = 0  # stored input, which is not overhead
    worked: int | None = None  # how often the handler ran: 0 in a second run that skips finished items
    peak_mb: float = 0.0
    disk_bytes: int = 0
    syncs: int | None = None  # counted by strace, in traced probes only


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One contestant. Its functions are importable and called `(place, seed, count, **params)`; those of a peer, which
    cannot be imported here, are given as "module:function"."""

    name: str
    label: str
    run: Callable[..., Reading] | str
    items: int
    params: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[..., None] | None = None  # an untimed, separate process, once before all rounds
    again: Callable[..., Reading] | str | None = None  # the same job a second time in the same place
    traced: bool = False  # under strace: counts syncs, its seconds are meaningless
    durability: str = "none"
    survives: bool | None = None  # whether acknowledged work survives a power loss; None: not asked
    peer: str | None = None  # the folder below bench/peers whose environment it runs in


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on one probe's metric, or on its ratio to another probe's, round by round; without a bound, it is only
    shown."""

    says: str
    of: str
    over: str | None = None
    metric: str
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    asks: str
    metric: str
    probes: tuple[Probe, ...]
    goals: tuple[Goal, ...] = ()
    note: str = ""  # what is needed to understand the figures
    at_most_rounds: int | None = None  # if a round takes minutes; --rounds overrides it
    proved: bool = False  # count syncs and try a second run, once for each probe
    against: str | None = None  # the probe to compare the others with, round by round
    many_files: bool = False  # deleted after the last round: ext4 creates files slowly after deleting many


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much to measure. Quick runs show that the harness works; their figures are not published."""

    items: int = 100_000
    quick: bool = False
    full: bool = False

    def scaled(self, normal: int) -> int:
        """Return a case's number of items: a tenth of it in a quick run."""
        return max(normal // 10, 1) if self.quick else normal


class Stopwatch:
    """A stopwatch: `with Stopwatch() as watch: ...`, then `watch.seconds`."""

    seconds: float = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds = time.perf_counter() - self._start
