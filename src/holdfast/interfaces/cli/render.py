"""The output of commands: the console, tables, facts, JSON, numbers, and suggested commands that can be pasted.

Suggestions are part of reports, stories and errors, which do not know how the command was called. So the store is added
to them, and Python arguments are spelled as options, when they are printed.
"""

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.core.plain import plain
from holdfast.runtime import text as words
from holdfast.runtime.text import as_options, naming_store


class _Told:
    store: str | None = None


def remember(store: str | None) -> str | None:
    """Note the store that was given with --store; None for the default."""
    _Told.store = store
    return store


def pasteable(text: str) -> str:
    """Return a text in which every suggested command names that store, and arguments are spelled as options."""
    spelled = as_options(text)
    return spelled if _Told.store is None else naming_store(spelled, _Told.store)


def all_pasteable(told: Any) -> Any:
    """Return the same for a text or a list of texts in a document."""
    return pasteable(told) if isinstance(told, str) else [pasteable(each) for each in told]


class _Pasteable(logging.Formatter):
    """A formatter of the warnings of a run."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is that of the base class
        return pasteable(super().formatMessage(record))


def spell_warnings() -> None:
    """Let log warnings name the store and options as well, unless the user's program configures logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Pasteable())


WIDE = 240
LEAST_TEXT, LEAST_NAME = 12, 8
"""The least room in a table for a column of text, and of names."""
LEAST = 0.0001
"""Smaller numbers are shown as less than this: more digits do not fit a narrow screen."""
REPORT_INDENT = 11
"""The column at which the text of a line of a report begins, after its label."""
GOOD, BAD, CARE, FAINT, HEAD = words.GOOD, words.BAD, words.CARE, words.FAINT, words.HEAD


def out() -> Console:
    """Return a console for standard output, a terminal or not."""
    return _console(sys.stdout)


def err() -> Console:
    """Return a console for standard error."""
    return _console(sys.stderr)


def _console(file: Any) -> Console:
    plain = Console(file=file, markup=False, highlight=False, emoji=False, soft_wrap=False)
    if plain.is_terminal:
        return plain
    return Console(file=file, markup=False, highlight=False, emoji=False, width=WIDE, soft_wrap=True)


def say(text: str = "", style: str = "") -> None:
    """Print one or more lines on standard output, wrapped in a terminal."""
    console = out()
    console.print(Text(told(text), style=style), soft_wrap=not console.is_terminal)


def report(text: str, *, indent: int = REPORT_INDENT, style: str = "") -> None:
    """Print the lines of a report; a line that is too long for the terminal continues below its text."""
    console = out()
    if not console.is_terminal:
        say(text, style)
        return
    for line in told(text).splitlines():
        wrapped = wrap(line, console.width, subsequent_indent=" " * indent, break_long_words=False,
                       break_on_hyphens=False, drop_whitespace=True)  # fmt: skip
        console.print(Text("\n".join(wrapped), style=style), soft_wrap=True)


def show(thing: RenderableType) -> None:
    """Print a table or other renderables; without trailing blanks if this is not a terminal."""
    console = out()
    if console.is_terminal:
        console.print(thing)
        return
    with console.capture() as captured:
        console.print(thing)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def complain(text: str) -> None:
    """Print an error as one paragraph on standard error."""
    console = err()
    console.print(Text.assemble(("holdfast: ", BAD), (told(text), BAD)), soft_wrap=not console.is_terminal)


def document(value: Any) -> None:
    """Print the JSON document of a command with --json."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def compact(value: Any) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), whole: Sequence[str] = ()
) -> Table:
    """Return a table. The columns in `right` are figures, which are never split over two lines; those in `whole` are
    names, which are split only if they are longer than a quarter of the screen, or if it has no room for them."""
    made = Table(
        collapse_padding=sys.stdout.isatty(),
        box=box.SIMPLE_HEAD if sys.stdout.isatty() else None,
        header_style=HEAD,
        pad_edge=False,
        show_edge=False,
    )
    cells = [[cell if isinstance(cell, Text) else Text(clean(str(cell))) for cell in row] for row in rows]
    kept = _kept_whole(headers, cells, right, whole) if out().is_terminal else {}
    for n, header in enumerate(headers):
        is_figure = header in right
        made.add_column(header, justify="right" if is_figure else "left", overflow="fold",
                        no_wrap=is_figure or n in kept)  # fmt: skip
    for row in cells:
        made.add_row(*[_folded(cell, kept[n]) if n in kept else cell for n, cell in enumerate(row)])
    return made


def _kept_whole(
    headers: Sequence[str], cells: Sequence[Sequence[Text]], right: Sequence[str], whole: Sequence[str]
) -> dict[int, int]:
    """Return the widths of columns of names that a screen has room for, up to a quarter of it each."""
    width = out().width
    longest = [max([len(header), *(row[n].cell_len for row in cells)]) for n, header in enumerate(headers)]
    asked = {n: min(longest[n], max(len(header), width // 4)) for n, header in enumerate(headers) if header in whole}
    figures = sum(longest[n] for n, header in enumerate(headers) if header in right)
    others = sum(min(longest[n], LEAST_TEXT) for n, header in enumerate(headers) if header not in (*right, *whole))
    room = width - figures - others - 2 * (len(headers) - 1)
    kept: dict[int, int] = {}
    for n, wanted in asked.items():
        rest = sum(min(each, LEAST_NAME) for other, each in asked.items() if other > n)
        if wanted <= room - rest:
            kept[n] = wanted
        room -= kept.get(n, LEAST_NAME)
    return kept


def _folded(cell: Text, width: int) -> Text:
    lines = [cell[start : start + width] for start in range(0, len(cell), width)]
    return Text("\n").join(lines) if len(lines) > 1 else cell


def commands(label: str, first: str, lines: Iterable[str]) -> None:
    """Print suggested commands, each with its purpose: beside it, or below it if the screen is too narrow."""
    pairs = [(told(command), told(purpose)) for command, _, purpose in (line.partition("   ") for line in lines)]
    pairs = [(command, purpose.strip()) for command, purpose in pairs]
    indent = " " * (len(label) + 4)
    widest = max((len(command) for command, _ in pairs), default=0)
    is_wide = len(indent) + widest + 3 + max((len(purpose) for _, purpose in pairs), default=0) <= out().width
    if first:
        show(facts([(label, first)]))
    for command, purpose in pairs:
        beside = f"{command:{widest}}   {purpose}" if purpose else command
        text = beside if is_wide or not out().is_terminal else command
        out().print(Text(f"{indent}{text}"), soft_wrap=True)
        if purpose and text is command:
            show(Padding(Text(purpose, style=FAINT), (0, 0, 0, len(indent) + 4)))


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and values, line by line. A `Text` is shown as it is."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style=FAINT, no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(f"  {name}", value if isinstance(value, Text) else Text(told(value)))
    return made


def together(*things: RenderableType) -> Group:
    """Return several renderables as one."""
    return Group(*things)


def heading(text: str, note: str = "", style: str = "") -> Text:
    """Return a headline with a note."""
    return Text.assemble((clean(text), HEAD), "  ", (clean(note), style)) if note else Text(clean(text), style=HEAD)


def clean(text: str) -> str:
    """Return the text with unprintable characters escaped; line ends and tabs stay."""
    return words.printable(text)


def told(text: str) -> str:
    """Return the same for our own texts: commands in it can be pasted."""
    return clean(pasteable(text))


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure for people, with three significant digits; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if 0 < value < LEAST:
        return f"<{LEAST:f}".rstrip("0")
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


many = words.many
one_line = words.one_line
usd = words.usd
