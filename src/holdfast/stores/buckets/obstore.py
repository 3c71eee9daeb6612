"""S3, Azure Blob Storage and Google Cloud Storage as buckets, through obstore.

Each bucket has two clients: one reads, lists and deletes, and may retry by itself; the other writes, and never retries.
A conditional write that is sent again after a lost reply would conflict with itself and report a loss. So the result of
a write is found by reading back, one layer up, where its write id is known.

Credentials come from the environment, as obstore and the providers' own tools read them; no message repeats them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from holdfast.core.errors import StoreUnusable, UsageError
from holdfast.stores.buckets import base
from holdfast.stores.buckets.base import (
    Away,
    Found,
    ListedObject,
    ObjectMark,
    WriteLost,
    WriteUnknown,
    brief,
    check_name,
    check_prefix,
    is_forbidden,
)

NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=0)}
SOME_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
PREFIX = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9_.=-]*")
"""One word of a prefix for state: in a URL, `#` and `?` would end it, `..` and `%` would lead elsewhere."""


class ObstoreBucket:
    """The objects below one prefix of a bucket or container."""

    def __init__(self, url: str, **options: Any) -> None:
        place = base.place_of(url)
        if place.scheme == base.FILE:
            raise UsageError(f"{url!r} is a directory, not a remote bucket")
        if place.path and not all(PREFIX.fullmatch(word) for word in place.path.split("/")):
            raise UsageError(
                f"{url!r} cannot be a place for state: a prefix may have only letters, digits, '-', '_', '.' and '=': "
                "anything else could lead to another place; write s3://bucket/some/prefix"
            )
        self.url, self._scheme, self._place = place.url, place.scheme, place
        self._known = False
        """True once it has answered: a machine that does not provide its role now may still have one."""
        self._obstore = base.library()
        self._errors = self._obstore.exceptions
        self._reader = base.client(place, retry_config=SOME_RETRIES, **options)
        self._writer = base.client(place, retry_config=NO_RETRIES, **options)

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

    def create(self, name: str, data: bytes) -> ObjectMark:
        return self._write(name, data, "create")

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        """Replace an object. Google compares the generation; the others compare the etag."""
        check_name(name)
        by = {"version": mark.version} if self._scheme == "gs" else {"e_tag": mark.etag}
        if not all(by.values()):
            raise UsageError(f"{self.url}/{name} was read without a mark: this bucket cannot hold a store")
        return self._write(name, data, by)

    def list(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[ListedObject]:
        with self._in_words(check_prefix(prefix)):
            pages = self._obstore.list(self._reader, prefix.rstrip("/") or None, offset=after or None)
            for page in pages:  # Azure may ignore the offset
                yield from (
                    ListedObject(meta["path"], (meta["e_tag"] or "").strip('"'))
                    for meta in page
                    if meta["path"] > after
                )

    def delete(self, name: str) -> None:
        with self._in_words(check_name(name)):
            try:
                self._obstore.delete(self._reader, name)
            except FileNotFoundError:
                return

    def close(self) -> None:
        """Do nothing: the clients close their connections by themselves."""

    # -- helpers ------------------------------------------------------------------------------------------------

    def _write(self, name: str, data: bytes, mode: Any) -> ObjectMark:
        errors = self._errors
        try:
            answer = self._obstore.put(self._writer, check_name(name), data, mode=mode, use_multipart=False)
        except (errors.AlreadyExistsError, errors.PreconditionError, errors.NotFoundError, FileNotFoundError) as error:
            if mode == "create" and not isinstance(error, (errors.AlreadyExistsError, errors.PreconditionError)):
                raise StoreUnusable(f"{self.url}: there is no such bucket: create it first") from None
            raise WriteLost(f"{self.url}/{name}: another process was first") from None
        except (errors.BaseError, OSError) as error:
            self._check_allowed(error)
            raise WriteUnknown(f"{self.url}/{name}: {brief(error)}") from None
        return self._mark(answer)

    def _mark(self, meta: Any) -> ObjectMark:
        return ObjectMark(meta["e_tag"] or "", meta["version"] or "" if self._scheme == "gs" else "")

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        errors = self._errors
        try:
            yield
            self._known = True
        except FileNotFoundError:
            raise StoreUnusable(f"{self.url}: there is no such bucket: create it first") from None
        except (errors.BaseError, OSError) as error:
            self._check_allowed(error)
            where = f"{self.url}/{name}" if name else self.url
            raise Away(f"{where}: {brief(error)}") from None

    def _check_allowed(self, error: Exception) -> None:
        """Raise an error that tells the user what to do, if waiting does not help."""
        if base.has_no_credentials(error) and not self._known:
            raise StoreUnusable(base.no_credentials(self._place)) from None
        if base.needs_http(error):
            raise StoreUnusable(base.no_http(self._place)) from None
        if is_forbidden(error):
            raise StoreUnusable(
                f"{self.url}: these credentials do not allow that, or have expired ({brief(error)}): docs/buckets.md "
                "lists what they need; run again with valid ones"
            ) from None
