"""What listings have in common: the cursor is a name, and ranges lie between names."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

from holdfast.core.cursor import Cursor
from holdfast.core.errors import UsageError
from holdfast.runtime.sources.base import Span

PAGE_NAMES = 500
KEPT_NAMES = 8_192
"""Names that are remembered to choose borders from: of more, every second, every fourth …"""


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
