"""The note beside output files that says which batch holds their names.

Names from a template without `{batch}` are the same for every batch, and names with it are the same for batches of one
name in two stores. So one batch holds them: the note names it, and a process that works on that batch keeps a lock on
the note, which the system drops when the process ends. Decisions about the note are made in turn, under a lock on its
folder. On a file system without locks, the note alone decides.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from holdfast.runtime.sinks import disk, names
from holdfast.runtime.sinks.names import FOLDER

WITHOUT_LOCKS = frozenset({
    errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF,
})  # fmt: skip
"""Errors of a system that does not support locks; `EBADF` on NFS, for a file that is not open for writing."""
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
PREFIX = "names-"
"""The prefix of the names of notes."""
TURN_SECONDS = 60.0
"""How long to wait for another process that decides about the note: as long as for the store."""


class NamesHolder(msgspec.Struct, frozen=True):
    """The batch that holds some names."""

    pipeline: str
    batch: str
    uid: str = ""
    """The identity of the batch, which no batch of another store has; empty while the batch is not opened yet."""

    @property
    def whose(self) -> str:
        """Return its part of the staged names."""
        return names.whose(self.pipeline, self.batch)

    def made(self, staged: names.StagedName) -> bool:
        """Return whether an output with this staged name belongs to it, by the name of the batch."""
        return staged.whose in (self.whose, names.whose("", self.batch))

    def may_be(self, other: "NamesHolder") -> bool:
        """Return whether both are one batch, as far as is known."""
        same = (self.pipeline, self.batch) == (other.pipeline, other.batch)
        return same and (not self.uid or not other.uid or self.uid == other.uid)


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a note: the holder, and the names that it holds, relative to the folder of the files."""

    pipeline: str
    batch: str
    uid: str = ""
    template: str = ""
    """Empty in a note of an older version."""
    stage: str = ""

    @property
    def holder(self) -> NamesHolder:
        return NamesHolder(self.pipeline, self.batch, self.uid)

    @property
    def is_old(self) -> bool:
        """Return whether an older version wrote it, which identified batches only by their names."""
        return not self.template

    def covers(self, path: str) -> bool:
        """Return whether a path, relative to the folder of the files, is one of its names."""
        if not self.template:
            return False
        template = names.parse(self.template)
        lead = template.lead(self.batch, self.stage)
        return path.startswith(lead) and names.pattern(template, self.batch, self.stage).matches(path)


class Names:
    """The names that a template makes for one stage of a batch, and the note about their holder."""

    def __init__(self, folder: Path, text: str, template: str, stage: str) -> None:
        self.folder = folder
        self.path = folder / f"{PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        self._template, self._stage = template, stage

    def note(self) -> Note | None:
        """Return the note; None if there is none, or if it cannot be read."""
        return read_note(str(self.path))

    def holder(self) -> NamesHolder | None:
        """Return the batch that the note names."""
        note = self.note()
        return note.holder if note is not None else None

    def taken_from(self, batch: NamesHolder) -> NamesHolder | None:
        """Return the batch that has taken the names from the given one; None if that batch has them, or no batch
        does."""
        holder = self.holder()
        return holder if holder is not None and not holder.may_be(batch) else None

    @contextmanager
    def in_turn(self) -> Iterator[bool]:
        """Decide about the note while no other process does; yields False if the folder cannot be written to."""
        try:
            disk.make_folder(self.folder, mode=0o700)
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            yield False
            return
        try:
            self._wait_for_turn(handle)
            yield True
        finally:
            os.close(handle)

    def _wait_for_turn(self, handle: int) -> None:
        """Wait, but not forever: a process that is stopped in the middle of a decision keeps its turn."""
        patience = time.monotonic() + TURN_SECONDS
        while not _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() >= patience:
                raise TimeoutError(
                    f"another process has kept {self.folder} locked for {TURN_SECONDS:g} s: it may be suspended; "
                    "let it continue (kill -CONT), or end it"
                )
            time.sleep(0.01)

    def is_in_use(self) -> bool:
        """Return whether a running process keeps the note."""
        try:
            with self._open() as file:
                return not _lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _open(self) -> IO[bytes]:
        """Open the note for writing if that is allowed: on NFS, an exclusive lock requires it."""
        try:
            return self.path.open("r+b")
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
        return self.path.open("rb")

    def write(self, holder: NamesHolder) -> None:
        """Make a batch the holder, durably."""
        temp = self.folder / names.temp_name()
        try:
            note = Note(holder.pipeline, holder.batch, holder.uid, self._template, self._stage)
            disk.write_new(str(temp), msgspec.json.encode(note) + b"\n", sync=True, is_output=False)
            temp.replace(self.path)
        finally:
            temp.unlink(missing_ok=True)

    def keep(self) -> IO[bytes] | None:
        """Keep the note until the file is closed: no other process takes the names meanwhile."""
        with suppress(FileNotFoundError, PermissionError):
            file = self.path.open("rb")
            _lock(file.fileno(), fcntl.LOCK_SH)
            return file
        return None


def read_note(path: str) -> Note | None:
    """Return the note in a file; None if there is none, or if it cannot be read."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, msgspec.MsgspecError):
        return _decode(Path(path).read_bytes())
    return None


_decode = msgspec.json.Decoder(Note).decode


def _lock(handle: int, how: int) -> bool:
    """Lock; return False if another process has the lock and the caller does not wait."""
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
    return True


class ListedNotes(msgspec.Struct, frozen=True):
    """The notes of a folder, and when the folder had last changed when they were read."""

    changed_ns: int
    notes: list[Note]


class Rivals:
    """The notes about other batches; read again only for a file that is newer than they are."""

    def __init__(self) -> None:
        self._listed: dict[str, ListedNotes] = {}
        self._folders: dict[str, str] = {}

    def of(self, path: str, me: NamesHolder) -> NamesHolder | None:
        """Return another batch that may have made the file at that path; None if there is no such batch, or no file."""
        try:
            info = os.lstat(path)
        except OSError:
            return None
        folder, name = os.path.split(path)
        whole = f"{self._real(folder)}/{name}"
        for above in _folders_above(whole):
            for note in self._notes(above, info.st_ctime_ns):
                if not note.holder.may_be(me) and note.covers(whole[len(above) + 1 :]):
                    return note.holder
        return None

    def _real(self, folder: str) -> str:
        found = self._folders.get(folder)
        if found is None:
            found = self._folders[folder] = os.path.realpath(folder)
        return found

    def _notes(self, folder: str, named_ns: int) -> list[Note]:
        """Return the notes of a folder that concern a file which got its name at that time."""
        known = self._listed.get(folder)
        if known is None or known.changed_ns < named_ns:
            changed_ns = _changed_ns(folder)
            if known is None or known.changed_ns != changed_ns:
                known = self._listed[folder] = ListedNotes(changed_ns, list(_read(folder)))
        return known.notes


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(f"{folder}/{FOLDER}").st_mtime_ns  # noqa: PTH116 - making a Path takes longer than the call
    except OSError:
        return 0


def _folders_above(path: str) -> Iterator[str]:
    while (at := path.rfind("/")) > 0:
        path = path[:at]
        yield path


def _read(folder: str) -> Iterator[Note]:
    try:
        with os.scandir(f"{folder}/{FOLDER}") as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and (note := read_note(entry.path)) is not None:
                    yield note
    except OSError:
        return
