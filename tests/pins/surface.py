"""The surface that users touch, as text: public names with their signatures, and the help of every command."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

import holdfast
from holdfast.interfaces.cli.app import app

HERE = Path(__file__).parent
FRAME = re.compile(r"[╭╮╰╯│─]+")
PLACE = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
WIDTH = {"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}


def public_names() -> str:
    """Return every public name with its signature; where a thing lives is not part of it."""
    lines = [line for name in sorted(holdfast.NAMES) for line in _described(name, getattr(holdfast, name))]
    return "\n".join([*lines, ""])


def help_texts() -> str:
    """Return the help of every command, without frames and spacing."""
    paths = [path for path, _ in commands(typer.main.get_command(app))]
    return "\n".join(f"$ holdfast {' '.join([*path, '--help'])}\n{text}" for path, text in _helped(paths))


PINS: dict[Path, Callable[[], str]] = {HERE / "public_names.txt": public_names, HERE / "help.txt": help_texts}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk through a command and all below it, in the order in which help lists them."""
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(None, name), (*path, name))


def _described(name: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"{name}{_signature(thing)}"
        return
    bases = [base.__name__ for base in thing.__bases__ if base is not object]
    yield f"{name}({', '.join(bases)})" if bases else name
    yield f"    __init__{_signature(thing)}"
    for member in sorted(member for member in dir(thing) if not member.startswith("_")):
        yield from (f"    {line}" for line in _member(member, inspect.getattr_static(thing, member)))


def _member(name: str, thing: Any) -> Iterator[str]:
    if inspect.ismethoddescriptor(thing) and not isinstance(thing, classmethod | staticmethod):
        return  # what every exception or tuple has
    function = getattr(thing, "__func__", thing)
    yield f"{name}{_signature(function)}" if callable(function) else name


def _signature(function: Any) -> str:
    try:
        text = str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(...)"
    return ADDRESS.sub("", PLACE.sub("", text))


def _helped(paths: list[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Ask for each help in one process of its own: colours and widths are settled when it starts."""
    program = (
        "import sys\nfrom holdfast.interfaces.cli.app import call\n"
        "for line in sys.stdin.read().splitlines():\n    call([*line.split(), '--help'])\n    print('\\f')\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")} | WIDTH
    asked = "\n".join(" ".join(path) or " " for path in paths)
    done = subprocess.run(
        [sys.executable, "-c", program], input=asked, env=environment, capture_output=True, text=True, check=True
    )
    for path, shown in zip(paths, done.stdout.split("\f")[:-1], strict=True):
        lines = [" ".join(FRAME.sub(" ", line).split()) for line in shown.splitlines()]
        yield path, "\n".join([*filter(None, lines), ""])
