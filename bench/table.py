"""The figures as tables: rich ones on a terminal, Markdown ones between two markers of a page."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.machine import Machine
from bench.summary import Figure, Line, Summary, Verdict

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
DURABILITY = (
    "Every SQLite file: WAL, `synchronous=FULL`, so a commit returns after its fdatasync. Each figure: median of the "
    "rounds (lowest to highest), every reading in a fresh process and folder; ratios are taken within a round."
)
MISSING = "-"
RESULT = {True: "met", False: "missed", None: "not measured"}
COLOUR = {True: "green", False: "red", None: "yellow"}
NEW_PAGE = f"# Benchmarks\n\nWritten by `python -m bench --write`.\n\n{BEGIN}\n{END}\n"

Cells = tuple[str, ...]


def show(console: Console, summary: Summary) -> None:
    console.print(lines_table(summary))
    for failure, labels in failures(summary).items():
        words = f"  not measured: {'; '.join(labels)}: {failure}"
        console.print(words, style="yellow", highlight=False, markup=False)
    if summary.verdicts:
        console.print(goals_table(summary))


def lines_table(summary: Summary) -> Table:
    table = Table(title=f"{summary.case}: {summary.asks}", title_justify="left")
    for number, column in enumerate(heads(summary)):
        table.add_column(column, justify="right" if 0 < number < 5 else "left")
    for line in summary.lines:
        table.add_row(*cells(line, summary))
    return table


def failures(summary: Summary) -> dict[str, list[str]]:
    """Each reason once, with the probes it stopped."""
    found: dict[str, list[str]] = {}
    for line in summary.lines:
        if line.failure:
            found.setdefault(line.failure, []).append(line.label)
    return found


def goals_table(summary: Summary) -> Table:
    table = Table("goal", "measured", "bound", "")
    for verdict in summary.verdicts:
        *words, outcome = verdict_cells(verdict)
        table.add_row(*words, f"[{COLOUR[verdict.met]}]{outcome}")
    return table


def heads(summary: Summary) -> Cells:
    return ("", "items", summary.unit, "peak MB", "disk bytes/item", "durability")


def cells(line: Line, summary: Summary) -> Cells:
    return (
        line.label,
        f"{line.items:,}",
        text(line.figure, summary.digits),
        f"{line.peak_mb:.0f}" if line.peak_mb is not None else MISSING,
        f"{line.disk_per_item:,.0f}" if line.disk_per_item is not None else MISSING,
        line.durability,
    )


def verdict_cells(verdict: Verdict) -> Cells:
    measured = f"{text(verdict.figure, verdict.digits)} {verdict.unit}".strip() if verdict.figure else MISSING
    return (verdict.says, measured, verdict.bound, RESULT[verdict.met])


def text(figure: Figure | None, digits: int) -> str:
    """The median, and the spread behind it where there is one."""
    if figure is None:
        return MISSING
    middle, low, high = (f"{value:,.{digits}f}" for value in (figure.median, figure.low, figure.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def write_page(path: Path, machine: Machine, summaries: list[Summary]) -> None:
    """Replaces what stands between the markers; everything else on the page is its author's."""
    page = path.read_text(encoding="utf-8") if path.exists() else NEW_PAGE
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{path.name} has no {BEGIN} … {END}: add the two markers where the tables belong")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{BEGIN}\n{markdown(machine, summaries)}\n{END}{after}", encoding="utf-8")


def markdown(machine: Machine, summaries: list[Summary]) -> str:
    parts = [f"Measured on {machine}.", DURABILITY]
    for summary in summaries:
        parts += section(summary)
    return "\n\n".join(parts)


def section(summary: Summary) -> Iterator[str]:
    yield f"### {summary.asks}"
    yield f"`python -m bench --only {summary.case}`, {summary.rounds} rounds."
    yield rows_of(heads(summary), [cells(line, summary) for line in summary.lines])
    if summary.verdicts:
        yield rows_of(("goal", "measured", "bound", "result"), [verdict_cells(found) for found in summary.verdicts])


def rows_of(columns: Cells, rows: list[Cells]) -> str:
    rule = tuple("---" for _ in columns)
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))
