"""Whether to try again, when, and which errors are worth it.

Classification goes by type, errno and status, never by words in a message, and always gives an answer: what is not
known to be transient is permanent, because paying again for a bug is the dearer mistake.
"""

import errno
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError

import msgspec

from holdfast.core.errors import Permanent, Transient
from holdfast.core.model import Place
from holdfast.core.outcome import Failed


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of one item at one stage: of attempts, of time and of money."""

    attempts: int = 3
    within: float = 900.0
    wait_min: float = 2.0
    wait_max: float = 30.0
    money: int | None = None
    """In units; None is no limit."""


class Again(msgspec.Struct, frozen=True):
    """Try again when it is due."""

    due: float


class GiveUp(msgspec.Struct, frozen=True):
    """Bury the item; `why` says which budget ended."""

    why: str


def decide(place: Place, failed: Failed, policy: Policy, *, now: float, spent: int) -> Again | GiveUp:
    """What follows a failed attempt. `place.attempt` counts the ones before it; `spent` includes it."""
    if not failed.transient:
        return GiveUp("permanent")
    attempt = place.attempt + 1
    if attempt >= policy.attempts:
        return GiveUp(f"{attempt} of {policy.attempts} attempts used")
    if policy.money is not None and spent >= policy.money:
        return GiveUp("the item's budget of money is used up")
    due = now + backoff(policy, attempt, failed.draw, failed.after)
    if due > deadline(place, policy, now - failed.seconds):
        return GiveUp(f"the next attempt would come after the {policy.within:g} s the item has")
    return Again(due)


def backoff(policy: Policy, attempt: int, draw: float, after: float | None = None) -> float:
    """Seconds to wait after the attempt of that number: drawn under a cap that doubles, never below the minimum."""
    cap = min(policy.wait_max, policy.wait_min * 2.0 ** min(attempt, 60))
    wait = policy.wait_min + draw * (max(cap, policy.wait_min) - policy.wait_min)
    return wait if after is None else max(wait, after)


def deadline(place: Place, policy: Policy, began: float) -> float:
    """When the time budget of an item at its stage ends; `began` is when the attempt at hand started."""
    return (place.since if place.since else began) + policy.within


TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529})
TRANSIENT_ERRNO = frozenset({
    errno.EAGAIN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.EINTR, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.ETIMEDOUT,
})  # fmt: skip
TRANSIENT_NAMES = frozenset({
    "APIConnectionError", "APITimeoutError", "ClientConnectionError", "ConnectError", "ConnectTimeout",
    "ConnectTimeoutError", "EndpointConnectionError", "IncompleteRead", "InternalServerError", "NetworkError",
    "OverloadedError", "PoolTimeout", "RateLimitError", "ReadError", "ReadTimeout", "ReadTimeoutError",
    "RemoteDisconnected", "RemoteProtocolError", "ServerDisconnectedError", "ServiceUnavailable",
    "ServiceUnavailableError", "ThrottlingException", "TimeoutException", "TooManyRequests", "TransportError",
    "WriteError", "WriteTimeout",
})  # fmt: skip
CAUSES = 5


def classify(error: BaseException) -> tuple[bool, str]:
    """Whether the error may pass by itself, and its code. Looks at the error, then at what caused it."""
    code = ""
    cause: BaseException | None = error
    for _ in range(CAUSES):
        if cause is None:
            break
        known = _known(cause)
        if known is not None:
            return known
        code = code or type(cause).__name__
        cause = cause.__cause__
    return False, code


def _known(error: BaseException) -> tuple[bool, str] | None:
    if isinstance(error, Transient):
        return True, error.code
    if isinstance(error, Permanent):
        return False, error.code
    status = http_status(error)
    if status is not None:
        return status in TRANSIENT_STATUS, f"http_{status}"
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
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNO:
        return True, errno.errorcode.get(error.errno or 0, "os").lower()
    for kind in type(error).__mro__:
        if kind.__name__ in TRANSIENT_NAMES:
            return True, kind.__name__
    return None


def http_status(error: BaseException) -> int | None:
    """The HTTP status an error carries, in the places where the common clients put it."""
    for holder in (error, getattr(error, "response", None)):
        for field in ("status_code", "status", "code"):
            value = getattr(holder, field, None)
            if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
                return value
    return None


def retry_after(error: BaseException) -> float | None:
    """The wait that the other side asked for, in seconds, where it said so."""
    if isinstance(error, Transient):
        return error.after
    headers = getattr(getattr(error, "response", None), "headers", None)
    try:
        value = headers.get("retry-after") if headers is not None else None
        seconds = float(value) if value is not None else None
    except (AttributeError, TypeError, ValueError):
        return None
    return seconds if seconds is not None and 0 <= seconds < 86_400 else None
