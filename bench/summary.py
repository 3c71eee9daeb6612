"""From readings to figures: medians, spreads, and whether the goals were met."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import msgspec

from bench.case import Case, Goal, Probe, Reading
from bench.measure import Readings


@dataclass(frozen=True, slots=True)
class Metric:
    unit: str
    of: Callable[[Reading], float]
    digits: int = 0


METRICS = {
    "rate": Metric("items/s", lambda reading: reading.items / reading.seconds),
    "cost": Metric("µs/item", lambda reading: reading.seconds / reading.items * 1e6, 1),
    "share": Metric("% of ideal", lambda reading: 100 * (reading.ideal_seconds or 0) / reading.seconds, 1),
    "delay": Metric("ms", lambda reading: reading.seconds * 1e3, 1),
    "peak": Metric("MB", lambda reading: reading.peak_mb, 1),
    "overhead": Metric("bytes/item", lambda reading: (reading.disk_bytes - reading.payload_bytes) / reading.items),
    "syncs": Metric("syncs/item", lambda reading: (reading.syncs or 0) / reading.items, 4),
}


class Figure(msgspec.Struct, frozen=True):
    """The median of the rounds, and the lowest and the highest of them."""

    median: float
    low: float
    high: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One probe of a case."""

    name: str
    label: str
    items: int
    durability: str
    figure: Figure | None
    peak_mb: float | None
    disk_per_item: float | None
    failure: str | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One goal of a case; `met` is None where it could not be measured."""

    says: str
    bound: str
    unit: str
    digits: int
    figure: Figure | None
    met: bool | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one case that is shown or kept."""

    case: str
    asks: str
    unit: str
    digits: int
    rounds: int
    lines: list[Line]
    verdicts: list[Verdict]
    readings: Readings


def summarise(case: Case, rounds: int, readings: Readings, failures: dict[str, str]) -> Summary:
    metric = METRICS[case.metric]
    return Summary(
        case=case.name,
        asks=case.asks,
        unit=metric.unit,
        digits=metric.digits,
        rounds=rounds,
        lines=[line(probe, metric, readings[probe.name], failures.get(probe.name)) for probe in case.probes],
        verdicts=[verdict(goal, readings) for goal in case.goals],
        readings=readings,
    )


def line(probe: Probe, metric: Metric, taken: list[Reading], failure: str | None) -> Line:
    return Line(
        name=probe.name,
        label=probe.label,
        items=probe.items,
        durability=probe.durability,
        figure=figure([metric.of(reading) for reading in taken]),
        peak_mb=median(reading.peak_mb for reading in taken) if taken else None,
        disk_per_item=median(reading.disk_bytes / reading.items for reading in taken) if taken else None,
        failure=failure,
    )


def verdict(goal: Goal, readings: Readings) -> Verdict:
    metric = METRICS[goal.metric]
    found = figure(values(goal, metric, readings))
    return Verdict(
        says=goal.says,
        bound=f"≥ {goal.at_least:g}" if goal.at_least is not None else f"≤ {goal.at_most:g}",
        unit="" if goal.over else metric.unit,
        digits=2 if goal.over else metric.digits,
        figure=found,
        met=is_met(goal, found.median) if found else None,
    )


def values(goal: Goal, metric: Metric, readings: Readings) -> list[float]:
    """Ratios are taken within a round: what slowed one probe slowed the other too."""
    own = [metric.of(reading) for reading in readings[goal.of]]
    if goal.over is None:
        return own
    return [mine / metric.of(theirs) for mine, theirs in zip(own, readings[goal.over], strict=False)]


def figure(numbers: list[float]) -> Figure | None:
    return Figure(median(numbers), min(numbers), max(numbers)) if numbers else None


def is_met(goal: Goal, value: float) -> bool:
    return value >= goal.at_least if goal.at_least is not None else value <= (goal.at_most or 0)
