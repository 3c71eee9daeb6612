"""Which names the files of a sink can have for one batch, and the files in its folder that have such a name."""

import os
import re
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from holdfast.runtime.sinks.names import Field, Template, safe_name

KEY = "(?!\\.).+"
NUMBER = "-?[0-9]+"


class Pattern(msgspec.Struct, frozen=True):
    """A template with batch and stage filled in: what is left open is the key."""

    root: str
    """The folder, as written, below which all of its files stand."""
    names: tuple[re.Pattern[str], ...]
    """One for each folder or file name below it."""

    @property
    def is_flat(self) -> bool:
        """Tell whether all of its files stand side by side."""
        return len(self.names) == 1

    @property
    def prefix(self) -> str:
        """Return what the path of each of its files begins with."""
        return "" if self.root == "." else self.root if self.root.endswith("/") else f"{self.root}/"

    def matches(self, path: str) -> bool:
        """Tell whether a path, as written, is one of its names."""
        if not path.startswith(self.prefix):
            return False
        rest = path[len(self.prefix) :].split("/")
        return len(rest) == len(self.names) and all(map(re.Pattern.fullmatch, self.names, rest))


@lru_cache(maxsize=256)
def pattern(template: Template, batch: str, stage: str) -> Pattern:
    """Return the names that the outputs of a stage of a batch can have."""
    regexes, literals, open_names = [""], [""], [False]
    for part in template.parts:
        if isinstance(part, Field) and part.name == "key":
            regexes[-1] += NUMBER if part.spec else KEY
            open_names[-1] = True
            continue
        text = part if isinstance(part, str) else safe_name(batch if part.name == "batch" else stage, part.limit)
        first, *others = text.split("/")
        regexes[-1] += re.escape(first)
        literals[-1] += first
        regexes += map(re.escape, others)
        literals += others
        open_names += [False] * len(others)
    at = open_names.index(True)
    root = "/".join(literals[:at]) or "/" if at else "."
    return Pattern(root, tuple(map(re.compile, regexes[at:])))


def count(base: str, found: Pattern) -> int:
    """How many files stand where those of the pattern do, be their names like it or not; hidden ones apart."""
    if not found.is_flat:
        return sum(1 for _ in walk(base, found))
    try:
        with os.scandir(_at(base, found.root)) as entries:
            return sum([not entry.name.startswith(".") for entry in entries])
    except (FileNotFoundError, NotADirectoryError):
        return 0


def walk(base: str, found: Pattern) -> Iterator[str]:
    """The path, as written, of every file whose name is like the pattern. Nothing of it is kept in memory."""
    yield from _below(base, found.prefix, found.names)


def _below(base: str, prefix: str, names: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    try:
        with os.scandir(_at(base, prefix)) as entries:
            for entry in entries:
                if not names[0].fullmatch(entry.name):
                    continue
                if len(names) > 1 and entry.is_dir():
                    yield from _below(base, f"{prefix}{entry.name}/", names[1:])
                elif len(names) == 1:
                    yield f"{prefix}{entry.name}"
    except (FileNotFoundError, NotADirectoryError):
        return


def _at(base: str, path: str) -> str:
    return path if path.startswith("/") else f"{base}/{path}"
