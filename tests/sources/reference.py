"""What a file holds, by the plainest reading of all of it at once: reading it in parts is held against that."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.core.cursor import Cursor
from holdfast.runtime.sources.base import Malformed, Readable

Told = dict[str, str] | str | None
"""A row, `malformed`, or None for "the rest cannot be read"."""


def rows_of_csv(data: bytes, *, quotechar: str | None = '"', encoding: str = "utf-8") -> list[Told]:
    """By csv.reader in its strict mode over the whole text. Raises LookupError without a header."""
    lines = io.StringIO(data.decode(encoding, "surrogateescape"), newline="").readlines()
    taken: list[str] = []

    def each() -> Any:
        for line in lines:
            taken.append(line)
            yield line

    options: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if quotechar is None else {"quotechar": quotechar}
    reader = csv.reader(each(), strict=True, **options)
    header: list[str] | None = None
    found: list[Told] = []
    while True:
        taken.clear()
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            if "unexpected end" in str(error) and len(taken) > 1:
                found.append(None)
                break
            row = None
        text = "".join(taken)
        broken = row is None or "\0" in text or any("\udc80" <= c <= "\udcff" for c in text)
        if header is None:
            if broken or (row and len(set(row)) < len(row)):
                raise LookupError("no header")
            header = row if row else None
        elif broken:
            found.append("malformed")
        elif row:
            found.append(dict(zip(header, row, strict=True)) if len(row) == len(header) else "malformed")
    if header is None:
        raise LookupError("no header")
    return found


def told(source: Readable, after: Cursor | None = None, until: Cursor | None = None) -> list[Told]:
    """The rows of a range."""
    found: list[Any] = []
    try:
        for page in source.read(after, until):
            found += page.rows
    except Exception as error:
        if "not closed" not in str(error):
            raise
        found.append(None)
    return ["malformed" if isinstance(row, Malformed) else row for row in found]


def cursors(source: Readable) -> list[Cursor | None]:
    """The cursor before the first row, and the one after each."""
    found: list[Cursor | None] = [None]
    try:
        for page in source.read(None, None):
            found += [page.after(count) for count in range(1, len(page.rows) + 1)]
    except Exception as error:
        if "not closed" not in str(error):
            raise
    return found


def is_split(parts: Sequence[list[Told]], whole: list[Told]) -> bool:
    """Whether the parts one after another are the whole. A part may stop the reading of what is after it, as all of
    them would be stopped by reading on; then what came before it is what counts."""
    found: list[Told] = []
    for part in parts:
        found += part
        if None in part:
            return found == whole
    return found == whole


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
