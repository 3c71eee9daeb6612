"""The place that an export is written to: a file that is replaced as a whole, a FIFO, or a stream of the caller."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from holdfast.core.errors import StoreError, UsageError
from holdfast.core.retry import host_trouble
from holdfast.runtime.sinks import disk
from holdfast.stores import filesystem


@contextmanager
def whole_or_absent(path: Path) -> Iterator[IO[bytes]]:
    """Open a stream to a file that gets its name, or its new content, only when all of it is on disk. A link is
    followed, and a file keeps its permissions. A FIFO or a terminal is written to directly."""
    with _in_words(path):
        found = _look(path)
        if found is None or stat.S_ISREG(found.st_mode):
            with _replacement(filesystem.behind(path), found) as stream:
                yield stream
        elif is_stream(path):
            with path.open("wb") as stream:
                yield stream
        else:
            raise UsageError(f"{path} is {'a directory' if stat.S_ISDIR(found.st_mode) else 'a device'}: name a file")


@contextmanager
def _replacement(path: Path, before: os.stat_result | None) -> Iterator[IO[bytes]]:
    temp = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.tmp")
    try:
        with temp.open("xb") as stream:
            if before is not None:
                temp.chmod(stat.S_IMODE(before.st_mode))
            yield stream
            stream.flush()
            disk.sync_handle(stream.fileno())
        temp.replace(path)
        disk.sync_folders([path.parent])
    finally:
        temp.unlink(missing_ok=True)


def _look(path: Path) -> os.stat_result | None:
    """Return what is at a path, or where its links lead; None if nothing can be seen there."""
    try:
        return path.stat()
    except OSError:
        return None
    except ValueError as error:
        raise UsageError(f"{str(path)!r} cannot be the name of a file: {error}; name another") from None


def is_stream(path: Path) -> bool:
    """Return whether a path is written to as it is: a FIFO or a terminal."""
    found = _look(path)
    return found is not None and (stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode))


@contextmanager
def given(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """Write to a stream of the caller, which stays open."""
    with _in_words(Path("the stream")):
        yield stream


@contextmanager
def _in_words(place: Path) -> Iterator[None]:
    """Turn an OSError from writing into an error that says what to do. A broken pipe passes: its reader has left."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"the folder {place.parent} does not exist: create it first") from None
    except PermissionError:
        raise UsageError(f"this user has no permission to write to {place}: name another file") from None
    except OSError as error:
        what = host_trouble(error) or f"{error.strerror or error}: name another file"
        raise StoreError(f"{place} could not be written: {what}, then write it again") from error
