"""What the commands share: arguments and options, the store, how a person is asked, what an act did."""

import getpass
import inspect
import os
import re
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, NamedTuple

import typer

from holdfast import ActResult, Preview, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.render import remember
from holdfast.runtime.text import command

Command = Callable[..., None]
DEFAULT = ".holdfast/state.db"

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


def whoever() -> str:
    """Return the user of this command, for the journal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOptions:
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
    asked = [field for field in fields(ActOptions) if field.name not in settled]

    def unfold(command: Command) -> Command:
        def unfolded(**options: Any) -> None:
            chosen = {field.name: options.pop(field.name) for field in asked}
            command(**options, manner=ActOptions(**settled, **chosen))

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


def show_preview(shown: Preview, *, is_agreed: bool = False) -> None:
    """Show what an act would do; or what it will do, where that is agreed to already."""

    def tense(text: str) -> str:
        return re.sub(r"\bwould\b", "will", text) if is_agreed else text

    for title in shown.titles:
        render.say(tense(title), render.HEAD if shown.items else "")
    if shown.rows:
        render.show(render.facts(shown.rows))
    if shown.columns and shown.first:
        rows = [tuple(each.values()) for each in shown.first]
        render.show(render.table([tense(column) for column in shown.columns], rows))
    if shown.more > 0:
        render.say(f"… and {shown.more:,} more", render.FAINT)
    if shown.remark:
        render.say(shown.remark, render.FAINT)
    if shown.warning:
        render.say(f"  {shown.warning.rstrip('.')}.", render.CARE)


def decide(shown: Preview, manner: ActOptions) -> ActResult | None:
    """Show what an act would do, ask, do it, and tell what it did; None where it shall only be shown."""
    if not manner.as_json:
        show_preview(shown, is_agreed=manner.yes and not manner.dry_run)
    elif manner.dry_run:
        render.document(shown.as_dict())
    if manner.dry_run:
        return None
    by = agreed(shown.question, manner, nothing_to_do=shown.is_idle)
    done = shown.carry_out(reason=by.reason, actor=by.name)
    say_result(done, manner.as_json)
    return done


class Agreed(NamedTuple):
    """Who agreed to an act, and why."""

    name: str
    reason: str


def agreed(what: str, manner: ActOptions, *, nothing_to_do: bool = False) -> Agreed:
    """Return who acts and why, once a person agreed to what was shown; without a terminal, --yes and --reason say
    so."""
    reason, actor = manner.reason, manner.who
    if nothing_to_do:
        return Agreed(actor, reason if reason.strip() else "nothing to do")
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
    return Agreed(actor, reason)


class Declined(Exception):
    """The person at the terminal said no."""


def quietly(manner: ActOptions | bool) -> AbstractContextManager[object]:
    """Around what loads or runs a user's program: what it prints is not our answer."""
    as_json = manner if isinstance(manner, bool) else manner.as_json
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def say_result(result: ActResult, as_json: bool) -> None:
    """What an act did."""
    if as_json:
        render.document(result.as_dict())
        return
    count = result.changed - result.buried
    kind = result.kind.replace("_", " ")
    render.say(f"{kind}: {render.many(count, result.noun)} of {result.batch}", render.GOOD if count else "")
    if result.buried:
        render.say(
            f"  buried: {result.buried:,}, re-enqueued too often: {command('dead list', result.batch)}", render.CARE
        )
    for why, count in result.left_alone:
        render.say(f"  left alone: {count:,} ({why})", render.FAINT)
