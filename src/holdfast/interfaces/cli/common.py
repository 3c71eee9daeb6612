"""Shared parts of the commands: arguments and options, questions at the terminal, the result of an act."""

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
        help=f"The store: a file, or s3://, az://, gs://, file://. Default: $HOLDFAST_STORE, else {DEFAULT}.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="The name of the batch.")]
ItemArgument = Annotated[str, typer.Argument(metavar="ITEM", help="The item's key, or #N for its number.")]


def user_and_host() -> str:
    """Return the user of this command and the host, for the journal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOptions:
    """The options of every command that changes something."""

    reason: Annotated[str, typer.Option("--reason", help="The reason, for the journal.", show_default=False)] = ""
    actor: Annotated[
        str,
        typer.Option(
            "--actor", help="The person who acts, for the journal. Default: you, on this host.", show_default=False
        ),
    ] = ""
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; needs --reason.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False
    store: StoreOption = None
    as_json: JsonOption = False

    @property
    def who(self) -> str:
        return self.actor if self.actor else user_and_host()


def with_manner(**settled: Any) -> Callable[[Command], Command]:
    """Return a decorator for a command with the parameter `manner`: its fields become options of the command, except
    those that are set here."""
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
    """Show what an act would do, or what it will do if it is confirmed already."""

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
    """Show what an act would do, ask, do it, and show the result; return None after a dry run."""
    if not manner.dry_run and not shown.is_idle:
        check_reason(shown.question, manner)
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
    """The person who agreed to an act, and the reason."""

    name: str
    reason: str


def check_reason(what: str, manner: ActOptions) -> None:
    """Refuse --yes without --reason, before anything is shown or asked."""
    if manner.yes and not manner.reason.strip():
        raise UsageError(f"{what}: give the reason with --reason, the journal keeps it; nothing was changed")


def can_ask(manner: ActOptions) -> bool:
    """Return whether a person at a terminal can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not manner.as_json


def agreed(what: str, manner: ActOptions, *, nothing_to_do: bool = False, confirms: bool = True) -> Agreed:
    """Return the person who acts and the reason: ask for the reason if it was not given, then for confirmation unless
    --yes was given. `confirms` is False for an act that can be undone: it needs the reason only."""
    reason, actor = manner.reason, manner.who
    if nothing_to_do:
        return Agreed(actor, reason if reason.strip() else "nothing to do")
    check_reason(what, manner)
    if not can_ask(manner) and confirms and not manner.yes:
        raise UsageError(
            f"{what}: there is no terminal to ask at; pass --yes and --reason to do it; nothing was changed"
        )
    if not can_ask(manner) and not reason.strip():
        raise UsageError(f"{what}: give the reason with --reason, the journal keeps it; nothing was changed")
    try:
        while not reason.strip():
            reason = typer.prompt(f"{what}: why? (for the journal)")
        if confirms and not manner.yes and not typer.confirm(f"{what}?"):
            raise Declined
    except typer.Abort:
        sys.stdout.write("\n")
        raise Declined from None
    return Agreed(actor, reason)


class Declined(Exception):
    """The person at the terminal answered no, pressed Ctrl-C or ended the input."""


def quietly(manner: ActOptions | bool) -> AbstractContextManager[object]:
    """Return a context for loading or running a user's program: with --json, its output goes to standard error."""
    as_json = manner if isinstance(manner, bool) else manner.as_json
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def say_result(result: ActResult, as_json: bool) -> None:
    """Print the result of an act."""
    if as_json:
        render.document(result.as_dict())
        return
    count = result.changed - result.buried
    kind = result.kind.replace("_", " ")
    render.say(f"{kind}: {render.many(count, result.noun)} of {result.batch}", render.GOOD if count else "")
    if result.buried:
        render.say(
            f"  buried: {result.buried:,}, requeued too often: {command('dead list', result.batch)}", render.CARE
        )
    for why, count in result.left_alone:
        render.say(f"  left alone: {count:,} ({why})", render.FAINT)
