"""The command: choose cases, measure, show, and on request write the page and the picture."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from bench import page
from bench.case import Size
from bench.cases import CASES
from bench.environment import ROOT
from bench.machine import Machine, look
from bench.measure import Say, measure
from bench.summary import Summary, summarise
from bench.table import show

ROUNDS, QUICK_ROUNDS = 5, 2
PLAIN_WIDTH = 140  # without a terminal


def main() -> int:
    options = arguments()
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    began = time.monotonic()
    summaries: list[Summary] = []
    for summary in page.load(options.load) if options.load else run(options, console):
        summaries.append(summary)
        show(console, summary)
        if options.json:  # case by case: figures survive the interruption of a later case
            page.save(options.json, summaries)
        if options.write:
            page.write(options.docs, [summary])
    wrong = missed(summaries)
    for line in wrong:
        console.print(line, style="bold red", highlight=False, markup=False)
    console.print(f"{time.monotonic() - began:,.0f} s in all", style="dim", highlight=False)
    return 1 if options.check and wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", choices=CASES, metavar="CASE", help=f"one of {', '.join(CASES)}; may be repeated")
    add(
        "--rounds",
        type=int,
        help=f"rounds of each case (default {ROUNDS}, fewer where a round takes minutes; quick {QUICK_ROUNDS})",
    )
    add("--items", type=int, help="items of the throughput case (default 100,000; quick 10,000)")
    add("--quick", action="store_true", help="a tenth of everything: shows that it works, not how fast")
    add("--full", action="store_true", help="also what takes long: memory at ten million items, random keys on resume")
    add("--json", type=Path, metavar="FILE", help="keep all readings")
    add("--load", type=Path, metavar="FILE", help="measure nothing, take the figures of FILE")
    add("--write", action="store_true", help="renew these cases in docs/benchmarks.md, and the picture")
    add("--docs", type=Path, default=ROOT / "docs", metavar="FOLDER", help="where --write writes")
    add("--check", action="store_true", help="exit with 1 when a goal was missed or could not be measured")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--quick shows that it works, not how fast: its figures are not written anywhere")
    if options.write:
        page.look_ahead(options.docs)
    return options


def run(options: argparse.Namespace, console: Console) -> Iterator[Summary]:
    size = Size(items=options.items or (10_000 if options.quick else 100_000), quick=options.quick, full=options.full)
    machine = look()
    console.print(f"Measuring on {machine}.", highlight=False)
    for name in options.only or CASES:
        with saying(console) as say:
            summary = measured(name, size, options, machine, say)
        yield summary


@contextmanager
def saying(console: Console) -> Iterator[Say]:
    """Report what is being measured: a moving line on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield partial(print, file=sys.stderr, flush=True)
        return
    with console.status("measuring") as status:
        yield status.update


def measured(name: str, size: Size, options: argparse.Namespace, machine: Machine, say: Say) -> Summary:
    case = CASES[name](size)
    usual = QUICK_ROUNDS if size.quick else ROUNDS
    rounds = options.rounds or min(usual, case.at_most_rounds or usual)
    found = measure(case, rounds, say)
    arguments = f"--only {name}{' --full' if size.full else ''}{' --quick' if size.quick else ''}"
    return summarise(case, rounds, found, machine, arguments)


def missed(summaries: list[Summary]) -> list[str]:
    """Return a line for each goal that was missed, or that could not be measured."""
    return [
        f"{summary.case}: {verdict.says}: {'not measured' if verdict.met is None else f'missed {verdict.bound}'}"
        for summary in summaries
        for verdict in summary.verdicts
        if verdict.met is not True
    ]


if __name__ == "__main__":
    raise SystemExit(main())
