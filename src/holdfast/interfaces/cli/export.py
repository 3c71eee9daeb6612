"""`holdfast export`: results, or items in another state, to a file or to standard output."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from holdfast.core.model import State
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import BatchArgument, StoreOption, opened
from holdfast.runtime import export as exporting
from holdfast.runtime import lookup


def export(
    batch: BatchArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file; without it, standard output.")] = None,
    form: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option("--format", help="Default: what the file's name says, else JSON lines."),
    ] = None,
    state: Annotated[State, typer.Option("--state", help="Which items.")] = State.DONE,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on standard output; with --out, one document about the file.")
    ] = False,
) -> None:
    """Write the results of a batch as JSON lines, CSV or Parquet, in the order of its items."""
    with opened(store) as there:
        found = lookup.batch_named(there, batch)
        if out is None:
            exporting.export(there, found, sys.stdout.buffer, form="jsonl" if as_json else form, state=state)
            sys.stdout.buffer.flush()
            return
        summary = exporting.export(there, found, out, form=form, state=state)
    if as_json:
        render.document(summary.as_dict())
    else:
        render.say(f"{summary.rows:,} items written to {summary.path} ({summary.format}).")
