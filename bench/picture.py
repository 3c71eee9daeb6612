"""The figures as one picture: bars for throughput, lines for growth. The same figures give the same bytes."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.machine import Machine
from bench.summary import Line, Summary

COLOURS = {"holdfast": "#0f766e", "script": "#b45309"}
OTHER = "#94a3b8"
INK = "#334155"
DASHES = {"ordered": "-", "random": "--"}


def write_picture(path: Path, machine: Machine, summaries: list[Summary]) -> None:
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "holdfast", "svg.fonttype": "path", "font.size": 9})
    from matplotlib import pyplot as plt  # only after the output format is chosen

    by_case = {summary.case: summary for summary in summaries}
    panels = [(draw, by_case[name]) for name, draw in DRAWN.items() if measured(by_case.get(name))]
    if not panels:
        raise SystemExit("nothing to draw: the picture shows throughput and growth; measure at least one of them")
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, 3.4 * len(panels)), squeeze=False, layout="constrained")
    for (draw, summary), axis in zip(panels, axes[:, 0], strict=True):
        draw(axis, summary)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(caption(machine), fontsize=7, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")


def measured(summary: Summary | None) -> list[Line]:
    return [line for line in summary.lines if line.figure] if summary else []


def bars(axis: Any, summary: Summary) -> None:
    """One bar a probe, the spread of the rounds as a whisker, the median in figures behind it."""
    for place, line in enumerate(reversed(measured(summary))):
        found = line.figure
        assert found
        whisker = [[found.median - found.low], [found.high - found.median]]
        axis.barh(line.label, found.median, xerr=whisker, color=COLOURS.get(line.name, OTHER), ecolor=INK, capsize=3)
        axis.annotate(f"{found.median:,.0f}", (found.high, place), (6, 0), textcoords="offset points", va="center")
    axis.set_title(f"{summary.asks}: {summary.unit}", loc="left", fontsize=11)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.margins(x=0.15)


def curves(axis: Any, summary: Summary) -> None:
    """Time per item over the size of the batch, one line for each contestant and order of keys."""
    lines = measured(summary)
    for contestant in dict.fromkeys(line.name.rpartition("-")[0] for line in lines):
        points = [line for line in lines if line.name.rpartition("-")[0] == contestant]
        name, _, keys = contestant.partition("-")
        middles = [line.figure.median for line in points if line.figure]
        label, colour = f"{name}, {keys} keys", COLOURS.get(name, OTHER)
        axis.plot([line.items for line in points], middles, DASHES[keys], marker="o", color=colour, label=label)
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_title(f"{summary.asks}: {summary.unit}", loc="left", fontsize=11)
    axis.legend(frameon=False, handlelength=4)


def caption(machine: Machine) -> str:
    return (
        f"{machine.cores} cores, Python {machine.python}, SQLite {machine.sqlite}, WAL, synchronous=FULL, "
        f"fdatasync {machine.sync_ms:.2f} ms; medians, whiskers from lowest to highest round"
    )


DRAWN = {"throughput": bars, "growth": curves}
