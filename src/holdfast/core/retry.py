"""Retries: which failures are transient, when another attempt follows, when a wait is over; the breaker of a stage."""

import errno
from email.utils import parsedate_to_datetime
from enum import StrEnum
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError
from typing import NamedTuple

import msgspec

from holdfast.core import limits
from holdfast.core.canonical import key_text
from holdfast.core.errors import Permanent, Signal, Transient
from holdfast.core.limits import ALIKE_ITEMS, DEFERRED_LEAST, DEFERRED_SECONDS
from holdfast.core.model import Chunk, ItemState
from holdfast.core.outcome import Failed, Outcome


def wait_is_over(due: float, planned: float, now: float) -> bool:
    """Return whether a wait until `due` is over. If the rest is longer than twice the planned wait, the clock was set
    back and the wait is over. A `planned` of 0 means unknown."""
    return due <= now or 0.0 < 2.0 * planned < due - now


def wait_until(due: float, planned: float, now: float) -> float:
    """Return when a wait ends or ended: `due`, or 0 if the clock was set back, which ends it."""
    return 0.0 if due > now and wait_is_over(due, planned, now) else due


def chunk_waits_until(chunk: Chunk, now: float) -> float:
    """Return when the wait of a released chunk ends or ended."""
    return wait_until(chunk.due, chunk.due - chunk.touched_at, now)


def item_waits_until(place: ItemState, now: float) -> float:
    """Return when the wait of an item ends or ended."""
    return wait_until(place.due, place.wait, now)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of one item at one stage: attempts, time and money."""

    attempts: int = 3
    within: float = 900.0
    wait_min: float = 2.0
    wait_max: float = 30.0
    money: int | None = None
    """In units; None means no limit."""
    defer_within: float = DEFERRED_SECONDS
    """Total seconds for which the item may be deferred."""


class TryAgain(msgspec.Struct, frozen=True):
    """Try again after a wait, part of which is charged to the time budget."""

    wait: float
    charged: float


class GiveUp(msgspec.Struct, frozen=True):
    """Bury the item; `why` names the budget that ran out."""

    why: str


def decide(place: ItemState, failed: Failed, policy: Policy, *, spent: int) -> TryAgain | GiveUp:
    """Return what follows a failed attempt. `place.attempt` counts the attempts before it; `spent` includes it. The
    time budget counts measured seconds of attempts and back-offs: not waits that the service asked for, not time when
    the machine was off or suspended, and not changes of the clock."""
    if not failed.transient:
        return GiveUp("permanent")
    attempt = place.attempt + 1
    if attempt >= policy.attempts:
        return GiveUp(f"{attempt} of {policy.attempts} attempts used")
    if policy.money is not None and spent >= policy.money:
        return GiveUp("the money budget of the item is used up")
    own = backoff(policy, attempt, failed.draw)
    if place.used + failed.seconds + own > policy.within:
        return GiveUp(f"the next attempt would begin after the {policy.within:g} s the item has")
    told = 0.0 if failed.after is None else max(0.0, failed.after - own)
    if told and deferred(place, told) > policy.defer_within:
        return GiveUp(f"the requested wait exceeds the {policy.defer_within:g} s for which it may be deferred in total")
    return TryAgain(own + told, own)


def deferred(place: ItemState, wait: float) -> float:
    """Return how long an item will have been deferred at its stage after this wait. A wait of zero counts as well, so
    that an item cannot be deferred forever."""
    return place.deferred + max(wait, DEFERRED_LEAST)


def backoff(policy: Policy, attempt: int, draw: float) -> float:
    """Return the seconds to wait after the attempt of that number: random below a cap that doubles, never below the
    minimum."""
    cap = min(policy.wait_max, policy.wait_min * 2.0 ** min(attempt, 60))
    return policy.wait_min + draw * (max(cap, policy.wait_min) - policy.wait_min)


def deadline(place: ItemState, policy: Policy, now: float) -> float:
    """Return when the time budget of an item would end if its next attempt began when due and took all that is left; 0
    if nothing is used yet."""
    return max(item_waits_until(place, now), now) + max(0.0, policy.within - place.used) if place.used else 0.0


TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529})
TRANSIENT_ERRNO = frozenset({
    errno.EAGAIN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.EINTR, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.ETIMEDOUT,
})  # fmt: skip
_HTTPX = frozenset({
    "ConnectError", "ConnectTimeout", "NetworkError", "PoolTimeout", "ProxyError", "ReadError", "ReadTimeout",
    "RemoteProtocolError", "TimeoutException", "WriteError", "WriteTimeout",
})  # fmt: skip
_REQUESTS = frozenset({
    "ChunkedEncodingError", "ConnectTimeout", "ConnectionError", "ProxyError", "ReadTimeout", "Timeout",
})  # fmt: skip
_MODELS = frozenset({
    "APIConnectionError", "APITimeoutError", "InternalServerError", "OverloadedError", "RateLimitError",
    "ServiceUnavailableError", "Timeout",
})  # fmt: skip
_SEARCH = frozenset({"ConnectionError", "ConnectionTimeout"})
TRANSIENT_TYPES = {
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError"}),
    "anthropic": _MODELS,
    "azure": frozenset({"IncompleteReadError", "ServiceRequestError", "ServiceResponseError"}),
    "botocore": frozenset({
        "ConnectTimeoutError", "ConnectionClosedError", "ConnectionError", "EndpointConnectionError",
        "IncompleteReadError", "ReadTimeoutError", "ResponseStreamingError",
    }),
    "cohere": _MODELS,
    "curl_cffi": _REQUESTS,
    "elastic_transport": _SEARCH,
    "elasticsearch": _SEARCH,
    "google": frozenset({"DeadlineExceeded", "InternalServerError", "ServiceUnavailable", "TooManyRequests"}),
    "groq": _MODELS,
    "http": frozenset({"IncompleteRead", "RemoteDisconnected"}),
    "httpcore": _HTTPX,
    "httpx": _HTTPX,
    "litellm": _MODELS,
    "niquests": _REQUESTS,
    "openai": _MODELS,
    "opensearchpy": _SEARCH,
    "playwright": frozenset({"TimeoutError"}),
    "pymongo": frozenset({"AutoReconnect", "NetworkTimeout", "ServerSelectionTimeoutError"}),
    "redis": frozenset({"BusyLoadingError", "ConnectionError", "TimeoutError"}),
    "requests": _REQUESTS,
    "selenium": frozenset({"TimeoutException"}),
    "stripe": _MODELS,
    "subprocess": frozenset({"TimeoutExpired"}),
    "together": _MODELS,
    "urllib3": frozenset({"ConnectTimeoutError", "IncompleteRead", "ProxyError", "ReadTimeoutError", "TimeoutError"}),
    "websockets": frozenset({"ConnectionClosedError"}),
}  # fmt: skip
"""Classes that mean a network problem, by the package that defines them, which is not imported here. A bare name is not
enough: `ReadError` is a broken connection in httpx but a broken archive in tarfile."""
TRANSIENT_CODES = frozenset({
    "BandwidthLimitExceeded", "InternalFailure", "LimitExceededException", "ProvisionedThroughputExceededException",
    "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "RequestTimeout",
    "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "ThrottledException", "Throttling",
    "ThrottlingException", "TooManyRequestsException",
})  # fmt: skip
"""Codes of services that answer 400 instead of 429."""
CAUSES = 8
LONGEST_WAIT = 366 * 86_400
"""In seconds; a request for a longer wait is ignored."""
_SPACE = "the disk is full, or a quota is used up: free some space"
_FILES = "too many files are open: raise the limit (ulimit -n), or use fewer workers"
HOST_ERRNO = {
    errno.ENOSPC: _SPACE, errno.EDQUOT: _SPACE, errno.EMFILE: _FILES, errno.ENFILE: _FILES,
    errno.EIO: "the disk reported an error: check it", errno.EROFS: "the disk can only be read: mount it for writing",
}  # fmt: skip
"""Problems of the machine, and what to do about them."""
_MEMORY = "there is no memory left: use fewer workers, or a machine with more"
_THREADS = "no more threads can be started: raise the limit (ulimit -u), or use fewer workers"
NO_THREAD = "can't start new thread"
"""Python's message for this case, which has no exception type."""
GROUP_SIGNALS = frozenset({-1, -2, -15, 129, 130, 143})
"""Return codes of programs ended by SIGHUP, SIGINT or SIGTERM, as Python and as shells report them."""


def classify(error: BaseException) -> tuple[bool, str]:
    """Return whether the error is transient, and its code. Look at the error and its causes: first at facts (the
    handler's own exception, a status, a built-in type, an errno), then at classes of other packages."""
    chain = _causes(error)
    for judge in (_by_fact, _by_type):
        for cause in chain:
            known = judge(cause)
            if known is not None:
                return known
    return False, type(error).__name__


def host_trouble(error: BaseException) -> str:
    """Return what to do about a problem of the machine, if an error shows one: no item is to blame for it. Exceptions
    that a handler raises on purpose are taken as they are. Errors raised while handling another one are included:
    stopping needlessly costs less than burying item after item on a full disk."""
    if isinstance(error, Signal):
        return ""
    return next((found for cause in _causes(error, met=True) if (found := _of_the_host(cause))), "")


def _of_the_host(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and not isinstance(error, SSLError | gaierror):  # their errno is not a system errno
        return HOST_ERRNO.get(error.errno, "") if isinstance(error.errno, int) else ""
    return _THREADS if isinstance(error, RuntimeError) and error.args == (NO_THREAD,) else ""


def _causes(error: BaseException, *, met: bool = False) -> list[BaseException]:
    """Return the error and its causes, nearest first; with `met`, also the errors that were being handled when it was
    raised, and the members of a group."""
    found: list[BaseException] = [error]
    for cause in found:
        args = _attribute(cause, "args")
        inner = [
            _attribute(cause, "__cause__"),
            _attribute(cause, "reason"),
            *(args if isinstance(args, tuple) else ()),
        ]
        if met:
            members = _attribute(cause, "exceptions")
            inner += [None if cause.__suppress_context__ else cause.__context__]
            inner += members if isinstance(members, tuple) else ()
        found += [
            each for each in inner if isinstance(each, BaseException) and all(each is not known for known in found)
        ]
        if len(found) >= CAUSES:
            break
    return found[:CAUSES]


def died_of_a_signal(error: BaseException) -> bool:
    """Return whether a subprocess died of a signal that every process of a terminal or service receives."""
    codes = [_attribute(each, name) for each in _causes(error) for name in ("returncode", "status")]
    return any(isinstance(code, int) and code in GROUP_SIGNALS for code in codes)


def _by_fact(error: BaseException) -> tuple[bool, str] | None:
    if isinstance(error, Transient | Permanent):
        return isinstance(error, Transient), error.code
    if not isinstance(error, Exception):
        return False, type(error).__name__
    code = _service_code(error)
    if code in TRANSIENT_CODES:
        return True, code
    status = http_status(error)
    if status is not None:
        return status in TRANSIENT_STATUS, f"http_{status}"
    if isinstance(error, OSError):
        return _by_system(error)
    return None


def _by_system(error: OSError) -> tuple[bool, str] | None:
    if isinstance(error, SSLCertVerificationError):
        return False, "tls_certificate"
    if isinstance(error, SSLError):
        return True, "tls"
    if isinstance(error, gaierror):
        return True, "dns"
    if isinstance(error, TimeoutError):
        return True, "timeout"
    if isinstance(error, ConnectionError):
        return True, "connection"
    number = error.errno  # the first of two arguments, of any type
    if isinstance(number, int) and number in TRANSIENT_ERRNO:
        return True, errno.errorcode[number].lower()
    return None


def _by_type(error: BaseException) -> tuple[bool, str] | None:
    """Classify an error by its class or a base class."""
    for kind in type(error).__mro__:
        if kind.__name__ in TRANSIENT_TYPES.get(kind.__module__.partition(".")[0], ()):
            return True, kind.__name__
    return None


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, from the attributes in which common clients put it."""
    response = _attribute(error, "response")
    for holder in (error, response):
        for field in ("status_code", "status", "code"):
            value = _attribute(holder, field)
            if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
                return int(value)
    value = _item(_item(response, "ResponseMetadata"), "HTTPStatusCode")
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def retry_after(error: BaseException, now: float = 0.0) -> float | None:
    """Return the wait in seconds that the service asked for with a Retry-After, in the error or its causes."""
    for cause in _causes(error):
        response = _attribute(cause, "response")
        for headers in (
            _attribute(response, "headers"),
            _attribute(cause, "headers"),
            _item(_item(response, "ResponseMetadata"), "HTTPHeaders"),
        ):
            wait = told_wait(_header(headers, "retry-after"), _header(headers, "date"), now)
            if wait is not None:
                return wait
    return None


def told_wait(said: object, date: object, now: float) -> float | None:
    """Return the seconds that a Retry-After asks for: a number, or a date. A date is compared with the date of the
    response, if it has one: the service's clock may be wrong."""
    try:
        wait = float(said)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        until, written = _moment(said), _moment(date)
        if until is None:
            return None
        wait = max(0.0, until - (now if written is None else written))
    return wait if 0 <= wait < LONGEST_WAIT else None


def _moment(text: object) -> float | None:
    """Return an HTTP date in seconds since 1970; None if the text is not a date."""
    try:
        return parsedate_to_datetime(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def _header(headers: object, name: str) -> object:
    found = _item(headers, name)
    return found if found is not None else _item(headers, name.title())


def _service_code(error: BaseException) -> str:
    """Return the code in the response of a service: `{"Error": {"Code": "ThrottlingException"}}`."""
    code = _item(_item(_attribute(error, "response"), "Error"), "Code")
    return code if isinstance(code, str) else ""


def _attribute(holder: object, name: str) -> object:
    """Return an attribute of a foreign object; None if it has none or raises."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property of another library may raise anything; classifying must not
        return None


def _item(holder: object, key: str) -> object:
    """Return the value under a key of a foreign mapping; None if there is none."""
    try:
        return holder[key]  # type: ignore[index]
    except Exception:  # noqa: BLE001 - see above
        return None


class Phase(StrEnum):
    """The phase of a breaker: whether items may be started."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When to pause, and for how long."""

    failures: int = limits.BREAKER_FAILURES
    pause: float = limits.BREAKER_PAUSE
    longest: float = limits.BREAKER_LONGEST
    in_all: float = limits.BREAKER_SECONDS


class Circuit(msgspec.Struct, frozen=True, kw_only=True):
    """The breaker's knowledge of a service."""

    row: frozenset[int] = frozenset()
    """Numbers of the items that failed since the last answer."""
    until: float = 0.0
    """When the pause ends; 0 while the breaker is closed."""
    pause: float = 0.0
    """The length of the last pause."""
    waited: float = 0.0
    """The total of all pauses."""


def breaker_phase(circuit: Circuit, now: float) -> Phase:
    """Return the phase: anything may be started, nothing, or one item as a trial."""
    if not circuit.until:
        return Phase.CLOSED
    return Phase.HALF_OPEN if wait_is_over(circuit.until, circuit.pause, now) else Phase.OPEN


def breaker_answered(circuit: Circuit, now: float) -> Circuit:
    """Return the circuit after the service answered, even with a refusal. While it is open, the answer is outdated and
    ignored."""
    return circuit if breaker_phase(circuit, now) is Phase.OPEN else Circuit(waited=circuit.waited)


def breaker_failed(circuit: Circuit, n: int, rule: Rule, now: float) -> Circuit:
    """Return the circuit after a transient failure of an item."""
    now_in = breaker_phase(circuit, now)
    if now_in is Phase.OPEN:
        return circuit
    if now_in is Phase.HALF_OPEN:
        return _open(circuit, min(2 * circuit.pause, max(rule.longest, rule.pause)), now)
    row = circuit.row | {n}
    if len(row) < rule.failures:
        return msgspec.structs.replace(circuit, row=row)
    return _open(circuit, rule.pause, now)


def breaker_is_hopeless(circuit: Circuit, rule: Rule) -> bool:
    """Return whether the current pause would exceed the limit for all pauses together."""
    return circuit.waited > rule.in_all


def _open(circuit: Circuit, pause: float, now: float) -> Circuit:
    return Circuit(until=now + pause, pause=pause, waited=circuit.waited + pause)


class WayToDie(NamedTuple):
    """The way in which an item died: its code, and for a Python error the place in the code."""

    stage: int
    code: str
    place: str


def enough_alike(workers: int) -> int:
    """Return how many items must die alike: all that run at the same time may have failed for the same short-lived
    reason."""
    return max(ALIKE_ITEMS, workers)


def is_death(outcome: Outcome) -> bool:
    """Return whether an item would be buried at once. A series of transient failures is left to the breaker of its
    stage."""
    return isinstance(outcome, Failed) and not outcome.transient


def kind_of_death(failed: Failed) -> WayToDie:
    """Return the way in which an item died."""
    return WayToDie(failed.item.place.stage, failed.code, place_in(failed.trace))


def place_in(trace: str) -> str:
    """Return the innermost place in the user's code, if there is one: files of libraries are listed with their
    folder."""
    places = trace.split("; ")
    return next((place for place in reversed(places) if "/" not in place), places[-1])


def deaths_in_words(failed: Failed, count: int, *, batch: str, stage: str) -> str:
    """Return why the run stops, with one example, and what to do."""
    place = kind_of_death(failed).place
    where = f" ({place})" if place else ""
    return (
        f"the first {count:,} items of batch {batch!r} died alike at stage {stage!r}, and none has succeeded: "
        f"{failed.code}: {failed.message}{where}; for example item {key_text(failed.item.key)}. "
        "Nothing was buried: correct the code or the input, then run again. If they should all become dead letters, "
        'pass tolerate="100%"'
    )
