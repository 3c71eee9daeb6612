"""The command itself: which commands there are, and what becomes of errors.

Exit codes: 0 complete, or fine · 1 finished with findings, or with dead letters beyond what is tolerated · 2 somebody
has to change the command or its environment first · 75 interrupted, or the store or the source is not to be had now:
run again to continue.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
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

INTERRUPTED = 75


class HelpLine(NamedTuple):
    """A command in the help: the module that has it, and one line on it."""

    module: str
    line: str


PANELS = {
    "Run": {
        "run": HelpLine("run", "Run a pipeline or a scan, or continue it"),
        "plan": HelpLine("reconcile", "Show what a run would do, and what it would cost"),
        "demo": HelpLine("demo", "Run a book, kill it halfway and resume it"),
    },
    "Look": {
        "status": HelpLine("status", "Show the state of batches: counts, money, time left"),
        "show": HelpLine("status", "Show a batch with its statistics, or an item with its outputs"),
        "why": HelpLine("status", "Show the history of an item, and what can be done"),
        "orphans": HelpLine("dead", "List what is stuck, or resolve it"),
        "events": HelpLine("data", "Show events, or deliver them"),
        "doctor": HelpLine("doctor", "Check the environment: library, disk, permissions, clock"),
        "faults": HelpLine("doctor", "List the points at which a test can kill the process"),
    },
    "Decide": {
        "dead": HelpLine("dead", "Dead letters: list, show, redrive, resolve, discard"),
        "reset": HelpLine("reset", "Start an item or a whole batch again"),
        "pause": HelpLine("steer", "Hand out no more items; workers stop at their next checkpoint"),
        "unpause": HelpLine("steer", "Let a paused batch continue"),
        "cancel": HelpLine("steer", "Cancel a batch for good"),
        "expect": HelpLine("steer", "Record how many items a batch has in total"),
        "close": HelpLine("steer", "Accept no new items from now on"),
        "cursor": HelpLine("cursor", "Cursors of a scan: show, reset, clone, export, import and more"),
    },
    "Keep": {
        "reconcile": HelpLine("reconcile", "Compare what is expected, recorded and present; seal"),
        "reopen": HelpLine("reconcile", "Lift the seal of a batch"),
        "audit": HelpLine("data", "Verify the journal"),
        "export": HelpLine("data", "Write results, or evidence of what happened to every item"),
        "import": HelpLine("data", "Continue the work of another program, or rebuild a lost store"),
    },
}
"""Every command by what a person wants, in the order of the help; only what is called is loaded."""
COMMANDS = {name: entry.module for panel in PANELS.values() for name, entry in panel.items()}
GROUPS = ("dead", "cursor", "audit")


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
    """The commands by name, loaded when they are asked for."""

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


app = typer.Typer(
    cls=_App,
    name="holdfast",
    help="Batch work that survives crashes: run it, inspect it, find out why, repair it.",
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
    debug: Annotated[bool, typer.Option("--debug", envvar="HOLDFAST_DEBUG", help="Show tracebacks of errors.")] = False,
    color: Annotated[bool, typer.Option("--color/--no-color", help="Colors in the terminal.")] = True,
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
    """Return the entry point of the command."""
    sys.exit(call(sys.argv[1:]))


def call(args: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
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
    except Exception as error:  # noqa: BLE001  the last place: whatever it is, say it in one paragraph
        told = ". ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        return _failed(error, f"{told} (--debug shows where)", args)
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
