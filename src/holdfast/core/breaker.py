"""A circuit breaker: after a storm of transient failures, a stage pauses instead of burning attempts.

closed ──so many items in a row fail──▶ open until t ──t comes──▶ half open: one item is tried
   ▲                                        ▲                          │ │
   └────────────────answered────────────────┼──────────────────────────┘ │
                                            └──fails: twice as long──────┘
"""

from enum import StrEnum

import msgspec

from holdfast.core import limits, wait


class Phase(StrEnum):
    """What may be started."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When to pause, and for how long."""

    failures: int = limits.BREAKER_FAILURES
    pause: float = limits.BREAKER_PAUSE
    longest: float = limits.BREAKER_LONGEST
    in_all: float = limits.BREAKER_SECONDS


class Circuit(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the other side."""

    row: frozenset[int] = frozenset()
    """Numbers of the items that failed since it last answered."""
    until: float = 0.0
    """When the pause ends; 0 while it is closed."""
    pause: float = 0.0
    """How long the last pause was."""
    waited: float = 0.0
    """All pauses together."""


def phase(circuit: Circuit, now: float) -> Phase:
    """What may be started now: anything, nothing, or one item to try."""
    if not circuit.until:
        return Phase.CLOSED
    return Phase.HALF_OPEN if wait.is_over(circuit.until, circuit.pause, now) else Phase.OPEN


def answered(circuit: Circuit, now: float) -> Circuit:
    """The other side gave an answer, be it a refusal. While it is open that is old news, and does not count."""
    return circuit if phase(circuit, now) is Phase.OPEN else Circuit(waited=circuit.waited)


def failed(circuit: Circuit, n: int, rule: Rule, now: float) -> Circuit:
    """An item failed in a way that may pass."""
    now_in = phase(circuit, now)
    if now_in is Phase.OPEN:
        return circuit
    if now_in is Phase.HALF_OPEN:
        return _open(circuit, min(2 * circuit.pause, max(rule.longest, rule.pause)), now)
    row = circuit.row | {n}
    if len(row) < rule.failures:
        return msgspec.structs.replace(circuit, row=row)
    return _open(circuit, rule.pause, now)


def is_hopeless(circuit: Circuit, rule: Rule) -> bool:
    """Whether the pause at hand would make all pauses together longer than they may be."""
    return circuit.waited > rule.in_all


def _open(circuit: Circuit, pause: float, now: float) -> Circuit:
    return Circuit(until=now + pause, pause=pause, waited=circuit.waited + pause)
