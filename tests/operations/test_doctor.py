"""The doctor: safe is said to be safe, unsafe to be unsafe, each with what to do."""

import os
from collections import namedtuple
from pathlib import Path

import pytest

from holdfast.runtime.operate import doctor
from holdfast.runtime.operate.doctor import Level
from holdfast.stores.sqlite import SqliteStore
from tests.operations.world import Clock, World

Usage = namedtuple("Usage", "free")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    clock = Clock()
    store = SqliteStore(tmp_path / ".holdfast" / "state.db", clock=clock)
    World(store, clock).add("a", "b")
    store.close()
    return tmp_path / ".holdfast" / "state.db"


def levels(found: doctor.Diagnosis) -> dict[str, Level]:
    return {check.name: check.level for check in found.checks}


def advice(found: doctor.Diagnosis, name: str) -> str:
    return next(check.advice for check in found.checks if check.name == name)


def test_a_healthy_store_is_well(path: Path) -> None:
    found = doctor.examine(path)
    ok = {name for name, level in levels(found).items() if level is Level.OK}
    assert ok >= {"sqlite", "permissions", "settings", "write-ahead log", "stored times", "leftovers", "clock"}
    assert found.level is not Level.UNSAFE


def test_a_store_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    found = doctor.examine(tmp_path / "none" / "state.db")
    assert "the first run creates it" in found.checks[-1].message
    assert not (tmp_path / "none").exists()


def test_a_place_where_no_store_can_be_made_is_not_called_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "access", lambda *_: False)
    found = doctor.examine(tmp_path / "none" / "state.db")
    assert levels(found)["store"] is Level.UNSAFE
    assert f"{tmp_path}" in found.checks[-1].message
    assert "permissions" not in levels(found)


def test_state_files_that_others_can_read_are_unsafe(path: Path) -> None:
    path.chmod(0o644)
    found = doctor.examine(path)
    assert found.level is Level.UNSAFE
    assert advice(found, "permissions") == f"chmod 600 {path}"


def test_a_folder_that_others_can_write_is_unsafe(path: Path) -> None:
    path.parent.chmod(0o777)
    assert levels(doctor.examine(path))["permissions"] is Level.UNSAFE
    path.parent.chmod(0o700)


def test_a_file_that_is_not_ours_is_unsafe(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 40)
    path.chmod(0o600)
    found = doctor.examine(path)
    assert levels(found)["store"] is Level.UNSAFE
    assert path.read_bytes().startswith(b"not a database")


@pytest.mark.parametrize(
    ("kind", "level"), [("ext4", Level.OK), ("nfs4", Level.UNSAFE), ("tmpfs", Level.WARN), ("unknown", Level.WARN)]
)
def test_file_systems(tmp_path: Path, kind: str, level: Level) -> None:
    assert doctor.check_file_system(tmp_path, lambda _: kind).level is level


@pytest.mark.parametrize(("free", "level"), [(10, Level.UNSAFE), (500 * doctor.MIB, Level.WARN), (1 << 40, Level.OK)])
def test_free_space(tmp_path: Path, free: int, level: Level) -> None:
    assert doctor.check_space(tmp_path / "state.db", lambda _: Usage(free)).level is level


def test_progress_from_the_future_is_unsafe(path: Path) -> None:
    found = doctor.examine(path, wall=lambda: Clock().now - 120.0)
    assert levels(found)["stored times"] is Level.UNSAFE


def test_a_clock_that_was_never_set_is_unsafe() -> None:
    (check,) = doctor.check_clock(lambda: 86_400.0, pause=0.0)
    assert check.level is Level.UNSAFE


def test_a_clock_that_jumps_is_told() -> None:
    times = iter([1_800_000_000.0, 1_800_000_100.0])
    (check,) = doctor.check_clock(lambda: next(times), pause=0.0)
    assert check.level is Level.WARN


def test_settings_that_lose_commits_are_unsafe(path: Path) -> None:
    file = doctor.SqliteFile(path)
    settings = file.settings()
    file.close()
    assert doctor.check_settings(settings).level is Level.OK
    check = doctor.check_settings({**settings, "synchronous": 1})
    assert (check.level, check.message) == (Level.UNSAFE, "synchronous=1 instead of 2")


def test_old_temporary_files_are_named_and_staged_outputs_are_not(path: Path) -> None:
    hidden = path.parent.parent / "out" / ".holdfast"
    hidden.mkdir(parents=True)
    old, fresh = hidden / f"tmp-12-{'a' * 16}", hidden / f"tmp-13-{'b' * 16}"
    for file in (old, fresh, hidden / "book.ocr.1.0.x.1.y.json"):
        file.write_text("half")
    os.utime(old, (0, 0))
    found = doctor.examine(path, folders=[path.parent.parent / "out"])
    message = next(check.message for check in found.checks if check.name == "leftovers")
    assert str(old) in message
    assert str(fresh) not in message


def test_stale_leases_and_orphans_are_told(path: Path) -> None:
    clock = Clock()
    store = SqliteStore(path, clock=clock)
    World(store, clock).claim()
    store.close()
    check = next(check for check in doctor.examine(path).checks if check.name == "leases")
    assert check.level is Level.WARN
    assert "1 chunk held by workers that are gone or overdue" in check.message
    assert "2 items without progress" in check.message
