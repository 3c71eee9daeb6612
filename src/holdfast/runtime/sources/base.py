"""The Source contract: items as a stream that can be read again from its start.

A malformed item does not stop the stream: it comes as a `Malformed` value and becomes a dead letter with its position.
An error that makes the rest of the stream unreadable, or that would require a guess, is a UsageError.
"""

import gzip
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, Protocol, cast, runtime_checkable

import msgspec

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Defer, Transient, UsageError
from holdfast.core.limits import SOURCE_FIRST_WAIT, SOURCE_LONGEST_WAIT
from holdfast.core.model import Key
from holdfast.core.retry import classify
from holdfast.runtime.text import in_words

log = logging.getLogger("holdfast.sources")
outage_log = logging.getLogger("holdfast.source")


@runtime_checkable
class Source(Protocol):
    """The protocol of a source of items. Every iteration starts again, and closes what it opened when it is dropped."""

    def __iter__(self) -> Iterator[Any]:
        """The items in a fixed order, `Malformed` values among them."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what the source is, as data: the same on every machine, and without secrets."""
        ...

    def natural_key(self, value: Any) -> Key | None:
        """Return the key of an item if the user names no key; None if the source has none."""
        ...


@runtime_checkable
class AtHand(Protocol):
    """A source that never waits, such as a file on this disk. Its first items are compared with what is stored before
    anything is handled, so that a run that is refused has done nothing."""

    at_hand: bool


@runtime_checkable
class Patient(Protocol):
    """A source that may be away, such as a database."""

    def patiently(self, outage: "Outage") -> Iterator[Any]:
        """Yield the items, and wait if the source does not answer, as long as the outage allows."""
        ...


@runtime_checkable
class Comparing(Protocol):
    """A source whose payloads may differ and mean the same, such as a file that was moved."""

    def alike(self, before: Any, after: Any) -> bool:
        """Return whether two payloads of one key are the same thing."""
        ...


class Page(Protocol):
    """Some rows in cursor order."""

    @property
    def rows(self) -> Sequence[Any]:
        """The rows. In a scan, `Malformed` ones are buried. A page that has none may set `flawed = False`, and is not
        searched for them."""
        ...

    def after(self, count: int) -> Cursor:
        """Return the cursor after the first so many rows."""
        ...


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span of a source: the rows after one cursor, up to and including another."""

    after: Cursor | None = None
    """The cursor before the first row; None for the start of the source."""
    until: Cursor | None = None
    """The cursor of the last row; None for the end of the source."""
    rows: int | None = None
    """About how many rows it has, if known."""
    identity: dict[str, Any] | None = None
    """The identity of the source when it was split, if it has one."""


@runtime_checkable
class Readable(Protocol):
    """The protocol of a source with a cursor, which can be read from any row on. Scans and followers need one."""

    def describe(self) -> dict[str, Any]:
        """Return what the source is, as data: the same on every machine, and without secrets."""
        ...

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """Yield the rows after one cursor, up to and including another, in pages."""
        ...

    def split(self, parts: int) -> Sequence[Span]:
        """Return at most so many spans that together contain every row once."""
        ...


@runtime_checkable
class Identified(Protocol):
    """A source that can tell whether it has changed since a scan of it began. A Readable may be one."""

    def identity(self) -> dict[str, Any]:
        """Return its present identity as JSON, without anything that a user would not want to be stored."""
        ...

    def changed(self, before: dict[str, Any]) -> str | None:
        """Return what has changed, in words; None while a half-done scan may resume, and a finished one holds."""
        ...


class Since(msgspec.Struct, frozen=True):
    """The changes of a source since a scan of it began."""

    changed: str = ""
    """Why it is another source, or a smaller one; empty if it is not."""
    more: int = 0
    """How many rows it has that are in no partition."""
    noun: str = "row"


@runtime_checkable
class Inventoried(Protocol):
    """A source to which others add: compared once a scan of it is finished. A Readable may be one."""

    def since(self, before: dict[str, Any], handled: int) -> Since:
        """Compare the source with its identity of then; so many rows were handled in all."""
        ...


class NotThereError(UsageError):
    """There is no such file or folder."""


def one_range(source: Any, parts: int, why: str, identity: dict[str, Any] | None = None) -> list[Span]:
    """Return the whole of a source that cannot be split; warns if more partitions were requested."""
    if parts > 1:
        log.warning("%r is read as one partition, not %s: %s", source, parts, why)
    return [Span(identity=identity)]


class Horizon(msgspec.Struct, frozen=True, kw_only=True):
    """How far the rows of a source are final: no later row comes before that."""

    until: Cursor | None = None
    """None if all present rows are final."""
    nothing: bool = False
    """It is not known now: no row counts as final."""
    why: str = ""
    """The reason why rows are held back, if there is one."""
    newest: Cursor | None = None
    """The last row, final or not, if it is known."""
    settle: float = 0.0
    """How many seconds old every row must be before it is final."""


class Waits(NamedTuple):
    """A row that exists and was not delivered, and the time there: both in the format of the cursor."""

    first: Cursor
    now: Any


@runtime_checkable
class Waited(Protocol):
    """A source that can tell since when rows wait to be delivered."""

    def waiting(self, after: Cursor | None) -> Waits | None:
        """Return the first row after a cursor, final or not; None if there is none, or its cursor is not a time."""
        ...


@runtime_checkable
class Followable(Readable, Protocol):
    """A source to which others write while it is read. Without this, all present rows count as final."""

    def final(self, after: Cursor | None, wait: Callable[[float], bool]) -> Horizon:
        """Return how far rows can be delivered so that none appears before them later. `wait` waits for some seconds,
        and returns False if there is not enough time."""
        ...


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a file that cannot be read. In a pipeline or scan it becomes a dead letter. A function that reads a
    source itself gets it among the rows: check with `isinstance`, and yield it unchanged to have it buried."""

    raw: bytes
    """The bytes as they were found; cut if they are too long to keep."""
    why: str
    """What is wrong with it."""
    where: str
    """Name and line, such as `pages.jsonl:17`."""
    byte: int | None = None
    """The byte at which it begins, in a file that can be sought."""

    @property
    def reason(self) -> str:
        """The reason in its dead letter."""
        return f"{self.where}: {self.why}"

    def __getitem__(self, field: Any) -> NoReturn:
        raise UsageError(
            f"{self.reason}. This row cannot be read, so it has no {field!r}: skip it with "
            "`if isinstance(row, hf.Malformed)`, or yield it unchanged to make it a dead letter"
        )


@contextmanager
def told(what: str) -> Iterator[None]:
    """Translate errors of a file, with its name."""
    try:
        yield
    except FileNotFoundError:
        raise NotThereError(f"{what}: there is no such file: check the path, and the folder you start from") from None
    except IsADirectoryError:
        raise UsageError(f"{what}: this is a folder: use Folder, or pass a file in it") from None
    except PermissionError:
        raise UsageError(f"{what}: this user has no permission to read the file") from None


@contextmanager
def opened(path: Path, what: str) -> Iterator[IO[bytes]]:
    """Yield the file as a stream of bytes, unpacked if its name ends in `.gz`; errors name the file."""
    try:
        with told(what), _open(path) as stream:
            yield stream
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UsageError(f"{what}: the compressed file is damaged or cut off ({error}): create it again") from error


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def logical_name(path: Path) -> str:
    """Return the name of a file or folder without the part of its path that depends on the machine."""
    return path.absolute().name


UNAVAILABLE = "source_unavailable"
ANSWERED = frozenset({"not_json"})
"""Transient errors of a source that is there: it is asked again as often as its policy allows."""
LOOK_SECONDS = 0.1
"""How often a waiting thread checks whether the run stops."""


class SourceAway(Transient):
    """The source did not come back within the patience. Nothing was buried: the next run resumes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=UNAVAILABLE)


class Reads(Protocol):
    """A source that can be read after a cursor."""

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Any]: ...


class Notice:
    """The log lines of a source that is away: one when that begins and one when it ends, however many partitions of a
    run wait for it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = 0.0
        self._lock = threading.Lock()

    def begin(self, patience: float, error: BaseException) -> None:
        """Note that a reader finds it away."""
        with self._lock:
            if not self._since:
                self._since = time.monotonic()
                outage_log.warning("%s: it is away, waiting for up to %s: %s", self._what, in_words(patience), error)

    def end(self) -> None:
        """Note that it answered a reader that waited."""
        with self._lock:
            if self._since:
                outage_log.warning("%s: it is back after %s", self._what, in_words(time.monotonic() - self._since))
                self._since = 0.0


class Outage:
    """The time for which one source is away, and how long to wait for it."""

    def __init__(self, patience: float, stopping: Callable[[], bool], notice: Notice) -> None:
        self._patience, self._stopping, self._notice = patience, stopping, notice
        self._since = 0.0
        self._wait = 0.0

    def over(self) -> None:
        """Note that it answered."""
        if self._since:
            self._notice.end()
            self._since = 0.0

    def endures(self, error: BaseException, *, told: bool = False) -> bool:
        """Wait if waiting may help, and return whether to ask again: not while the run stops, and not after another
        kind of error. With `told`, the wait that the server asked for happens here. Raises SourceAway at the end of the
        patience."""
        if isinstance(error, Defer):
            return told and error.seconds <= self._patience and self._sleep(error.seconds)
        if not is_away(error):
            return False
        now = time.monotonic()
        if not self._since:
            self._since, self._wait = now, SOURCE_FIRST_WAIT
            if self._patience:
                self._notice.begin(self._patience, error)
        left = self._since + self._patience - now
        if left <= 0:
            raise SourceAway(
                f"the source is away: {error}; waited for {in_words(self._patience)} (patience=…). "
                "Handled rows are kept and nothing was buried: run again to resume"
            ) from error
        wait, self._wait = min(self._wait, left), min(2 * self._wait, SOURCE_LONGEST_WAIT)
        return self._sleep(wait)

    def refuse_long(self, error: Exception) -> None:
        """Raise SourceAway if the server asks for a wait longer than the patience."""
        if isinstance(error, Defer) and error.seconds > self._patience:
            raise SourceAway(
                f"the source is away: the server asks to wait {in_words(error.seconds)}, longer than "
                f"the {in_words(self._patience)} of its patience (patience=…): {error}. Handled rows are kept and "
                "nothing was buried: run again to resume"
            ) from error

    def _sleep(self, seconds: float) -> bool:
        """Wait for so long; return False if the run stops."""
        until = time.monotonic() + seconds
        while not self._stopping():
            left = until - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, LOOK_SECONDS))
        return False


def is_away(error: BaseException) -> bool:
    """Return whether the source is unavailable for now."""
    transient, code = classify(error)
    return transient and code not in ANSWERED


def asked(function: Callable[[], Any], outage: Outage, *, told: bool = True) -> Any:
    """Return the answer of a function of the source, once there is one."""
    while True:
        try:
            found = function()
        except Exception as error:
            if not outage.endures(error, told=told):
                if told:
                    outage.refuse_long(error)
                raise
        else:
            outage.over()
            return found


def rows_of(source: Reads, outage: Outage) -> Iterator[Any]:
    """Yield every row of a source; after an outage, reading continues after the last page."""
    after: Cursor | None = None
    page: Page | None = None
    while True:
        try:
            with closing(source.read(after, None)) as pages:  # type: ignore[type-var]  # a generator
                for page in pages:
                    outage.over()
                    yield from page.rows
            return
        except Exception as error:
            if not outage.endures(error, told=True):
                outage.refuse_long(error)
                raise
            after = after if page is None or not len(page.rows) else page.after(len(page.rows))
