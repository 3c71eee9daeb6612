"""`holdfast doctor` and `holdfast faults`: whether this machine is safe, and the points at which a test can fail it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import holdfast as hf
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import JsonOption, StoreOption
from holdfast.runtime.handles.doctor import FAULT_MODES

STYLE = {"ok": render.GOOD, "warn": render.CARE, "unsafe": render.BAD}


def doctor(
    folders: Annotated[
        list[Path] | None, typer.Option("--folder", help="Also look for leftovers here; may be repeated.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check library, disk, permissions, space, clock and leftovers. Exits with 1 if something is unsafe."""
    found = hf.doctor(store, folders=folders or ())
    if as_json:
        render.document(found.as_dict())
    else:
        rows = [
            (
                Text(check.level.value, style=STYLE[check.level.value]),
                check.name,
                check.message + (f" → {check.advice}" if check.advice else ""),
            )
            for check in found.checks
        ]
        render.show(render.table(["", "check", "what was seen"], rows))
        verdict = {
            "ok": "Everything is as it should be.",
            "warn": "Nothing unsafe; see the warnings.",
            "unsafe": "This is not safe.",
        }
        render.say(f"\n{found.store}: {verdict[found.level.value]}", STYLE[found.level.value])
    if found.level == "unsafe":
        raise typer.Exit(1)


def faults(as_json: JsonOption = False, store: StoreOption = None) -> None:  # noqa: ARG001  every command takes --store
    """List the named points, one at every durable step, at which a test can kill, stop or fail the process."""
    if as_json:
        render.document({"modes": list(FAULT_MODES), "points": hf.fault_points()})
        return
    render.show(render.table(["point", "when it is reached"], hf.fault_points().items()))
    render.say(f"\nHOLDFAST_FAULT=point:hit:mode arms one; modes: {', '.join(FAULT_MODES)}.", render.FAINT)
