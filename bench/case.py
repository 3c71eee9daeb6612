"""The nouns of a benchmark: a case has probes and goals, a probe gives readings.

Only the standard library is imported: this module also runs in the environments of the peers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(kw_only=True)
class Reading:
    """What one process measured. A probe fills the first five fields, the harness the others."""

    items: int
    seconds: float
    ideal_seconds: float | None = None  # for handlers that wait: what perfect overlap would take
    payload_bytes: int = 0  # input stored by the user's wish, so that it can be left out of the overhead
    worked: int | None = None  # how often the handler ran: 0 in a second run that skips what is done
    peak_mb: float = 0.0
    disk_bytes: int = 0
    syncs: int | None = None  # counted by strace, in traced probes only


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One contestant. Its functions are importable and called `(place, seed, count, **params)`; those of a peer, which
    cannot be imported here, stand as "module:function"."""

    name: str
    label: str
    run: Callable[..., Reading] | str
    items: int
    params: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[..., None] | None = None  # an untimed process of its own, once before all rounds
    again: Callable[..., Reading] | str | None = None  # the same job a second time in the same place
    traced: bool = False  # under strace: counts syncs, its seconds mean nothing
    durability: str = "none"
    survives: bool | None = None  # does what was acknowledged survive a power loss? None: it was not asked
    peer: str | None = None  # the folder below bench/peers whose environment it runs in


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on one probe's metric, or on its ratio to another probe's, round by round; without one, it is shown."""

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
    note: str = ""  # what a reader must know to read the figures
    at_most_rounds: int | None = None  # where a round takes minutes; --rounds overrules it
    proved: bool = False  # count syncs and try a second run, once for each probe
    against: str | None = None  # the probe that the others are compared with, round by round
    many_files: bool = False  # delete them after the last round: ext4 makes files slowly after deleting many


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much to measure. Quick runs show that the harness works; their figures are not for print."""

    items: int = 100_000
    quick: bool = False
    full: bool = False

    def scaled(self, normal: int) -> int:
        """A case's own number of items: a tenth of it in a quick run."""
        return max(normal // 10, 1) if self.quick else normal


class Stopwatch:
    """`with Stopwatch() as watch: ...`, then `watch.seconds`."""

    seconds: float = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds = time.perf_counter() - self._start
