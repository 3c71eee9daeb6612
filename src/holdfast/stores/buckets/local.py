"""A directory as a bucket: one file for each object, with the same compare-and-swap as a bucket in the cloud.

An object is written to a temporary file, synced, and then given its name: by a link, which fails if the name is taken,
or by a rename under a lock file, after the content was compared. The folder is synced before the call returns, and so
was, once, every folder above it. A crash leaves only temporary files, which no listing shows; later writers remove them
once they are old and unlocked.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core.errors import StoreUnavailable, StoreUnusable
from holdfast.stores import faults, filesystem
from holdfast.stores.buckets.base import (
    Found,
    ListedObject,
    ObjectMark,
    WriteLost,
    WriteUnknown,
    check_name,
    check_prefix,
)

TEMPORARY = ".holdfast-tmp"
LOCKS = ".holdfast-locks"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
"""A store belongs to its user: it contains payloads and outputs."""
OLD_SECONDS = 3600.0
"""A younger temporary file is left alone: its owner may be about to lock it."""


class LocalBucket:
    """The objects of one directory, for any number of processes on one host."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(os.path.abspath(folder))
        self.url = f"file://{self._folder}"
        self._is_tidy = False
        self._sure_of: set[Path] = set()
        """Folders that are durable in their parents."""

    def get(self, name: str) -> Found | None:
        data = self._read(name)
        return None if data is None else Found(data, _mark(data))

    def part(self, name: str, start: int, length: int) -> bytes | None:
        with self._in_words(name):
            try:
                with self._path(name).open("rb") as file:
                    file.seek(start)
                    return file.read(length)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def create(self, name: str, data: bytes) -> ObjectMark:
        path = self._path(name)
        with self._in_words(name), self._staged(path, data) as staged:
            faults.reach("bucket.staged")
            try:
                os.link(staged, path)
            except FileExistsError:
                raise WriteLost(f"{self.url}/{name}: it already exists") from None
            self._settle(name, path.parent)
        return _mark(data)

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        path = self._path(name)
        with self._in_words(name), self._staged(path, data) as staged:
            faults.reach("bucket.staged")
            with self._alone(name):
                there = self._read(name)
                if there is None or _mark(there) != mark:
                    raise WriteLost(f"{self.url}/{name}: another process was first")
                staged.replace(path)
                self._settle(name, path.parent)
        return _mark(data)

    def list(self, prefix: str, after: str = "", *, etags: bool = False) -> Iterator[ListedObject]:
        with self._in_words(check_prefix(prefix)):
            names = sorted(name for name in self._names(prefix) if name > after)
        if not etags:
            yield from (ListedObject(name, "") for name in names)
            return
        for name in names:
            data = self._read(name)
            if data is not None:
                yield ListedObject(name, _mark(data).etag)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._in_words(name):
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _sync_folder(path.parent)

    def close(self) -> None:
        """Do nothing: nothing is kept open."""

    # -- helpers ------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self._folder / check_name(name)

    def _read(self, name: str) -> bytes | None:
        with self._in_words(name):
            try:
                return self._path(name).read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def _names(self, prefix: str) -> Iterator[str]:
        for folder, folders, files in os.walk(self._folder / prefix):
            folders[:] = [each for each in folders if not each.startswith(".")]
            within = Path(folder).relative_to(self._folder).as_posix()
            yield from (name if within == "." else f"{within}/{name}" for name in files if not name.startswith("."))

    @contextmanager
    def _staged(self, path: Path, data: bytes) -> Iterator[Path]:
        """Provide the bytes in a durable temporary file; it is removed afterwards if it still has that name."""
        self._make_folder(path.parent)
        temporary = self._folder / TEMPORARY
        self._make_folder(temporary)
        self._tidy(temporary)
        staged = temporary / f"{secrets.token_hex(12)}"
        try:
            with open(staged, "xb", opener=_private) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # the system releases it when this process dies
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                yield staged
        finally:
            staged.unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """Create the folder and its parents, each durable in its parent. An existing folder is not proof: its creator
        may have been killed before it was durable, and everything in it would be lost with it."""
        is_there = folder.is_dir()
        if folder == folder.parent or (is_there and folder in self._sure_of):
            return
        self._make_folder(folder.parent)
        folder.mkdir(mode=PRIVATE_FOLDER if folder.is_relative_to(self._folder) else 0o777, exist_ok=True)
        try:
            _sync_folder(folder.parent)
        except OSError:
            if not is_there or folder.is_relative_to(self._folder):
                raise  # an existing folder above the bucket may not be ours to open
        self._sure_of.add(folder)

    def _tidy(self, temporary: Path) -> None:
        """Remove what killed writers left: old and unlocked files. Once is enough, and errors are ignored."""
        if self._is_tidy:
            return
        self._is_tidy = True
        with suppress(OSError):
            before = time.time() - OLD_SECONDS
            for left in [each for each in temporary.iterdir() if each.stat().st_mtime < before]:
                with suppress(OSError), left.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Take one of 64 lock files, which the system releases when the process dies."""
        folder = self._folder / LOCKS
        self._make_folder(folder)
        number = hashlib.sha256(name.encode()).digest()[0] % 64
        file = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _settle(self, name: str, folder: Path) -> None:
        """Make the new name durable. From here on, the object may survive a power cut or not: a failure is unknown, not
        refused."""
        try:
            faults.reach("bucket.named")
            _sync_folder(folder)
            faults.reach("bucket.durable")
        except OSError as error:
            raise WriteUnknown(f"{self.url}/{name}: its name could not be made durable ({error.strerror})") from error

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreUnavailable(f"{self.url}: the disk is full: free some space, then run again") from error
            if isinstance(error, PermissionError) or error.errno in filesystem.NO_PLACE:
                raise StoreUnusable(f"{self.url} cannot be read and written by this user: {error.strerror}") from error
            raise StoreUnavailable(f"{self.url}/{name}: {error.strerror or error}") from error


def open_to_others(folder: Path) -> str:
    """Return the first folder or file of a directory that other users of the host may read or change; empty if there is
    none."""
    for at, _, files in os.walk(folder):
        for path in (Path(at), *(Path(at, name) for name in files)):
            with suppress(OSError):
                if path.lstat().st_mode & 0o077:
                    return str(path)
    return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)


def _mark(data: bytes) -> ObjectMark:
    return ObjectMark(hashlib.sha256(data).hexdigest())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
