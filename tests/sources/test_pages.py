"""Rows of a paginated API, from a real server: every row once, from any row on; trouble by what it is."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime import sources
from tests.sources.reference import cursors, told

SECRET = "Bearer very-secret"


class Server:
    """Ten rows in pages of three; `answers` come before them."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[tuple[str, str | None]] = []
        self.total = 10
        self.next: Callable[[int], Any] = lambda at: at if at < self.total else None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("authorization")))
                status, headers, body = outer.answers.pop(0) if outer.answers else (200, {}, outer.page(self.path))
                self.send_response(status)
                for name, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def page(self, path: str) -> bytes:
        query = parse_qs(urlsplit(path).query)
        at = int(query.get("after", ["0"])[0])
        rows = [{"n": n} for n in range(at, min(self.total, at + 3))]
        return json.dumps({"data": {"rows": rows}, "meta": {"next": self.next(at + 3)}}).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def pages(server: Server, **options: Any) -> hf.Pages:
    return hf.Pages(f"{server.url}/orders", **{"rows": "data.rows", "next": "meta.next", "param": "after"} | options)


ALL = [{"n": n} for n in range(10)]


@pytest.mark.promise("B7")
def test_every_row_comes_once_and_any_resume_gives_the_rest(server: Server) -> None:
    source = pages(server, headers=lambda: {"authorization": SECRET})
    assert list(source) == ALL
    assert {head for _, head in server.asked} == {SECRET}
    places = cursors(source)
    for passed, at in enumerate(places):
        assert told(source, at) == ALL[passed:], at
        assert told(source, None, at) == ALL[: passed if at is not None else None]
    server.total = 11
    assert told(source, places[-1]) == [{"n": 10}], "what was added to the last page is found"


def test_the_cursor_may_stand_in_the_url_in_a_function_or_be_a_url(server: Server) -> None:
    in_url = hf.Pages(f"{server.url}/orders?after={{cursor}}", rows="data.rows", next="meta.next", first=0)
    by_function = hf.Pages(
        lambda at: (f"{server.url}/orders", {"after": 0 if at is None else at}),
        rows=lambda reply: reply["data"]["rows"],
        next=lambda reply: reply["meta"]["next"],
    )
    assert list(in_url) == list(by_function) == ALL
    server.next = lambda at: f"{server.url}/orders?after={at}" if at < 10 else ""
    assert list(pages(server)) == ALL


def test_a_page_on_another_server_is_not_asked_for(server: Server) -> None:
    server.next = lambda at: "http://127.0.0.1:9/steal"
    with pytest.raises(hf.Permanent, match="another server"):
        list(pages(server, headers={"authorization": SECRET}))


@pytest.mark.parametrize("loop", [lambda at: 3, lambda at: (at % 9) or 3])
def test_pages_that_come_back_to_one_that_was_read_end_with_an_error(loop: Any, server: Server) -> None:
    server.next = loop
    with pytest.raises(hf.Permanent, match="would continue forever"):
        list(pages(server))
    assert len(server.asked) < 20


@pytest.mark.parametrize(
    ("status", "headers", "error", "says"),
    [
        (429, {"retry-after": "7"}, hf.Defer, "wait 7 s"),
        (429, {}, hf.Defer, "wait 30 s"),
        (503, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, hf.Defer, "wait 0 s"),
        (503, {}, hf.Transient, "HTTP 503"),
        (500, {}, hf.Transient, "HTTP 500"),
        (401, {}, hf.Permanent, "HTTP 401"),
        (302, {"location": "/elsewhere"}, hf.Permanent, "HTTP 302"),
    ],
)
def test_what_the_server_says_becomes_what_the_scan_does(
    status: int, headers: dict[str, str], error: type[Exception], says: str, server: Server
) -> None:
    server.answers = [(status, headers, b"")]
    with pytest.raises(error, match=says) as caught:
        list(pages(server, headers={"authorization": SECRET}))
    assert "very-secret" not in str(caught.value)


def test_a_cut_off_reply_is_tried_again_and_a_reply_without_rows_is_not(server: Server) -> None:
    server.answers = [(200, {}, b'{"data": {"ro'), (200, {}, b'{"error": 1}')]
    with pytest.raises(hf.Transient, match="cut off"):
        list(pages(server))
    with pytest.raises(hf.Permanent, match="is not a list in the reply"):
        list(pages(server))
    server.http.server_close()


def test_nobody_there_is_tried_again() -> None:
    with pytest.raises(hf.Transient, match="no answer"):
        list(hf.Pages("http://127.0.0.1:9/x", next="next"))


@pytest.mark.parametrize("url", ["ftp://x/y", "https://user:very-secret@host/x", "orders"])
def test_a_url_that_cannot_be_asked_or_tells_a_secret_is_refused(url: str) -> None:
    with pytest.raises(hf.UsageError) as caught:
        hf.Pages(url, next="next")
    assert "very-secret" not in str(caught.value)


def test_what_it_is_says_nothing_of_host_and_query(server: Server) -> None:
    said = pages(server, params={"token": "very-secret"}).describe()
    assert said == {"kind": "pages", "name": "orders", "rows": "data.rows", "next": "meta.next"}
    with pytest.raises(hf.UsageError, match="another source"):
        told(pages(server), Cursor("byte", 1))


@pytest.mark.promise("B1")
def test_a_throttled_scan_goes_on_with_the_page_that_was_refused(server: Server) -> None:
    seen: list[int] = []
    scan = hf.Scan("orders", pages(server), every=3, store="memory:")

    @scan.handler
    def note(rows: list[dict[str, int]]) -> None:
        if not seen:
            server.answers = [(429, {"retry-after": "0"}, b"")]
        seen.extend(row["n"] for row in rows)

    report = scan.run(progress=False)
    assert (report.rows, report.counts.done) == (10, 1)
    assert set(seen) == set(range(10))
    assert len([path for path, _ in server.asked]) >= 5


def test_pages_and_readers_are_sources_of_both_kinds(server: Server) -> None:
    for source in (pages(server), hf.Reader(lambda after: [], name="x")):
        assert isinstance(source, sources.Readable)
        assert isinstance(source, sources.Source)


@pytest.mark.promise("C10")
def test_what_stands_in_the_query_of_the_url_is_asked_for_on_every_page(server: Server) -> None:
    source = hf.Pages(f"{server.url}/orders?status=open&key=a%20b", rows="data.rows", next="meta.next", param="after",
                      params={"limit": 3})  # fmt: skip
    assert list(source) == ALL
    asked = [parse_qs(urlsplit(path).query) for path, _ in server.asked]
    assert [(each["status"], each["key"], each["limit"]) for each in asked] == [(["open"], ["a b"], ["3"])] * 4
    assert [each.get("after") for each in asked] == [None, ["3"], ["6"], ["9"]]


def test_a_secret_in_a_query_is_in_no_log_and_other_requests_are_logged_as_ever(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    list(hf.Pages(f"{server.url}/orders?key=very-secret", rows="data.rows", next="meta.next", param="after"))
    assert "/orders" in caplog.text
    assert "very-secret" not in caplog.text
    httpx.get(f"{server.url}/orders?mine=1")
    assert "/orders?mine=1" in caplog.text


def test_a_next_cursor_that_cannot_stand_in_a_url_is_told(server: Server) -> None:
    server.next = lambda at: {"at": at}
    with pytest.raises(hf.Permanent, match="is a dict in the reply"):
        list(pages(server))


def test_a_connection_that_is_cut_in_the_middle_of_a_page_is_tried_again_and_no_row_is_lost(server: Server) -> None:
    server.answers = [(200, {"content-length": "99999"}, b'{"data": {"rows": [{"n": 0}')]
    seen: list[int] = []
    scan = hf.Scan("orders", pages(server, timeout=0.5), every=3, store="memory:",
                   retry=hf.Retry(attempts=3, wait=("1ms", "2ms")))  # fmt: skip
    scan.handler(lambda rows: seen.extend(row["n"] for row in rows))
    assert scan.run(progress=False).rows == 10
    assert seen == list(range(10))
