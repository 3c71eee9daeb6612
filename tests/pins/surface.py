"""The surface that users touch, as text: public names with their signatures. docs/commands.md has the commands."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import holdfast

HERE = Path(__file__).parent
PLACE = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def public_names() -> str:
    """Return every public name with its signature; where a thing lives is not part of it."""
    lines = [line for name in sorted(holdfast.NAMES) for line in _described(name, getattr(holdfast, name))]
    return "\n".join([*lines, ""])


PINS: dict[Path, Callable[[], str]] = {HERE / "public_names.txt": public_names}


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
