"""Which errors may pass by themselves. Classes of other libraries are made here as those libraries make them."""

import asyncio
import concurrent.futures
import errno
import http
import json
import socket
import ssl
import subprocess
import tarfile
import urllib.error
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import Permanent, Transient
from holdfast.core.retry import classify, host_trouble, http_status, retry_after
from tests.core.made import PROPERTY


class FalsyResponse:
    """As in requests: an answer that reports an error is false."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status
        self.headers = headers if headers is not None else {}

    def __bool__(self) -> bool:
        return False


def kind(name: str, *bases: type, of: str = "") -> type[Exception]:
    """A class of another library: of the package that is named, or of the same one as its base."""
    return type(name, bases or (Exception,), {"__module__": of if of else bases[0].__module__})


def carrying(error: Exception, **fields: Any) -> Exception:
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def caused(error: BaseException, *causes: BaseException) -> BaseException:
    """The error, raised from the causes one after the other."""
    last = error
    for cause in causes:
        last.__cause__ = cause
        last = cause
    return error


# httpx
HTTPError = kind("HTTPError", of="httpx")
StatusError = kind("HTTPStatusError", HTTPError)
TransportError = kind("TransportError", HTTPError)
TimeoutException = kind("TimeoutException", TransportError)
NetworkError = kind("NetworkError", TransportError)
# requests: every error is an OSError without a number
RequestException = kind("RequestException", OSError, of="requests.exceptions")
RequestsHTTPError = kind("HTTPError", RequestException)
RequestsConnectionError = kind("ConnectionError", RequestException)
RequestsTimeout = kind("Timeout", RequestException)
# boto
ClientError = kind("ClientError", of="botocore.exceptions")


def boto(status: int, code: str, made_by: type[Exception] = ClientError) -> Exception:
    answer = {"Error": {"Code": code, "Message": "…"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return carrying(made_by(f"An error occurred ({code})"), response=answer)


TRANSIENT: dict[str, tuple[BaseException, str]] = {
    "a handler said so": (Transient("busy", code="rate"), "rate"),
    "a time-out of Python": (TimeoutError(), "timeout"),
    "a time-out of a socket": (socket.timeout("timed out"), "timeout"),  # noqa: UP041 - the old name is still in use
    "a time-out of asyncio": (asyncio.TimeoutError(), "timeout"),  # noqa: UP041
    "a time-out of a future": (concurrent.futures.TimeoutError(), "timeout"),
    "a time-out of a process": (subprocess.TimeoutExpired("ocr", 30), "TimeoutExpired"),
    "a refused connection": (ConnectionRefusedError(), "connection"),
    "a reset connection": (ConnectionResetError(errno.ECONNRESET, "reset"), "connection"),
    "a broken pipe": (BrokenPipeError(), "connection"),
    "no route to the host": (OSError(errno.EHOSTUNREACH, "no route"), "ehostunreach"),
    "a name that is not found": (socket.gaierror(socket.EAI_NONAME, "unknown"), "dns"),
    "a name server that is busy": (socket.gaierror(socket.EAI_AGAIN, "again"), "dns"),
    "a broken TLS connection": (ssl.SSLError(1, "bad record"), "tls"),
    "a TLS connection that ended": (ssl.SSLEOFError(8, "EOF"), "tls"),
    "httpx: 503": (carrying(StatusError("x"), response=SimpleNamespace(status_code=503)), "http_503"),
    "httpx: 429": (carrying(StatusError("x"), response=SimpleNamespace(status_code=429)), "http_429"),
    "httpx: time-out while reading": (kind("ReadTimeout", TimeoutException)(), "ReadTimeout"),
    "httpx: time-out of the pool": (kind("PoolTimeout", TimeoutException)(), "PoolTimeout"),
    "httpx: no connection": (kind("ConnectError", NetworkError)("refused"), "ConnectError"),
    "httpx: an unknown kind of it": (kind("OddNetworkError", NetworkError)(), "NetworkError"),
    "httpx: one that the user derived": (
        kind("OurReadError", kind("ReadError", NetworkError), of="app")(),
        "ReadError",
    ),
    "requests: 502": (carrying(RequestsHTTPError(), response=FalsyResponse(502)), "http_502"),
    "requests: no connection": (RequestsConnectionError("Max retries exceeded"), "ConnectionError"),
    "requests: time-out": (kind("ReadTimeout", RequestsTimeout)(), "ReadTimeout"),
    "requests: an answer cut short": (kind("ChunkedEncodingError", RequestException)(), "ChunkedEncodingError"),
    "boto: 503": (boto(503, "SlowDown"), "SlowDown"),
    "boto: 500": (boto(500, "InternalError"), "http_500"),
    "boto: throttled with a 400": (boto(400, "ThrottlingException"), "ThrottlingException"),
    "boto: throttled, a class of its own": (
        boto(
            400, "ProvisionedThroughputExceededException", kind("ProvisionedThroughputExceededException", ClientError)
        ),
        "ProvisionedThroughputExceededException",
    ),
    "boto: no endpoint": (
        kind("EndpointConnectionError", of="botocore.exceptions")("could not connect"),
        "EndpointConnectionError",
    ),
    "aiohttp: 504": (
        carrying(kind("ClientResponseError", of="aiohttp.client_exceptions")(), status=504, headers={}),
        "http_504",
    ),
    "aiohttp: the server hung up": (
        kind("ServerDisconnectedError", of="aiohttp.client_exceptions")(),
        "ServerDisconnectedError",
    ),
    "urllib: 429": (urllib.error.HTTPError("http://example.org", 429, "slow", {}, None), "http_429"),  # type: ignore[arg-type]
    "urllib: a name that is not found": (urllib.error.URLError(socket.gaierror(-2, "unknown")), "dns"),
    "a model's API: rate limit": (carrying(kind("RateLimitError", of="openai")(), status_code=429), "http_429"),
    "a model's API: overloaded": (
        carrying(kind("OverloadedError", of="anthropic._exceptions")(), status_code=529),
        "http_529",
    ),
    "a model's API: no connection": (
        kind("APIConnectionError", of="openai")("Connection error."),
        "APIConnectionError",
    ),
    "a model's API: rate limit without a status": (kind("RateLimitError", of="openai")(), "RateLimitError"),
    "a status that is an enum": (carrying(ValueError(), status=http.HTTPStatus.BAD_GATEWAY), "http_502"),
    "urllib3: an error around an error": (
        kind("ProtocolError", of="urllib3.exceptions")("aborted", ConnectionResetError()),
        "connection",
    ),
    "the cause was a time-out": (caused(RuntimeError("page 3"), TimeoutError()), "timeout"),
    "the cause of the cause was": (caused(ValueError(), RuntimeError(), ConnectionResetError()), "connection"),
    "the handler wrapped a 503": (caused(ValueError(), carrying(StatusError(), status_code=503)), "http_503"),
    "a handler's word goes over a status": (caused(Transient(code="x"), carrying(ValueError(), status=404)), "x"),
}

PERMANENT: dict[str, tuple[BaseException, str]] = {
    "a handler said so": (Permanent("no_such_page"), "no_such_page"),
    "a key that looks like a status": (KeyError("1429"), "KeyError"),
    "a message that speaks of time-outs": (ValueError("503: connection timed out, try again"), "ValueError"),
    "a bug": (ZeroDivisionError(), "ZeroDivisionError"),
    "an attribute that is missing": (AttributeError("status_code"), "AttributeError"),
    "JSON that does not parse": (json.JSONDecodeError("bad", "{", 0), "JSONDecodeError"),
    "text that does not decode": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError"),
    "a lack of memory": (MemoryError(), "MemoryError"),
    "a file that is missing": (FileNotFoundError(errno.ENOENT, "no file"), "FileNotFoundError"),
    "a full disk": (OSError(errno.ENOSPC, "full"), "OSError"),
    "an archive that cannot be read": (tarfile.ReadError("bad checksum"), "ReadError"),
    "a class of the user's that is called as one of httpx": (kind("NetworkError", of="app.errors")(), "NetworkError"),
    "a class of the user's in a module named after httpx": (kind("ReadError", of="httpxtras")(), "ReadError"),
    "another class of a known package": (kind("InvalidURL", of="httpx")(), "InvalidURL"),
    "a program that failed": (subprocess.CalledProcessError(1, "ocr"), "CalledProcessError"),
    "a certificate": (ssl.SSLCertVerificationError(1, "self-signed"), "tls_certificate"),
    "httpx: 404": (carrying(StatusError("x"), response=SimpleNamespace(status_code=404)), "http_404"),
    "httpx: a bad URL": (kind("UnsupportedProtocol", TransportError)(), "UnsupportedProtocol"),
    "requests: 401": (carrying(RequestsHTTPError(), response=FalsyResponse(401)), "http_401"),
    "requests: a bad URL": (kind("MissingSchema", RequestException, ValueError)(), "MissingSchema"),
    "boto: 403": (boto(403, "AccessDenied"), "http_403"),
    "boto: no such key": (boto(404, "NoSuchKey", kind("NoSuchKey", ClientError)), "http_404"),
    "boto: an answer without a status": (carrying(ClientError(), response={"Error": {}}), "ClientError"),
    "aiohttp: 400": (carrying(kind("ClientResponseError", of="aiohttp.client_exceptions")(), status=400), "http_400"),
    "urllib: 403": (urllib.error.HTTPError("http://example.org", 403, "no", {}, None), "http_403"),  # type: ignore[arg-type]
    "a model's API: bad request": (carrying(kind("BadRequestError", of="openai")(), status_code=400), "http_400"),
    "the cause was a certificate": (
        caused(kind("ConnectError", NetworkError)(), ssl.SSLCertVerificationError(1, "self-signed")),
        "tls_certificate",
    ),
    "the cause was permanent": (caused(RuntimeError(), Permanent("blank")), "blank"),
    "a handler's word goes over a cause": (caused(Permanent("x"), TimeoutError()), "x"),
    "a status goes over a cause": (caused(carrying(ValueError(), status=422), TimeoutError()), "http_422"),
    "a success is no failure's status": (carrying(ValueError(), status=200), "ValueError"),
    "a truth is no number": (carrying(ValueError(), code=True), "ValueError"),
    "a text is no number": (carrying(ValueError(), code="503"), "ValueError"),
    "the user interrupted": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "the program ended": (SystemExit(503), "SystemExit"),
}


@pytest.mark.promise("E3")
@pytest.mark.parametrize("case", TRANSIENT)
def test_worth_another_attempt(case: str) -> None:
    error, code = TRANSIENT[case]
    assert classify(error) == (True, code)
    assert classify(error) == classify(error)


@pytest.mark.promise("E2")
@pytest.mark.parametrize("case", PERMANENT)
def test_not_worth_another_attempt(case: str) -> None:
    error, code = PERMANENT[case]
    assert classify(error) == (False, code)
    assert classify(error) == classify(error)


WORTH_IT = {408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529}


@pytest.mark.promise("E2", "E3")
@pytest.mark.parametrize("field", ["status_code", "status", "code"])
def test_every_status_is_judged_alike_wherever_a_client_keeps_it(field: str) -> None:
    for status in range(400, 600):
        wanted = (status in WORTH_IT, f"http_{status}")
        assert classify(carrying(ValueError(), **{field: status})) == wanted
        assert classify(carrying(ValueError(), response=SimpleNamespace(**{field: status}))) == wanted
        assert classify(boto(status, "Whatever")) == wanted
    for status in (0, 100, 200, 302, 399, 600, 1429, -503):
        assert http_status(carrying(ValueError(), **{field: status})) is None
        assert http_status(boto(status, "Whatever")) is None


WORTH_WAITING = {
    "EAGAIN", "EWOULDBLOCK", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "EINTR",
    "ENETDOWN", "ENETRESET", "ENETUNREACH", "ENOTCONN", "EPIPE", "ESHUTDOWN", "ETIMEDOUT",
}  # fmt: skip


@pytest.mark.promise("E2", "E3")
def test_every_errno_is_judged_by_its_number() -> None:
    for number, name in errno.errorcode.items():
        transient, code = classify(OSError(number, "says nothing"))
        assert transient == (name in WORTH_WAITING), name
        assert code


@pytest.mark.promise("E3")
def test_an_error_that_happened_while_another_was_handled_is_not_its_effect() -> None:
    error = ValueError("a bug in the clean-up")
    error.__context__ = TimeoutError()
    assert classify(error) == (False, "ValueError")


@pytest.mark.promise("E3")
def test_causes_that_go_round_in_a_circle_come_to_an_end() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert classify(one) == (False, "RuntimeError")


@pytest.mark.promise("E3")
@pytest.mark.parametrize(("wrappings", "transient"), [(0, True), (7, True), (8, False)])
def test_a_cause_counts_as_long_as_it_is_near(wrappings: int, transient: bool) -> None:
    error = caused(*(RuntimeError(str(n)) for n in range(wrappings)), TimeoutError())
    assert classify(error)[0] == transient


@pytest.mark.promise("E3")
def test_an_error_that_cannot_be_looked_at_is_judged_all_the_same() -> None:
    class Hostile(Exception):
        """Has nothing, and does not say so in the usual way."""

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"the answer has been closed: no {name}")

    assert classify(Hostile()) == (False, "Hostile")
    assert retry_after(Hostile()) is None


NAMES = st.sampled_from(["ReadTimeout", "RateLimitError", "Odd", "ConnectionError", "Ünüblich"])
BASES = st.sampled_from([Exception, ValueError, OSError, TimeoutError, KeyError, ssl.SSLError, ConnectionError])
ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1000, 1000), st.floats(), st.text(max_size=5), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["Error", "Code", "ResponseMetadata", "HTTPStatusCode"]), inner, max_size=3),
        st.builds(SimpleNamespace, status_code=inner, headers=inner),
    ),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(["status", "status_code", "code", "response", "headers", "reason"]), ODD)


@pytest.mark.promise("E3")
@PROPERTY
@given(st.lists(st.tuples(NAMES, BASES, FIELDS, st.lists(ODD, max_size=3)), min_size=1, max_size=4))
def test_classification_is_total_and_deterministic(made: list[tuple[str, type, dict[str, Any], list[Any]]]) -> None:
    def make() -> BaseException:
        errors = [carrying(type(name, (base,), {})(*args), **fields) for name, base, fields, args in made]
        return caused(*errors)

    transient, code = answer = classify(make())
    assert type(transient) is bool
    assert type(code) is str
    assert code
    assert answer == classify(make())
    wait = retry_after(make())
    assert wait is None or 0 <= wait < 366 * 86_400


WAITS: dict[str, tuple[Any, float | None]] = {
    "seconds": ("20", 20.0),
    "a fraction": ("0.5", 0.5),
    "at once": ("0", 0.0),
    "a number": (7, 7.0),
    "a date": ("Wed, 21 Oct 2026 07:28:00 GMT", 60.0),
    "a date that has passed": ("Wed, 21 Oct 2026 07:26:00 GMT", 0.0),
    "less than nothing": ("-1", None),
    "a day": ("86400", 86400.0),
    "more than a year": ("99999999", None),
    "no date": ("tomorrow", None),
    "for ever": ("inf", None),
    "no number": ("nan", None),
    "a number beyond all floats": (10**400, None),
    "nothing": (None, None),
}


@pytest.mark.parametrize("case", WAITS)
def test_the_wait_that_the_other_side_asked_for(case: str) -> None:
    said, seconds = WAITS[case]
    for headers in ({"retry-after": said}, {"Retry-After": said}):
        for error in (
            carrying(ValueError(), response=FalsyResponse(429, headers)),
            carrying(ValueError(), headers=headers),
            carrying(ValueError(), response={"ResponseMetadata": {"HTTPHeaders": headers}}),
        ):
            assert retry_after(error, NOW) == seconds
            assert retry_after(caused(ValueError("mine"), error), NOW) == seconds


NOW = 1_792_567_620.0
"""Wed, 21 Oct 2026 07:27:00 GMT"""


def test_a_date_is_compared_with_that_of_the_answer() -> None:
    headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:27:50 GMT"}
    assert retry_after(carrying(ValueError(), headers=headers), NOW - 9_999) == 10
    assert retry_after(carrying(ValueError(), headers={**headers, "Date": "now"}), NOW) == 60


def test_without_headers_nobody_asked() -> None:
    assert retry_after(Transient("busy", after=12)) is None
    assert retry_after(ValueError("no headers")) is None


@pytest.mark.parametrize(
    "error", [ssl.SSLSyscallError(5, "EOF occurred"), socket.gaierror(5, "no address"), ssl.SSLError(28, "x")]
)
def test_numbers_of_other_libraries_are_not_taken_for_trouble_of_the_disk(error: OSError) -> None:
    wrapped = RuntimeError("request failed")
    wrapped.__cause__ = error
    assert host_trouble(error) == host_trouble(wrapped) == ""
    assert host_trouble(OSError(5, "Input/output error"))
