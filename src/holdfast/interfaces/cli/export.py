"""`holdfast export`: results, items in another state, or evidence, to a file or to standard output."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import holdfast
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, State
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import BatchArgument, StoreOption, opened
from holdfast.runtime import lookup
from holdfast.runtime.reconciling.reconciler import reconcile
from holdfast.runtime.records import evidence as bundles
from holdfast.runtime.records import export as exporting
from holdfast.runtime.sinks.names import safe_name
from holdfast.stores.base import Store


def export(
    batch: BatchArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file; without it, standard output.")] = None,
    form: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option("--format", help="Default: what the file's name says, else JSON lines."),
    ] = None,
    state: Annotated[State, typer.Option("--state", help="Which items.")] = State.DONE,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="An archive that proves what became of every item, without payloads.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="CSV cells as they are, also those that begin a formula.")] = False,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on standard output; with --out, one document about the file.")
    ] = False,
) -> None:
    """Write the results of a batch as JSON lines, CSV or Parquet, in the order of its items."""
    with opened(store) as there:
        found = lookup.batch_named(there, batch)
        if evidence:
            _export_evidence(there, found, out, as_json)
            return
        if out is None:
            exporting.export(there, found, sys.stdout.buffer, form="jsonl" if as_json else form, state=state, raw=raw)
            sys.stdout.buffer.flush()
            return
        summary = exporting.export(there, found, out, form=form, state=state, raw=raw)
    if as_json:
        render.document(summary.as_dict())
    else:
        render.say(f"{summary.rows:,} items written to {summary.path} ({summary.format}).")


def _export_evidence(there: Store, batch: Batch, out: Path | None, as_json: bool) -> None:
    if out is not None and out.suffix != bundles.SUFFIX:
        raise UsageError(f"--out {out}: evidence is one archive, name it …{bundles.SUFFIX}")
    path = out if out is not None else Path(f"{safe_name(batch.name)}-evidence{bundles.SUFFIX}")
    summary = bundles.write(
        there, batch, path, reconcile(there, batch).as_dict(), made_by=f"holdfast {holdfast.__version__}"
    )
    if as_json:
        render.document(summary.as_dict())
        return
    sealed = "sealed" if summary.is_sealed else "not sealed yet"
    render.say(f"Evidence of {summary.items:,} items and {summary.entries:,} entries ({sealed}): {path}", render.GOOD)
    if not summary.is_quiet:
        render.say("Somebody worked on the batch meanwhile: items may be ahead of the journal in it.", render.CARE)
    render.say(f"Head: {summary.head}")
    render.say("Keep the head elsewhere: an archive in which anything was changed has another.", render.FAINT)
    render.say(f"Check it anywhere: unzip -o {path} check.py && python check.py {path}", render.FAINT)
