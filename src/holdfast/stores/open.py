"""The way from a `store=` argument to a store; only the requested kind is imported.

A package may provide its own stores: an entry point in the group `holdfast.stores`, whose name is a scheme, names a
function that takes the whole URL and `must_exist`, and returns the open store. It cannot replace our own schemes.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from holdfast.core.errors import Refused, UsageError
from holdfast.stores import filesystem
from holdfast.stores.base import Capabilities, Store
from holdfast.stores.buckets import base
from holdfast.stores.buckets.base import Bucket

DEFAULT = ".holdfast/state.db"
LATER = ("postgresql", "postgres")
GROUP = "holdfast.stores"
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+")
OWN = ("sqlite", "memory", base.FILE, *base.SCHEMES)
Factory = Callable[..., Store]
"""The function of an entry point: `factory(url, must_exist=False)`. Its `capabilities` are read without opening a
store."""


def open_store(where: "str | Path | Store | None" = None, *, must_exist: bool = False) -> Store:
    """Return the store at a path or URL; without one, at $HOLDFAST_STORE, else `.holdfast/state.db` in this
    directory."""
    where = named(where)
    if not isinstance(where, str | Path):
        return where
    if is_bucket(where):
        return _open_bucket(str(where), must_exist=must_exist)
    if (factory := _factory_of(str(where))) is not None:
        return factory(str(where), must_exist=must_exist)
    path = _path(str(where))
    if path is None:
        from holdfast.stores.memory import MemoryStore

        return MemoryStore()
    if must_exist and not filesystem.is_there(path):
        if filesystem.is_there(path.parent) and not os.access(path.parent, os.X_OK):
            raise UsageError(f"{path.parent} cannot be read by this user: run as the user that owns the store")
        raise UsageError(
            f"there is no store at {path}: run a pipeline first, or name another with --store or $HOLDFAST_STORE"
        )
    from holdfast.stores.sqlite import SqliteStore

    return SqliteStore(path)


def preload(where: "str | Path | Store | None" = None) -> None:
    """Import what a store in a file needs without opening it, so that a run does not wait for imports."""
    where = named(where)
    if isinstance(where, Path) or (isinstance(where, str) and (":" not in where or where.startswith("sqlite:"))):
        import holdfast.stores.sqlite  # noqa: F401 - imported for later use


def path_of(where: "str | Path | Store | None" = None) -> Path | None:
    """Return the file of a store, existing or not; None if it is in memory, in a bucket, or already open."""
    where = named(where)
    is_file = isinstance(where, str | Path) and not is_bucket(where) and _factory_of(str(where)) is None
    return _path(str(where)) if is_file else None


def is_there(where: "str | Path | Store | None" = None) -> bool:
    """Return whether a store exists there; nothing is created."""
    where = named(where)
    if not isinstance(where, str | Path):
        return True
    if is_bucket(where):
        return _is_in_bucket(bucket_at(str(where)))
    if (factory := _factory_of(str(where))) is not None:
        return _can_be_opened(factory, str(where))
    path = _path(str(where))
    return path is not None and filesystem.is_there(path)


def capabilities_of(where: "str | Path | Store | None" = None) -> Capabilities:
    """Return the capabilities of a store without opening it."""
    where = named(where)
    if not isinstance(where, str | Path):
        return getattr(where, "capabilities", Capabilities())  # a third-party store may predate the attribute
    if not is_bucket(where):
        return getattr(_factory_of(str(where)), "capabilities", Capabilities())
    from holdfast.stores.bucket.store import CAPABILITIES

    return CAPABILITIES


def is_bucket(where: "str | Path | Store | None" = None) -> bool:
    """Return whether the store is in a bucket, or in a directory that is used like one."""
    where = named(where)
    return isinstance(where, str) and base.is_place(where)


def bucket_at(url: str) -> Bucket:
    """Return the bucket of a URL, without contacting it."""
    place = base.place_of(url)
    if place.scheme == base.FILE:
        if kind := filesystem.network_of(Path(place.path)):
            raise Refused(
                f"{url} is on a network file system ({kind}), where locks of other hosts may be invisible: put it on a "
                "local disk, or in a bucket"
            )
        from holdfast.stores.buckets.local import LocalBucket

        return LocalBucket(place.path)
    from holdfast.stores.buckets.obstore import ObstoreBucket

    return ObstoreBucket(url)


def _open_bucket(url: str, *, must_exist: bool) -> Store:
    bucket = bucket_at(url)
    if must_exist and not _is_in_bucket(bucket):
        raise UsageError(
            f"there is no store at {bucket.url}: run a pipeline first, or name another with --store or $HOLDFAST_STORE"
        )
    from holdfast.stores.bucket import BucketStore

    return BucketStore(bucket)


def _is_in_bucket(bucket: Bucket) -> bool:
    from holdfast.stores.bucket.cas import is_store_there

    return is_store_there(bucket)


def _factory_of(where: str) -> Factory | None:
    """Return the function with which an installed package opens stores of that scheme; None for a path or our
    schemes."""
    scheme, colon, _ = where.partition(":")
    if not colon or scheme in OWN or SCHEME.fullmatch(scheme) is None:
        return None
    from importlib.metadata import entry_points

    found = {each.value: each for each in entry_points(group=GROUP, name=scheme)}
    if len(found) > 1:
        raise UsageError(f"store {scheme}:… is claimed by {' and '.join(sorted(found))}: uninstall all but one of them")
    for point in found.values():
        factory: Factory = point.load()
        return factory
    return None


def _can_be_opened(factory: Factory, where: str) -> bool:
    try:
        factory(where, must_exist=True).close()
    except UsageError:
        return False
    return True


def named(where: "str | Path | Store | None") -> "str | Path | Store":
    """Return the store that is meant; without one, the default."""
    if where is None:
        return os.environ.get("HOLDFAST_STORE") or DEFAULT
    if not isinstance(where, str | Path) and not hasattr(where, "batches"):
        raise UsageError(f"a {type(where).__name__} is not a store: pass a path, a URL as a text, or an open store")
    return where


def _path(text: str) -> Path | None:
    """Return the file that a path or URL names; None for a store in memory."""
    scheme, colon, rest = text.partition(":")
    if text in ("memory:", "memory://"):
        return None
    if colon and (scheme in LATER or (rest.startswith("//") and scheme != "sqlite")):
        raise UsageError(
            f"store {scheme}:… is not known to this version of Holdfast: name a file, for example {DEFAULT}, or "
            "a place in a bucket: s3://…, az://…, gs://…, or file:///… for a directory; or install a package that "
            "provides such stores"
        )
    return _of_sqlite(rest) if scheme == "sqlite" and colon else _file(text)


def _file(text: str) -> Path:
    """Return the file of a store as a person writes it."""
    if text == ":memory:":
        raise UsageError("store :memory: is how SQLite names it: write memory: for a store in memory")
    try:
        if b"\0" in os.fsencode(text):
            raise ValueError("it contains a NUL")
        return Path(text).expanduser()
    except (ValueError, RuntimeError) as error:  # RuntimeError: the home of an unknown user
        raise UsageError(f"store {text!r} is not the name of a file: {error}; name one, such as {DEFAULT}") from None


def _of_sqlite(rest: str) -> Path:
    """Return the file of a `sqlite:` URL, as elsewhere in Python: `sqlite:///state.db` is in this folder,
    `sqlite:////srv/state.db` is an absolute path. The first form used to mean `/state.db`: if only that file exists,
    refuse to guess."""
    if "?" in rest or (rest.startswith("//") and not rest.startswith("///")):  # it may contain a password
        raise UsageError(
            "store sqlite:… takes no user, host or options: write sqlite:///state.db for a file in this folder, "
            "or sqlite:////srv/state.db for a whole path"
        )
    if not rest.startswith("//"):
        return _file(rest)
    path, before = _file(rest[3:]), Path(rest[2:])
    if not path.is_absolute() and filesystem.is_there(before) and not filesystem.is_there(path):
        raise Refused(
            f"store sqlite:{rest} means {path} in this folder, which does not exist; {before} exists, which it used to "
            f"mean: write sqlite:///{before} for that one, or {path} for a new one here"
        )
    return path
