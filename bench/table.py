"""The figures as rows of words, and as tables on a terminal."""

from rich.console import Console
from rich.table import Table

from bench.summary import SHOWN, Figure, Line, Summary, Verdict

MISSING = "-"
RESULT = {True: "met", False: "missed", None: "not measured"}
COLOUR = {True: "green", False: "red", None: "yellow"}
YES = {True: "yes", False: "no", None: MISSING}
GOAL_HEADS = ("goal", "measured", "bound", "result")

Cells = tuple[str, ...]


def show(console: Console, summary: Summary) -> None:
    console.print(f"\n{summary.asks}", style="bold")
    console.print(f"{repeat(summary)}, {rounds(summary)}", style="dim", highlight=False)
    if summary.note:
        console.print(summary.note, style="dim", highlight=False)
    if summary.proved:  # the settings of each do not fit into a column
        console.print(table(heads(summary)[:-1], [cells(line, summary)[:-1] for line in summary.lines]))
        for line in summary.lines:
            console.print(f"  {line.label}: {line.durability}", style="dim", highlight=False, markup=False)
    else:
        console.print(table(heads(summary), [cells(line, summary) for line in summary.lines]))
    for failure, labels in failures(summary).items():
        words = f"  NOT MEASURED: {'; '.join(labels)}: {failure}"
        console.print(words, style="bold yellow", highlight=False, markup=False)
    if summary.verdicts:
        console.print(goals_table(summary))


def table(columns: Cells, rows: list[Cells]) -> Table:
    found = Table()
    for number, column in enumerate(columns):
        found.add_column(column, justify="left" if number == 0 or column == "durability" else "right")
    for row in rows:
        found.add_row(*row)
    return found


def goals_table(summary: Summary) -> Table:
    found = Table(*GOAL_HEADS)
    for verdict in summary.verdicts:
        *words, outcome = verdict_cells(verdict)
        found.add_row(*words, f"[{COLOUR[verdict.met]}]{outcome}")
    return found


def failures(summary: Summary) -> dict[str, list[str]]:
    """Return each reason once, with the probes that it stopped."""
    found: dict[str, list[str]] = {}
    for line in summary.lines:
        if line.failure:
            found.setdefault(line.failure, []).append(line.label)
    return found


def repeat(summary: Summary) -> str:
    return f'make bench ARGS="{summary.arguments}"'


def rounds(summary: Summary) -> str:
    return "1 round" if summary.rounds == 1 else f"{summary.rounds} rounds"


def heads(summary: Summary) -> Cells:
    if summary.proved:
        return ("", "items", summary.unit, "Holdfast is", "syncs/item", "survives power loss", "2nd run skips", "set")
    return ("", "items", summary.unit, "peak MB", "disk bytes/item", "durability")


def cells(line: Line, summary: Summary) -> Cells:
    start = (line.label, f"{line.items:,}", text(line.figure, summary.digits))
    if summary.proved:
        return (*start, times(line), syncs(line), YES[line.survives], skips(line), line.durability)
    peak = f"{line.peak_mb:.0f}" if line.peak_mb is not None else MISSING
    disk = f"{line.disk_per_item:,.0f}" if line.disk_per_item is not None else MISSING
    return (*start, peak, disk, line.durability)


def times(line: Line) -> str:
    if line.times is None or line.name == "holdfast":
        return MISSING
    return f"{line.times.median:,.{0 if line.times.median >= 10 else 2}f} ×"  # noqa: RUF001  it means times


def syncs(line: Line) -> str:
    if line.proof is None or line.proof.syncs is None:
        return MISSING
    return f"{line.proof.syncs:.{4 if line.proof.syncs < 0.1 else 1}f}" if line.proof.syncs else "0"


def skips(line: Line) -> str:
    return YES[line.proof.skips if line.proof else None]


def verdict_cells(verdict: Verdict) -> Cells:
    measured = f"{text(verdict.figure, verdict.digits)} {verdict.unit}".strip() if verdict.figure else MISSING
    return (verdict.says, measured, verdict.bound, result(verdict))


def result(verdict: Verdict) -> str:
    return "shown" if verdict.bound == SHOWN and verdict.met else RESULT[verdict.met]


def text(figure: Figure | None, digits: int) -> str:
    """Return the median, and the spread if there is one."""
    if figure is None:
        return MISSING
    middle, low, high = (f"{value:,.{digits}f}" for value in (figure.median, figure.low, figure.high))
    return middle if low == high else f"{middle} ({low} to {high})"
