"""The rows of a paginated HTTP API as a source. The queries of its requests, which may contain a secret, are not
logged."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time
from typing import Any
from urllib.parse import quote, urlsplit

from holdfast.core import errors
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Defer, Permanent, Transient, UsageError
from holdfast.core.limits import REPLY_BYTES
from holdfast.core.retry import TRANSIENT_STATUS, told_wait
from holdfast.runtime.sources.base import Outage, Page, Span, one_range, rows_of

_here = threading.local()


class _WithoutQueries(logging.Filter):
    """Removes the query from the URLs of this thread's requests in the log; other requests are not changed."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(_here, "ours", False) and isinstance(record.args, tuple):
            record.args = tuple(_bare(each) for each in record.args)
        return True


_FILTER = _WithoutQueries()


@contextmanager
def quiet_queries() -> Iterator[None]:
    """Keep the query of a request out of the log while it is sent."""
    logger = logging.getLogger("httpx")
    if _FILTER not in logger.filters:
        logger.addFilter(_FILTER)
    _here.ours = True
    try:
        yield
    finally:
        _here.ours = False


def _bare(said: Any) -> Any:
    return said.copy_with(query=None) if hasattr(said, "copy_with") else said


TIMEOUT_SECONDS = 30.0
PART_BYTES = 64 * 1024
THROTTLED = (429, 503)
WAIT_SECONDS = 30.0
"""How long to wait if a throttling server does not say."""
LONGEST_WAIT = 24 * 3600.0

Address = str | Callable[[Any], "str | tuple[str, Mapping[str, Any]]"]
Where = str | Callable[[Any], Any]


class ReplyPage:
    """The rows of a reply. After the last row the cursor is that of the next page, if there is one."""

    flawed = False

    def __init__(self, rows: Sequence[Any], at: Any, following: Any, first: int) -> None:
        self.rows = rows
        self._at, self._following, self._first = at, following, first

    def after(self, count: int) -> Cursor:
        if count == len(self.rows) and self._following is not None:
            return Cursor("page", self._following, 0)
        return Cursor("page", self._at, self._first + count)


class Pages:
    """The rows of a paginated API: `Pages("https://…/orders", rows="data", next="meta.next", param="cursor")`.

    Args:
        url: The address. It may contain `{cursor}`, or be a function of the cursor.
        rows: Where the rows are in the reply: a path with dots, or a function of the reply; by default the reply
            itself.
        next: Where the next cursor is in the reply. A whole URL on the same server is requested as it is.
        param: The query parameter for the cursor, unless the URL contains it.
        first: The cursor of the first page.
        params: Other query parameters.
        name: A name for this source, if the URL does not identify it.
        headers: Headers, or a function that returns them, so that a secret is read only when it is needed.
        timeout: How many seconds a request may take.
        client: An `httpx.Client` of your own.
        reply_bytes: The largest reply that is accepted, unpacked.
    """

    def __init__(self, url: Address, *, rows: Where = "", next: Where, param: str | None = None,  # noqa: A002 - what users call it
                 first: Any = None, params: Mapping[str, Any] | None = None, name: str | None = None,
                 headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
                 timeout: float = TIMEOUT_SECONDS, client: Any = None,
                 reply_bytes: int = REPLY_BYTES) -> None:  # fmt: skip
        self._url, self._rows, self._next, self._param = url, rows, next, param
        self._first, self._params, self._headers = first, dict(params if params is not None else {}), headers
        self._timeout, self._client, self._reply_bytes = timeout, client, reply_bytes
        self._name = name if name is not None else _name_of(url)
        _library()  # a missing library is reported now, not in the middle of a run
        if isinstance(url, str):
            if urlsplit(url).scheme not in {"http", "https"} or urlsplit(url).username is not None:
                raise UsageError(f"{self!r}: pass an http or https URL without a user or a password")
            if param is None and "{cursor}" not in url and first is None and isinstance(next, str):
                self._param = "cursor"

    def __repr__(self) -> str:
        return f"Pages({self._name!r})"

    def __iter__(self) -> Iterator[Any]:
        return (row for page in self.read(None, None) for row in page.rows)

    def patiently(self, outage: Outage) -> Iterator[Any]:
        """Yield every item of a pipeline; after an outage it is read on where it was."""
        return rows_of(self, outage)

    def describe(self) -> dict[str, Any]:
        """Return what is asked for, without host, query and headers."""
        return {"kind": "pages", "name": self._name, "rows": _said(self._rows), "next": _said(self._next)}

    def natural_key(self, value: Any) -> None:
        """A row has no key of its own: name a field."""
        return

    def split(self, parts: int) -> Sequence[Span]:
        """Return one range: a page is known by the one before it alone."""
        return one_range(self, parts, "each page is named by the one before it")

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """Yield the rows after a cursor, up to another and with it."""
        at, passed = self._place(after)
        stop = None if until is None else self._place(until)
        guard = _Loop(self)
        with self._opened() as client:
            while True:
                reply = self._ask(client, at)
                rows, following = self._found(reply)
                if stop is not None and stop[0] == at:
                    rows, following = rows[: stop[1]], None
                if rows[passed:]:
                    yield ReplyPage(rows[passed:], at, following, passed)
                if following is None or (stop is not None and (following, 0) == stop):
                    return
                guard.turn(at, following)
                at, passed = following, 0

    # -- one page -----------------------------------------------------------------------------------------------------

    def _ask(self, client: Any, at: Any) -> Any:
        import httpx

        url, params = self._address(at)
        try:
            if params:  # the query that the URL already has stays
                url = str(httpx.URL(url).copy_merge_params(params))
            with quiet_queries():
                reply = self._get(client, url)
        except httpx.RequestError as error:
            raise Transient(f"{self!r}: no answer ({type(error).__name__})", code="connection") from None
        except httpx.InvalidURL:
            raise Permanent("invalid_url", f"{self!r}: the address of a page is not a URL") from None
        if reply.status_code in THROTTLED and (reply.status_code == 429 or "retry-after" in reply.headers):
            told = told_wait(reply.headers.get("retry-after"), reply.headers.get("date"), time())
            wait = WAIT_SECONDS if told is None else min(told, LONGEST_WAIT)
            raise Defer(wait, f"{self!r}: the server asks to wait {wait:g} s (HTTP {reply.status_code})")
        if reply.status_code in TRANSIENT_STATUS:
            raise Transient(f"{self!r}: HTTP {reply.status_code}", code=f"http_{reply.status_code}")
        if not reply.is_success:
            raise Permanent(f"http_{reply.status_code}", f"{self!r}: the server refused: HTTP {reply.status_code}")
        try:
            return reply.json()
        except ValueError:
            raise Transient(f"{self!r}: the answer is not JSON, or is cut off", code="not_json") from None

    def _get(self, client: Any, url: str) -> Any:
        """Return a reply with its unpacked content, up to the limit."""
        import httpx

        with client.stream("GET", url, headers=self._head(), timeout=self._timeout) as reply:
            content = bytearray()
            for part in reply.iter_bytes(PART_BYTES):
                content += part
                if len(content) > self._reply_bytes:
                    most = f"{self._reply_bytes:,} bytes, unpacked"
                    raise Permanent("too_large", f"{self!r}: a reply has more than {most}: ask for smaller pages, or "
                                                 "pass reply_bytes=")  # fmt: skip
            return httpx.Response(reply.status_code, headers=_plain(reply.headers), content=bytes(content))

    def _address(self, at: Any) -> tuple[str, dict[str, Any]]:
        if callable(self._url):
            given = self._url(at)
            return (given, {}) if isinstance(given, str) else (given[0], dict(given[1]))
        if isinstance(at, str) and at.startswith(("http://", "https://")):
            if urlsplit(at)[:2] != urlsplit(self._url)[:2]:
                raise Permanent("foreign_page", f"{self!r}: the next page is on another server; nothing was sent there")
            return at, {}
        params = dict(self._params)
        if self._param is not None and at is not None:
            params[self._param] = at
        return self._url.replace("{cursor}", "" if at is None else quote(str(at), safe="")), params

    def _head(self) -> dict[str, str]:
        given = self._headers() if callable(self._headers) else self._headers
        return dict(given if given is not None else {})

    def _found(self, reply: Any) -> tuple[list[Any], Any]:
        rows = _look(reply, self._rows)
        if not isinstance(rows, list):
            raise Permanent("no_rows", f"{self!r}: rows={_said(self._rows)!r} is not a list in the reply: "
                                       "pass the path of the rows")  # fmt: skip
        following = _look(reply, self._next)
        if following is None or following in ("", False):
            return rows, None
        if not callable(self._url) and not isinstance(following, str | int | float):
            raise Permanent("no_cursor", f"{self!r}: next={_said(self._next)!r} is a {type(following).__name__} in the "
                                         "reply: a text or a number is needed, or a function for url=")  # fmt: skip
        return rows, following

    def _place(self, at: Cursor | None) -> tuple[Any, int]:
        if at is None:
            return self._first, 0
        if at.kind != "page" or type(at.tiebreaker) is not int or at.tiebreaker < 0:
            raise UsageError(f"{self!r}: the cursor {at} belongs to another source, or is damaged")
        return at.value, at.tiebreaker

    def _opened(self) -> Any:
        httpx = _library()
        return httpx.Client(follow_redirects=False) if self._client is None else _Kept(self._client)


def _plain(headers: Any) -> list[tuple[str, str]]:
    """Return the headers of a reply that is already unpacked."""
    return [(name, said) for name, said in headers.items() if name not in ("content-encoding", "content-length")]


def _library() -> Any:
    try:
        import httpx
    except ImportError:
        raise errors.missing_extra("Pages need", "httpx") from None
    return httpx


class _Kept:
    """A client of the user: it stays open."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *_: object) -> None:
        return


class _Loop:
    """Finds a sequence of pages that returns to an earlier one, by remembering one page: it would be read forever."""

    def __init__(self, source: Pages) -> None:
        self._source = source
        self._mark: Any = None
        self._left = self._stride = 1

    def turn(self, at: Any, following: Any) -> None:
        if following in (at, self._mark):
            raise Permanent("cursor_repeats", f"{self._source!r}: the page after {at!r} is one that was read before: "
                                              "it would continue forever; check `next`")  # fmt: skip
        self._left -= 1
        if not self._left:
            self._mark, self._stride = following, self._stride * 2
            self._left = self._stride


def _look(reply: Any, where: Where) -> Any:
    """Return the value at a path of a reply; None if there is none."""
    if callable(where):
        return where(reply)
    for part in where.split(".") if where else ():
        if isinstance(reply, Mapping):
            reply = reply.get(part)
        elif isinstance(reply, list) and part.lstrip("-").isdigit() and -len(reply) <= int(part) < len(reply):
            reply = reply[int(part)]
        else:
            return None
    return reply


def _name_of(url: Address) -> str:
    return getattr(url, "__name__", type(url).__name__) if callable(url) else urlsplit(url).path.strip("/")


def _said(where: Where) -> str:
    return getattr(where, "__name__", type(where).__name__) if callable(where) else where
