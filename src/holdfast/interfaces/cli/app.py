"""The command itself: which commands there are, and what becomes of errors.

Exit codes: 0 complete, or fine · 1 finished with findings, or with dead letters beyond what is tolerated · 2 somebody
has to change the command or its environment first · 75 interrupted, or the store or the source is not to be had now:
run again to continue.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import holdfast
from holdfast.core.errors import Defer, HoldfastError, StoreUnavailable, StoreUnusable, Transient, UsageError
from holdfast.interfaces.cli import cursor, data, dead, demo, doctor, reconcile, render, reset, run, status, steer
from holdfast.interfaces.cli import reconcile as plan
from holdfast.interfaces.cli.common import Declined
from holdfast.interfaces.cli.render import pasteable, remember, spell_warnings

INTERRUPTED = 75

app = typer.Typer(
    name="holdfast",
    help="Batch work that survives crashes: run it, look at it, ask it why, put it right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("status")(status.status)
app.command("show")(status.show)
app.command("why")(status.why)
app.command("orphans")(dead.orphans)
app.add_typer(dead.app, name="dead")
app.add_typer(cursor.app, name="cursor")
app.command("events")(data.events)
app.command("reset")(reset.reset)
app.command("reconcile")(reconcile.reconcile)
app.command("reopen")(reconcile.reopen)
app.command("expect")(steer.expect)
app.command("close")(steer.close)
app.command("pause")(steer.pause)
app.command("cancel")(steer.cancel)
app.add_typer(data.app, name="audit")
app.command("export")(data.export)
app.command("import")(data.import_)
app.command("doctor")(doctor.doctor)
app.command("faults")(doctor.faults)
app.command("demo")(demo.demo)


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
