"""The files of a folder, in the order of their names; the cursor is a name."""

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from os import PathLike
from pathlib import Path
from stat import S_ISREG
from typing import Any

from pydantic import BaseModel, ConfigDict

from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.runtime.sources import names
from holdfast.runtime.sources.base import Malformed, NotThereError, Page, Since, Span, logical_name


class File(BaseModel):
    """A file of a folder as an item: its name, size and time; the content stays where it is."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Where it is, as the folder was given."""
    name: str
    """Where it is within the folder, with `/` on every system."""
    size: int
    modified_ns: int

    def __fspath__(self) -> str:
        return self.path

    def read_bytes(self) -> bytes:
        """The content."""
        return Path(self.path).read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The content as text."""
        return Path(self.path).read_text(encoding)


class Folder:
    """The files of a folder, streamed in the order of their names: `Folder("scans", "*.png")`.

    A pattern with a slash is held against the path within the folder, any other against the file's name alone. Hidden
    files are left out unless `hidden=True`; links to folders are not followed, so there are no loops.
    """

    def __init__(self, path: str | PathLike[str], pattern: str = "*", *, recursive: bool = True,
                 hidden: bool = False) -> None:  # fmt: skip
        self.path = Path(path)
        self.pattern = pattern
        self.recursive = recursive
        self.hidden = hidden
        self._what = f"Folder({str(path)!r})"
        if not pattern:
            raise UsageError(f"{self._what}: the pattern is empty; write '*' for all files")
        # `**/*.png` is what others write for "in this folder or below it".
        self._matches = re.compile(translate(pattern.removeprefix("**/"))).match
        self._by_name = "/" not in pattern.removeprefix("**/")

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[File | Malformed]:
        """One File for each; only one folder's list of names is in memory for each level."""
        return (item for _, item in self._named(None))

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """The files whose names come after a cursor, up to another and with it. A file that appears later is seen if
        its name comes after the cursor."""
        return names.pages(self._named(names.name_of(after, self._what)), names.name_of(until, self._what))

    def split(self, parts: int) -> Sequence[Span]:
        """Ranges of about as many files each; the last one ends with the last name there is now."""
        return names.divided(self._named(None), parts, self.describe())

    def since(self, before: dict[str, Any], handled: int) -> Since:
        """What became of the files since they were listed. Times of files do not count: `touch` changes no content."""
        return names.since(self._named(None), before, handled, self.describe(), "file")

    def _named(self, after: str | None) -> Iterator[tuple[str, File | Malformed]]:
        """Names and items in the order of their names; folders that lie before the cursor are not looked into."""
        levels = [("", iter(self._entries(self.path)))]
        while levels:
            within, entries = levels[-1]
            entry = next(entries, None)
            if entry is None:
                levels.pop()
                continue
            name = within + entry
            if entry.endswith("/"):
                if self.recursive and (after is None or name > after or after.startswith(name)):
                    levels.append((name, iter(self._entries(self.path / name))))
            elif after is None or name > after:
                item = self._item(name)
                if item is not None:
                    yield name, item

    def describe(self) -> dict[str, Any]:
        """The folder's name and which files of it are meant."""
        return {
            "kind": "folder",
            "name": logical_name(self.path),
            "pattern": self.pattern,
            "recursive": self.recursive,
            "hidden": self.hidden,
        }

    def natural_key(self, value: Any) -> str | None:
        """The path within the folder."""
        return value.name if isinstance(value, File) else None

    def alike(self, before: Any, after: Any) -> bool:
        """Whether two payloads are of the same file: by its name in the folder, and its size. Neither its time nor
        where the folder lies is part of that."""
        return names.alike(before, after, "path", "modified_ns")

    def _entries(self, folder: Path) -> list[str]:
        """The names in a folder, those of folders with a slash: so ordered, all paths come in the order of their text.
        A name takes a tenth of the memory of what the system tells with it."""
        try:
            with os.scandir(folder) as found:
                return sorted(_named(each) for each in found if self.hidden or not each.name.startswith("."))
        except FileNotFoundError:
            if folder != self.path:
                return []  # it was taken away while we read
            why = f"{self._what}: there is no such folder: check the path, and where you start"
            raise NotThereError(why) from None
        except NotADirectoryError:
            raise UsageError(f"{self._what}: {folder} is not a folder") from None
        except PermissionError:
            raise UsageError(f"{self._what}: {folder} may not be read by this user") from None

    def _item(self, name: str) -> File | Malformed | None:
        """The item for a file; None for what is not meant."""
        if not self._matches(name.rpartition("/")[2] if self._by_name else name):
            return None
        if not _is_text(name):
            return self._malformed(name, "its name is not valid UTF-8: rename it")
        path = self.path / name
        try:
            info = path.stat()
        except FileNotFoundError:
            return self._malformed(name, "it is a link to nowhere") if path.is_symlink() else None
        except OSError as error:
            return self._malformed(name, f"it cannot be looked at: {error.strerror}")
        if not S_ISREG(info.st_mode):
            return None
        return File(path=str(path), name=name, size=info.st_size, modified_ns=info.st_mtime_ns)

    def _malformed(self, name: str, why: str) -> Malformed:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        return Malformed(raw=os.fsencode(name), why=why, where=f"{logical_name(self.path)}/{shown}")


def _named(entry: os.DirEntry[str]) -> str:
    return entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
