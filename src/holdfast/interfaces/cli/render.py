"""The look of what commands print: the console, tables, facts, JSON, numbers, and suggested commands to be pasted.

Suggestions are part of reports, stories and errors, which are written where nobody knows how the command was called. So
the store is named in them, and arguments are called as options, where they are shown.
"""

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.core.plain import plain
from holdfast.runtime import text as words
from holdfast.runtime.text import as_options, naming_store


class _Told:
    store: str | None = None


def remember(store: str | None) -> str | None:
    """Note the store that a command was told of; None where it goes by the default."""
    _Told.store = store
    return store


def pasteable(text: str) -> str:
    """Return a text in which every suggested command names that store, and arguments are options."""
    spelled = as_options(text)
    return spelled if _Told.store is None else naming_store(spelled, _Told.store)


def all_pasteable(told: Any) -> Any:
    """Return the same for what a document says in one text or in several."""
    return pasteable(told) if isinstance(told, str) else [pasteable(each) for each in told]


class _Pasteable(logging.Formatter):
    """Warnings of a run as the command shows them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is theirs
        return pasteable(super().formatMessage(record))


def spell_warnings() -> None:
    """Have the log, where the program that is run set up none, tell warnings as the command does."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Pasteable())


WIDE = 240
REPORT_INDENT = 11
"""Where the text of a line of a report begins, behind what it is about."""
GOOD, BAD, CARE, FAINT, HEAD = words.GOOD, words.BAD, words.CARE, words.FAINT, words.HEAD


def out() -> Console:
    """Standard output, as it is now: a terminal or not."""
    return _console(sys.stdout)


def err() -> Console:
    """Standard error."""
    return _console(sys.stderr)


def _console(file: Any) -> Console:
    plain = Console(file=file, markup=False, highlight=False, emoji=False, soft_wrap=False)
    if plain.is_terminal:
        return plain
    return Console(file=file, markup=False, highlight=False, emoji=False, width=WIDE, soft_wrap=True)


def say(text: str = "", style: str = "") -> None:
    """One or more lines on standard output; wrapped where there is a screen."""
    console = out()
    console.print(Text(told(text), style=style), soft_wrap=not console.is_terminal)


def report(text: str) -> None:
    """The lines of a report; where a screen is too narrow for one, it continues below where its text begins."""
    console = out()
    if not console.is_terminal:
        say(text)
        return
    for line in told(text).splitlines():
        wrapped = wrap(line, console.width, subsequent_indent=" " * REPORT_INDENT, break_long_words=False,
                       break_on_hyphens=False, drop_whitespace=True)  # fmt: skip
        console.print(Text("\n".join(wrapped)), soft_wrap=True)


def show(thing: RenderableType) -> None:
    """A table, or several things; without the blanks that fill a screen where there is none."""
    console = out()
    if console.is_terminal:
        console.print(thing)
        return
    with console.capture() as captured:
        console.print(thing)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def complain(text: str) -> None:
    """An error: one paragraph, on standard error."""
    console = err()
    console.print(Text.assemble(("holdfast: ", BAD), (told(text), BAD)), soft_wrap=not console.is_terminal)


def document(value: Any) -> None:
    """The one JSON document of a command with --json."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def compact(value: Any) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), title: str = ""
) -> Table:
    """Return rows under headers; those named in `right` are figures, which are never split over two lines."""
    made = Table(
        collapse_padding=sys.stdout.isatty(),
        box=box.SIMPLE_HEAD if sys.stdout.isatty() else None,
        title=clean(title) if title else None,
        title_justify="left",
        header_style=HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for header in headers:
        is_figure = header in right
        made.add_column(header, justify="right" if is_figure else "left", overflow="fold", no_wrap=is_figure)
    for row in rows:
        made.add_row(*[cell if isinstance(cell, Text) else Text(clean(str(cell))) for cell in row])
    return made


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and what is to be said about them, line by line. What is shown as it is comes as a `Text`."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style=FAINT, no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(f"  {name}", value if isinstance(value, Text) else Text(told(value)))
    return made


def together(*things: RenderableType) -> Group:
    """Several things, one below the other."""
    return Group(*things)


def heading(text: str, note: str = "", style: str = "") -> Text:
    """Return a line that begins something."""
    return Text.assemble((clean(text), HEAD), "  ", (clean(note), style)) if note else Text(clean(text), style=HEAD)


def clean(text: str) -> str:
    """Return the text with everything that is not printed shown as an escape; line ends and tabs stay."""
    return words.printable(text)


def told(text: str) -> str:
    """Return the same for what we say ourselves: commands in it can be pasted."""
    return clean(pasteable(text))


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure for people: three digits that count; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


many = words.many
one_line = words.one_line
usd = words.usd
