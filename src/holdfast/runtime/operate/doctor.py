"""Checks of what the guarantees depend on: library, settings, file system, permissions, space, clock, leftovers,
leases.

Every check reports what it saw, whether that is safe, and what to do about it. Nothing is changed.
"""

import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from os import R_OK, W_OK, X_OK, access, geteuid
from pathlib import Path
from typing import Any, ClassVar

import apsw
import msgspec

from holdfast.core import canonical
from holdfast.core.errors import HoldfastError
from holdfast.core.model import BatchId, Chunk
from holdfast.core.plain import Plain
from holdfast.runtime.report import status
from holdfast.runtime.sinks import names
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.text import in_words, many
from holdfast.stores import filesystem, owners
from holdfast.stores.base import SetBack, Store
from holdfast.stores.bucket import BucketStore
from holdfast.stores.bucket import cas as bucket_root
from holdfast.stores.buckets.base import Bucket
from holdfast.stores.buckets.local import LocalBucket, open_to_others
from holdfast.stores.open import bucket_at
from holdfast.stores.sqlite import SqliteStore, rows
from holdfast.stores.sqlite.file import SAFE_SQLITE, SETTINGS, SqliteFile

MIB = 1 << 20
FREE_UNSAFE = 64 * MIB
FREE_WARN = 1024 * MIB
WAL_WARN = 256 * MIB
SKEW_WARN = 2.0
SKEW_UNSAFE = 60.0
OLD_TEMP = 3600.0
FILES_SEEN = 100_000


class Level(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One check, with its result and advice."""

    name: str
    level: Level
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Plain):
    """All checks together."""

    _tells: ClassVar[str] = "store level checks"

    store: str
    checks: tuple[DoctorCheck, ...]

    @property
    def level(self) -> Level:
        order = list(Level)
        return max((check.level for check in self.checks), key=order.index, default=Level.OK)


def examine(path: Path, *, folders: Sequence[Path] = (), wall: Callable[[], float] = time.time) -> Diagnosis:
    """Check a store's file, its folder, and the files left around it. `folders` are searched for leftovers as well."""
    checks = [check_library(), check_file_system(path), *check_permissions(path), check_space(path), *check_clock(wall)]
    checks += _look_inside(path, folders, wall) if _is_file(path) else [_no_store(path)]
    return Diagnosis(store=str(path), checks=tuple(checks))


def _is_file(path: Path) -> bool:
    return filesystem.is_there(path) and path.is_file()


def _no_store(path: Path) -> DoctorCheck:
    """Check that a first run may create the file, and the folders above it."""
    folder = _nearest_folder(path)
    if not access(folder, R_OK | W_OK | X_OK):
        advice = "run as the user that owns it, or name another store with --store or $HOLDFAST_STORE"
        return _unsafe("store", f"this user has no permission to read and write {folder}", advice)
    return _ok("store", f"there is no store at {path} yet; the first run creates it")


def _nearest_folder(path: Path) -> Path:
    """Return the folder of the store, or the nearest existing one above it."""
    return next(folder for folder in path.absolute().parents if filesystem.is_there(folder))


def _look_inside(path: Path, folders: Sequence[Path], wall: Callable[[], float]) -> Iterator[DoctorCheck]:
    try:
        store = SqliteStore(path)
    except HoldfastError as error:  # its message says what to do
        yield _unsafe("store", str(error), "")
        return
    try:
        yield from check_content(path)
        yield check_wal(path)
        chunks = [chunk for batch in store.batches() for chunk in store.chunks(batch.id)]
        yield check_times(chunks, wall())
        yield check_leases(store, chunks, wall())
        yield check_leftovers([path.parent, *sink_folders(store), *folders], wall())
    except (HoldfastError, msgspec.DecodeError, TypeError, ValueError, LookupError) as error:
        yield _unsafe("store", f"its content cannot be read: {error}", "restore a backup, or name another store")
    finally:
        store.close()


def _ok(name: str, message: str) -> DoctorCheck:
    return DoctorCheck(name=name, level=Level.OK, message=message)


def _warn(name: str, message: str, advice: str) -> DoctorCheck:
    return DoctorCheck(name=name, level=Level.WARN, message=message, advice=advice)


def _unsafe(name: str, message: str, advice: str) -> DoctorCheck:
    return DoctorCheck(name=name, level=Level.UNSAFE, message=message, advice=advice)


def check_library() -> DoctorCheck:
    """Check the version of SQLite: before 3.51.3 it can corrupt a write-ahead log."""
    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split("."))) < SAFE_SQLITE:
        advice = "install apsw from its wheel, which includes its own SQLite"
        return _unsafe("sqlite", f"SQLite {version} can corrupt a write-ahead log", advice)
    return _ok("sqlite", f"SQLite {version}")


def check_file_system(path: Path, kind_of: Callable[[Path], str] = filesystem.kind_of) -> DoctorCheck:
    """Check the file system: a write-ahead log needs memory shared between processes, and a disk that outlives them."""
    kind = kind_of(path)
    name = "file system"
    if filesystem.is_network(kind):
        advice = "put the store on a local disk, with --store or $HOLDFAST_STORE"
        return _unsafe(name, f"{kind}: a write-ahead log is not safe on a network file system", advice)
    if kind in ("tmpfs", "ramfs"):
        return _warn(
            name,
            f"{kind}: the store is in memory, and is lost when the machine restarts",
            "put the store on a disk if it must survive a restart",
        )
    if kind == "unknown":
        return _warn(name, "its kind cannot be determined", "make sure that it is a local disk, not a network share")
    return _ok(name, kind)


def check_permissions(path: Path) -> Iterator[DoctorCheck]:
    """Check that only their user can read the state files, and only their user can replace them."""
    name = "permissions"
    wrong = False
    real = filesystem.behind(path)
    for file in (real, real.with_name(real.name + "-wal"), real.with_name(real.name + "-shm")):
        if not filesystem.is_there(file):
            continue
        info = file.stat()
        if stat.S_IMODE(info.st_mode) & 0o077:
            wrong = True
            yield _unsafe(
                name, f"{file} has mode {stat.S_IMODE(info.st_mode):04o}: others can read it", f"chmod 600 {file}"
            )
        if info.st_uid != geteuid():
            wrong = True
            yield _warn(
                name,
                f"{file} belongs to user id {info.st_uid}, and you are {geteuid()}",
                "run as the user that owns the store",
            )
    folders = {_nearest_folder(path), _nearest_folder(real)}
    for folder in folders:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o022 and not mode & stat.S_ISVTX:
            wrong = True
            judge = _unsafe if mode & 0o002 else _warn
            yield judge(
                name, f"{folder} has mode {mode:04o}: others can replace the files in it", f"chmod go-w {folder}"
            )
    if not wrong and all(access(folder, X_OK) for folder in folders):
        yield _ok(name, "only you can read and replace the state files")


def check_space(path: Path, usage: Callable[[Path], Any] = shutil.disk_usage) -> DoctorCheck:
    """Check the free space: a full disk loses nothing, but stops every run."""
    free = usage(_nearest_folder(filesystem.behind(path))).free
    level = Level.UNSAFE if free < FREE_UNSAFE else Level.WARN if free < FREE_WARN else Level.OK
    return DoctorCheck(
        name="space",
        level=level,
        message=f"{free / MIB:,.0f} MiB free",
        advice="" if level is Level.OK else "free some space before a long run",
    )


def check_clock(wall: Callable[[], float] = time.time, pause: float = 0.05) -> Iterator[DoctorCheck]:
    """Check the wall clock, which decides leases and waits: it must be roughly right, and move evenly."""
    before = (wall(), time.monotonic())
    time.sleep(pause)
    drift = (wall() - before[0]) - (time.monotonic() - before[1])
    if before[0] < 1_735_689_600:
        yield _unsafe("clock", "it shows a time before 2025", "set the clock, or wait until it is set")
    elif abs(drift) > 0.05:
        yield _warn(
            "clock",
            f"it jumped by {drift:+.3f} s while it was watched",
            "find out what sets it: the clock should be slewed, not stepped",
        )
    else:
        yield _ok("clock", "it moves evenly")


def check_times(chunks: Iterable[Chunk], now: float) -> DoctorCheck:
    """Check for entries from the future: the clock was ahead then, or was set back since."""
    ahead = max((chunk.touched_at for chunk in chunks), default=now) - now
    level = Level.UNSAFE if ahead > SKEW_UNSAFE else Level.WARN if ahead > SKEW_WARN else Level.OK
    if level is Level.OK:
        return DoctorCheck(name="stored times", level=level, message="no entry is from the future")
    return DoctorCheck(
        name="stored times",
        level=level,
        message=f"the last progress is {in_words(ahead)} in the future",
        advice="compare this clock with a time server: a wrong clock makes leases too long or too short",
    )


def check_content(path: Path) -> Iterator[DoctorCheck]:
    """Check the file of a store: its settings, whether its pages are sound, and whether it was set back."""
    file = SqliteFile(path)
    try:
        yield check_settings(file.settings())
        with file.reading() as db:
            wrong = [text for (text,) in db.execute("PRAGMA integrity_check(3)") if text != "ok"]
            set_back = rows.set_back(db)
    finally:
        file.close()
    if wrong:
        yield _unsafe("pages", f"{path} is damaged: {'; '.join(wrong)}", "restore a backup, or name another store")
    else:
        yield _ok("pages", "tables and indexes are sound; `holdfast audit verify` checks their content")
    yield check_history(set_back)


def check_history(set_back: SetBack | None) -> DoctorCheck:
    """Check whether the file was set back: it then has fewer entries than the note beside it says."""
    if set_back is None:
        return _ok("history", "the file was never set back")
    advice = "a backup was restored, or the write-ahead log was lost; the next run does the missing work again"
    return _warn("history", status.set_back_words(set_back), advice)


def check_settings(settings: dict[str, Any]) -> DoctorCheck:
    """Check the settings that the durability of a commit depends on."""
    wanted = {name: {"full": 2, "memory": 2}.get(value, value) for name, value in SETTINGS.items()}
    wanted["journal_mode"] = "wal"
    wrong = [
        f"{name}={settings.get(name)!r} instead of {value!r}"
        for name, value in wanted.items()
        if settings.get(name) != value
    ]
    if wrong:
        return _unsafe("settings", ", ".join(wrong), "this is a bug in Holdfast: please report it")
    return _ok("settings", "write-ahead log, every commit synced")


def check_wal(path: Path) -> DoctorCheck:
    """Check the write-ahead log: if it keeps growing, a reader that never ends holds it open."""
    wal = Path(f"{filesystem.behind(path)}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > WAL_WARN:
        return _warn(
            "write-ahead log",
            f"it has grown to {size / MIB:,.0f} MiB",
            f"a process that keeps reading prevents it from shrinking: find it with `fuser {path}`",
        )
    return _ok("write-ahead log", f"{size / MIB:,.1f} MiB")


def check_leases(store: Store, found: Sequence[Chunk], now: float) -> DoctorCheck:
    """Check for leases whose owner is gone, and for items without progress for long."""
    stale = [chunk for chunk in found if chunk.owner is not None and chunk.pending and not owners.is_live(chunk, now)]
    of_batch: dict[BatchId, list[Chunk]] = {}
    for chunk in found:
        of_batch.setdefault(chunk.batch, []).append(chunk)
    orphaned = sum(
        status.standing_of(store, batch, of_batch[batch.id], now=now).counts.orphaned
        for batch in store.batches()
        if batch.id in of_batch
    )
    judged = "" if store.capabilities.one_clock else ", by their owners' clocks"
    if stale or orphaned:
        parts = [f"{many(len(stale), 'chunk')} held by workers that are gone or overdue{judged}"] if stale else []
        parts += [f"{many(orphaned, 'item')} without progress for long (`holdfast orphans`)"] if orphaned else []
        return _warn("leases", " and ".join(parts), "run the batch again: it takes them over")
    held = sum(1 for chunk in found if chunk.owner is not None and chunk.pending)
    return _ok("leases", f"{held:,} held, none stale{judged if held else ''}")


def check_leftovers(folders: Iterable[Path], now: float) -> DoctorCheck:
    """Check for temporary files that no run will ever complete. Staged outputs do not count: a run adopts them."""
    found = sorted({str(path) for folder in folders for path in leftovers(folder, now)})
    if not found:
        return _ok("leftovers", "no old temporary files")
    shown = ", ".join(found[:3]) + (f" and {len(found) - 3:,} more" if len(found) > 3 else "")
    return _warn(
        "leftovers",
        f"{len(found):,} old temporary files: {shown}",
        "a crash left them; they are not needed and can be deleted",
    )


def leftovers(folder: Path, now: float) -> Iterator[Path]:
    """Yield Holdfast's old temporary files in a folder, and in the hidden folder below it where outputs are staged."""
    for place in (folder, folder / names.FOLDER):
        if not place.is_dir():
            continue
        for seen, path in enumerate(place.iterdir()):
            if seen > FILES_SEEN:
                break
            is_temp = names.kind_of(path.name) == "temp" or (path.name.startswith(".") and path.name.endswith(".tmp"))
            if is_temp and path.is_file() and now - path.stat().st_mtime > OLD_TEMP:
                yield path


def sink_folders(store: Store) -> Iterator[Path]:
    """Yield the folders that the batches of a store write files to."""
    for batch in store.batches():
        for stage in canonical.decode(batch.definition)["stages"]:
            sink = stage.get("sink") if isinstance(stage, dict) else None
            if sink is not None and sink.get("kind") == "files":
                yield Path(Files(sink["template"]).template.folder)


def examine_bucket(url: str, *, wall: Callable[[], float] = time.time) -> Diagnosis:
    """Check a bucket and the store in it. Nothing is changed: no store is created, and the probe is not repeated."""
    bucket = bucket_at(url)
    checks = [_library(url), *_permissions(bucket), *check_clock(wall), *_look(bucket, wall)]
    return Diagnosis(store=bucket.url, checks=tuple(checks))


def _library(url: str) -> DoctorCheck:
    if url.startswith("file:"):
        message = "a directory, with compare-and-swap by link and rename; for processes on one host"
        return DoctorCheck(name="bucket", level=Level.OK, message=message)
    return DoctorCheck(name="bucket", level=Level.OK, message=f"obstore {metadata.version('obstore')}")


def _permissions(bucket: Bucket) -> Iterator[DoctorCheck]:
    """Check, for a directory, whether other users of the host can read its content."""
    if not isinstance(bucket, LocalBucket):
        return
    folder = bucket.url.removeprefix("file://")
    wide = open_to_others(Path(folder))
    if not wide:
        yield DoctorCheck(name="permissions", level=Level.OK, message="only its owner can read and write it")
        return
    message = f"other users of this host can read it: {wide}, for example"
    advice = f"it holds payloads and outputs: chmod -R go= {shlex.quote(folder)}"
    yield DoctorCheck(name="permissions", level=Level.WARN, message=message, advice=advice)


def _look(bucket: Bucket, wall: Callable[[], float]) -> Iterator[DoctorCheck]:
    try:
        if not bucket_root.is_store_there(bucket):
            message = f"{bucket.url} can be read, and there is no store in it yet; the first run creates it"
            yield DoctorCheck(name="store", level=Level.OK, message=message)
            return
        store = BucketStore(bucket)
    except HoldfastError as error:  # its message says what to do
        yield DoctorCheck(name="store", level=Level.UNSAFE, message=str(error))
        return
    yield from _look_inside_bucket(store, wall)


def _look_inside_bucket(store: Store, wall: Callable[[], float]) -> Iterator[DoctorCheck]:
    try:
        batches = store.batches()
        chunks = [chunk for batch in batches for chunk in store.chunks(batch.id)]
        message = f"{len(batches):,} batches in {many(len(chunks), 'chunk')}; every document could be read"
        yield DoctorCheck(name="store", level=Level.OK, message=message)
        message = (
            "compare-and-swap was tested when the store was created; budgets and events are not available on a bucket"
        )
        yield DoctorCheck(name="capabilities", level=Level.OK, message=message)
        yield check_leases(store, chunks, wall())
    except HoldfastError as error:
        yield DoctorCheck(name="store", level=Level.UNSAFE, message=str(error))
    finally:
        store.close()
