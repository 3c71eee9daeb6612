"""Files that other batches have made under names that a batch makes, too.

Two templates, or one with two batches, can make the same name: `{batch}-{key}` does for batch `a` with key `b-c` and
batch `a-b` with key `c`. So before a file is replaced, the notes in every folder above it are asked whether it may be
an output of another batch. A note is written before its batch has any file, and giving a file its name changes the
folder that it was staged in. So notes that were read when their folder was changed last after the file got its name
are all that concern it: a file that is there already costs a few looks at the disk, and mostly no more.
"""

import os
from collections.abc import Iterator

import msgspec

from holdfast.runtime.sinks.holder import PREFIX, Holder, Note, read_note
from holdfast.runtime.sinks.names import FOLDER


class Listed(msgspec.Struct, frozen=True):
    """The notes of a folder, and when it had been changed last as they were read."""

    changed_ns: int
    notes: list[Note]


class Rivals:
    """What the notes say; read again only for a file that is newer than they are."""

    def __init__(self) -> None:
        self._listed: dict[str, Listed] = {}
        self._folders: dict[str, str] = {}

    def of(self, path: str, me: Holder) -> Holder | None:
        """Return another batch that may have made the file of that path; None without such a batch, or without a
        file."""
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
        """Return the notes of a folder that concern a file that got its name at some time."""
        known = self._listed.get(folder)
        if known is None or known.changed_ns < named_ns:
            changed_ns = _changed_ns(folder)
            if known is None or known.changed_ns != changed_ns:
                known = self._listed[folder] = Listed(changed_ns, list(_read(folder)))
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
