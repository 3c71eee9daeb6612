"""The command itself: the list of commands, and how errors end them.

Exit codes: 0 complete, or fine · 1 findings, more dead letters than tolerated, an error, or declined at a question (no,
Ctrl-C or end of input) · 2 the command or its environment has to be changed first · 75 interrupted, or the store or the
source is not available now: run again to continue.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
import typer.main
from typer.core import TyperGroup

import holdfast
from holdfast import Defer, HoldfastError, StoreUnavailable, StoreUnusable, Transient, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import Declined
from holdfast.interfaces.cli.render import pasteable, remember, spell_warnings
from holdfast.runtime import text as words

INTERRUPTED = 75


class HelpLine(NamedTuple):
    """A command in the help: its module, and one line about it."""

    module: str
    line: str


PANELS = {
    "Run": {
        "run": HelpLine("run", "Run a pipeline or a scan, or continue it"),
        "plan": HelpLine("reconcile", "Show what a run would do, and what it would cost"),
        "demo": HelpLine("demo", "Watch a run being killed half-way and resumed"),
    },
    "Look": {
        "status": HelpLine("status", "Show the state of batches: counts, money, time left"),
        "show": HelpLine("status", "Show a batch with its statistics, or an item with its outputs"),
        "why": HelpLine("status", "Explain an item: its whole history, and what can be done"),
        "orphans": HelpLine("dead", "List items that are stuck, or resolve them"),
        "events": HelpLine("data", "Show events, or deliver them to a receiver"),
        "doctor": HelpLine("doctor", "Check this machine: library, disk, permissions, clock"),
        "faults": HelpLine("doctor", "List the points at which a test can make the process fail"),
    },
    "Decide": {
        "dead": HelpLine("dead", "List, show, redrive, resolve or discard dead letters"),
        "reset": HelpLine("reset", "Start an item or a whole batch again"),
        "pause": HelpLine("steer", "Pause a batch: workers stop at their next checkpoint"),
        "unpause": HelpLine("steer", "Let a paused batch continue"),
        "cancel": HelpLine("steer", "Cancel a batch for good"),
        "expect": HelpLine("steer", "Set how many items a batch has in all"),
        "close": HelpLine("steer", "Close a batch: it takes no new items"),
        "cursor": HelpLine("cursor", "Show, reset, clone, export or import the cursors of a scan"),
    },
    "Keep": {
        "reconcile": HelpLine("reconcile", "Compare expected, recorded and actual outputs; repair or seal"),
        "reopen": HelpLine("reconcile", "Lift the seal of a batch"),
        "audit": HelpLine("data", "Verify the journal"),
        "export": HelpLine("data", "Write results, or evidence of the outcome of every item"),
        "import": HelpLine("data", "Take over the work of another program, or of a lost store"),
    },
}
"""Every command by purpose, in the order of the help. Only the module of the command that is called is loaded."""
COMMANDS = {name: entry.module for panel in PANELS.values() for name, entry in panel.items()}
GROUPS = tuple(words.GROUPS)
"""Commands that have commands of their own."""


@cache
def _command(name: str) -> Any:
    module = import_module(f"holdfast.interfaces.cli.{COMMANDS[name]}")
    panel, line = next((title, names[name].line) for title, names in PANELS.items() if name in names)
    if name in GROUPS:
        group = typer.main.get_group(module.app)
        group.name, group.rich_help_panel, group.short_help = name, panel, line
        return group
    alone = typer.Typer(add_completion=False)
    function = getattr(module, f"{name}_" if iskeyword(name) else name)
    alone.command(name, rich_help_panel=panel, short_help=line)(function)
    return typer.main.get_command(alone)


class _Commands(Mapping[str, Any]):
    """The commands by name, each loaded when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _App(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        if len(args) < 2 or HELP & set(args):
            _style_help()
        with _styled_errors():
            return super().make_context(info_name, args, *rest, **more)

    def invoke(self, ctx: Any) -> Any:
        with _styled_errors():
            return super().invoke(ctx)


@contextmanager
def _styled_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error, which Typer prints
            _style_help()
        raise


HELP = frozenset({"-h", "--help"})


def _style_help() -> None:
    """Give help and usage errors the colors of all other output. The module takes long to load, so only they do it."""
    from typer import rich_utils

    rich_utils.STYLE_OPTION = rich_utils.STYLE_SWITCH = rich_utils.STYLE_COMMANDS_TABLE_FIRST_COLUMN = words.HEAD
    rich_utils.STYLE_NEGATIVE_OPTION = rich_utils.STYLE_NEGATIVE_SWITCH = words.HEAD
    rich_utils.STYLE_TYPES = rich_utils.STYLE_USAGE = rich_utils.STYLE_OPTION_ENVVAR = words.FAINT
    rich_utils.STYLE_ERRORS_PANEL_BORDER = words.BAD


app = typer.Typer(
    cls=_App,
    name="holdfast",
    help="Batch work that survives crashes: run it, inspect it, ask it why, repair it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        render.say(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="HOLDFAST_DEBUG", help="Show the traceback of an error.")
    ] = False,
    color: Annotated[
        bool, typer.Option("--color/--no-color", help="Use colors in a terminal; $NO_COLOR turns them off.")
    ] = True,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands."""
    if debug:
        os.environ["HOLDFAST_DEBUG"] = "1"
    if not color:
        os.environ["NO_COLOR"] = "1"


def main() -> NoReturn:
    """Run the command line, and exit."""
    sys.exit(call(sys.argv[1:]))


def call(args: Sequence[str]) -> int:
    """Run one command, and return its exit code."""
    remember(None)
    spell_warnings()
    try:
        app(args=list(args), prog_name="holdfast")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Declined:
        render.say("Nothing was changed.")
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except HoldfastError as error:
        return _failed(error, str(error), args)
    except Exception as error:  # noqa: BLE001  the outermost place: every error becomes one paragraph
        message = ". ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        return _failed(error, f"{message} (--debug shows where)", args)
    return 0


def _failed(error: Exception, message: str, args: Sequence[str]) -> int:
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exception(error)
    render.complain(message)
    if "--json" in args:
        render.document({"error": {"type": type(error).__name__, "message": pasteable(message)}})
    if isinstance(error, UsageError | StoreUnusable):
        return 2
    return INTERRUPTED if isinstance(error, StoreUnavailable | Transient | Defer) else 1
