"""What killed writers leave in a directory is taken away by later ones, and nothing that somebody still needs."""

import fcntl
import os
import time
from pathlib import Path

from holdfast.stores.buckets.local import OLD_SECONDS, TEMPORARY, LocalBucket


def leave(folder: Path, name: str, age: float) -> Path:
    path = folder / TEMPORARY / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half a doc")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_old_temporary_files_of_dead_writers_are_taken_away(tmp_path: Path) -> None:
    old, young = leave(tmp_path, "old", OLD_SECONDS + 60), leave(tmp_path, "young", OLD_SECONDS - 60)
    held = leave(tmp_path, "held", OLD_SECONDS + 60)
    with held.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        LocalBucket(tmp_path).create("one", b"1")
        assert not old.exists()
        assert young.exists()
        assert held.exists()
    LocalBucket(tmp_path).create("two", b"2")
    assert not held.exists()


def test_a_writer_at_work_holds_its_temporary_file(tmp_path: Path) -> None:
    bucket = LocalBucket(tmp_path)
    with bucket._staged(tmp_path / "one", b"1") as staged:
        os.utime(staged, (0, 0))
        LocalBucket(tmp_path).create("two", b"2")
        assert staged.exists()
    assert not staged.exists()


def test_reading_takes_nothing_away(tmp_path: Path) -> None:
    old = leave(tmp_path, "old", OLD_SECONDS + 60)
    assert LocalBucket(tmp_path).get("one") is None
    assert list(LocalBucket(tmp_path).list("")) == []
    assert old.exists()
