"""A proxy before a real server: it cuts connections before or after a conditional write, or has requests refused."""

import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Cut(StrEnum):
    """What becomes of one request."""

    NONE = "none"
    LOST_REQUEST = "lost request"
    """The server never hears of it."""
    LOST_REPLY = "lost reply"
    """The server has done it; who asked never hears of it."""
    REFUSED = "refused"
    """The server does not know the signature: its own words are passed on."""
    EXPIRED = "expired"
    """What S3 says of a session token that has run out."""


EXPIRED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.'
    b"</Message><RequestId>1</RequestId></Error>"
)
HOP = {"transfer-encoding", "connection", "keep-alive", "content-length"}


class Proxy:
    """Counts conditional writes, and asks `choose(number of this one)` what becomes of each; `shut` is for all."""

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server)
        self.choose: Callable[[int], Cut] = lambda _: Cut.NONE
        self.shut: Cut = Cut.NONE
        self.writes = 0
        self.cuts = 0
        self._lock = threading.Lock()

    def begin(self, choose: Callable[[int], Cut]) -> None:
        """Count from the first again."""
        with self._lock:
            self.choose, self.shut, self.writes, self.cuts = choose, Cut.NONE, 0, 0

    def fate(self, *, is_write: bool) -> Cut:
        with self._lock:
            if self.shut is not Cut.NONE:
                return self.shut
            if not is_write:
                return Cut.NONE
            self.writes += 1
            chosen = self.choose(self.writes)
            self.cuts += chosen is not Cut.NONE
            return chosen


class Handler(BaseHTTPRequestHandler):
    """One connection through the proxy."""

    proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        is_write = self.command == "PUT" and ("If-Match" in self.headers or "If-None-Match" in self.headers)
        fate = self.proxy.fate(is_write=is_write)
        if fate is Cut.LOST_REQUEST:
            self.cut()
        elif fate is Cut.EXPIRED:
            self.answer(400, "Bad Request", {"Content-Type": "application/xml"}, EXPIRED)
        else:
            status, reason, headers, data = self.ask(body, is_refused=fate is Cut.REFUSED)
            if fate is Cut.LOST_REPLY:
                self.cut()
            else:
                self.answer(status, reason, headers, data)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = pass_on  # noqa: N815 - the names of the base

    def ask(self, body: bytes, *, is_refused: bool) -> tuple[int, str, dict[str, str], bytes]:
        assert self.proxy.server.hostname is not None
        server = http.client.HTTPConnection(self.proxy.server.hostname, self.proxy.server.port, timeout=60)
        path = re.sub(r"sig=[^&]*", "sig=AAAA", self.path) if is_refused else self.path
        try:
            server.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    server.putheader(name, value)
            server.endheaders(body)
            answer = server.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
            return answer.status, answer.reason, kept, answer.read()
        finally:
            server.close()

    def answer(self, status: int, reason: str, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status, reason)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Nothing is told."""


@contextmanager
def before(server: str, at: str = "") -> Iterator[tuple[Proxy, str]]:
    """A proxy before a server, and the address that leads through it: one that another had before, or a new one. Once
    it is left, nobody answers there."""
    proxy = Proxy(server)
    with ThreadingHTTPServer(
        ("127.0.0.1", urlsplit(at).port or 0), type("Through", (Handler,), {"proxy": proxy})
    ) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield proxy, f"http://127.0.0.1:{listening.server_address[1]}{proxy.server.path}"
        finally:
            proxy.shut = Cut.LOST_REQUEST  # on connections that stay open
            listening.shutdown()
