"""Statistics as tables."""

from collections.abc import Iterator
from decimal import Decimal

from rich.table import Table

from holdfast.interfaces.cli import render
from holdfast.runtime.reports.statistics import StageStatistics, Statistics, Summary

LEAST = 0.0001
"""What is less is not told more exactly: seven digits are as wide as a column is on a narrow screen."""
COLUMNS = ["count", "min", "p50", "mean", "p95", "max", "sum"]


def tables(collected: Statistics) -> Iterator[Table]:
    """What the stages took, cost and measured; how attempts ended; which models were paid."""
    parts = [*collected.stages, collected.overall] if len(collected.stages) > 1 else list(collected.stages)
    rows = [row for part in parts for row in _numbers(part)]
    if rows:
        yield render.table(["stage", "per attempt", *COLUMNS], rows, right=COLUMNS)
    yield render.table(
        ["stage", "attempts", "outcomes", "items, once per epoch, and the attempts they needed", "errors"],
        [(name(part), f"{part.runs:,}", *_distributions(part)) for part in parts],
        right=["attempts"],
    )
    shares = [
        (model, f"{share.attempts:,}", f"{share.tokens:,}", render.usd(share.usd))
        for model, share in collected.overall.models.items()
    ]
    if shares:
        yield render.table(["model", "attempts", "tokens", "cost"], shares, right=["attempts", "tokens", "cost"])


def name(part: StageStatistics) -> str:
    """The stage's name; all of them together are `all`."""
    return part.stage if part.stage is not None else "all"


def _numbers(part: StageStatistics) -> Iterator[tuple[str, ...]]:
    kinds = [
        ("queue s", part.queue),
        ("execution s", part.execution),
        ("total s", part.total),
        ("cost", part.usd),
        ("tokens", part.tokens),
    ]
    kinds += part.metrics.items()
    for kind, summary in kinds:
        if summary.count:
            yield (name(part), kind, *_row(summary))


def _row(summary: Summary) -> list[str]:
    return [_cell(getattr(summary, column)) for column in COLUMNS]


def _cell(value: float | Decimal | None) -> str:
    if isinstance(value, float) and 0 < value < LEAST:
        return f"<{LEAST:f}".rstrip("0")
    if isinstance(value, Decimal):
        return render.usd(value)
    return render.number(value, 3 if not value or value >= 0.01 else 2)


def _distributions(part: StageStatistics) -> tuple[str, str, str]:
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in part.outcomes.items())
    needed = ", ".join(f"{items:,} needed {count}" for count, items in list(part.attempt_counts.items())[:6])
    errors = ", ".join(f"{code} ({count:,})" for code, count in list(part.codes.items())[:6])
    return outcomes, needed, errors
