"""The generator of docs/api.md: every public name with its signature and its docstring, as the code has them."""

import ast
import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

import holdfast
from holdfast import testing

SOURCE = Path(holdfast.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "api.md"
SECTIONS = {
    "Pipelines": "Pipeline Stage Retry Budget Breaker Files",
    "Handlers": "Context Segment Skip Defer Transient Permanent Bad",
    "Runs": "Report Result DeadLetter Envelope Figures StageFigures Statistics Plan Reconciliation Finding BatchState "
    "StopReason State",
    "Messages": "Processed lambda_handler",
    "Sources": "Csv JsonLines Parquet Folder File Malformed Table Query Objects Object Pages Reader Source Readable "
    "Cursor Span",
    "Scans": "Scan Partition ScanReport Follow Tick",
    "Stores": "open StoreHandle BatchHandle ItemHandle ItemRevision DeadLetters FoundOrphans CursorHandle Status "
    "ItemStory NumberedEvent Preview ActResult BatchChange",
    "Imports": "import_outputs import_pages import_checkpoints import_poller",
    "Checks": "doctor fault_points",
    "Errors": "HoldfastError UsageError StoreError StoreUnavailable StoreUnusable CommitUnknown SchemaTooNew "
    "ChainBroken Conflict LeaseLost Refused Incomplete Interrupted DefinitionChanged PayloadChanged SourceChanged "
    "FingerprintChanged UndoRefused DiedAlike ResourceError SinkError Damaged NotOurs Superseded NotConverged "
    "Undelivered",
}
"""Every public name once, in the order of the page."""
ALL = {"*"}
FOR_THE_ENGINE = {
    "Context": {"take_up", "said", "settle_up", "paid"},
    **dict.fromkeys(("Files", *SECTIONS["Sources"].split()[:4], "Table", "Query", "Objects", "Pages", "Reader"), ALL),
    "Stage": {"describe", "maker", "awaits", "breaker", "runners", "runs_there", "accumulated", "rule"},
    "Pipeline": {"recover", "items", "store_path", "home"},
    "Budget": {"rule"},
    "Breaker": {"rule"},
    "Retry": {"policy"},
    "Segment": {"identity"},
    "Scan": {"follows", "partitions"},
    "Follow": {"follows", "partitions"},
    "Preview": {"perform", "previewed", "keys"},
    "Report": {"of"},
    "Reconciliation": {"facts", "basis", "is_told"},
}
"""Members that have no underscore because other rooms of the house use them. Users do not need them."""
MADE_BY_USERS = """
Pipeline Retry Budget Breaker Files Skip Defer Transient Permanent Bad Cursor Span Scan Follow
Csv JsonLines Parquet Folder Table Query Objects Pages Reader
"""
"""Classes whose constructors are shown; objects of the others are given to users."""
DATA = "The fault points: a dictionary of each name and what is true at that moment."
"""What `testing.POINTS` is; the docstring of a dictionary describes every dictionary."""
INTRODUCTION = """# API

Every public name, generated from the code by `make docs`. `import holdfast as hf`.

Times are written as `"250ms"`, `"30s"`, `"15m"`, `"1h30m"`, `"2d"`, as a number of seconds, or as a `timedelta`.
Money is a `Decimal`, a text, an integer or a float. A wrong argument raises `hf.UsageError` before anything happens.
"""
MEMBERS = (FunctionType, property, staticmethod)
ARGUMENT = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")


def page() -> str:
    """Return the whole page."""
    listed = [name for names in SECTIONS.values() for name in names.split()]
    if sorted(listed) != sorted(holdfast.NAMES):
        raise SystemExit(f"tools/api.py: put into SECTIONS, or take out: {set(listed) ^ set(holdfast.NAMES)}")
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        if title == "Errors":
            parts.append(_errors(names.split()))
        else:
            parts += [_section(f"hf.{name}", name, getattr(holdfast, name)) for name in names.split()]
    parts.append("## Testing\n\n`from holdfast import testing`\n")
    parts += [_section(f"testing.{name}", name, getattr(testing, name)) for name in testing.__all__]
    return "\n".join(parts)


def _errors(names: list[str]) -> str:
    """Return errors as a table: they have no members that differ."""
    rows = []
    for error in (getattr(holdfast, name) for name in names):
        bases = [base for base in error.__bases__ if base is not Exception and base.__name__ != "Plain"]
        kind = ", ".join(f"`hf.{base.__name__}`" if hasattr(holdfast, base.__name__) else f"`{base.__name__}`"
                         for base in bases)  # fmt: skip
        rows.append((f"`hf.{error.__name__}`" + (f", a kind of {kind}" if kind else ""), _cell(error.__doc__ or "")))
    return _table(("error", "meaning"), rows)


def _section(title: str, name: str, it: Any) -> str:
    """Return the section of a name: signature, docstring, arguments, members."""
    text, arguments = _docstring(it)
    parts = [f"### `{title}`\n"]
    if inspect.isclass(it) and issubclass(it, enum.Enum):
        words = ", ".join(f"`{each.name}` {each.value!r}" for each in it)
        return "\n".join([*parts, text, "", words, ""])
    is_called = name in MADE_BY_USERS.split() or not inspect.isclass(it)
    if is_called and (signature := _signature(it)) not in ("", "()"):
        parts.append(_block(f"{title}{signature}"))
    parts += [text, ""]
    if arguments:
        parts.append(_table(("argument", "meaning"), arguments))
    if inspect.isclass(it):
        parts += _members(name, it)
    return "\n".join(parts)


def _members(name: str, it: type) -> list[str]:
    """Return a table of the members of a class, and sections of the methods that have arguments to explain."""
    hidden = FOR_THE_ENGINE.get(name, set())
    if hidden is ALL:
        return []
    rows, sections = [(f"`{field}`", text) for field, text in _fields(it) if field not in hidden], []
    for member, value in _public(it, hidden):
        text, arguments = _docstring(value)
        signature = "" if isinstance(value, property) else _signature(value)
        called = f"{member}{signature}"
        if arguments:
            rows.append((f"`{member}(…)`", _cell(text)))
            sections.append("\n".join([f"#### `{name}.{member}`\n", _block(called), text, "",
                                       _table(("argument", "meaning"), arguments)]))  # fmt: skip
        else:
            rows.append((f"`{called}`", _cell(text)))
    return [*([_table(("member", "meaning"), rows)] if rows else []), *sections]


def _public(it: type, hidden: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield methods and properties of a class and of its bases of ours, in the order in which they are written."""
    seen = {*hidden, "model_post_init"}  # the latter is made by pydantic
    for owner in reversed([each for each in it.__mro__ if each.__module__.startswith("holdfast")]):
        for member, value in vars(owner).items():
            if not member.startswith("_") and member not in seen and isinstance(value, MEMBERS):
                seen.add(member)
                yield member, getattr(it, member)


def _fields(it: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a docstring of their own, in the source."""
    for owner in reversed([each for each in it.__mro__ if each.__name__ in _classes()]):
        body = _classes()[owner.__name__].body
        yield from _documented(body)
        for made in (each for each in body if isinstance(each, ast.FunctionDef) and each.name == "__init__"):
            yield from _documented(made.body)


@cache
def _classes() -> dict[str, ast.ClassDef]:
    """Return the classes of the source by name; each name is there once."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")]
    return {each.name: each for tree in trees for each in tree.body if isinstance(each, ast.ClassDef)}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, and other names that are assigned with a docstring below."""
    for line, below in pairwise([*body, ast.Pass()]):
        match line, below:
            case (
                ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name), *_])
                | ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if not name.startswith("_"):
                yield name, _cell(inspect.cleandoc(text))
            case ast.AnnAssign(target=ast.Name(id=name)), _ if not name.startswith("_"):
                yield name, ""


def _docstring(it: Any) -> tuple[str, list[tuple[str, str]]]:
    """Return a docstring as Markdown, and its arguments."""
    said = DATA if isinstance(it, dict) else inspect.getdoc(it) or ""
    text, _, below = said.partition("\nArgs:\n")
    arguments: list[list[str]] = []
    for line in textwrap.dedent(below).splitlines():
        if (found := ARGUMENT.match(line)) is not None:
            arguments.append([", ".join(f"`{each}`" for each in found[1].split(", ")), found[2]])
        elif line.strip():
            arguments[-1][1] += " " + line.strip()
    shown = re.sub(r"(?m)^(>>> (?:.|\n(?!\n))*)", r"```pycon\n\1\n```", text.strip())
    return shown, [(name, meaning.replace("|", "\\|")) for name, meaning in arguments]


def _signature(it: Any) -> str:
    """Return the parameters of a callable without its annotations."""
    try:
        given = inspect.signature(it)
    except (TypeError, ValueError):
        return ""
    kept = [each.replace(annotation=inspect.Parameter.empty) for each in given.parameters.values()
            if each.name != "self"]  # fmt: skip
    return re.sub(r"<[^>]*>", "…", str(inspect.Signature(kept)))


def _block(call: str) -> str:
    """Return a call as a code block, folded."""
    return "```python no-run\n" + textwrap.fill(call, 100, subsequent_indent="    ", break_long_words=False) + "\n```\n"


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows), ""])


def _cell(text: str) -> str:
    """Return a text for a cell of a table: the first paragraph, in one line."""
    return " ".join(text.split("\n\n", 1)[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")
