"""Outputs as files of the user: one file per item, whole or absent, and checked before it counts.

An output is written to a temporary name, synced, and renamed to a staged name in a hidden folder `.holdfast`, beside
the user's files and therefore on the same file system. One sync of that folder makes a group durable; then the store
commits; then the files get the user's names. Outputs are never edited or deleted here, only replaced by newer outputs
of the same name and batch; only temporary files are removed. A file that may belong to another batch is never replaced
(`name_notes.py`): its item is a dead letter before it costs anything, or keeps its staged name.

Assumption: after a power loss a rename has happened or has not; the file has one of its two names. Journaling file
systems (ext4, XFS, Btrfs, APFS, ZFS) guarantee that for a rename between folders; POSIX does not require it. So a lost
final name does no harm while batches are resumed: `check` finds the staged file and publishes it. Still `publish` syncs
each final folder once per group unless asked not to: then a published file stays published even if the batch is never
resumed, and on any file system the window is as small as possible.

Limits of a file system: it cannot refuse a process that was stopped between its commit and its rename, woke up much
later, and now replaces a newer output of the same item. That is noticed, not prevented: `check` finds another file than
the recorded one. The same holds for two batches that give one free name to their files in the same instant.
"""

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.core import canonical
from holdfast.core.errors import NotOurs, Permanent, SinkError, Superseded, UsageError
from holdfast.runtime.sinks import disk, names
from holdfast.runtime.sinks.base import Evidence, Identity, Leftover, Obstructed, Provenance, TakenOver
from holdfast.runtime.sinks.disk import decode_content, encode_content
from holdfast.runtime.sinks.name_notes import Names, NamesHolder, Rivals
from holdfast.stores import faults


class Files:
    """A sink that writes one file per output: `Files("out/{batch}/page_{key:04d}.json")`.

    A name that ends in `.json` holds JSON; in any other file, a text output is written as it is. File names belong to
    the first batch that recorded a file under them.

    Args:
        template: The path, with the fields `{key}`, which must occur, `{batch}` and `{stage}`; `{key:04d}` pads whole
            numbers. A relative path begins in the folder that was current when the sink was defined.
        sync: False for files that survive the death of the process, but not a power loss.
        replaces: True if a new batch may take the names from the one before it, whose outputs are then superseded.
    """

    def __init__(self, template: str | os.PathLike[str], *, sync: bool = True, replaces: bool = False) -> None:
        self.template = names.parse(_as_text(template))
        self.sync = sync
        self.replaces = replaces
        self._base = _here()
        self._root = str(self._base)
        self._folder_written = str(Path(self.template.folder, names.FOLDER))
        self._folder = self._at(self._folder_written)
        self._lock = threading.Lock()
        self._made = False
        self._unsynced: set[Path] = set()
        self._found: dict[str, list[names.StagedName]] | None = None
        self._owners: dict[str, Owner] = {}
        self._rivals = Rivals()

    def __repr__(self) -> str:
        return f"Files({self.template.text!r})"

    @property
    def folder(self) -> Path:
        """The folder that its files are in, or begin in."""
        return self._at(self.template.folder)

    def describe(self) -> dict[str, Any]:
        """Return what is remembered of the sink with its batch."""
        return {"kind": "files", "template": self.template.text}

    # -- before the commit ----------------------------------------------------------------------------------------

    def stage(self, place: Provenance, output: bytes, note: bytes = b"") -> Evidence:
        """Write an output under its staged name; `sync_folders` makes that name durable, and the note in it."""
        final = self.template.path(place)
        data, is_text = encode_content(output, is_json=self.template.is_json)
        digest = sha256(data).digest()
        name = names.staged_name(place, digest, note, is_text=is_text)
        self._make_folder()
        temp = f"{self._folder}/{names.temp_name()}"
        try:
            info = disk.write_new(temp, data, sync=self.sync)
            os.replace(temp, f"{self._folder}/{name}")
        except BaseException:
            self._made = False  # perhaps the folder was removed: the next output makes it again
            with suppress(OSError):
                os.unlink(temp)
            raise
        evidence = self._evidence(final, name, info, digest, is_text=is_text)
        return self._with_leave(evidence, place) if place.epoch else evidence

    def sync_folders(self, evidence: Sequence[Evidence]) -> None:
        """Make the staged names of a group durable, each folder once."""
        if not evidence:
            return
        if self.sync:
            with self._lock:
                disk.sync_folders(self._unsynced)
                self._unsynced = set()
            disk.sync_folders({os.path.join(self._base, os.path.dirname(each.staged)) for each in evidence})
        faults.reach("sink.staged")

    def find(self, place: Provenance) -> Evidence | None:
        """Return an output staged for this place by a run that could not record it; costs nothing where nothing was
        left."""
        final = self.template.path(place)
        self._check_name(place, final)
        known = self._found if self._found is not None else self._list()
        if not known:
            return None
        for left in known.get(names.origin(place), ()):
            found = self._adoptable(left, final)
            if found is not None:
                return self._with_leave(found, place) if place.epoch else found
        return None

    def observe(self, place: Provenance, *, is_text: bool = False) -> Evidence | None:
        """Evidence of the file that has the final name now, no matter what wrote it."""
        final = self.template.path(place)
        try:
            with self._at(final).open("rb") as file:
                data, info = file.read(), os.fstat(file.fileno())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SinkError(f"{final}: it cannot be read ({error.strerror})") from None
        digest = sha256(data).digest()
        name = names.staged_name(place, digest, is_text=is_text)
        return self._evidence(final, name, info, digest, is_text=is_text)

    def note(self, evidence: Evidence) -> bytes:
        """Return the note in the staged name: it came into being together with the output."""
        said = names.parse_staged(Path(evidence.staged).name)
        return said.note if said is not None else b""

    def look_again(self) -> None:
        """Forget the listing that `find` goes by; call it when a chunk was taken over from another worker."""
        self._found = None

    # -- after the commit -----------------------------------------------------------------------------------------

    def publish(self, evidence: Sequence[Evidence], *, sync: bool = True) -> None:
        """Give staged outputs their final names; done again, it changes nothing."""
        folders: set[str] = set()
        trouble: OSError | None = None
        for each in evidence:
            try:
                folders |= self._publish(each)
                faults.reach("sink.published")
            except OSError as error:  # one bad name must not keep the others of its group from their names
                trouble = trouble if trouble is not None else error
        if sync and self.sync:
            disk.sync_folders(folders)
        if trouble is not None:
            raise trouble

    def check(self, evidence: Evidence, *, full: bool, publish: bool = True) -> str | None:
        """Return why the output no longer counts, or None; one that was never published is published, unless told not
        to."""
        if not full and disk.is_as_left(os.path.join(self._base, evidence.final), evidence):
            return None
        final, staged = self._at(evidence.final), self._at(evidence.staged)
        found = disk.difference(final, evidence, full=full)
        if found is None:
            return None
        taken = self.taken_by(evidence)
        if disk.difference(staged, evidence, full=full) is not None:
            again = disk.difference(final, evidence, full=full)  # another run may just have published it
            return again if again is None or taken is None else TakenOver(_superseded(taken))
        if taken is not None:
            return None  # it keeps its staged name: the final one belongs to another batch now
        if (rival := self._rival(evidence)) is not None:
            return Obstructed(_in_place(rival))
        try:
            if publish:
                self.publish([evidence])
        except OSError:
            if isinstance(found, Obstructed):
                return found
            raise
        return None

    def read(self, evidence: Evidence) -> bytes:
        """Return the JSON bytes of the output, exactly as they were staged."""
        final, staged = self._at(evidence.final), self._at(evidence.staged)
        for path in (final, staged, final):  # another run may publish it between two reads
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                data = path.read_bytes()
                if sha256(data).digest() == evidence.digest:
                    return decode_content(data, is_text=evidence.is_text)
        if (taken := self.taken_by(evidence)) is not None:
            raise Superseded(f"{evidence.final}: {_superseded(taken)}")
        reason = disk.difference(final, evidence, full=True) or "it was changed while it was read"
        raise SinkError(f"{evidence.final}: {reason}; `holdfast reconcile … --full --repair` makes it again")

    def names_of(self, stage: str, batch: str) -> Names:
        """Return the names of its files for a stage of a batch, which one batch holds."""
        return Names(self._folder, self.template.shared(stage, batch), self.template.tail, stage)

    def know(self, owner: "Owner") -> None:
        """Know a batch that writes here: its identity, and what it has recorded."""
        self._owners[owner.holder.whose] = owner

    def taken_by(self, evidence: Evidence) -> NamesHolder | None:
        """Return the batch that has taken the name of an output since; None where it still has its name."""
        staged = names.parse_staged(os.path.basename(evidence.staged))
        if staged is None:
            return None
        owner = self._owners.get(staged.whose)
        if owner is not None:
            return self.names_of(staged.stage, owner.holder.batch).taken_from(owner.holder)
        holder = None if self.template.has_batch else self.names_of(staged.stage, "").holder()
        return None if holder is None or holder.made(staged) else holder

    def is_as_left(self, evidence: Evidence) -> bool:
        """Tell whether the file is the one that was recorded, at a glance."""
        return disk.is_as_left(os.path.join(self._base, evidence.final), evidence)

    def changed(self, evidence: Sequence[bytes], *, batch: str, stage: str) -> list[int]:
        """Return the positions of those outputs that a quick look does not confirm: one `stat` for each of them."""
        return changed_files(str(self._base), self.pattern(batch, stage).prefix, evidence)

    # -- what is left behind --------------------------------------------------------------------------------------

    def leftovers(self) -> list[Leftover]:
        """Return every file of ours that is there now, by name; some may belong to a run that is at work."""
        found = []
        for entry in self._entries():
            kind = names.kind_of(entry.name)
            if kind is None:
                continue
            with suppress(FileNotFoundError):  # a running process has renamed it meanwhile
                info = entry.stat(follow_symlinks=False)
                path = f"{self._folder_written}/{entry.name}"
                found.append(Leftover(path=path, kind=kind, size=info.st_size, mtime_ns=info.st_mtime_ns))
        return sorted(found, key=lambda left: left.path)

    def sweep(self, *, older_than: float, now: float) -> list[Leftover]:
        """Remove temporary files that nobody has written for so many seconds; returns them.

        Staged files are left alone: only a run knows whether they are recorded.
        """
        swept = []
        for left in self.leftovers():
            if left.kind == "temp" and now - left.mtime_ns / 1e9 > older_than:
                self._at(left.path).unlink(missing_ok=True)
                swept.append(left)
        return swept

    def pattern(self, batch: str, stage: str) -> names.Pattern:
        """Return the names that its files can have for a stage of a batch."""
        return names.pattern(self.template, batch, stage)

    def count(self, batch: str, stage: str) -> int:
        """Return how many files have names of a stage of a batch, ours or not."""
        return names.count_files(str(self._base), self.pattern(batch, stage))

    def named_alike(self, batch: str, stage: str) -> Iterator[str]:
        """Yield every file that has a name which an output of that stage of that batch could have."""
        return names.walk_files(str(self._base), self.pattern(batch, stage))

    def has(self, path: str) -> bool:
        """Return whether anything has this name."""
        return os.path.lexists(self._at(path))

    # -- names that others have ------------------------------------------------------------------------------------

    def check_name(self, place: Provenance) -> None:
        """Refuse an item whose file would replace one of another batch."""
        self._check_name(place, self.template.path(place))

    def own_file(self, place: Provenance) -> Identity | None:
        """Return which file under the name is the older output of an item that was sent back, by the record; None
        without one, or where no other batch may have made the file that is there."""
        final = self.template.path(place)
        return self._own_file(place, final) if self._rival_of(place, final) is not None else None

    def _check_name(self, place: Provenance, final: str) -> None:
        """Refuse an item before it costs anything. An item that was never sent back has no file yet; for others the
        record is used, and a worker process gets it with the item."""
        rival = self._rival_of(place, final)
        if rival is None or self._own_file(place, final) is not None:
            return
        raise Permanent(
            "name_taken",
            f"{final}: {_in_place(rival)}, so nothing was made of item {canonical.key_text(place.key)!r}. Give each "
            f'batch a folder of its own, such as hf.Files("{self.template.by_batch}"), or move that file away; then '
            "redrive the item",
        )

    def _rival_of(self, place: Provenance, final: str) -> NamesHolder | None:
        """Return another batch whose file may be under the name of an item."""
        path = os.path.join(self._root, final)
        if not os.access(path, os.F_OK):  # the usual case, and quicker than an exception
            return None
        owner = self._owners.get(names.whose(place.pipeline, place.batch))
        return self._rivals.of(path, owner.holder if owner is not None else NamesHolder(place.pipeline, place.batch))

    def _own_file(self, place: Provenance, final: str) -> Identity | None:
        if place.replaces is not None or not place.epoch:
            return place.replaces
        owner = self._owners.get(names.whose(place.pipeline, place.batch))
        before = owner.recorded(place.n, place.stage) if owner is not None else None
        if before is None or before.final != final:
            return None
        there = disk.identity(os.path.join(self._root, final))
        if there == before.replaces:  # its newer output never got the name
            return there
        return there if disk.difference(self._at(final), before, full=False) is None else None

    def _with_leave(self, evidence: Evidence, place: Provenance) -> Evidence:
        """Note which file it may replace: after the commit it is no longer in the record."""
        own = place.replaces if place.replaces is not None else self.own_file(place)
        return msgspec.structs.replace(evidence, replaces=own) if own is not None else evidence

    def _rival(self, evidence: Evidence) -> NamesHolder | None:
        """Return another batch whose file may be under the name of a staged output."""
        final = os.path.join(self._root, evidence.final)
        if not os.access(final, os.F_OK):
            return None
        if evidence.replaces is not None and evidence.replaces == disk.identity(final):
            return None
        staged = names.parse_staged(os.path.basename(evidence.staged))
        owner = self._owners.get(staged.whose) if staged is not None else None
        return self._rivals.of(final, owner.holder) if owner is not None else None

    # -- helpers --------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> Path:
        return self._base / path

    def _evidence(self, final: str, name: str, info: os.stat_result, digest: bytes, *, is_text: bool) -> Evidence:
        return Evidence(
            final=final, staged=f"{self._folder_written}/{name}", size=info.st_size, mtime_ns=info.st_mtime_ns,
            inode=info.st_ino, digest=digest, is_text=is_text,
        )  # fmt: skip

    def _make_folder(self) -> None:
        if self._made:
            return
        with self._lock:
            # The folder above is always synced: another process may have made this one and died before the sync.
            self._unsynced |= disk.make_folder(self._folder, mode=0o700) | {self._folder.parent}
            self._made = True

    def _publish(self, evidence: Evidence) -> set[str]:
        """Rename one output; return the folders that have new names."""
        staged, final = os.path.join(self._root, evidence.staged), os.path.join(self._root, evidence.final)
        folder = os.path.dirname(final)
        if (rival := self._rival(evidence)) is not None and os.path.exists(staged):
            raise FileExistsError(errno.EEXIST, _in_place(rival), evidence.final)
        try:
            os.replace(staged, final)
        except FileNotFoundError:
            if os.path.exists(staged):
                made = disk.make_folder(Path(folder))
                os.replace(staged, final)
                return {folder, *map(str, made)}
            if not (os.path.isfile(final) and os.path.getsize(final) == evidence.size):
                raise
        return {folder}

    def _adoptable(self, left: names.StagedName, final: str) -> Evidence | None:
        """Return the evidence of a leftover, if its content matches its name. It is synced, because its run may have
        died before that."""
        try:
            with (self._folder / left.name).open("rb") as file:
                data = file.read()
                info = os.fstat(file.fileno())
                if self.sync:
                    disk.sync_handle(file.fileno())
        except FileNotFoundError:
            return None
        digest = sha256(data).digest()
        if digest.hex()[:32] != left.digest:
            return None
        return self._evidence(final, left.name, info, digest, is_text=left.is_text)

    def _list(self) -> dict[str, list[names.StagedName]]:
        """Return the staged files by origin, those of the newest fence first."""
        found: dict[str, list[names.StagedName]] = {}
        for entry in self._entries():
            left = names.parse_staged(entry.name)
            if left is not None:
                found.setdefault(left.origin, []).append(left)
        for group in found.values():
            group.sort(key=lambda left: -left.fence)
        self._found = found
        return found

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as entries:
                yield from entries
        except FileNotFoundError:
            return


class Owner(Protocol):
    """A running batch, as a sink knows it."""

    holder: NamesHolder

    def recorded(self, n: int, stage: str) -> Evidence | None:
        """Return the evidence of the recorded output of an item."""
        ...


def _in_place(rival: NamesHolder) -> str:
    return f"a file is there that may be an output of batch {rival.batch!r} of pipeline {rival.pipeline!r}"


def _superseded(holder: NamesHolder) -> str:
    return f"it was superseded by batch {holder.batch!r} of pipeline {holder.pipeline!r}, which has its name now"


def _as_text(template: object) -> str:
    text = os.fspath(template) if isinstance(template, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise UsageError(f'Files({template!r}): pass a path with {{key}} in it, such as "out/{{key}}.json"')
    return text


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder no longer exists, nothing can be written there: change it") from None


class FileGlance(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of the evidence of a file: see `Evidence`."""

    final: str
    staged: msgspec.Raw
    size: int
    mtime_ns: int
    inode: int


_decode = msgspec.msgpack.Decoder(FileGlance).decode


def changed_files(base: str, prefix: str, evidence: Sequence[bytes]) -> list[int]:
    """Return the positions of files that differ from the recorded ones by size, time or inode, or that are not below
    the prefix; all others are there."""
    stat, at, found = os.stat, "" if prefix.startswith("/") else f"{base}/", []
    try:
        for position, data in enumerate(evidence):
            seen = _decode(data)
            try:
                info = stat(at + seen.final)
            except OSError:
                found.append(position)
                continue
            if (
                info.st_mtime_ns != seen.mtime_ns
                or info.st_ino != seen.inode
                or info.st_size != seen.size
                or not seen.final.startswith(prefix)
            ):
                found.append(position)
    except msgspec.MsgspecError as error:
        raise NotOurs(f"the store holds evidence of a file that cannot be read ({error}): run `holdfast doctor`, or "
                      "restore the store") from error  # fmt: skip
    return found


def final_of(evidence: bytes) -> str:
    """Return the final name in the evidence of a file."""
    return _decode(evidence).final
