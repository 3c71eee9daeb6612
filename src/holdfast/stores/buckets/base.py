"""The operations that a bucket store needs of a bucket: read, create, replace if unchanged, list, delete.

Every write has one of three results. It landed, and its mark is returned. It lost the race, a `WriteLost`: nothing was
written, because another process was first. Or the result is unknown, a `WriteUnknown`: it may have landed, may land
later, or never. An unreachable bucket is a `StoreUnavailable`. No implementation sends a conditional write twice: the
second would meet the first and report a lost race.

A name is one or more words of letters, digits, `-`, `_` and `.`, with `/` between them.

A URL names a bucket: this is the only module that knows `s3://`, `az://`, `gs://` and `file://`, for stores and for
sources. Credentials come from the environment, as obstore and the providers' own tools read them. A URL that contains
credentials is refused, and no message repeats it.
"""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote

from holdfast.core.errors import Conflict, StoreError, StoreUnavailable, UsageError, missing_extra

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


class ObjectMark(NamedTuple):
    """The version of an object, as the bucket identifies it."""

    etag: str
    version: str = ""
    """The generation, if a bucket compares that instead."""


class Found(NamedTuple):
    """An object as it was read."""

    data: bytes
    mark: ObjectMark


class ListedObject(NamedTuple):
    """An object in a listing."""

    name: str
    etag: str
    """The same text as in the mark of a read, if the bucket gives it in both places; empty if it gives none."""


class WriteLost(Conflict):
    """Another process was first; nothing was written."""


class Away(StoreUnavailable):
    """The bucket did not answer, but may later. A refusal is not an `Away`: it would be repeated."""


class WriteUnknown(StoreError):
    """The reply was lost: read back and compare before deciding."""


class Bucket(Protocol):
    """Named bytes, each replaced only if unchanged since they were read. Safe to call from several threads."""

    url: str
    """Its location for people, without credentials."""

    def get(self, name: str) -> Found | None:
        """Return the newest version of an object, or None. Raise StoreUnavailable."""
        ...

    def part(self, name: str, start: int, length: int) -> bytes | None:
        """Return some bytes of an immutable object. Raise StoreUnavailable."""
        ...

    def create(self, name: str, data: bytes) -> ObjectMark:
        """Write an object that must not exist yet. Raise WriteLost, WriteUnknown or StoreUnavailable."""
        ...

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        """Write an object that must still have that mark. Raise WriteLost, WriteUnknown or StoreUnavailable."""
        ...

    def list(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[ListedObject]:
        """Yield the objects whose names begin with the prefix, which ends in `/`, in order, starting after `after`.
        Their etags may be missing unless requested."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is fine. Raise StoreUnavailable."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


def check_name(name: str) -> str:
    """Refuse a name that has another meaning in one of the buckets."""
    if NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is not an object name: use letters, digits, '-', '_' and '.', with '/' between them"
        )
    return name


def check_prefix(prefix: str) -> str:
    """Refuse a prefix that ends within a word: buckets list it differently."""
    if prefix and not prefix.endswith("/"):
        raise UsageError(f"{prefix!r} cannot be listed: a prefix must end in '/'")
    return prefix


FILE = "file"
SCHEMES = {"s3": "AWS", "az": "AZURE", "gs": "GOOGLE"}
"""Schemes of remote buckets, with the prefix of their environment variables."""
TIMEOUTS = {"timeout": timedelta(seconds=60), "connect_timeout": timedelta(seconds=5)}
SECRET = re.compile(r"(sig|signature|key|token|secret|credential|password)=[^&\s\"']+", re.IGNORECASE)
CLIENT_OPTIONS = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers",
    "http1_only", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate",
    "proxy_excludes", "timeout", "user_agent",
})  # fmt: skip
"""Options of the connection, which the library takes separately from those of the bucket."""
_lock = threading.Lock()
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
MACHINE = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")
"""The addresses at which the library asks for the role of the machine, if the environment has no credentials."""
FORBIDDEN = re.compile(
    r"status code: 403|code: 403|403 Forbidden|<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>"
)
"""Answers to some requests that the library does not classify; S3 answers 400 to an expired token."""
NO_REQUEST = re.compile(r"builder error|URL scheme is not allowed|relative URL without a base")
"""Messages of the library about an endpoint to which it may not, or cannot, send anything."""
REQUEST = re.compile(r"\?\S*")


class BucketPlace(NamedTuple):
    """The location of objects."""

    scheme: str
    container: str
    """The bucket; empty for a directory."""
    path: str
    """The prefix of all names, without slashes around it; for a directory, its whole path."""

    @property
    def url(self) -> str:
        path = quote(self.path)
        return f"{self.scheme}://{self.container}" + (f"/{path}" if path and self.scheme != FILE else path)


def is_place(url: str) -> bool:
    """Return whether a text is a URL of a bucket, or of a directory that is used like one."""
    scheme, _, rest = url.partition(":")
    return scheme in (FILE, *SCHEMES) and rest.startswith("//")


def place_of(url: str) -> BucketPlace:
    """Return the place that a URL names, without contacting it. Raise UsageError, without repeating possible
    secrets."""
    scheme, _, rest = url.partition("://")
    if not is_place(url):
        raise UsageError(
            "this is not the URL of a bucket: write s3://bucket/prefix, az://container/prefix, gs://bucket/prefix or "
            "file:///directory"
        )
    container, slash, path = rest.partition("/")
    if "@" in container or "?" in rest or "#" in rest:
        raise UsageError(
            f"{scheme}://… contains more than a place: credentials come from the environment, see docs/buckets.md"
        )
    if scheme == FILE:
        if container or not path.strip("/"):
            raise UsageError(f"{url!r} does not name a directory of this host: write file:///path/to/it")
        return BucketPlace(FILE, "", unquote(slash + path))
    if not container:
        raise UsageError(f"{url!r} does not name a bucket: write {scheme}://bucket/prefix")
    return BucketPlace(scheme, container, unquote(path).strip("/"))


def client(place: BucketPlace, **options: Any) -> Any:
    """Return obstore's client for a bucket. Nothing is sent yet, so anything it refuses is in the URL, the options, or
    the environment; its message may repeat a secret, its class does not."""
    obstore = library()
    plain = os.environ.get(f"{SCHEMES[place.scheme]}_ALLOW_HTTP", "").lower() == "true"
    given = options.pop("client_options", {})
    if not isinstance(given, dict):
        raise _unusable(place, "client_options is not a dictionary")
    given = {**{name: options.pop(name) for name in CLIENT_OPTIONS & options.keys()}, **given}
    said = {**TIMEOUTS, **({"allow_http": True} if plain else {}), **given}
    try:
        with _quietly():
            return obstore.store.from_url(place.url, client_options=said, **options)
    except Exception as error:  # noqa: BLE001 - see above
        raise _unusable(place, type(error).__name__) from None
    except BaseException as error:  # an unknown option makes the library panic, not an Exception
        if type(error).__name__ != "PanicException":
            raise
        raise _unusable(place, "the library does not accept these options") from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide the trace that the library writes to standard error if the call panics. Other output during the call appears
    afterwards."""
    if not _has_stderr():
        yield
        return
    with TemporaryFile() as kept, _lock:
        sys.stderr.flush()
        theirs = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(theirs, 2)
            os.close(theirs)
            kept.seek(0)
            if (said := kept.read()) and b"panicked at" not in said:
                os.write(2, said)


def _has_stderr() -> bool:
    try:
        os.fstat(2)
    except OSError:
        return False
    return sys.stderr is not None


def library() -> Any:
    """Return obstore, which is an extra."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise missing_extra("a bucket needs", "obstore") from None
    return obstore


def brief(error: BaseException) -> str:
    """Return the first line of a library's message, without requests and possible secrets in them."""
    said = str(error).strip().splitlines()
    text = SECRET.sub(r"\1=…", REQUEST.sub("", said[0] if said else type(error).__name__))
    return text[:300]


def is_forbidden(error: BaseException) -> bool:
    """Return whether the bucket does not, or no longer, allow the request."""
    errors = library().exceptions
    kinds = (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError)
    return isinstance(error, kinds) or FORBIDDEN.search(str(error)) is not None


def has_no_credentials(error: BaseException) -> bool:
    """Return whether the library had to ask the machine for credentials and got none."""
    return MACHINE.search(str(error)) is not None


def needs_http(error: BaseException) -> bool:
    """Return whether the endpoint is plain http:// without permission for that: no request was sent."""
    return NO_REQUEST.search(str(error)) is not None


def no_http(place: BucketPlace) -> str:
    """Return what to do about a plain or invalid endpoint."""
    begins = SCHEMES[place.scheme]
    return (
        f"{place.url}: no request can be made for its endpoint: if that begins with http://, set "
        f"{begins}_ALLOW_HTTP=true; otherwise check the endpoint, {begins}_ENDPOINT; docs/buckets.md has an example"
    )


def no_credentials(place: BucketPlace) -> str:
    """Return what to do about missing credentials."""
    return (
        f"{place.url}: there are no credentials, neither in the environment nor from a role of this machine: set "
        f"{CREDENTIALS[place.scheme]}; docs/buckets.md lists the alternatives"
    )


def _unusable(place: BucketPlace, why: str) -> UsageError:
    return UsageError(
        f"{place.url} cannot be opened ({why}): check the URL, the options, and the credentials in the environment: "
        f"{CREDENTIALS[place.scheme]}"
    )
