"""Events as receivers get them: CloudEvents 1.0, with the names of batch, pipeline and stage added to the facts.

The id of an event is the same at every delivery, so a receiver can recognize events it already has: it is made of the
first entry of the batch's journal, the number of the event and its time. So an event of a restored copy, which may have
the number of another event that was delivered before, is not mistaken for it.
"""

import base64
import fcntl
import hashlib
import http.client
import logging
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from holdfast.core import canonical, retry
from holdfast.core.course import stage_names
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.limits import EVENT_FLUSH_SECONDS, EVENT_SECONDS, EVENTS_PAGE
from holdfast.core.model import Batch, BatchId, StoredEvent
from holdfast.core.retry import Policy
from holdfast.runtime import event_loop, lookup
from holdfast.runtime.journal import first_hash
from holdfast.runtime.text import many
from holdfast.stores.base import Store, outbox_of

Envelope = dict[str, Any]
"""One event, as JSON."""
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
PREFIX = "dev.holdfast."


@dataclass(frozen=True, slots=True)
class Origin:
    """The facts about a batch that are in each of its events."""

    batch: Batch
    stages: tuple[str, ...]
    identity: str


class Envelopes:
    """Makes envelopes of stored events; remembers their batches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._origins: dict[BatchId, Origin] = {}

    def pipeline_of(self, event: StoredEvent) -> str:
        return self._origin(event).batch.pipeline

    def make(self, event: StoredEvent) -> Envelope:
        """Return the event as a CloudEvent."""
        origin, facts = self._origin(event), canonical.decode(event.body)
        if isinstance(facts.get("stage"), int):
            facts["stage_number"] = facts["stage"]
            facts["stage"] = lookup.stage_title(origin.stages, facts["stage"])
        if event.n is not None:
            facts["number"] = event.n
        name = origin.batch.name
        subject = f"{name}/{facts['key']}" if event.n is not None and "key" in facts else name
        return {
            "specversion": "1.0",
            "id": f"{origin.identity}-{event.id}-{round(event.at * 1e6)}",
            "source": f"urn:holdfast:{origin.identity}",
            "type": PREFIX + event.kind,
            "time": datetime.fromtimestamp(event.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "subject": subject,
            "datacontenttype": "application/json",
            "data": {**facts, "batch": name, "pipeline": origin.batch.pipeline},
        }

    def _origin(self, event: StoredEvent) -> Origin:
        if event.batch not in self._origins:
            for batch in self._store.batches():
                if batch.id == event.batch:
                    stages = tuple(stage_names(batch))
                    self._origins[batch.id] = Origin(batch, stages, first_hash(self._store, batch)[:16])
        return self._origins[event.batch]


encode: Callable[[Any], bytes] = canonical.encode
"""An envelope as bytes."""


Target = str | Path | Callable[[Envelope], Any]
"""A receiver as a user writes it: a URL, `file:PATH` or a path, `-`, or a function."""


class Undelivered(HoldfastError):
    """A receiver did not accept an event; it is delivered again later."""

    def __init__(self, message: str, after: float | None = None, receiver: str = "") -> None:
        super().__init__(message)
        self.after = after
        """The seconds that the receiver asked to be left alone."""
        self.receiver = receiver
        """For people, without secrets."""


class Receiver(Protocol):
    """A receiver of events."""

    name: str
    """Stays the same from run to run, and reveals nothing about the target."""
    title: str
    """For people, without secrets."""
    at_once: int
    """How many events it takes at a time."""

    def take(self, events: Sequence[Envelope]) -> None:
        """Take all events, or raise."""
        ...


def receiver(target: Target) -> Receiver:
    """Return the receiver for a target."""
    if callable(target):
        return Function(target)
    if isinstance(target, Path):
        return EventFile(target)
    if not isinstance(target, str) or not target.strip():
        raise UsageError(f"events={target!r}: pass a URL, 'file:PATH', '-' for standard output, or a function")
    if target == "-":
        return StandardOutput()
    if target.startswith(("http://", "https://")):
        return Webhook(target)
    if target.startswith("file:"):
        return EventFile(Path(target.removeprefix("file:").removeprefix("//")))
    scheme = target.partition(":")[0][:20]
    raise UsageError(f"events={scheme!r}…: pass http://… or https://…, 'file:PATH', or '-' for standard output")


def receivers(targets: Sequence[Target] | Target | None) -> list[Receiver]:
    """Return the receivers for one or several targets."""
    if targets is None:
        return []
    if isinstance(targets, Iterable) and not isinstance(targets, str | Path) and not callable(targets):
        return [receiver(target) for target in targets]
    return [receiver(targets)]


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
            raise UsageError("events: this URL cannot be used: pass http://host/path or https://host/path")
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
            raise UsageError(f"events: {str(path)!r} is not a file: pass file:PATH")
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
    """Append everything, or leave the file unchanged. An unfinished line of a dead process is ended first: its event
    comes again."""
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
    """Calls a function of the user with each event; if it returns without raising, the event was taken."""

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
            except Exception as error:  # for any error, the event is kept
                raise Undelivered(f"it raised {type(error).__name__}: {error}") from error


def _why(error: object) -> str:
    """Return what went wrong, without the target: a message may contain the URL."""
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    return type(error).__name__ if isinstance(error, Exception) else str(error)[:200]


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.strip().isdigit() and len(text.strip()) < 6 else None


log = logging.getLogger("holdfast.events")

LOOK_SECONDS = 0.25
"""How often to check for new events."""
REMEMBER_SECONDS = 1.0
"""How often the progress of a slow receiver is recorded."""
WAITS = Policy(wait_min=1.0, wait_max=30.0)


class Delivery:
    """Delivers the events of one pipeline to one receiver, from where it stopped."""

    def __init__(self, store: Store, pipeline: str, receiver: Receiver) -> None:
        self._outbox, self._pipeline = outbox_of(store), pipeline
        self.receiver = receiver
        scope = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
        self.name = f"{receiver.name}:{scope}"
        self._envelopes = Envelopes(store)
        self.at = self._outbox.delivered(self.name)
        self._remembered = self.at
        self.count = 0

    def deliver(self, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Deliver some of the waiting events; return whether there may be more. Raises Undelivered."""
        page = self._outbox.events(self.at, limit=EVENTS_PAGE)
        ours = [event for event in page if self._envelopes.pipeline_of(event) == self._pipeline]
        try:
            if self._hand_over(ours, stopping) and page:
                self.at = page[-1].id
        finally:
            self._remember()
        return len(page) == EVENTS_PAGE

    def left(self) -> int:
        """Return how many events wait for this receiver; counted up to a limit."""
        waiting = self._outbox.events(self.at, limit=10 * EVENTS_PAGE)
        return sum(self._envelopes.pipeline_of(event) == self._pipeline for event in waiting)

    def _hand_over(self, events: Sequence[StoredEvent], stopping: Callable[[], bool]) -> bool:
        """Return whether all events were taken; False if it was asked to stop before."""
        last, size = time.monotonic(), self.receiver.at_once
        for some in (events[at : at + size] for at in range(0, len(events), size)):
            if stopping():
                return False
            self.receiver.take([self._envelopes.make(event) for event in some])
            self.at = some[-1].id
            self.count += len(some)
            if time.monotonic() - last > REMEMBER_SECONDS:
                last = time.monotonic()
                self._remember()
        return True

    def _remember(self) -> None:
        if self.at > self._remembered:
            self._outbox.delivered(self.name, self.at)
            self._remembered = self.at


def deliver_all(store: Store, receiver: Receiver) -> int:
    """Deliver all events that wait for a receiver, of every pipeline; return how many. Raises Undelivered."""
    count = 0
    for pipeline in dict.fromkeys(batch.pipeline for batch in store.batches()):
        delivery = Delivery(store, pipeline, receiver)
        while delivery.deliver():
            pass
        count += delivery.count
    return count


@contextmanager
def delivering(
    store: Callable[[], Store], pipeline: str, receivers: Sequence[Receiver], deadline: float | None = None
) -> Iterator[None]:
    """Deliver events while the body runs, and for a moment after it."""
    names = [receiver.name for receiver in receivers]
    twice = next((receiver.title for receiver in receivers if names.count(receiver.name) > 1), None)
    if twice is not None:
        raise UsageError(f"events: {twice} is passed twice, and the two could not be told apart: pass it once")
    if not receivers:
        yield
        return
    threads = [_Courier(Delivery(store(), pipeline, receiver)) for receiver in receivers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends = time.monotonic() + EVENT_FLUSH_SECONDS
        ends = ends if deadline is None else min(ends, max(deadline, time.monotonic()))
        for thread in threads:
            thread.finish()
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
            thread.leave()


class _Courier(threading.Thread):
    """Delivers until it is asked to finish; then the rest, if its receiver answers."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(name="holdfast-events", daemon=True)
        self._delivery = delivery
        self._ending = threading.Event()
        self._left = False
        self._failures = 0
        self._trouble = ""

    def finish(self) -> None:
        """Finish; at once if the receiver is down."""
        self._ending.set()

    def leave(self) -> None:
        """Start nothing new, and log how much was not delivered."""
        self._left = True
        if self._trouble or self.is_alive():
            why, some = self._trouble if self._trouble else "it is slow to answer", "events"
            with suppress(HoldfastError):
                some = many(self._delivery.left(), "event")
            log.warning(
                "not delivered to %s: %s (%s); the next run delivers the rest, or `holdfast events --deliver …`",
                self._delivery.receiver.title, some, why,
            )  # fmt: skip

    def run(self) -> None:
        while not self._left:
            is_last = self._ending.is_set()
            try:
                more = self._delivery.deliver(lambda: self._left)
                self._failures, self._trouble = 0, ""
                wait = 0.0 if more else LOOK_SECONDS
            except Exception as error:  # noqa: BLE001 - receiver or store: the work continues, the events are kept
                more, wait = False, self._failed(error)
            if self._ending.is_set() and (self._failures or (is_last and not more)):
                return
            self._ending.wait(wait)

    def _failed(self, error: Exception) -> float:
        """Return how long to wait before the receiver is tried again."""
        self._failures += 1
        self._trouble = str(error) if isinstance(error, Undelivered) else type(error).__name__
        if self._failures == 1:
            log.warning("%s does not take events (%s): trying again", self._delivery.receiver.title, self._trouble)
        told = error.after if isinstance(error, Undelivered) else None
        own = retry.backoff(WAITS, self._failures, random.random())  # noqa: S311 - jitter, not secrecy
        return own if told is None else max(own, told)
