"""Cursors: how far a source has been read.

A cursor is a typed value with a tiebreaker, which distinguishes rows that share the value. Only the source knows the
order of values; the kind keeps a cursor of one sort from being read as one of another.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.core import canonical, journal
from holdfast.core.errors import UsageError
from holdfast.core.model import Change, Checkpoint, ItemNo, ItemState, Key, State
from holdfast.core.states import Transition, move

DIGITS = 40
"""A number with more digits than this is written with an exponent."""


class Cursor(msgspec.Struct, frozen=True):
    """A position in a source: the last row that was consumed."""

    kind: str
    """The kind of value: `row`, `byte`, `column+key`, `page`, `name` …"""
    value: Any = None
    """The value, such as a number, a name or a time."""
    tiebreaker: Any = None
    """The key that tells rows with the same value apart."""

    def __str__(self) -> str:
        tie = "" if self.tiebreaker is None else f", {_spoken(self.tiebreaker)}"
        return f"{self.kind} {_spoken(self.value)}{tie}"


def _spoken(value: Any) -> str:
    """Return a value for people: times and numbers as they are written, text in quotes, keys by name."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_spoken(each)}" for name, each in value.items())
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return spoken_decimal(value)
    return str(value) if isinstance(value, UUID) else repr(value)


def spoken_decimal(value: Decimal) -> str:
    """Return a number without the trailing zeros of a database column: -7, not -7.0000000000."""
    text = format(value, "f") if value.is_finite() and abs(value.adjusted()) < DIGITS else str(value)
    return text.rstrip("0").rstrip(".") if "." in text and "E" not in text else text


def encode(cursor: Cursor) -> bytes:
    """Return the cursor as readable canonical JSON."""
    return canonical.encode(to_plain(cursor))


def decode(data: bytes, what: str = "the cursor") -> Cursor:
    """Return the cursor from its bytes. Raise UsageError if they do not contain one."""
    try:
        plain = canonical.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"{what} cannot be read: {error}") from None
    return from_plain(plain, what)


def to_plain(cursor: Cursor) -> dict[str, Any]:
    return {
        "kind": cursor.kind,
        "value": canonical.to_plain(cursor.value, "the cursor"),
        "tiebreaker": canonical.to_plain(cursor.tiebreaker, "the tiebreaker"),
    }


def from_plain(plain: Any, what: str = "the cursor") -> Cursor:
    """Return the cursor from a dictionary with kind, value and tiebreaker."""
    if not isinstance(plain, dict) or not isinstance(plain.get("kind"), str) or "value" not in plain:
        raise UsageError(f"{what} is not a cursor: it needs a kind and a value")
    unknown = plain.keys() - {"kind", "value", "tiebreaker"}
    if unknown:
        raise UsageError(f"{what} has {', '.join(sorted(unknown))}, which no cursor has")
    return Cursor(
        plain["kind"], canonical.from_plain(plain["value"], what), canonical.from_plain(plain.get("tiebreaker"), what)
    )


_FINER = re.compile(r"\.\d{6}\d*[1-9]")
"""More digits of a second than a datetime can hold."""


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError
    return int(text)


def _timestamp(text: str) -> datetime:
    if _FINER.search(text):
        raise UsageError(f"{text!r} is finer than a microsecond: cutting it off would repeat or skip rows")
    if "T" not in text and " " not in text:
        raise ValueError
    return datetime.fromisoformat(text)


def _decimal(text: str) -> Decimal:
    found = Decimal(text)
    if not found.is_finite():
        raise ValueError
    return found


CursorValue = str | int | float | Decimal | date | uuid.UUID
TYPES: Mapping[str, tuple[type, Callable[[str], Any]]] = {
    "integer": (int, _integer),
    "decimal": (Decimal, _decimal),
    "float": (float, float),
    "text": (str, str),
    "timestamp": (datetime, _timestamp),
    "date": (date, date.fromisoformat),
    "uuid": (uuid.UUID, uuid.UUID),
}
"""The types of cursor values that can be typed as text: name, type and parser."""


def value_of(text: str, name: str, what: str) -> Any:
    """Return the value that a text spells, as the type of that name."""
    if name not in TYPES:
        raise UsageError(f"{what}: there is no type {name!r}; use one of {', '.join(TYPES)}")
    try:
        return TYPES[name][1](text)
    except (ValueError, InvalidOperation):
        raise UsageError(f"{what}: {text!r} is not of type {name}") from None


def spelled(value: CursorValue, name: str) -> str:
    """Return the text of a value of one of these types."""
    if type_name(value) is None:
        raise UsageError(f"{name}={value!r}: pass a text, a number, a date, a time or a UUID; nothing was changed")
    return str(value)


def type_name(value: Any) -> str | None:
    """Return the name of a value's type; None if the value cannot be typed as text."""
    return next((name for name, (kind, _) in TYPES.items() if type(value) is kind), None)


def cursor_of(text: str, keys: Sequence[str], like: Cursor, said: str | None) -> Cursor:
    """Return the cursor for `--to-cursor V --row-key PK`; its type is that of a cursor of the same source."""
    known = type_name(like.value)
    if said is not None and known is not None and said != known:
        raise UsageError(f"--type {said}: cursors of this source are of type {known}, such as {like}")
    name = said if known is None else known
    if name is None:
        raise UsageError(f"--to-cursor {text}: pass --type, because the stored cursor {like} does not show its type")
    return Cursor(like.kind, value_of(text, name, "--to-cursor"), _tiebreaker(keys, like))


def _tiebreaker(keys: Sequence[str], like: Cursor) -> Any:
    """Return the key of the row in the form that the source uses: single, several in order, or by name."""
    tie = like.tiebreaker
    if tie is None:
        if keys:
            raise UsageError(f"--key {keys[0]}: cursors of this source have no key, such as {like}")
        return None
    if not keys:
        raise UsageError(f"--to-cursor alone could skip rows of the same value: pass --key, as in {like}")
    if isinstance(tie, dict):
        alone = len(tie) == len(keys) == 1 and "=" not in keys[0]
        pairs = {next(iter(tie)): keys[0]} if alone else dict(each.partition("=")[::2] for each in keys)
        if pairs.keys() != tie.keys():
            raise UsageError(f"--key: pass {' '.join(f'--key {name}=…' for name in tie)}, as in {like}")
        return {name: _alike(pairs[name], tie[name]) for name in tie}
    if isinstance(tie, list | tuple):
        if len(keys) != len(tie):
            raise UsageError(f"--row-key: this source needs {len(tie)} of them, as in {like}")
        return type(tie)(_alike(text, each) for text, each in zip(keys, tie, strict=True))
    if len(keys) != 1:
        raise UsageError(f"--row-key: this source needs one, as in {like}")
    return _alike(keys[0], tie)


def _alike(text: str, like: Any) -> Any:
    name = type_name(like)
    if name is None:
        raise UsageError(f"--key {text}: a key such as {like!r} cannot be typed; use --to-file")
    return value_of(text, name, "--key")


def in_words(value: Any) -> str:
    """Return a value for people: JSON types as JSON; numbers, times and bytes as they are written."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{in_words(name)}: {in_words(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(in_words, value)) + "]"
    if isinstance(value, Decimal):
        return spoken_decimal(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if value is None:
        return "nothing"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float) else str(value)


ROW = "row"
"""The kind of a cursor that counts rows: the difference of two is a number of rows."""
BYTE = "byte"
"""The kind of a cursor into a file: the value is the start of a block, the tiebreaker the number of rows of that block
that were read."""
Accumulated = Literal["keep", "drop"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a partition."""

    n: ItemNo
    key: Key
    place: ItemState
    payload: bytes
    after: Cursor | None = None
    until: Cursor | None = None
    expected: int | None = None
    """The approximate number of its rows, if known."""
    checkpoint: Checkpoint | None = None

    @property
    def rows(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.rows

    @property
    def cursor(self) -> Cursor | None:
        """The last row that was handled; None before the first."""
        at = self.checkpoint
        return None if at is None or not at.cursor else decode(at.cursor, f"the cursor of {self.key!r}")

    @property
    def acc(self) -> bytes | None:
        return None if self.checkpoint is None else self.checkpoint.acc

    @property
    def where(self) -> Cursor | None:
        """The cursor after which it resumes: its own, or before the first row the border after which it begins."""
        at = self.cursor
        return self.after if at is None else at


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of another checkpoint on rows: those delivered again and those never delivered."""

    again: int | None = 0
    """Rows that are handled again; None if the number is unknown."""
    skipped: int | None = 0
    """Rows that are not handled at all; None if the number is unknown."""
    exact: bool = True
    """False if the number is an upper bound."""

    def __str__(self) -> str:
        said = [
            f"{_many(count, self.exact)} {what}"
            for count, what in ((self.again, "delivered again"), (self.skipped, "skipped"))
            if count != 0
        ]
        return " and ".join(said) if said else "no row is delivered again, none is skipped"


def _many(count: int | None, exact: bool) -> str:
    if count is None:
        return "an unknown number of rows is"
    return f"{'' if exact else 'at most '}{count:,} {'row is' if count == 1 else 'rows are'}"


def fingerprint(source: Any) -> str:
    """Return a short name for the logical source: the same source gives the same text."""
    return f"sha256:{canonical.fingerprint(source)}"


# -- order and type -------------------------------------------------------------------------------------------------


def compare(one: Cursor | None, other: Cursor | None) -> int | None:
    """Return a number below, at or above 0 by the order of two cursors; None if only the source knows it. No cursor at
    all comes before every row."""
    if one == other:
        return 0
    if one is None or other is None:
        return -1 if one is None else 1
    if one.kind != other.kind or type(one.value) is not type(other.value):
        return None
    pair = (one.value, other.value) if one.value != other.value else (_lone(one), _lone(other))
    try:
        return -1 if pair[0] < pair[1] else 1
    except TypeError:
        return None


def _lone(at: Cursor) -> Any:
    """Return a tiebreaker that can be ordered: of several columns by name, only the source knows which comes first."""
    tie = at.tiebreaker
    if not isinstance(tie, dict):
        return tie
    return next(iter(tie.values())) if len(tie) == 1 else None


def check_like(given: Cursor, like: Cursor | None, what: str) -> None:
    """Refuse a cursor of another kind or type than those of the source."""
    if like is None:
        return
    if given.kind != like.kind:
        raise UsageError(f"{what} is of the kind {given.kind!r}, cursors of this source are of the kind {like.kind!r}")
    pairs = (("value", given.value, like.value), ("tiebreaker", given.tiebreaker, like.tiebreaker))
    for part, mine, theirs in pairs:
        if not _is_like(mine, theirs):
            raise UsageError(
                f"{what}: its {part} {mine!r} is {_kind_of(mine)}, but cursors of this source have {theirs!r}, which "
                f"is {_kind_of(theirs)}"
            )


def _kind_of(value: Any) -> str:
    """Return the type of a value in words, including the types of its elements."""
    if isinstance(value, dict):
        return ", ".join(f"{name} of type {type(each).__name__}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {', '.join(type(each).__name__ for each in value)}"
    zone = "" if getattr(value, "tzinfo", None) is None else " with a zone"
    return f"of type {type(value).__name__}{zone}"


def _is_like(mine: Any, theirs: Any) -> bool:
    if mine is None or theirs is None:
        return (mine is None) == (theirs is None)
    if type(mine) is not type(theirs):
        return False
    if isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_is_like(mine[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(_is_like, mine, theirs))
    return (getattr(mine, "tzinfo", None) is None) == (getattr(theirs, "tzinfo", None) is None)


def check_within(at: Standing, given: Cursor) -> None:
    """Refuse a cursor outside of the partition, as far as that can be determined."""
    low, high = compare(given, at.after), compare(given, at.until)
    if at.after is not None and low is not None and low < 0:
        raise UsageError(f"{given} comes before partition {at.key!r} begins, which is after {at.after}")
    if at.until is not None and high is not None and high > 0:
        raise UsageError(f"{given} comes after the end of partition {at.key!r}, which is {at.until}")


# -- where to resume -------------------------------------------------------------------------------------------------


def at_the_beginning(at: Standing) -> Checkpoint:
    """Return the checkpoint before the first row, with nothing accumulated."""
    return Checkpoint(at.n, 0, b"")


def at_cursor(
    at: Standing, given: Cursor, history: Iterable[journal.Position], acc: Accumulated | None
) -> tuple[Checkpoint, Shift]:
    """Return the checkpoint after a row that an operator names. The journal tells how many rows were handled up to
    there. The accumulator at that row is not stored, so if there is one, the operator must choose whether to keep
    it."""
    what = f"the cursor for partition {at.key!r}"
    check_like(given, at.where if at.where is not None else at.until, what)
    check_within(at, given)
    if at.acc is not None and acc is None and given != at.cursor:
        raise UsageError(
            f"partition {at.key!r} has accumulated {len(at.acc):,} bytes, and the accumulator as of {given} is "
            "not stored: pass --acc keep to continue with the current one, --acc drop to accumulate again, or reset "
            "it --to-file with a state that was exported there"
        )
    kept = at.acc if acc != "drop" else None
    rows, shift = _shift(at, given, history)
    return Checkpoint(at.n, rows, encode(given), kept), shift


def _shift(at: Standing, given: Cursor, history: Iterable[journal.Position]) -> tuple[int, Shift]:
    """Return how many rows were handled up to a cursor, and the effect of resuming there. Skipped rows are not handled:
    they do not count, and an audit finds them missing."""
    order = compare(given, at.where)
    if order == 0:
        return at.rows, Shift()
    if order is None:
        return at.rows, Shift(again=None, skipped=None, exact=False)
    if order > 0:
        skipped = between(given, at.where)
        return at.rows, Shift(skipped=skipped, exact=skipped is not None)
    rows, exact = _handled(at, given, history)
    return rows, Shift(again=at.rows - rows, exact=exact)


def between(one: Cursor | None, other: Cursor | None) -> int | None:
    """Return the number of rows between two cursors that count rows: from the first row, before which there is no
    cursor, or within one block of a file. Return None for other cursors."""
    if one is None or other is None:
        there = one if other is None else other
        return int(there.value) if there is not None and there.kind == ROW else None
    if one.kind != other.kind:
        return None
    if one.kind == BYTE and one.value == other.value and _are_counts(one.tiebreaker, other.tiebreaker):
        return abs(int(one.tiebreaker) - int(other.tiebreaker))
    return abs(int(one.value) - int(other.value)) if one.kind == ROW else None


def _are_counts(*values: Any) -> bool:
    return all(type(value) is int for value in values)


def _handled(at: Standing, given: Cursor, history: Iterable[journal.Position]) -> tuple[int, bool]:
    """Return how many rows were handled up to a cursor, and whether that is exact. Derived from the last position at or
    before it and the first one beyond, which shows whether the rows between the two were handled or skipped."""
    before, rows = at.after, 0
    beyond: journal.Position | None = None
    for position in history:
        where = decode(position.cursor) if position.cursor else at.after
        order = compare(where, given)
        if order is not None and order <= 0:
            before, rows, beyond = where, position.rows, None
        elif beyond is None:
            beyond = position
    if before == given or beyond is None or beyond.rows == rows:
        return rows, before == given or beyond is not None
    behind, apart = between(given, before), between(decode(beyond.cursor), before)
    if behind is not None and apart == beyond.rows - rows:
        return rows + behind, True
    return rows, False


def difference(at: Standing, to: Checkpoint) -> Shift:
    """Return the effect of continuing from a checkpoint whose rows are known."""
    target = decode(to.cursor) if to.cursor else None
    order = compare(target if target is not None else at.after, at.where)
    if order == 0:
        return Shift(again=max(0, at.rows - to.rows))
    if order is None:
        return Shift(again=None, skipped=None, exact=False)
    if order < 0:
        return Shift(again=max(0, at.rows - to.rows))
    skipped = to.rows - at.rows
    return Shift(skipped=skipped if skipped >= 0 else None)


def go_on_from(at: Standing, to: Checkpoint | None, stages: int, *, reason: str, even_so: bool = False) -> Change | str:
    """Return the change that starts a new epoch of a partition with no attempts used, at another checkpoint or at its
    own. A partition that is already there is left alone, unless it is taken from an owner."""
    is_fresh = at.place.state is State.PENDING and not at.place.attempt
    is_done = at.place.state is State.DONE and to is not None
    if not even_so and (is_fresh or is_done) and (to is None or _is_same(at.checkpoint, to)):
        return "there already"
    place = move(at.place, Transition.RESET, stage=0, stages=stages, reason=reason)
    return Change(n=at.n, state=at.place.state, epoch=at.place.epoch, place=place, checkpoint=to)


def _is_same(now: Checkpoint | None, to: Checkpoint) -> bool:
    known = (0, b"", None) if now is None else (now.rows, now.cursor, now.acc)
    return known == (to.rows, to.cursor, to.acc)
