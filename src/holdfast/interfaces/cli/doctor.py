"""`holdfast doctor` and `holdfast faults`: is this place safe, and where can a test strike."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast.core.errors import UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import JsonOption, StoreOption
from holdfast.runtime.operate import doctor as examining
from holdfast.runtime.operate.doctor import examine_bucket
from holdfast.stores import faults as points
from holdfast.stores.open import DEFAULT, is_bucket

STYLE = {examining.Level.OK: render.GOOD, examining.Level.WARN: render.CARE, examining.Level.UNSAFE: render.BAD}


def doctor(
    folders: Annotated[
        list[Path] | None, typer.Option("--folder", help="Look for leftovers here, too; may be repeated.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what the promises rest on: library, disk, permissions, space, clock, leftovers. Ends with 1 if unsafe."""
    text = store if store is not None else os.environ.get("HOLDFAST_STORE") or DEFAULT
    if is_bucket(text):
        found = examine_bucket(text)
    else:
        found = examining.examine(_path(text), folders=[Path(), *(folders if folders is not None else [])])
    if as_json:
        render.document(found.as_dict())
    else:
        rows = [
            (
                Text(check.level.value, style=STYLE[check.level]),
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
        render.say(f"\n{found.store}: {verdict[found.level.value]}", STYLE[found.level])
    if found.level is examining.Level.UNSAFE:
        raise typer.Exit(1)


def faults(as_json: JsonOption = False, store: StoreOption = None) -> None:  # noqa: ARG001  every command takes --store
    """List the named points at every durable step, where a test can kill, stop or fail the process."""
    if as_json:
        render.document({"modes": list(points.MODES), "points": points.POINTS})
        return
    render.show(render.table(["point", "when it is reached"], points.POINTS.items()))
    render.say(f"\nHOLDFAST_FAULT=point:hit:mode arms one; modes: {', '.join(points.MODES)}.", render.FAINT)


def _path(text: str) -> Path:
    if text.startswith("memory:"):
        raise UsageError("a store in memory has nothing to check: name a file with --store")
    return Path(text.removeprefix("sqlite:").removeprefix("//")).expanduser()
