"""The generator of docs/commands.md: every command with its arguments and options, from the code."""

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.main

from holdfast.interfaces.cli.app import GROUPS, PANELS, app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
PURPOSE = {
    "Run": "Do the work, or see what a run would do.",
    "Look": "These change nothing, except that `orphans` announces orphans and `events --deliver` delivers events.",
    "Decide": "Acts of a person on a batch, its items and its cursors, each with a reason for the journal.",
    "Keep": "Check that a batch is finished and complete, and move data out of the store or into it.",
}
SHARED = ("reason", "actor", "yes", "dry_run", "store", "as_json", "help")
"""Options that are described once, for all commands."""
WORDS = {int: "N", float: "SECONDS", Path: "FILE"}
INTRODUCTION = """# Commands

Generated from the code by `make docs`. `holdfast COMMAND …`, or `python -m holdfast COMMAND …`.

| for every command | |
|---|---|
| `--store PATH\\|URL` | the store; default `$HOLDFAST_STORE`, else `.holdfast/state.db` |
| `--json` | one JSON document, and nothing else |
| `--help` | arguments and options |
| before the command: `--debug`, `--no-color`, `--version` | show tracebacks; no colors; the version |

| for commands that change something | |
|---|---|
| `--reason TEXT` | the reason, for the journal |
| `--actor TEXT` | the person who acts, for the journal; by default you, on this host |
| `--dry-run` | show what would be done, and change nothing |
| `--yes`, `-y` | do not ask for confirmation; needs `--reason`. Without a terminal, both are needed |

A command that changes something shows what it would do, asks for the reason if `--reason` is not given, and asks for
confirmation last. `pause`, `unpause` and `expect` can be undone and ask for the reason only. Ctrl-C or the end of input
at a question changes nothing and counts as declined.

ITEM is a key, or `#N` for a number. TARGET is `app.py:book` or `package.module:book`; without a name, the only pipeline
or scan there. Exit codes: 0 complete, or fine · 1 findings, more dead letters than tolerated, an error, or declined ·
2 the command or its environment has to be changed first · 75 interrupted, paused, or the store or the source is not
available now: run again.
"""


def page() -> str:
    """Return the whole page."""
    root = typer.main.get_command(app)
    parts = [INTRODUCTION]
    for title, entries in PANELS.items():
        parts.append(f"## {title}\n\n{PURPOSE[title]}\n")
        for name in entries:
            command = root.get_command(None, name)  # type: ignore[attr-defined]
            several = (
                [(f"{name} {each}", command.commands[each]) for each in command.commands] if name in GROUPS else []
            )
            parts += [_section(path, each) for path, each in several or [(name, command)]]
    return "\n".join(parts)


def _section(path: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [
        each
        for each in command.params
        if each.param_type_name == "option" and not each.hidden and each.name not in SHARED
    ]
    usage = " ".join([f"holdfast {path}", *(_argument(each) for each in arguments)])
    lines = [f"### `{usage}`\n", f"{' '.join(command.help.split())}\n"]
    rows = [*(_row(_argument(each), each.help) for each in arguments if each.help), *map(_option, options)]
    if rows:
        lines += ["| | |\n|---|---|", *rows, ""]
    return "\n".join(lines)


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]{}")
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or '|'.join(_choices(option))}".rstrip()
    named = names if not value else names[:-1] + value.replace("|", "\\|") + "`"
    given = None if option.is_flag else getattr(option.default, "value", option.default)
    default = f" Default: {given}." if given not in (None, "", ()) and option.show_default is not False else ""
    return _row(named, f"{option.help or ''}{default}", is_code=True)


def _choices(option: Any) -> Iterator[str]:
    """Yield the choices of an option, or the word for its type."""
    kind = option.type_descriptor.annotation
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from (each.value for each in kind)
    else:
        yield WORDS.get(kind, "TEXT")


def _row(what: str, text: str, *, is_code: bool = False) -> str:
    return f"| {what if is_code else f'`{what}`'} | {' '.join(text.split()).replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name} was written\n")
