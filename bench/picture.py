"""The figures as one picture: a bar for each contestant on a logarithmic scale. The same figures give the same bytes.

It is drawn element by element: text remains text, and the picture follows the reader's light or dark theme.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from bench.summary import Figure, Line, Summary
from bench.table import rounds, syncs, times

WIDTH, ROW, BAR = 960, 44, 20
LEFT, RIGHT, TOP, BOTTOM = 284, 176, 96, 76  # the margins around the bars
LEAST = 10  # items per second at the left edge: a logarithmic bar has no natural start
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: #1f2328 }
  .title { font-size: 18px; font-weight: 600 }
  .small { font-size: 11.5px; fill: #59636e }
  .value { font-weight: 600 }
  .end { text-anchor: end }
  .middle { text-anchor: middle }
  .grid { stroke: #d8dee4 }
  .spread { stroke: #1f2328; stroke-width: 1.5 }
  .holdfast { fill: #0f766e }
  .yardstick { fill: #b0894f }
  .peer { fill: #8b98a8 }
  .unsafe { fill-opacity: .28; stroke-width: 1.2; stroke-dasharray: 4 3 }
  .yardstick.unsafe { stroke: #b0894f }
  .peer.unsafe { stroke: #8b98a8 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d }
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .grid { stroke: #262c34 }
    .spread { stroke: #e6edf3 }
    .holdfast { fill: #2dbfae }
    .yardstick { fill: #c9a468 }
    .peer { fill: #77879a }
    .yardstick.unsafe { stroke: #c9a468 }
    .peer.unsafe { stroke: #77879a }
  }"""
YARDSTICKS = frozenset({"bare", "floor", "floor-one", "script"})


def write_picture(path: Path, summaries: Sequence[Summary]) -> None:
    """Draw the throughput; a run that did not measure it leaves the picture unchanged."""
    for summary in summaries:
        if summary.case == "throughput" and any(line.figure for line in summary.lines):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(drawn(summary)) + "\n", encoding="utf-8")


def drawn(summary: Summary) -> Iterator[str]:
    lines = sorted((line for line in summary.lines if line.figure), key=rate, reverse=True)
    missing = [line.label for line in summary.lines if not line.figure]
    height = TOP + ROW * len(lines) + BOTTOM + (18 if missing else 0)
    most = max(10 ** math.ceil(math.log10(rate(lines[0]))), 10 * LEAST)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    yield f"<title>{escape(words(lines))}</title>"
    yield f"<style>{STYLE}\n</style>"
    yield f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    yield label(24, 36, "Items per second, on a logarithmic scale", "title")
    yield label(24, 58, "180 bytes of JSON in, a handler that does nothing, 90 bytes out; ingest included.", "small")
    yield label(WIDTH - 24, 58, "Holdfast is … as fast", "small end")
    yield from scale(most, TOP + ROW * len(lines))
    for place, line in enumerate(lines):
        yield from bar(line, TOP + ROW * place, most)
    yield from legend(height - 42)
    if missing:
        yield label(24, height - 38 - 22, f"Not measured: {', '.join(missing)}", "small")
    yield label(24, height - 18, caption(summary), "small")
    yield "</svg>"


def scale(most: float, bottom: int) -> Iterator[str]:
    power = LEAST
    while power <= most:
        x = at(power, most)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}"/>'
        yield label(x, TOP - 12, f"{power:,}", "small middle")
        power *= 10


def bar(line: Line, top: int, most: float) -> Iterator[str]:
    found = line.figure
    assert found
    kind = f"{kind_of(line)}{'' if line.survives else ' unsafe'}"
    y, middle, end = top + (ROW - BAR) / 2, top + ROW / 2, at(found.high, most)
    width = max(at(found.median, most) - LEFT, 1)
    yield label(LEFT - 12, middle - 3, line.label, "end value" if line.name == "holdfast" else "end")
    yield label(LEFT - 12, middle + 12, f"{syncs(line)} syncs/item", "small end")
    yield f'<rect class="{kind}" x="{LEFT}" y="{y:g}" width="{width:.1f}" height="{BAR}" rx="3"/>'
    yield f'<line class="spread" x1="{at(found.low, most):.1f}" x2="{end:.1f}" y1="{middle:g}" y2="{middle:g}"/>'
    yield label(end + 8, middle + 4.5, value(found), "value")
    if line.name != "holdfast":
        yield label(WIDTH - 24, middle + 4.5, f"{times(line)}", "end")


def legend(y: int) -> Iterator[str]:
    x = 24
    for kind, says in (
        ("holdfast", "Holdfast, defaults"),
        ("yardstick", "yardsticks"),
        ("peer", "peers"),
        ("peer unsafe", "loses acknowledged work in a power loss"),
    ):
        yield f'<rect class="{kind}" x="{x}" y="{y - 10}" width="14" height="12" rx="2"/>'
        yield label(x + 20, y, says, "small")
        x += 44 + 7 * len(says)


def label(x: float, y: float, says: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(says)}</text>'


def at(value: float, most: float) -> float:
    share = math.log(max(value, LEAST) / LEAST) / math.log(most / LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def kind_of(line: Line) -> str:
    return "holdfast" if line.name == "holdfast" else "yardstick" if line.name in YARDSTICKS else "peer"


def rate(line: Line) -> float:
    assert line.figure
    return line.figure.median


def value(figure: Figure) -> str:
    return f"{figure.median:,.0f}"


def words(lines: Sequence[Line]) -> str:
    """Return the picture as text for screen readers."""
    return "Items per second: " + ", ".join(f"{line.label} {rate(line):,.0f}" for line in lines)


def caption(summary: Summary) -> str:
    machine = summary.machine
    return (
        f"Medians of {rounds(summary)} in turn, the line from lowest to highest; {machine.cores} cores, "
        f"Python {machine.python}, {machine.file_system}, fdatasync {machine.sync_ms:.2f} ms"
    )
