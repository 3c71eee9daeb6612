"""S3, Azure Blob Storage and Google Cloud Storage as buckets, by obstore.

Two clients look at each bucket: one reads, lists and deletes, and may try again by itself; the other writes, and never
does. A conditional write that is sent a second time after a lost reply meets itself and is told that it lost. So
whether a write landed is found out by reading back, one layer up, where its write id is known.

Credentials come from the environment, as obstore and the providers' own tools read them; no message repeats them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from holdfast.core.errors import StoreUnavailable, UsageError
from holdfast.stores.buckets.base import Away, Found, Listed, Mark, WriteLost, WriteUnknown, check_name, check_prefix

SCHEMES = {"s3": "AWS", "az": "AZURE", "gs": "GOOGLE"}
"""How the variables of each begin."""
NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=0)}
SOME_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
TIMEOUTS = {"timeout": timedelta(seconds=60), "connect_timeout": timedelta(seconds=5)}
SECRET = re.compile(r"(sig|signature|key|token|secret|credential|password)=[^&\s\"']+", re.IGNORECASE)
FORBIDDEN = re.compile(r"status code: 403|code: 403")
"""Some requests are answered so and are not told apart by the library."""
REQUEST = re.compile(r"\?\S*")
PREFIX = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9_.=-]*")
"""One word of a prefix: in a URL, `#` and `?` would end it, `..` and `%` would lead elsewhere."""


class ObstoreBucket:
    """The objects below one prefix of a bucket or container."""

    def __init__(self, url: str, **options: Any) -> None:
        scheme, _, place = url.partition("://")
        container, _, prefix = place.partition("/")
        if scheme not in SCHEMES or not container:
            raise UsageError(f"{_bare(url)!r} names no bucket: say s3://bucket/prefix, az://container/prefix or gs://…")
        if not all(PREFIX.fullmatch(word) for word in prefix.strip("/").split("/") if prefix.strip("/")):
            raise UsageError(
                f"{_bare(url)!r} cannot be a place for state: in a prefix, what is no letter, digit, '-', '_', '.' or "
                "'=' would be read as another place; write s3://bucket/some/prefix"
            )
        self.url = f"{scheme}://{container}" + (f"/{prefix.strip('/')}" if prefix.strip("/") else "")
        self._scheme = scheme
        obstore = _library()
        self._obstore, self._errors = obstore, obstore.exceptions
        plain = os.environ.get(f"{SCHEMES[scheme]}_ALLOW_HTTP", "").lower() == "true"
        client = {**TIMEOUTS, **({"allow_http": True} if plain else {}), **options.pop("client_options", {})}
        with self._in_words(""):
            self._reader = obstore.store.from_url(self.url, client_options=client, retry_config=SOME_RETRIES, **options)
            self._writer = obstore.store.from_url(self.url, client_options=client, retry_config=NO_RETRIES, **options)

    def get(self, name: str) -> Found | None:
        with self._in_words(check_name(name)):
            try:
                answer = self._obstore.get(self._reader, name)
                return Found(bytes(answer.bytes()), self._mark(answer.meta))
            except FileNotFoundError:
                return None

    def part(self, name: str, start: int, length: int) -> bytes | None:
        if length == 0:
            return b""
        with self._in_words(check_name(name)):
            try:
                return bytes(self._obstore.get_range(self._reader, name, start=start, length=length))
            except FileNotFoundError:
                return None

    def create(self, name: str, data: bytes) -> Mark:
        return self._write(name, data, "create")

    def replace(self, name: str, data: bytes, mark: Mark) -> Mark:
        """Google compares the generation; the others compare the etag. What is not known is left out."""
        check_name(name)
        by = {"version": mark.version} if self._scheme == "gs" else {"e_tag": mark.etag}
        if not all(by.values()):
            raise UsageError(f"{self.url}/{name} was read without a mark: this bucket cannot hold a store")
        return self._write(name, data, by)

    def list(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[Listed]:
        with self._in_words(check_prefix(prefix)):
            pages = self._obstore.list(self._reader, prefix.rstrip("/") or None, offset=after or None)
            for page in pages:  # Azure may ignore where to begin
                yield from (
                    Listed(meta["path"], (meta["e_tag"] or "").strip('"')) for meta in page if meta["path"] > after
                )

    def delete(self, name: str) -> None:
        with self._in_words(check_name(name)):
            try:
                self._obstore.delete(self._reader, name)
            except FileNotFoundError:
                return

    def close(self) -> None:
        """The clients let go of their connections by themselves."""

    # -- helpers ------------------------------------------------------------------------------------------------

    def _write(self, name: str, data: bytes, mode: Any) -> Mark:
        errors = self._errors
        try:
            answer = self._obstore.put(self._writer, check_name(name), data, mode=mode, use_multipart=False)
        except (errors.AlreadyExistsError, errors.PreconditionError, errors.NotFoundError, FileNotFoundError) as error:
            if mode == "create" and not isinstance(error, (errors.AlreadyExistsError, errors.PreconditionError)):
                raise StoreUnavailable(f"{self.url}: there is no such bucket: make it first") from None
            raise WriteLost(f"{self.url}/{name}: someone else was first") from None
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError) as error:
            raise self._forbidden(error) from None
        except (errors.BaseError, OSError) as error:
            if FORBIDDEN.search(str(error)):
                raise self._forbidden(error) from None
            raise WriteUnknown(f"{self.url}/{name}: {self._brief(error)}") from None
        return self._mark(answer)

    def _mark(self, meta: Any) -> Mark:
        return Mark(meta["e_tag"] or "", meta["version"] or "" if self._scheme == "gs" else "")

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except FileNotFoundError:
            raise StoreUnavailable(f"{self.url}: there is no such bucket: make it first") from None
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError) as error:
            raise self._forbidden(error) from None
        except (errors.BaseError, OSError) as error:
            if FORBIDDEN.search(str(error)):
                raise self._forbidden(error) from None
            where = f"{self.url}/{name}" if name else self.url
            raise Away(f"{where}: {self._brief(error)}") from None
        except ValueError as error:
            raise UsageError(f"{self.url} cannot be opened: {self._brief(error)}") from None

    def _forbidden(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.url}: these credentials may not do that ({self._brief(error)}): docs/buckets.md says what they need"
        )

    def _brief(self, error: BaseException) -> str:
        """The first line of what a library says, without requests and what may be a secret in them."""
        said = str(error).strip().splitlines()
        text = SECRET.sub(r"\1=…", REQUEST.sub("", said[0] if said else type(error).__name__))
        return text[:300]


def _bare(url: str) -> str:
    """The URL without what may be a secret in it."""
    return REQUEST.sub("", re.sub(r"//[^/@]*@", "//", url))


def _library() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise UsageError('a bucket needs obstore: pip install "holdfast[buckets]"') from None
    return obstore
