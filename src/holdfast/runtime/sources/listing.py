"""Folders and buckets as sources, and the base of both: the cursor is a name, and partitions are between names."""

import hashlib
import heapq
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import translate
from itertools import islice, pairwise
from os import PathLike
from pathlib import Path
from stat import S_ISREG
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, PrivateAttr

from holdfast.core import canonical
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Permanent, SourceChanged, Transient, UsageError
from holdfast.runtime.sources.base import Malformed, NotThereError, Outage, Page, Since, Span, logical_name, rows_of
from holdfast.runtime.text import many
from holdfast.stores.buckets import base

PAGE_NAMES = 500
KEPT_NAMES = 8_192
"""Names that are kept to choose borders from: of more, every second, every fourth …"""
SAMPLES = 32
"""Names whose digests are stored with a scan, so that it is noticed if they disappear."""


class NamePage:
    """Some items of a listing, and their names."""

    def __init__(self, named: Sequence[tuple[str, Any]]) -> None:
        self.rows: Sequence[Any] = [item for _, item in named]
        self._names = [name for name, _ in named]

    def after(self, count: int) -> Cursor:
        return cursor_of(self._names[count - 1])


def pages_of_names(named: Iterable[tuple[str, Any]], until: str | None) -> Iterator[NamePage]:
    """Yield the items up to and including a name, in pages."""
    each = iter(named)
    while some := list(islice(each, PAGE_NAMES)):
        if until is not None and some[-1][0] > until:
            some = [(name, item) for name, item in some if name <= until]
            if some:
                yield NamePage(some)
            return
        yield NamePage(some)


def cursor_of(name: str) -> Cursor:
    """Return the cursor after a name. A name that is not valid text is kept as bytes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return Cursor("name", name.encode("utf-8", "surrogateescape"))
    return Cursor("name", name)


def name_of(at: Cursor | None, what: str) -> str | None:
    """Return the name of a cursor."""
    if at is None:
        return None
    if at.kind != "name" or not isinstance(at.value, str | bytes):
        raise UsageError(f"{what}: it is read by name; the cursor {at} belongs to another source, or is damaged")
    return at.value if isinstance(at.value, str) else at.value.decode("utf-8", "surrogateescape")


def split_names(names: Iterable[str], parts: int) -> list[Span]:
    """Return partitions of about as many names each; the last one of several ends with the present last name."""
    if parts == 1:
        return [Span()]
    kept: list[str] = []
    apart, last = 1, None
    for count, last in enumerate(names, 1):
        if count % apart == 0:
            kept.append(last)
        if len(kept) > KEPT_NAMES:
            kept, apart = kept[1::2], apart * 2
    if last is None:
        return [Span(rows=0)]
    marks = {kept[max(0, len(kept) * part // parts - 1)] for part in range(1, parts)} if kept else set()
    ends = [None, *(cursor_of(name) for name in sorted(marks - {last})), cursor_of(last)]
    return [Span(after=after, until=until) for after, until in pairwise(ends)]


def names_alike(before: Any, after: Any, *ignored: str) -> bool:
    """Return whether two payloads of a listing are the same thing."""
    if not (isinstance(before, dict) and isinstance(after, dict) and "name" in before):
        return False
    one, other = ({name: value for name, value in each.items() if name not in ignored} for each in (before, after))
    return one == other


# -- what was there -----------------------------------------------------------------------------------------------


class Inventory:
    """The identity of a listing: the number of names, a digest over names and marks, and a random sample."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._all = hashlib.blake2b(digest_size=16)
        self._sample: list[int] = []
        """The marks with the smallest digests, negated: a heap with the largest first."""

    def add(self, name: str, item: Any) -> int:
        """Count a name; return its mark."""
        mark = _mark(name, item)
        self.count, self.last = self.count + 1, name
        self._all.update(mark.to_bytes(8, "big"))
        if len(self._sample) < SAMPLES:
            heapq.heappush(self._sample, -mark)
        elif -self._sample[0] > mark:
            heapq.heapreplace(self._sample, -mark)
        return mark

    @property
    def digest(self) -> str:
        return self._all.hexdigest()

    def identity(self, described: dict[str, Any]) -> dict[str, Any]:
        """Return the identity that is stored, with its source."""
        marks = sorted(f"{-mark:016x}" for mark in self._sample)
        last = self.last.encode("utf-8", "surrogateescape").hex()
        return {"count": self.count, "digest": self.digest, "last": last, "marks": marks, "of": names_of(described)}


def names_of(described: dict[str, Any]) -> str:
    """Return the source of an inventory, in short: with another filter, it has other rows."""
    return canonical.digest(canonical.encode(described)).hex()[:16]


def divided(named: Iterable[tuple[str, Any]], parts: int, described: dict[str, Any]) -> list[Span]:
    """Return partitions of about as many names each, with the inventory."""
    seen = Inventory()
    each = (name for name, item in named if seen.add(name, item) >= 0)
    spans = split_names(each, parts)
    for _ in each:  # one partition is made without reading the names
        pass
    known = seen.identity(described)
    return [msgspec.structs.replace(span, identity=known) for span in spans]


def since(named: Iterable[tuple[str, Any]], before: dict[str, Any], handled: int, described: dict[str, Any],
          noun: str) -> Since:  # fmt: skip
    """Return what has changed in a listing. New names are fine; a name that is gone or has other content is not: all
    names up to the last one of then are compared, and those of the sample are searched for."""
    if before.get("of") != names_of(described):
        return Since()
    last = bytes.fromhex(before["last"]).decode("utf-8", "surrogateescape")
    then, count, lost = Inventory(), 0, {int(mark, 16) for mark in before["marks"]}
    for name, item in named:
        count += 1
        if name <= last:
            lost.discard(then.add(name, item))
    if count < before["count"]:
        return Since(f"it has {many(count, noun)}, but had {before['count']:,}")
    if lost or (then.count == before["count"] and then.digest != before["digest"]):
        return Since(f"not every {noun} that it had is still the same: some were replaced or removed")
    return Since(more=max(0, count - max(before["count"], handled)), noun=noun)


def _mark(name: str, item: Any) -> int:
    """Return a name and a mark of its content, as a number: the tag of an object, else the size."""
    content = getattr(item, "content_mark", None) or getattr(item, "size", "")
    text = f"{name}\0{content}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


class File(BaseModel):
    """A file of a folder, as an item. It can be opened like a path; its content is not part of the item."""

    model_config = ConfigDict(frozen=True)

    path: str
    """The path, beginning with the folder as it was given."""
    name: str
    """The path within the folder, with `/` on every system."""
    size: int
    """Its size in bytes."""
    modified_ns: int
    """When it was modified, in nanoseconds since 1970."""

    def __fspath__(self) -> str:
        return self.path

    def read_bytes(self) -> bytes:
        """Return the content."""
        return Path(self.path).read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content as text."""
        return Path(self.path).read_text(encoding)


class Folder:
    """The files of a folder, streamed in the order of their names: `Folder("scans", "*.png")`.

    Each item is an `hf.File`; its key is the path within the folder. Links to folders are not followed.

    Args:
        path: The folder.
        pattern: Which files: a pattern with a slash is matched against the path within the folder, any other against
            the name of the file.
        recursive: False to leave out subfolders.
        hidden: True to include hidden files.
    """

    at_hand = True

    def __init__(self, path: str | PathLike[str], pattern: str = "*", *, recursive: bool = True,
                 hidden: bool = False) -> None:  # fmt: skip
        self.path = Path(path)
        self.pattern = pattern
        self.recursive = recursive
        self.hidden = hidden
        self._what = f"Folder({str(path)!r})"
        if not pattern:
            raise UsageError(f"{self._what}: the pattern is empty; pass '*' for all files")
        # `**/*.png` is often written for "in this folder or below it".
        self._matches = re.compile(translate(pattern.removeprefix("**/"))).match
        self._by_name = "/" not in pattern.removeprefix("**/")

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[File | Malformed]:
        """One File for each; only one folder's list of names is in memory for each level."""
        return (item for _, item in self._named(None))

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """Yield the files whose names come after a cursor, up to another and with it. A file that appears later is seen
        if its name comes after the cursor."""
        return pages_of_names(self._named(name_of(after, self._what)), name_of(until, self._what))

    def split(self, parts: int) -> Sequence[Span]:
        """Return ranges of about as many files each; the last one ends with the last name there is now."""
        return divided(self._named(None), parts, self.describe())

    def since(self, before: dict[str, Any], handled: int) -> Since:
        """Return what became of the files since they were listed. Times of files do not count: `touch` changes no
        content."""
        return since(self._named(None), before, handled, self.describe(), "file")

    def _named(self, after: str | None) -> Iterator[tuple[str, File | Malformed]]:
        """Yield names and items in the order of their names; folders before the cursor are not opened."""
        levels = [("", iter(self._entries(self.path)))]
        while levels:
            within, entries = levels[-1]
            entry = next(entries, None)
            if entry is None:
                levels.pop()
                continue
            name = within + entry
            if entry.endswith("/"):
                if self.recursive and (after is None or name > after or after.startswith(name)):
                    levels.append((name, iter(self._entries(self.path / name))))
            elif after is None or name > after:
                item = self._item(name)
                if item is not None:
                    yield name, item

    def describe(self) -> dict[str, Any]:
        """Return the folder's name and which files of it are meant."""
        return {
            "kind": "folder",
            "name": logical_name(self.path),
            "pattern": self.pattern,
            "recursive": self.recursive,
            "hidden": self.hidden,
        }

    def natural_key(self, value: Any) -> str | None:
        """Return the path within the folder."""
        return value.name if isinstance(value, File) else None

    def alike(self, before: Any, after: Any) -> bool:
        """Return whether two payloads are of the same file: by its name in the folder, and its size. Neither its time
        nor where the folder lies is part of that."""
        return names_alike(before, after, "path", "modified_ns")

    def _entries(self, folder: Path) -> list[str]:
        """Return the names in a folder, those of folders with a slash: in this order, all paths come in the order of
        their text. A name takes a tenth of the memory of a directory entry."""
        try:
            with os.scandir(folder) as found:
                return sorted(_named(each) for each in found if self.hidden or not each.name.startswith("."))
        except FileNotFoundError:
            if folder != self.path:
                return []  # it was removed meanwhile
            why = f"{self._what}: there is no such folder: check the path and the current folder"
            raise NotThereError(why) from None
        except NotADirectoryError:
            raise UsageError(f"{self._what}: {folder} is not a folder") from None
        except PermissionError:
            raise UsageError(f"{self._what}: this user has no permission to read {folder}") from None

    def _item(self, name: str) -> File | Malformed | None:
        """Return the item for a file; None if it does not match."""
        if not self._matches(name.rpartition("/")[2] if self._by_name else name):
            return None
        if not _is_text(name):
            return self._malformed(name, "its name is not valid UTF-8: rename it")
        path = self.path / name
        try:
            info = path.stat()
        except FileNotFoundError:
            return self._malformed(name, "it is a broken link") if path.is_symlink() else None
        except OSError as error:
            return self._malformed(name, f"it cannot be read: {error.strerror}")
        if not S_ISREG(info.st_mode):
            return None
        return File(path=str(path), name=name, size=info.st_size, modified_ns=info.st_mtime_ns)

    def _malformed(self, name: str, why: str) -> Malformed:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        return Malformed(raw=os.fsencode(name), why=why, where=f"{logical_name(self.path)}/{shown}")


def _named(entry: os.DirEntry[str]) -> str:
    return entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


ASKED_FOR = 1000
"""Names in one reply of the bucket."""


class Object(BaseModel):
    """An object of a bucket, as an item. Its content is not part of the item."""

    model_config = ConfigDict(frozen=True)

    url: str
    """Its address."""
    name: str
    """Its whole name in the bucket."""
    size: int
    """Its size in bytes."""
    modified: datetime
    """When it was modified."""
    etag: str | None = None
    """The tag that the bucket gives its content."""

    _options: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def content_mark(self) -> str:
        """A value that changes with the content: the ETag, or for a file its size, because its ETag has its time."""
        return str(self.size) if self.etag is None or self.url.startswith("file:") else self.etag

    def read_bytes(self) -> bytes:
        """Return the content. Credentials come from the environment, or from the source's options."""
        place = base.place_of(self.url)
        if place.scheme == base.FILE:
            return Path(place.path).read_bytes()
        obstore, store = base.library(), base.client(place._replace(path=""), **self._options)
        try:
            return bytes(obstore.get(store, self.name).bytes())
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _trouble(error, self.url, place) from None


class Objects:
    """The objects under a prefix of a bucket, streamed in the order of their names: `Objects("s3://scans/2026/")`.

    Each item is an `hf.Object`; its key is the name. Credentials come from the environment, in the variables that each
    provider's own tools use.

    Args:
        url: The bucket and the prefix: `s3://`, `az://`, `gs://` or `file://`.
        options: Options of obstore, such as `endpoint`, `region` and `allow_http`. They are not stored.
    """

    def __init__(self, url: str, **options: Any) -> None:
        try:
            self.place = base.place_of(url)
        except UsageError as error:
            raise UsageError(f"Objects(…): {error}") from None
        if self.place.scheme != base.FILE:
            base.library()  # a missing library is reported now, not in the middle of a run
        self._options = options
        self._what = f"Objects({self.place.url!r})"

    def __repr__(self) -> str:
        return self._what

    def __iter__(self) -> Iterator[Object | Malformed]:
        """One Object for each."""
        return (item for _, item in self._named(None))

    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        """Yield the objects whose names come after a cursor, up to another and with it. One that appears later is seen
        if its name comes after the cursor."""
        return pages_of_names(self._named(name_of(after, self._what)), name_of(until, self._what))

    def split(self, parts: int) -> Sequence[Span]:
        """Return ranges of about as many objects each, by one listing; the last one ends with the last name there is
        now."""
        return divided(self._named(None), parts, self.describe())

    def since(self, before: dict[str, Any], handled: int) -> Since:
        """Return what became of the objects since they were listed."""
        return since(self._named(None), before, handled, self.describe(), "object")

    def patiently(self, outage: Outage) -> Iterator[Any]:
        """Yield every item of a pipeline; after an outage it is read on where it was."""
        return rows_of(self, outage)

    def describe(self) -> dict[str, Any]:
        """Return the bucket and the place in it."""
        scheme, bucket, path = self.place
        prefix = logical_name(Path(path)) if scheme == base.FILE else path
        return {"kind": "objects", "scheme": scheme, "bucket": bucket, "prefix": prefix}

    def natural_key(self, value: Any) -> str | None:
        """Return the name."""
        return value.name if isinstance(value, Object) else None

    def alike(self, before: Any, after: Any) -> bool:
        """Return whether two payloads are of the same object: by its name, its size and its tag. In a folder the tag
        holds the time, which is not part of that."""
        tag = ["etag"] if self.place.scheme == base.FILE else []
        return names_alike(before, after, "url", "modified", *tag)

    def _named(self, after: str | None) -> Iterator[tuple[str, Object | Malformed]]:
        return self._in_folder(after) if self.place.scheme == base.FILE else self._in_bucket(after)

    def _in_folder(self, after: str | None) -> Iterator[tuple[str, Object | Malformed]]:
        """Yield the names of a folder, which the library lists in any order, in the order of a bucket."""
        for name, item in Folder(self.place.path, hidden=True)._named(after):
            yield name, _of_file(item) if isinstance(item, File) else item

    def _in_bucket(self, after: str | None) -> Iterator[tuple[str, Object]]:
        whole = self.place._replace(path="")
        obstore, store = base.library(), base.client(whole, **self._options)
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
        """Return whether an empty object is a folder marker made by a console: the name that the library reports,
        without its slash, does not exist."""
        obstore = base.library()
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
                "position to resume from; write the names into a file and scan that"
            )


def _not_listed(trouble: Exception) -> Exception:
    """Return a permanent listing error as a refusal of the run: no item is to blame for it."""
    return UsageError(str(trouble)) if isinstance(trouble, Permanent) else trouble


def _is_folder(name: str, size: int, last: str | None) -> bool:
    """Return whether this is the empty object that consoles make for a folder. Its name ends in a slash, which the
    library removes, so that it seems to come too late: after the object or the cursor of that name, or after
    `name.txt`."""
    return last is not None and not size and name <= last < f"{name}/"


def _of_file(file: File) -> Object:
    path = Path(file.path).absolute()
    at = datetime.fromtimestamp(file.modified_ns / 1e9, UTC)
    return Object(
        url=path.as_uri(), name=file.name, size=file.size, modified=at, etag=f"{file.modified_ns:x}-{file.size:x}"
    )


def _trouble(error: Exception, what: str, place: base.BucketPlace) -> Exception:
    """Return the error of the bucket's library, by its kind: its text may contain secrets."""
    kind = type(error).__name__
    if base.has_no_credentials(error):
        return UsageError(base.no_credentials(place))
    if base.needs_http(error):
        return UsageError(base.no_http(place))
    if isinstance(error, FileNotFoundError) or kind == "NotFoundError" or "404 Not Found" in str(error):
        return Permanent("not_found", f"{what}: the bucket or the object does not exist: check the name")
    if base.is_forbidden(error):
        return Permanent("denied", f"{what}: the bucket refuses access ({kind}): check the credentials")
    if kind == "InvalidPathError":
        return UsageError(
            f"{what}: {base.brief(error)}: the bucket has a name that is not a valid path, with an empty part or with "
            "dots: rename the object, or list a place without such a name"
        )
    if kind in {"UnknownConfigurationKeyError", "NotSupportedError"}:
        return UsageError(f"{what}: {kind}: check the URL and the options")
    return Transient(f"{what}: the bucket gave an unexpected answer ({kind})", code="bucket")
