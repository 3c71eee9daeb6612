"""Figures from readings: medians, spreads, and whether the goals were met."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import msgspec

from bench.case import Case, Goal, Probe, Reading
from bench.machine import Machine
from bench.measure import Measured, Proof, Readings


@dataclass(frozen=True, slots=True)
class Metric:
    unit: str
    of: Callable[[Reading], float]
    digits: int = 0


SHOWN = "none"  # the bound of a figure that is only shown
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
    times: Figure | None  # how many times as fast the reference probe of the case is
    proof: Proof | None
    survives: bool | None
    failure: str | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One goal of a case; `met` is None if it could not be measured."""

    says: str
    bound: str
    unit: str
    digits: int
    figure: Figure | None
    met: bool | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one case that is shown or stored."""

    case: str
    asks: str
    unit: str
    digits: int
    note: str
    arguments: str  # to repeat it
    rounds: int
    proved: bool
    machine: Machine
    lines: list[Line]
    verdicts: list[Verdict]
    readings: Readings


def summarise(case: Case, rounds: int, found: Measured, machine: Machine, arguments: str) -> Summary:
    metric = METRICS[case.metric]
    return Summary(
        case=case.name,
        asks=case.asks,
        unit=metric.unit,
        digits=metric.digits,
        note=case.note,
        arguments=arguments,
        rounds=rounds,
        proved=case.proved,
        machine=machine,
        lines=[line(probe, case, metric, found) for probe in case.probes],
        verdicts=[verdict(goal, found.readings) for goal in case.goals],
        readings=found.readings,
    )


def line(probe: Probe, case: Case, metric: Metric, found: Measured) -> Line:
    taken = found.readings[probe.name]
    return Line(
        name=probe.name,
        label=probe.label,
        items=probe.items,
        durability=probe.durability,
        figure=figure([metric.of(reading) for reading in taken]),
        peak_mb=median(reading.peak_mb for reading in taken) if taken else None,
        disk_per_item=median(reading.disk_bytes / reading.items for reading in taken) if taken else None,
        times=figure(ratios(metric, found.readings[case.against], taken)) if case.against else None,
        proof=found.proofs.get(probe.name),
        survives=probe.survives,
        failure=found.failures.get(probe.name),
    )


def verdict(goal: Goal, readings: Readings) -> Verdict:
    metric = METRICS[goal.metric]
    found = figure(values(goal, metric, readings))
    return Verdict(
        says=goal.says,
        bound=bound(goal),
        unit="" if goal.over else metric.unit,
        digits=ratio_digits(found) if goal.over else metric.digits,
        figure=found,
        met=is_met(goal, found.median) if found else None,
    )


def values(goal: Goal, metric: Metric, readings: Readings) -> list[float]:
    if goal.over is None:
        return [metric.of(reading) for reading in readings[goal.of]]
    return ratios(metric, readings[goal.of], readings[goal.over])


def ratios(metric: Metric, of: list[Reading], over: list[Reading]) -> list[float]:
    """Return the ratios within each round: what slowed one probe slowed the other as well."""
    return [metric.of(mine) / metric.of(theirs) for mine, theirs in zip(of, over, strict=False)]


def figure(numbers: list[float]) -> Figure | None:
    return Figure(median(numbers), min(numbers), max(numbers)) if numbers else None


def ratio_digits(ratio: Figure | None) -> int:
    """Return the digits for about three significant figures: a goal missed narrowly must not look met."""
    size = ratio.median if ratio else 1
    return 0 if size >= 10 else 2 if size >= 1 else 3


def bound(goal: Goal) -> str:
    if goal.at_least is not None:
        return f"≥ {goal.at_least:g}"
    return f"≤ {goal.at_most:g}" if goal.at_most is not None else SHOWN


def is_met(goal: Goal, value: float) -> bool:
    if goal.at_least is not None:
        return value >= goal.at_least
    return goal.at_most is None or value <= goal.at_most
