"""Names of output files: the user's, made from a template, and internal ones, which carry the provenance.

Any key is safe in a name. Characters that could leave the folder, hide the file or confuse a terminal are
percent-encoded; a value that is too long, empty, or another spelling of the same characters (Unicode normalization)
ends in `%~` and a digest. So two keys of a batch never share a file, except on file systems that treat `A` and `a` as
one name.
"""

import base64
import hashlib
import os
import re
import secrets
import string
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import Literal

import msgspec

from holdfast.core import canonical
from holdfast.core.errors import Permanent, UsageError
from holdfast.runtime.sinks.base import Provenance

FOLDER = ".holdfast"
"""The folder of staged outputs, beside the user's."""

NAME_BYTES = 240
"""The longest file name that is made; file systems allow 255."""

VALUE_BYTES = 200
"""A longer key, batch or stage is cut in a name, and ends in its digest."""

NOTE_BYTES = 48
"""A longer note does not fit into a staged name, and is left out."""

LEAST_VALUE_BYTES = 48
"""A template that leaves less room than this for a value is refused."""


# -- the user's names -------------------------------------------------------------------------------------------------


class Field(msgspec.Struct, frozen=True):
    """One `{…}` of a template."""

    name: str
    spec: str
    limit: int
    """The bytes it may take."""


class Template(msgspec.Struct, frozen=True):
    """A parsed template: literal text and fields, in order."""

    text: str
    parts: tuple[str | Field, ...]
    folder: str
    """The folder before the first field, as written: outputs are staged in it."""

    @property
    def tail(self) -> str:
        """Return the part after the folder, as written."""
        return self.text if self.folder == "." else self.text[len(_escaped(self.folder)) :]

    @property
    def by_batch(self) -> str:
        """Return a similar template that gives each batch its own folder."""
        folder = "" if self.folder == "." else _escaped(self.folder)
        return f"{folder}{{batch}}/{self.tail}"

    @property
    def has_batch(self) -> bool:
        """Return whether batches of different names have different file names, unless it is ambiguous."""
        return any(isinstance(part, Field) and part.name == "batch" for part in self.parts)

    @property
    def is_ambiguous(self) -> bool:
        """Return whether two batches may give a file the same name: if `{batch}` is not a folder or file name by
        itself."""
        name = "".join([part if isinstance(part, str) else f"{{{part.name}}}" for part in self.parts])
        return self.has_batch and "{batch}" not in name.split("/")

    def shared(self, stage: str, batch: str) -> str:
        """Return the text that tells its names for a stage of a batch from those of other templates in its folder; two
        formats of the key can make the same name."""
        values = {"key": "key", "stage": short(stage), "batch": short(batch)}
        return "".join([part if isinstance(part, str) else f"{{{values[part.name]}}}"
                        for part in self.parts])[0 if self.folder == "." else len(self.folder) :]  # fmt: skip

    def lead(self, batch: str, stage: str) -> str:
        """Return the beginning of each of its names for a stage of a batch: everything before the key."""
        before = takewhile(lambda part: isinstance(part, str) or part.name != "key", self.parts)
        return "".join([part if isinstance(part, str) else safe_name(batch if part.name == "batch" else stage,
                                                                     part.limit) for part in before])  # fmt: skip

    @property
    def is_json(self) -> bool:
        """Whether the names it makes end in `.json`."""
        return self.text.lower().endswith(".json")

    def path(self, place: Provenance) -> str:
        """Return the path of an output, as written: relative to where the sink was defined, or absolute."""
        return "".join([part if isinstance(part, str) else self._value(part, place) for part in self.parts])

    def _value(self, field: Field, place: Provenance) -> str:
        if field.name == "key":
            text = canonical.key_text(place.key) if not field.spec else format(self._number(place), field.spec)
        else:
            text = place.batch if field.name == "batch" else place.stage
        return safe_name(text, field.limit)

    def _number(self, place: Provenance) -> int:
        """Return the key as a number; only in its plain form, because 7 and "007" are two keys."""
        with suppress(ValueError):
            number = int(place.key)
            if str(number) == str(place.key):
                return number
        raise Permanent(
            "sink_name",
            f"item {place.n} of batch {place.batch!r}: its key {place.key!r} is not a whole number, but "
            f"Files({self.text!r}) requires one: write {{key}}, or use numbers as the keys of the items",
        )


@lru_cache(maxsize=256)
def parse(text: str) -> Template:
    """Return the template, or a UsageError that says what is wrong with it."""
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise _wrong(text, f"{error}; write {{{{ and }}}} for braces") from None
    bare = list(_bare_parts(text, pieces))
    fields = [part for part in bare if isinstance(part, Field)]
    if not any(field.name == "key" for field in fields):
        raise _wrong(text, "without {key}, all items would share one file")
    if "\0" in text:
        raise _wrong(text, "a path cannot contain a NUL character")
    before = "".join(takewhile(lambda part: isinstance(part, str), bare))  # type: ignore[arg-type]
    return Template(text, tuple(_with_limits(text, bare)), before[: before.rfind("/") + 1] or ".")


def safe_name(text: str, limit: int = VALUE_BYTES) -> str:
    """Return the text as part of a file name: never a path, never hidden, never the same for two texts."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text
    quoted = _UNSAFE.sub(_quote, text)
    if text and len(quoted.encode()) <= limit and unicodedata.is_normalized("NFC", quoted):
        return quoted
    mark = "%~" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    head = unicodedata.normalize("NFC", quoted).encode()[: limit - len(mark)].decode("utf-8", "ignore")
    return _CUT_QUOTE.sub("", head) + mark


_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
# A leading dot, the quoting character, separators, control characters, broken Unicode, and the characters that break
# lines or change the direction of text.
_UNSAFE = re.compile("^\\.|[%/\\\\\\x00-\\x1f\\x7f-\\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069]")
_CUT_QUOTE = re.compile("%[0-9A-F]?$")
_NUMBER = re.compile(r"(0\d{1,2})?d")


def _quote(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _bare_parts(text: str, pieces: list[tuple[str, str | None, str | None, str | None]]) -> Iterator[str | Field]:
    """Yield literals and fields, each checked, without limits yet."""
    for literal, name, spec, conversion in pieces:
        if literal:
            yield literal
        if name is None:
            continue
        if name not in ("key", "batch", "stage"):
            raise _wrong(text, f"{{{name}}} is not a field: use {{key}}, {{batch}} or {{stage}}")
        if conversion or (spec and not (name == "key" and _NUMBER.fullmatch(spec))):
            # Other formats could cut or round, and give two keys one name.
            raise _wrong(text, f"the only format is a number of digits for the key, such as {{key:04d}}, not {spec!r}")
        yield Field(name, spec or "", 0)


def _with_limits(text: str, bare: list[str | Field]) -> Iterator[str | Field]:
    """Yield the parts, each field with its share of the room that its folder or file name has."""
    names = [_Name()]
    at: list[_Name] = []
    for part in bare:
        at.append(names[-1])
        if isinstance(part, Field):
            names[-1].fields += 1
        else:
            first, *others = part.split("/")
            names[-1].add(first)
            names += [_Name(other) for other in others]
    _check_names(text, names)
    for part, name in zip(bare, at, strict=True):
        yield part if isinstance(part, str) else Field(part.name, part.spec, name.share())


class _Name:
    """One folder or file name of a template."""

    def __init__(self, literal: str = "") -> None:
        self.lead = self.literal = literal
        self.fields = 0

    def add(self, literal: str) -> None:
        self.literal += literal
        if not self.fields:
            self.lead += literal

    def share(self) -> int:
        return min(VALUE_BYTES, (NAME_BYTES - len(os.fsencode(self.literal))) // self.fields)


def _check_names(text: str, names: list[_Name]) -> None:
    if not names[-1].fields and names[-1].literal in ("", ".", ".."):
        raise _wrong(text, "it ends in a folder; end it with the name of a file")
    for name in names:
        if name.fields and name.lead.startswith("."):
            raise _wrong(text, "a name that begins with a dot is hidden, and could be an internal one")
        if name.fields and name.share() < LEAST_VALUE_BYTES:
            raise _wrong(text, f"the name has {len(name.literal)} characters beside its fields, which is too long")


def _escaped(literal: str) -> str:
    """Return a literal as it is written in a template."""
    return literal.replace("{", "{{").replace("}", "}}")


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"Files({text!r}): {why}")


# -- our own names ----------------------------------------------------------------------------------------------------

_STAGED = re.compile(
    r"(?P<origin>[^.]+\.[^.]+\.\d+\.\d+\.[0-9a-f]*)\.(?P<fence>\d+)\.(?P<digest>[0-9a-f]{32})"
    r"\.(?P<note>[A-Za-z0-9_-]*)\.(?P<form>text|json)"
)
_TEMP = re.compile(r"tmp-\d+-[0-9a-f]{16}")
_SHORT = re.compile(r"[A-Za-z0-9_-]{1,32}|~[0-9a-f]{24}")


class StagedName(msgspec.Struct, frozen=True):
    """The content of the name of a staged output."""

    name: str
    origin: str
    """Batch, stage, item, epoch and input, by which an output is adopted."""
    fence: int
    digest: str
    """The first half of the digest of its bytes."""
    note: bytes
    is_text: bool

    @property
    def whose(self) -> str:
        """Return its pipeline and batch, in the form of the function `whose`."""
        return self.origin.split(".", 1)[0]

    @property
    def stage(self) -> str:
        """Return its stage, in the form of `short`."""
        return self.origin.split(".", 2)[1]


def temp_name() -> str:
    """Return a unique name, for a file that is not complete."""
    return f"tmp-{os.getpid()}-{secrets.token_hex(8)}"


def kind_of(name: str) -> Literal["temp", "staged"] | None:
    """Return the kind of internal file with this name; None if it is not internal."""
    if _TEMP.fullmatch(name):
        return "temp"
    return "staged" if _STAGED.fullmatch(name) else None


def origin(place: Provenance) -> str:
    """Return the part of a staged name by which an output is adopted."""
    made_by = whose(place.pipeline, place.batch)
    return f"{made_by}.{short(place.stage)}.{place.n}.{place.epoch}.{place.input_digest.hex()[:32]}"


def whose(pipeline: str, batch: str) -> str:
    """Return the part of a staged name that identifies the batch."""
    return short(f"{pipeline}/{batch}" if pipeline else batch)


def staged_name(place: Provenance, digest: bytes, note: bytes = b"", *, is_text: bool) -> str:
    """Return the name of a staged output: its origin, its fence, its digest, and a short note."""
    said = base64.urlsafe_b64encode(note).decode().rstrip("=") if len(note) <= NOTE_BYTES else ""
    return f"{origin(place)}.{place.fence}.{digest.hex()[:32]}.{said}.{'text' if is_text else 'json'}"


def parse_staged(name: str) -> StagedName | None:
    """Return the content of a staged name, or None if it is not one."""
    match = _STAGED.fullmatch(name)
    if match is None:
        return None
    note = base64.urlsafe_b64decode(match["note"] + "=" * (-len(match["note"]) % 4))
    return StagedName(name, match["origin"], int(match["fence"]), match["digest"], note, match["form"] == "text")


@lru_cache(maxsize=256)
def short(text: str) -> str:
    """Return a batch or stage name without dots and of bounded length, with a digest if it was changed. A short name is
    its own short name."""
    if _SHORT.fullmatch(text):
        return text
    return "~" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


KEY = "(?!\\.).+"
NUMBER = "-?[0-9]+"


class Pattern(msgspec.Struct, frozen=True):
    """A template with batch and stage filled in: only the key is open."""

    root: str
    """The folder, as written, below which all of its files are."""
    names: tuple[re.Pattern[str], ...]
    """One pattern for each folder or file name below it."""

    @property
    def is_flat(self) -> bool:
        """Return whether all of its files are in one folder."""
        return len(self.names) == 1

    @property
    def prefix(self) -> str:
        """Return the beginning of the path of each of its files."""
        return "" if self.root == "." else self.root if self.root.endswith("/") else f"{self.root}/"

    def matches(self, path: str) -> bool:
        """Return whether a path, as written, is one of its names."""
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


def count_files(base: str, found: Pattern) -> int:
    """Return how many files are in the places of the pattern, whether their names match or not, without hidden ones."""
    if not found.is_flat:
        return sum(1 for _ in walk_files(base, found))
    try:
        with os.scandir(_at(base, found.root)) as entries:
            return sum([not entry.name.startswith(".") for entry in entries])
    except (FileNotFoundError, NotADirectoryError):
        return 0


def walk_files(base: str, found: Pattern) -> Iterator[str]:
    """Yield the path, as written, of every file whose name matches the pattern, without keeping them in memory."""
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
