"""`holdfast import`: a record made again from what its outputs show."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.core.errors import UsageError
from holdfast.interfaces.cli import arriving, render
from holdfast.interfaces.cli.common import Manner, agreed, with_manner
from holdfast.interfaces.cli.loading import load
from holdfast.runtime.operating.operations import By
from holdfast.runtime.records import recovery

NAMED = 20
"""So many items are named on a screen."""


@with_manner()
def import_(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="app.py:book, or package.module:book.")],
    from_outputs: Annotated[
        bool, typer.Option("--from-outputs", help="Rebuild the record of a batch from its output files.")
    ] = False,
    from_state: Annotated[
        Path | None, typer.Option("--from-state", help="Resume where a poller's state says: cursor and lease.")
    ] = None,
    from_checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--from-checkpoint",
            metavar="[PARTITION=]FILE",
            help="Resume where a checkpoint with its history stands; once for each partition.",
        ),
    ] = None,
    by_rows: Annotated[
        bool,
        typer.Option(
            "--by-rows", help="With --from-checkpoint: it has no cursor, only a number of rows; the row is looked up."
        ),
    ] = False,
    from_pages: Annotated[
        Path | None,
        typer.Option(
            "--from-pages", help="Resume where a .checkpoint file of pages stands, with the outputs beside it."
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", help="The batch to make. Default: the pipeline's name.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The field that identifies an item.")] = None,
    *,
    manner: Manner,
) -> None:
    """Rebuild a lost or damaged record from output files, or resume where another program stopped."""
    if sum((from_outputs, from_state is not None, bool(from_checkpoint), from_pages is not None)) != 1:
        raise UsageError(
            "pass from what: --from-outputs rebuilds a record from output files; --from-state, --from-checkpoint and "
            "--from-pages resume where another program stopped"
        )
    if by_rows and not from_checkpoint:
        raise UsageError("--by-rows belongs to --from-checkpoint; nothing was changed")
    if from_state is not None:
        arriving.import_state(target, from_state, batch, manner)
    elif from_checkpoint:
        arriving.import_checkpoints(target, from_checkpoint, by_rows, batch, manner)
    elif from_pages is not None:
        arriving.import_pages(target, from_pages, batch, key, manner)
    else:
        _rebuild(target, batch, key, manner)


def _rebuild(target: str, batch: str | None, key: str | None, manner: Manner) -> None:
    """The damaged file is set aside, items with valid outputs count as done."""
    with _quiet(manner.as_json):
        pipeline = load(target)
    if manner.store is not None:
        pipeline.use_store(manner.store)
    path = pipeline.store_path
    damage = recovery.is_damaged(path) if path is not None else None
    name = batch if batch is not None else pipeline.name
    if not manner.as_json:
        _announce(path, damage, name)
    if manner.dry_run:
        with _quiet(manner.as_json):
            found = pipeline.recover(by=By(actor="nobody", reason="a dry run"), batch=name, key=key, dry_run=True)
        if manner.as_json:
            render.document({"store": str(path), "damaged": damage, "dry_run": True, **found.as_dict()})
        else:
            _tell(found, dry_run=True)
        return
    by = agreed(f"Rebuild batch {name} from its output files", manner)
    moved = recovery.set_aside(path) if path is not None and damage is not None else ()
    with _quiet(manner.as_json):
        found = pipeline.recover(by=by, batch=name, key=key, set_aside=moved)
    if manner.as_json:
        render.document(found.as_dict())
    else:
        _tell(found, dry_run=False)


def _quiet(as_json: bool) -> contextlib.AbstractContextManager[object]:
    """What the user's module, source or verifiers print is not our answer."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _announce(path: Path | None, damage: str | None, batch: str) -> None:
    if path is None:
        return
    if damage is not None:
        render.say(damage, render.BAD)
        render.say("It would be set aside under another name, and a new store made in its place.")
    elif path.exists():
        render.say(f"{path} can be read: batch {batch!r} would be added to it.")
    else:
        render.say(f"There is no store at {path}: one would be made.")


def _tell(found: recovery.Recovery, *, dry_run: bool) -> None:
    for name in found.set_aside:
        render.say(f"set aside: {name}", render.FAINT)
    whole = sum(found.recovered.values())
    done, rest = ("would be recovered", "would run") if dry_run else ("recovered", "will run")
    render.say(f"{render.many(whole, 'item')} of {found.items:,} {done}, {found.pending:,} {rest}.", render.GOOD)
    rows = [(f"after {stage}", f"{count:,}") for stage, count in found.recovered.items()]
    rows.append(("without a valid output", f"{found.pending:,}"))
    rows.append(("unknown about the recovered", "; ".join(found.unknown)))
    render.show(render.facts(rows))
    _name("not recovered", found.invalid, found.invalid_count)
    _name("recovered and not verified", found.unverified, found.unverified_count)
    if found.unverified_count:
        render.say("  run with --verify full once the verifiers can answer: what does not hold is made again then")
    render.say("Nothing was changed." if dry_run else "Outputs were not changed. Run the pipeline to continue.")


def _name(what: str, items: Sequence[tuple[str, str]], count: int) -> None:
    for name, why in items[:NAMED]:
        render.say(f"  {what}: {name}: {why}", render.CARE)
    if count > NAMED:
        render.say(f"  and {count - NAMED:,} more; --json names them", render.CARE)
