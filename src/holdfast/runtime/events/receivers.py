"""Who receives events: a webhook, a file of JSON lines, standard output, a function.

A receiver takes some events or raises; what it raised for is delivered again. Its target may hold a secret: it is
neither stored nor shown, only a digest of it, and of a URL the scheme and the host.
"""

import base64
import fcntl
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.limits import EVENT_SECONDS, EVENTS_PAGE
from holdfast.runtime import event_loop
from holdfast.runtime.events.cloudevents import CONTENT_TYPE, Envelope, encode

Target = str | Path | Callable[[Envelope], Any]
"""What a user may write: a URL, `file:PATH` or a path, `-`, or a function."""


class Undelivered(HoldfastError):
    """A receiver did not take an event; it is delivered again later."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after
        """The seconds that the receiver asked to be left alone."""


class Receiver(Protocol):
    """Where events go."""

    name: str
    """Stays the same from run to run, tells nothing about the target."""
    title: str
    """For people, without secrets."""
    at_once: int
    """How many events it takes at a time."""

    def take(self, events: Sequence[Envelope]) -> None:
        """All of them, or an error."""
        ...


def receiver(target: Target) -> Receiver:
    """The receiver for what a user wrote."""
    if callable(target):
        return Function(target)
    if isinstance(target, Path):
        return EventFile(target)
    if not isinstance(target, str) or not target.strip():
        raise UsageError(f"events={target!r}: give a URL, 'file:PATH', '-' for standard output, or a function")
    if target == "-":
        return StandardOutput()
    if target.startswith(("http://", "https://")):
        return Webhook(target)
    if target.startswith("file:"):
        return EventFile(Path(target.removeprefix("file:").removeprefix("//")))
    scheme = target.partition(":")[0][:20]
    raise UsageError(f"events={scheme!r}…: write http://… or https://…, 'file:PATH', or '-' for standard output")


def receivers(targets: Sequence[Target] | Target | None) -> list[Receiver]:
    """One or several."""
    if targets is None:
        return []
    several = [targets] if isinstance(targets, str | Path) or callable(targets) else list(targets)
    return [receiver(target) for target in several]


def _name(kind: str, target: str) -> str:
    return f"{kind}:{hashlib.sha256(target.encode()).hexdigest()[:16]}"


class Webhook:
    """Posts each event to a URL; an answer from 200 to 299 means that it was taken."""

    at_once = 1

    def __init__(self, url: str) -> None:
        self.name = _name("webhook", url)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or any(ord(c) <= 32 or ord(c) == 127 for c in url):
            raise UsageError("events: this URL cannot be used: write http://host/path or https://host/path")
        shown = f"[{host}]" if ":" in host else host
        at = shown if port is None else f"{shown}:{port}"
        self.title = f"{parts.scheme}://{at}/…"
        self._url = urlunsplit((parts.scheme, at, parts.path or "/", parts.query, ""))
        self._headers = {"Content-Type": CONTENT_TYPE, "User-Agent": "holdfast"}
        if parts.username is not None:
            said = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(said.encode()).decode()
        self._opener = urllib.request.build_opener(_NoRedirect)

    def take(self, events: Sequence[Envelope]) -> None:
        for event in events:
            request = urllib.request.Request(self._url, data=encode(event), headers=self._headers, method="POST")  # noqa: S310 - http or https, seen to above
            try:
                with self._opener.open(request, timeout=EVENT_SECONDS) as answer:
                    answer.read(1)
            except urllib.error.HTTPError as error:
                with error:
                    raise Undelivered(f"it answered {error.code}", _seconds(error.headers.get("Retry-After"))) from None
            except urllib.error.URLError as error:
                raise Undelivered(_why(error.reason)) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Undelivered(_why(error)) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would turn the POST into a GET and lose the event: it counts as a refusal."""

    def redirect_request(self, *_: Any) -> None:
        return None


class EventFile:
    """Appends each event as a line of JSON, and syncs."""

    at_once = EVENTS_PAGE

    def __init__(self, path: Path) -> None:
        if not str(path).strip() or path.is_dir():
            raise UsageError(f"events: {str(path)!r} is not a file to write to: write file:PATH")
        self._path = path.expanduser().absolute()
        self.name = _name("file", str(self._path))
        self.title = f"file {path}"

    def take(self, events: Sequence[Envelope]) -> None:
        lines = b"".join(encode(event) + b"\n" for event in events)
        try:
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                _append(file, lines)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise Undelivered(_why(error)) from None


def _append(file: int, lines: bytes) -> None:
    """All of it, or as it was. A line that a dead process left unfinished is ended first: its event comes again."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        lines = b"\n" + lines
    try:
        written = os.write(file, lines)
    except OSError:
        os.ftruncate(file, size)
        raise
    if written < len(lines):
        os.ftruncate(file, size)
        raise OSError(f"only {written} of {len(lines)} bytes could be written")


class StandardOutput:
    """Prints each event as a line of JSON."""

    at_once = EVENTS_PAGE
    name = "stdout"
    title = "standard output"

    def take(self, events: Sequence[Envelope]) -> None:
        try:
            sys.stdout.write("".join(encode(event).decode() + "\n" for event in events))
            sys.stdout.flush()
        except (OSError, ValueError) as error:
            raise Undelivered(_why(error)) from None


class Function:
    """Calls a function of the user's with each event; what it returns without raising was taken."""

    at_once = 1

    def __init__(self, function: Callable[[Envelope], Any]) -> None:
        named = getattr(function, "__qualname__", type(function).__qualname__)
        module = getattr(function, "__module__", "")
        if module == "__main__":
            module = Path(getattr(sys.modules["__main__"], "__file__", "__main__")).stem
        self.name = _name("function", f"{module}:{named}")
        self.title = f"function {named}"
        self._function = function

    def take(self, events: Sequence[Envelope]) -> None:
        for event in events:
            try:
                event_loop.call(self._function, event)
            except Exception as error:  # whatever it is, the event is kept
                raise Undelivered(f"it raised {type(error).__name__}: {error}") from error


def _why(error: object) -> str:
    """What went wrong, without what it was about: a message may hold the URL."""
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    return type(error).__name__ if isinstance(error, Exception) else str(error)[:200]


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.strip().isdigit() and len(text.strip()) < 6 else None
