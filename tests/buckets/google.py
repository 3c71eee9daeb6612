"""As much of Google Cloud Storage as the port uses, in one process: generations, and preconditions on them.

No emulator honours preconditions, so this stands in for the transport only: it shows what is sent and how answers are
read. The real service was not tried.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

objects: dict[str, tuple[int, bytes]] = {}
seen: list[tuple[str, str, str]] = []
"""(verb, path, precondition) of every request."""
_lock = threading.Lock()
_generation = 0


class Handler(BaseHTTPRequestHandler):
    """The XML interface: PUT, GET, DELETE of objects, GET of a bucket."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        global _generation  # noqa: PLW0603 - one server for the process
        wanted = self.headers.get("x-goog-if-generation-match", "")
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with _lock:
            seen.append(("PUT", self.path, wanted))
            there = objects.get(self._name(), (0, b""))[0]
            if wanted != "" and int(wanted) != there:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            _generation += 1
            objects[self._name()] = (_generation, data)
            self._answer(200, b"", generation=_generation)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._list(query.get("prefix", [""])[0], query.get("start-after", [""])[0])
            return
        with _lock:
            found = objects.get(self._name())
        if found is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        generation, data = found
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if asked:
            first, last = (int(part) for part in asked.split("-"))
            part = data[first : last + 1]
            span = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
            self._answer(206, part, generation=generation, span=span)
            return
        self._answer(200, data, generation=generation)

    def do_DELETE(self) -> None:
        with _lock:
            found = objects.pop(self._name(), None)
        self._answer(204 if found is not None else 404, b"")

    def _list(self, prefix: str, after: str) -> None:
        bucket = self._name()
        with _lock:
            names = {name.removeprefix(f"{bucket}/"): value for name, value in objects.items()}
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Generation>{generation}</Generation><Size>{len(data)}</Size>"
            f'<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"e{generation}"</ETag></Contents>'
            for name, (generation, data) in sorted(names.items())
            if name.startswith(prefix) and name > after
        )
        self._answer(200, f"<ListBucketResult><Name>{bucket}</Name>{rows}</ListBucketResult>".encode())

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _answer(self, status: int, body: bytes, *, generation: int = 0, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if generation:
            self.send_header("ETag", f'"e{generation}"')
            self.send_header("x-goog-generation", str(generation))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Say nothing."""


def options(address: str) -> dict[str, Any]:
    """A made-up account that needs no sign-in: without one, the client would ask this machine for credentials."""
    account = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": "",
               "private_key_id": ""}  # fmt: skip
    return {"service_account_key": json.dumps(account), "client_options": {"allow_http": True}}


@contextmanager
def running() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
