"""Operations on a disk: write and sync files, sync and make folders, compare a file with its evidence."""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.core import canonical
from holdfast.core.verify import GONE
from holdfast.runtime.sinks.base import Evidence, Identity, Obstructed
from holdfast.stores import faults

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# On macOS fsync leaves the data in the drive's cache; this call does not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def write_new(path: str, data: bytes, *, sync: bool, is_output: bool = True) -> os.stat_result:
    """Write a file that does not exist yet, with the default permissions; synced if requested."""
    handle = os.open(path, _NEW_FILE, 0o666)
    try:
        _write_all(handle, data)
        if is_output:
            faults.reach("sink.temp")
        if sync:
            sync_handle(handle)
        return os.fstat(handle)
    finally:
        os.close(handle)


def sync_handle(handle: int) -> None:
    """Return when the content is on the disk itself. A failed sync is never retried on the same file."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(handle, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(handle)


def sync_folders(folders: Iterable[Path | str]) -> None:
    """Return when the names in these folders are on the disk."""
    for folder in folders:
        with _opened(folder) as handle:
            try:
                sync_handle(handle)
            except OSError as error:
                # Some file systems have no such call for folders: they write names at once, or cannot promise more.
                if error.errno != errno.EINVAL:
                    raise


def make_folder(folder: Path, *, mode: int = 0o777) -> set[Path]:
    """Make a folder and its missing parents; return the folders that have a new name in them."""
    missing = []
    at = folder
    while not at.exists() and at != at.parent:
        missing.append(at)
        at = at.parent
    for path in reversed(missing):
        path.mkdir(mode=mode if path == folder else 0o777, exist_ok=True)
    return {path.parent for path in missing}


def is_as_left(path: str, evidence: Evidence) -> bool:
    """Return whether a file is the one that was written, by its size, time and inode; it is not read."""
    try:
        info = os.stat(path)  # noqa: PTH116 - making a Path takes longer than the call
    except OSError:
        return False
    left = (info.st_size, info.st_mtime_ns, info.st_ino)
    return left == (evidence.size, evidence.mtime_ns, evidence.inode) and stat.S_ISREG(info.st_mode)


def identity(path: str) -> Identity | None:
    """Return the identity of the file with that name; None if there is none."""
    try:
        info = os.stat(path)  # noqa: PTH116 - making a Path takes longer than the call
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns, info.st_ino


def difference(path: Path, evidence: Evidence, *, full: bool) -> str | None:
    """Return how a file differs from its evidence, or None.

    The content is read if `full` is set, or if the file or its time is another: a copy restored from a backup is still
    the same output, and reading it is cheaper than making it again.
    """
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            is_folder = stat.S_ISDIR(info.st_mode)
            return Obstructed("there is a folder in its place") if is_folder else "it is not a plain file"
        if info.st_size != evidence.size:
            return f"its size differs: {info.st_size:,} bytes, {evidence.size:,} recorded"
        if (info.st_mtime_ns, info.st_ino) == (evidence.mtime_ns, evidence.inode) and not full:
            return None
        return None if digest_of(path) == evidence.digest else "its content differs"
    except (FileNotFoundError, NotADirectoryError):
        return GONE
    except PermissionError as error:
        return Obstructed(f"it cannot be read: {error.strerror}")


def digest_of(path: Path) -> bytes:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@contextlib.contextmanager
def _opened(folder: Path | str) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    """Write everything: a full disk may accept a part first, so repeat until it accepts the rest or raises."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def encode_content(output: bytes, *, is_json: bool) -> tuple[bytes, bool]:
    """Return the bytes for the file, and whether they are plain text. `is_json`: the file name ends in `.json`."""
    text = None if is_json else _plain_text(output)
    return (output + b"\n", False) if text is None else (text, True)


def decode_content(data: bytes, *, is_text: bool) -> bytes:
    """Return the JSON bytes of the output: exactly those that were passed to `encode_content`. A file of another
    program may lack the final line end."""
    if is_text:
        return canonical.encode(data.decode("utf-8"))
    return data.removesuffix(b"\n")


def _plain_text(output: bytes) -> bytes | None:
    """Return the text of a JSON string; None for other values, and for a spelling that would not be reproduced."""
    if not output.startswith(b'"'):
        return None
    try:
        text = canonical.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return text.encode("utf-8") if canonical.encode(text) == output else None
