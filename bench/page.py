"""The page of the benchmarks: the last measurement of each case, as Markdown between two markers.

The figures are kept in a file beside the page. A run of some cases updates those, and the page is written from all.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.cases import CASES
from bench.picture import write_picture
from bench.summary import SHOWN, Summary, Verdict
from bench.table import GOAL_HEADS, Cells, cells, failures, heads, repeat, rounds, verdict_cells

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
MARK = {True: "✓", False: "**✗**", None: "**?**"}
NEW_PAGE = f"# Benchmarks\n\n{BEGIN}\n{END}\n"


def look_ahead(docs: Path) -> None:
    """Stop before measuring if the page could not be written afterwards."""
    known(docs / "benchmarks.json")
    parts(docs / "benchmarks.md")


def write(docs: Path, summaries: Sequence[Summary]) -> None:
    """Update the figures of these cases, the page, and the picture."""
    if any("--quick" in summary.arguments for summary in summaries):
        raise SystemExit("--quick shows that it works, not how fast: its figures are not written anywhere")
    everything = merged(docs / "benchmarks.json", summaries)
    write_page(docs / "benchmarks.md", everything)
    write_picture(docs / "images" / "benchmark.svg", everything)


def merged(path: Path, summaries: Sequence[Summary]) -> list[Summary]:
    by_case = {found.case: found for found in (*known(path), *summaries)}
    kept = [by_case[name] for name in CASES if name in by_case]
    save(path, kept)
    return kept


def known(path: Path) -> list[Summary]:
    try:
        return load(path) if path.exists() else []
    except msgspec.DecodeError as error:
        raise SystemExit(f"{path.name} is not of this bench ({error}): remove it, and measure everything") from error


def save(path: Path, summaries: Sequence[Summary]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summaries), indent=1) + b"\n")


def load(path: Path) -> list[Summary]:
    return msgspec.json.decode(path.read_bytes(), type=list[Summary])


def write_page(path: Path, summaries: Sequence[Summary]) -> None:
    """Replace the text between the markers; the rest of the page is left to its author."""
    before, after = parts(path)
    path.write_text(f"{before}{BEGIN}\n{markdown(summaries)}\n{END}{after}", encoding="utf-8")


def parts(path: Path) -> tuple[str, str]:
    page = path.read_text(encoding="utf-8") if path.exists() else NEW_PAGE
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{path.name} has no {BEGIN} … {END}: add the two markers where the tables belong")
    return before, after


def markdown(summaries: Sequence[Summary]) -> str:
    sections = ["## Goals", goals(summaries)]
    for summary in summaries:
        sections += section(summary)
    return "\n\n".join(sections)


def goals(summaries: Sequence[Summary]) -> str:
    """Return every goal of every case in one table."""
    rows = [
        (f"[{summary.case}](#{summary.case})", *verdict_row(verdict))
        for summary in summaries
        for verdict in summary.verdicts
    ]
    return rows_of(("case", *GOAL_HEADS), rows)


def section(summary: Summary) -> Iterator[str]:
    yield f"## {summary.case.capitalize()}"
    yield f"{summary.asks}. `{repeat(summary)}`, {rounds(summary)}, on {summary.machine}."
    if summary.note:
        yield summary.note
    yield rows_of(heads(summary), [cells(line, summary) for line in summary.lines])
    for failure, labels in failures(summary).items():
        yield f"**Not measured:** {', '.join(labels)}: {failure}."
    if summary.verdicts:
        yield rows_of(GOAL_HEADS, [verdict_row(found) for found in summary.verdicts])


def verdict_row(verdict: Verdict) -> Cells:
    *words, outcome = verdict_cells(verdict)
    return (*words, outcome if verdict.bound == SHOWN else f"{MARK[verdict.met]} {outcome}")


def rows_of(columns: Cells, rows: Sequence[Cells]) -> str:
    rule = tuple("---" for _ in columns)
    return "\n".join(f"| {' | '.join(escaped(word) for word in row)} |" for row in (columns, rule, *rows))


def escaped(word: str) -> str:
    return word.replace("|", "\\|") if word else " "
