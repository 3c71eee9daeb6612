"""A disk that writes down what SQLite does to it: each write, truncation, sync, new and deleted name, in order.

It is the default VFS while a `Recorder` is open, so the real store runs on it without knowing. What a sync covers is
what SQLite's own unix VFS does: the sync of a new log or journal syncs its folder, too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

BASE = apsw.vfs_names()[0]
FILES = ("", "-wal", "-journal")
"""What is recorded, by what is added to the name of the database."""


class Op(msgspec.Struct, frozen=True):
    """One thing that was done to the disk, or `committed`: the store has told its caller that something is durable."""

    kind: str
    file: str = ""
    offset: int = 0
    """Of a write; of a truncation, the new size."""
    data: bytes = b""


Ignores = Callable[[Op], bool]


def ignore_nothing(op: Op) -> bool:
    return False


class Recorder(apsw.VFS):
    """`ignores` says which syncs a broken disk, or a careless store, leaves out."""

    def __init__(self, path: Path, ignores: Ignores = ignore_nothing) -> None:
        self.path, self.ignores = str(path), ignores
        self.ops: list[Op] = []
        super().__init__("recorder", base=BASE, makedefault=True)

    def note(self, op: Op) -> None:
        if not self.ignores(op):
            self.ops.append(op)

    def suffix(self, name: "str | apsw.URIFilename | None") -> str | None:
        """Which of our files a name means, or None."""
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        rest = text.removeprefix(self.path) if text is not None else None
        return rest if rest in FILES else None

    def xOpen(self, name: "str | apsw.URIFilename | None", flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        file = self.suffix(name)
        if file is None:
            return apsw.VFSFile(BASE, name, flags)
        is_new = not Path(self.path + file).exists()
        opened = RecordedFile(self, file, name, flags)
        if is_new:
            self.note(Op("create", file))
        return opened

    def xDelete(self, name: str, sync_folder: bool) -> None:  # noqa: N802
        super().xDelete(name, sync_folder)
        file = self.suffix(name)
        if file is not None:
            self.note(Op("delete", file))
            if sync_folder:
                self.note(Op("sync folder"))


class RecordedFile(apsw.VFSFile):
    def __init__(self, disk: Recorder, file: str, name: "str | apsw.URIFilename | None", flags: list[int]) -> None:
        self.disk, self.file, self.is_new = disk, file, not Path(disk.path + file).exists()
        super().__init__(BASE, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self.disk.note(Op("write", self.file, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self.disk.note(Op("truncate", self.file, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self.disk.note(Op("sync", self.file))
        if self.is_new:
            self.disk.note(Op("sync folder"))
            self.is_new = False


@contextmanager
def recording(path: Path, ignores: Ignores = ignore_nothing) -> Iterator[Recorder]:
    """A recorder for the database at a path, the default disk until the block ends."""
    disk = Recorder(path, ignores)
    try:
        yield disk
    finally:
        disk.unregister()
