"""What listings have in common: the cursor is a name, and ranges lie between names."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import msgspec

from holdfast.core import canonical
from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.runtime.sources.base import Since, Span
from holdfast.runtime.words import many

PAGE_NAMES = 500
KEPT_NAMES = 8_192
"""Names that are remembered to choose borders from: of more, every second, every fourth …"""
SAMPLES = 32
"""Names that are kept with a scan by their digests, so that it is seen if they go."""


class NamePage:
    """Some items of a listing, and their names."""

    def __init__(self, named: Sequence[tuple[str, Any]]) -> None:
        self.rows: Sequence[Any] = [item for _, item in named]
        self._names = [name for name, _ in named]

    def after(self, count: int) -> Cursor:
        return cursor_of(self._names[count - 1])


def pages(named: Iterable[tuple[str, Any]], until: str | None) -> Iterator[NamePage]:
    """The items up to a name and with it, in pages."""
    each = iter(named)
    while some := list(islice(each, PAGE_NAMES)):
        if until is not None and some[-1][0] > until:
            some = [(name, item) for name, item in some if name <= until]
            if some:
                yield NamePage(some)
            return
        yield NamePage(some)


def cursor_of(name: str) -> Cursor:
    """The cursor after a name. One that is not text is kept as bytes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return Cursor("name", name.encode("utf-8", "surrogateescape"))
    return Cursor("name", name)


def name_of(at: Cursor | None, what: str) -> str | None:
    """The name that a cursor stands for."""
    if at is None:
        return None
    if at.kind != "name" or not isinstance(at.value, str | bytes):
        raise UsageError(f"{what}: it is read by name; the cursor {at} is of another source, or damaged")
    return at.value if isinstance(at.value, str) else at.value.decode("utf-8", "surrogateescape")


def split(names: Iterable[str], parts: int) -> list[Span]:
    """Ranges of about as many names each; of several, the last ends with the last name there is now."""
    if parts == 1:
        return [Span()]
    kept: list[str] = []
    apart, last = 1, None
    for count, last in enumerate(names, 1):
        if count % apart == 0:
            kept.append(last)
        if len(kept) > KEPT_NAMES:
            kept, apart = kept[1::2], apart * 2
    if last is None:
        return [Span(rows=0)]
    marks = {kept[max(0, len(kept) * part // parts - 1)] for part in range(1, parts)} if kept else set()
    ends = [None, *(cursor_of(name) for name in sorted(marks - {last})), cursor_of(last)]
    return [Span(after=after, until=until) for after, until in pairwise(ends)]


def alike(before: Any, after: Any, *ignored: str) -> bool:
    """Whether two payloads of a listing are of the same thing."""
    if not (isinstance(before, dict) and isinstance(after, dict) and "name" in before):
        return False
    one, other = ({name: value for name, value in each.items() if name not in ignored} for each in (before, after))
    return one == other


# -- what was there -----------------------------------------------------------------------------------------------


class Inventory:
    """The identity of a listing: how many names, a digest over names and marks, and a sample of these by chance."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._all = hashlib.blake2b(digest_size=16)
        self._sample: list[int] = []
        """The marks with the smallest digests, negated: a heap with the largest of them first."""

    def add(self, name: str, item: Any) -> int:
        """Count a name; returns its mark."""
        mark = _mark(name, item)
        self.count, self.last = self.count + 1, name
        self._all.update(mark.to_bytes(8, "big"))
        if len(self._sample) < SAMPLES:
            heapq.heappush(self._sample, -mark)
        elif -self._sample[0] > mark:
            heapq.heapreplace(self._sample, -mark)
        return mark

    @property
    def digest(self) -> str:
        return self._all.hexdigest()

    def identity(self, described: dict[str, Any]) -> dict[str, Any]:
        """What is kept of it, with the source that it is of."""
        marks = sorted(f"{-mark:016x}" for mark in self._sample)
        last = self.last.encode("utf-8", "surrogateescape").hex()
        return {"count": self.count, "digest": self.digest, "last": last, "marks": marks, "of": of(described)}


def of(described: dict[str, Any]) -> str:
    """The source that an inventory is of, in short: with another filter, other rows are there."""
    return canonical.digest(b"", canonical.encode(described)).hex()[:16]


def divided(named: Iterable[tuple[str, Any]], parts: int, described: dict[str, Any]) -> list[Span]:
    """Ranges of about as many names each, with what was there."""
    seen = Inventory()
    each = (name for name, item in named if seen.add(name, item) >= 0)
    spans = split(each, parts)
    for _ in each:  # one range is made without looking
        pass
    known = seen.identity(described)
    return [msgspec.structs.replace(span, identity=known) for span in spans]


def since(named: Iterable[tuple[str, Any]], before: dict[str, Any], handled: int, described: dict[str, Any],
          noun: str) -> Since:  # fmt: skip
    """What became of a listing. New names are nothing to worry about; one that is gone, or stands for something else,
    is: all up to the last name of then are compared, and those of the sample are looked for."""
    if before.get("of") != of(described):
        return Since()
    last = bytes.fromhex(before["last"]).decode("utf-8", "surrogateescape")
    then, count, lost = Inventory(), 0, {int(mark, 16) for mark in before["marks"]}
    for name, item in named:
        count += 1
        if name <= last:
            lost.discard(then.add(name, item))
    if count < before["count"]:
        return Since(f"it has {many(count, noun)}, and had {before['count']:,}")
    if lost or (then.count == before["count"] and then.digest != before["digest"]):
        return Since(f"not every {noun} that it had is there as it was: some were replaced, or taken away")
    return Since(more=max(0, count - max(before["count"], handled)), noun=noun)


def _mark(name: str, item: Any) -> int:
    """A name and what stands for its content, as a number: the tag of an object, else the size."""
    content = getattr(item, "content_mark", None) or getattr(item, "size", "")
    text = f"{name}\0{content}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
