"""The command: choose cases, measure, show, and on request write the page and the picture."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from bench.case import Size
from bench.cases import CASES
from bench.machine import Machine, look
from bench.measure import ROOT, Say, measure
from bench.summary import Summary, summarise
from bench.table import DURABILITY, show, write_page

ROUNDS, QUICK_ROUNDS = 5, 2
PLAIN_WIDTH = 140  # where there is no terminal to ask


class Results(msgspec.Struct, frozen=True):
    """What --json keeps and --load reads."""

    machine: Machine
    summaries: list[Summary]


def main() -> int:
    options = arguments()
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    results = load(options.load) if options.load else run(options, console)
    tell(console, results)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2))
    if options.write:
        write(options.docs, results)
    return 1 if options.check and missed(results) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", choices=CASES, metavar="CASE", help=f"one of {', '.join(CASES)}; may be repeated")
    add("--rounds", type=int, help=f"rounds of each case (default {ROUNDS}; quick {QUICK_ROUNDS})")
    add("--items", type=int, help="items of the throughput case (default 100,000; quick 10,000)")
    add("--quick", action="store_true", help="a tenth of everything: shows that it works, not how fast")
    add("--full", action="store_true", help="also what takes long: ten million items, random keys on resume")
    add("--json", type=Path, metavar="FILE", help="keep all readings")
    add("--load", type=Path, metavar="FILE", help="measure nothing, take the readings from FILE")
    add(
        "--write",
        action="store_true",
        help="write docs/benchmarks.md and docs/images/benchmark.svg",
    )
    add("--docs", type=Path, default=ROOT / "docs", metavar="FOLDER", help="where --write writes")
    add("--check", action="store_true", help="exit with 1 when a goal was missed or could not be measured")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--quick shows that it works, not how fast: its figures are not written anywhere")
    return options


def run(options: argparse.Namespace, console: Console) -> Results:
    size = Size(items=options.items or (10_000 if options.quick else 100_000), quick=options.quick, full=options.full)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    machine = look()
    with saying(console) as say:
        return Results(machine, [measured(name, size, rounds, say) for name in options.only or CASES])


@contextmanager
def saying(console: Console) -> Iterator[Say]:
    """What is measured right now: a moving line on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield partial(print, file=sys.stderr, flush=True)
        return
    with console.status("measuring") as status:
        yield status.update


def measured(name: str, size: Size, rounds: int, say: Say) -> Summary:
    case = CASES[name](size)
    readings, failures = measure(case, rounds, say)
    return summarise(case, rounds, readings, failures)


def tell(console: Console, results: Results) -> None:
    console.print(f"Measured on {results.machine}.", highlight=False)
    console.print(DURABILITY, highlight=False)
    for summary in results.summaries:
        show(console, summary)


def write(docs: Path, results: Results) -> None:
    from bench.picture import write_picture  # matplotlib is slow to import and rarely wanted

    write_page(docs / "benchmarks.md", results.machine, results.summaries)
    write_picture(docs / "images" / "benchmark.svg", results.machine, results.summaries)


def load(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def missed(results: Results) -> bool:
    return any(verdict.met is not True for summary in results.summaries for verdict in summary.verdicts)


if __name__ == "__main__":
    raise SystemExit(main())
