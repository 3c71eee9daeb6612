"""What the commands share: arguments and options, the store, how a person is asked, what an act did."""

import getpass
import inspect
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.core.errors import UsageError
from holdfast.core.model import Batch
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.render import remember
from holdfast.runtime.acts import ActResult, By, Preview
from holdfast.runtime.report import lifecycle
from holdfast.runtime.text import command
from holdfast.stores.base import Store
from holdfast.stores.open import DEFAULT, open_store

Command = Callable[..., None]

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        callback=remember,
        help=f"Where the state is: a file, or s3://, az://, gs://, file://. Default: $HOLDFAST_STORE, else {DEFAULT}.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="The name of the batch.")]
ItemArgument = Annotated[str, typer.Argument(metavar="ITEM", help="The item's key, or #N for its number.")]


@contextmanager
def opened(where: str | None, *, must_exist: bool = True) -> Iterator[Store]:
    """The store, which must be there unless told otherwise; closed in the end."""
    store = open_store(where, must_exist=must_exist)
    try:
        yield store
    finally:
        store.close()


def whoever() -> str:
    """The user of this command, for the journal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a person wants a command that changes something to go about it: the options that all of them take."""

    reason: Annotated[str, typer.Option("--reason", help="Why; the journal keeps it.", show_default=False)] = ""
    actor: Annotated[
        str, typer.Option("--actor", help="Who; the journal keeps it. Default: you, on this host.", show_default=False)
    ] = ""
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")] = False
    store: StoreOption = None
    as_json: JsonOption = False

    @property
    def who(self) -> str:
        return self.actor if self.actor else whoever()


def with_manner(**settled: Any) -> Callable[[Command], Command]:
    """For a command that takes a `manner`: on the command line its fields are options of that command, except those
    that are settled here."""
    asked = [field for field in fields(Manner) if field.name not in settled]

    def unfold(command: Command) -> Command:
        def unfolded(**options: Any) -> None:
            chosen = {field.name: options.pop(field.name) for field in asked}
            command(**options, manner=Manner(**settled, **chosen))

        own = inspect.signature(command).parameters.values()
        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.name != "manner"]
        parameters += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in asked
        ]
        unfolded.__name__, unfolded.__doc__ = command.__name__, command.__doc__
        unfolded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return unfolded

    return unfold


def goes_on(manner: Manner, plan: Mapping[str, Any], show: Callable[[], None]) -> bool:
    """Show what a command would do, as the person wants to see it; False where it shall only be shown."""
    if not manner.as_json:
        show()
    elif manner.dry_run:
        render.document(plan)
    return not manner.dry_run


def show_preview(shown: Preview) -> None:
    """Show what an act would do."""
    for title in shown.titles:
        render.say(title, render.HEAD if shown.items else "")
    if shown.rows:
        render.show(render.facts(shown.rows))
    if shown.columns and shown.first:
        render.show(render.table(shown.columns, [tuple(each.values()) for each in shown.first]))
    if shown.columns and shown.items > len(shown.first):
        render.say(f"… and {shown.items - len(shown.first):,} more", render.FAINT)
    if shown.remark:
        render.say(shown.remark, render.FAINT)
    if shown.warning:
        render.say(f"  {shown.warning}.", render.CARE)


def agreed(what: str, manner: Manner, *, nothing_to_do: bool = False) -> By:
    """Who acts and why, once a person agreed to what was shown; without a terminal, --yes and --reason say so."""
    reason, actor = manner.reason, manner.who
    if nothing_to_do:
        return By(actor=actor, reason=reason if reason.strip() else "nothing to do")
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not manner.as_json
    if not manner.yes and not asks:
        raise UsageError(
            f"{what}: there is no terminal to ask at; pass --yes and --reason to do it; nothing was changed"
        )
    if not reason.strip() and not asks:
        raise UsageError(f"{what}: give the reason with --reason, the journal keeps it; nothing was changed")
    if not manner.yes and not typer.confirm(f"{what}?"):
        raise Declined
    if not reason.strip():
        reason = typer.prompt("Why? (the journal keeps it)")
    return By(actor=actor, reason=reason)


class Declined(Exception):
    """The person at the terminal said no."""


def read_file(file: Path) -> bytes:
    """What a file holds; what cannot be read is said in a sentence."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; nothing was changed") from None


def say_result(result: ActResult, as_json: bool, noun: str = "item") -> None:
    """What an act did."""
    if as_json:
        render.document(result.as_dict())
        return
    count = result.changed - result.buried
    kind = result.kind.replace("_", " ")
    render.say(f"{kind}: {render.many(count, noun)} of {result.batch}", render.GOOD if count else "")
    if result.buried:
        render.say(
            f"  buried: {result.buried:,}, re-enqueued too often: {command('dead list', result.batch)}", render.CARE
        )
    for why, count in result.left_alone:
        render.say(f"  left alone: {count:,} ({why})", render.FAINT)


def warn_of_end(there: Store, batch: Batch) -> None:
    """Whoever sends items back in a batch whose end has come hears that only a later end lets them run."""
    if warning := lifecycle.end_in_the_way(there, batch):
        render.say(f"  {warning}.", render.CARE)
