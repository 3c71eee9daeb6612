"""The objects of a bucket, in the order of their names; the cursor is a name."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Permanent, SourceChanged, Transient, UsageError
from holdfast.runtime.sources import names
from holdfast.runtime.sources.away import Outage, rows_of
from holdfast.runtime.sources.base import Malformed, Page, Since, Span, logical_name
from holdfast.runtime.sources.folder import File, Folder
from holdfast.stores.buckets import places

ASKED_FOR = 1000
"""Names in one answer of the bucket."""


class Object(BaseModel):
    """An object of a bucket as an item: its name, size, time and tag; the content stays where it is."""

    model_config = ConfigDict(frozen=True)

    url: str
    """Where it is."""
    name: str
    """Its whole name in the bucket; within a folder, with `/` on every system."""
    size: int
    modified: datetime
    etag: str | None = None

    _options: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def content_mark(self) -> str:
        """What changes with the content: the tag; of a file the size, because its tag holds its time."""
        return str(self.size) if self.etag is None or self.url.startswith("file:") else self.etag

    def read_bytes(self) -> bytes:
        """The content. Credentials come from the environment, or from the source's options."""
        place = places.place_of(self.url)
        if place.scheme == places.FILE:
            return Path(place.path).read_bytes()
        obstore, store = places.library(), places.client(place._replace(path=""), **self._options)
        try:
            return bytes(obstore.get(store, self.name).bytes())
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _trouble(error, self.url, place) from None


class Objects:
    """The objects below a place in a bucket, streamed in the order of their names: `Objects("s3://scans/2026/")`.

    Credentials come from the environment, as each provider's own tools read them; `options` are handed to obstore
    (`endpoint`, `region`, `allow_http` …) and are not kept anywhere.
    """

    def __init__(self, url: str, **options: Any) -> None:
        try:
            self.place = places.place_of(url)
        except UsageError as error:
            raise UsageError(f"Objects(…): {error}") from None
        if self.place.scheme != places.FILE:
            places.library()  # missed now, and not in the middle of a run
        self._options = options
        self._what = f"Objects({self.place.url!r})"

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[Object | Malformed]:
        """One Object for each."""
        return (item for _, item in self._named(None))

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """The objects whose names come after a cursor, up to another and with it. One that appears later is seen if its
        name comes after the cursor."""
        return names.pages(self._named(names.name_of(after, self._what)), names.name_of(until, self._what))

    def split(self, parts: int) -> Sequence[Span]:
        """Ranges of about as many objects each, by one listing; the last one ends with the last name there is now."""
        return names.divided(self._named(None), parts, self.describe())

    def since(self, before: dict[str, Any], handled: int) -> Since:
        """What became of the objects since they were listed."""
        return names.since(self._named(None), before, handled, self.describe(), "object")

    def patiently(self, outage: Outage) -> Iterator[Any]:
        """Every item of a pipeline; after an outage it is read on where it was."""
        return rows_of(self, outage)

    def describe(self) -> dict[str, Any]:
        """The bucket and the place in it."""
        scheme, bucket, path = self.place
        prefix = logical_name(Path(path)) if scheme == places.FILE else path
        return {"kind": "objects", "scheme": scheme, "bucket": bucket, "prefix": prefix}

    def natural_key(self, value: Any) -> str | None:
        """The name."""
        return value.name if isinstance(value, Object) else None

    def alike(self, before: Any, after: Any) -> bool:
        """Whether two payloads are of the same object: by its name, its size and its tag. In a folder the tag holds the
        time, which is not part of that."""
        tag = ["etag"] if self.place.scheme == places.FILE else []
        return names.alike(before, after, "url", "modified", *tag)

    def _named(self, after: str | None) -> Iterator[tuple[str, Object | Malformed]]:
        return self._in_folder(after) if self.place.scheme == places.FILE else self._in_bucket(after)

    def _in_folder(self, after: str | None) -> Iterator[tuple[str, Object | Malformed]]:
        """A folder gives its names in any order: ours is the same as a bucket's."""
        for name, item in Folder(self.place.path, hidden=True)._named(after):
            yield name, _of_file(item) if isinstance(item, File) else item

    def _in_bucket(self, after: str | None) -> Iterator[tuple[str, Object]]:
        whole = self.place._replace(path="")
        obstore, store = places.library(), places.client(whole, **self._options)
        last = after
        try:
            for answer in obstore.list(store, self.place.path or None, offset=after, chunk_size=ASKED_FOR):
                for found in answer:
                    name = found["path"]
                    if _is_folder(name, found["size"], last) or self._is_marker(store, name, found["size"]):
                        continue
                    self._check_order(last, name)
                    last = name
                    made = Object(url=whole._replace(path=name).url, name=name, size=found["size"],
                                  modified=found["last_modified"], etag=found["e_tag"])  # fmt: skip
                    made._options.update(self._options)
                    yield name, made
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _not_listed(_trouble(error, self._what, self.place)) from None

    def _is_marker(self, store: Any, name: str, size: int) -> bool:
        """Whether an empty object is one that a console made for a folder: by the name that the library gives, without
        its slash, there is none."""
        obstore = places.library()
        if size:
            return False
        try:
            obstore.head(store, name)
        except (obstore.exceptions.NotFoundError, FileNotFoundError):
            return True
        return False

    def _check_order(self, last: str | None, name: str) -> None:
        if last is not None and name <= last:
            raise SourceChanged(
                f"{self._what}: the bucket lists {name!r} after {last!r}: not in the order of names, so there is no "
                "place in it to resume from; write the names into a file and scan that"
            )


def _not_listed(trouble: Exception) -> Exception:
    """A place that cannot be listed, for good, is nobody's dead letter: the run is refused."""
    return UsageError(str(trouble)) if isinstance(trouble, Permanent) else trouble


def _is_folder(name: str, size: int, last: str | None) -> bool:
    """Whether this is the empty object that consoles make for a folder. Its name ends in a slash, which the library
    takes off, so that it seems to come too late: after the object or the cursor of that name, or after `name.txt`."""
    return last is not None and not size and name <= last < f"{name}/"


def _of_file(file: File) -> Object:
    path = Path(file.path).absolute()
    at = datetime.fromtimestamp(file.modified_ns / 1e9, UTC)
    return Object(
        url=path.as_uri(), name=file.name, size=file.size, modified=at, etag=f"{file.modified_ns:x}-{file.size:x}"
    )


def _trouble(error: Exception, what: str, place: places.Place) -> Exception:
    """What the bucket's library said, by its kind: its text may repeat what must not be kept."""
    kind = type(error).__name__
    if places.has_no_credentials(error):
        return UsageError(places.no_credentials(place))
    if places.needs_http(error):
        return UsageError(places.no_http(place))
    if isinstance(error, FileNotFoundError) or kind == "NotFoundError" or "404 Not Found" in str(error):
        return Permanent("not_found", f"{what}: the bucket, or the object, is not there: check the name")
    if places.is_forbidden(error):
        return Permanent("denied", f"{what}: the bucket does not let us in ({kind}): check the credentials in use")
    if kind == "InvalidPathError":
        return UsageError(
            f"{what}: {places.brief(error)}: the bucket holds a name that is not a path, with an empty part or with "
            "dots: rename the object, or list a place below which there is none"
        )
    if kind in {"UnknownConfigurationKeyError", "NotSupportedError"}:
        return UsageError(f"{what}: {kind}: check the URL and the options")
    return Transient(f"{what}: the bucket did not answer as it should ({kind})", code="bucket")
