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
from typing import Annotated, Any, NoReturn

import typer
import typer.main
from typer.core import TyperGroup

import holdfast
from holdfast import Defer, HoldfastError, StoreUnavailable, StoreUnusable, Transient, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import Declined
from holdfast.interfaces.cli.render import pasteable, remember, spell_warnings

INTERRUPTED = 75

# fmt: off
COMMANDS = {
    "run": "run", "plan": "reconcile", "status": "status", "show": "status", "why": "status", "orphans": "dead",
    "events": "data", "reset": "reset", "reconcile": "reconcile", "reopen": "reconcile", "expect": "steer",
    "close": "steer", "pause": "steer", "unpause": "steer", "cancel": "steer", "export": "data", "import": "data",
    "doctor": "doctor", "faults": "doctor", "demo": "demo", "dead": "dead", "cursor": "cursor", "audit": "data",
}
# fmt: on
"""Every command, in the order of the help, with the module that has it: only what is called is loaded."""
GROUPS = ("dead", "cursor", "audit")


@cache
def _command(name: str) -> Any:
    module = import_module(f"holdfast.interfaces.cli.{COMMANDS[name]}")
    if name in GROUPS:
        group = typer.main.get_group(module.app)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(module, f"{name}_" if iskeyword(name) else name))
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
    help="Batch work that survives crashes: run it, look at it, ask it why, put it right.",
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
    color: Annotated[bool, typer.Option("--color/--no-color", help="Colours in the terminal.")] = True,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Options of all commands."""
    if debug:
        os.environ["HOLDFAST_DEBUG"] = "1"
    if not color:
        os.environ["NO_COLOR"] = "1"


def main() -> NoReturn:
    """The entry point of the command."""
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
