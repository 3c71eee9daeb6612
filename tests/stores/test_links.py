"""A store whose path is a link to its file: the file counts, under all of its names."""

import os
import struct
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.errors import Damaged, UsageError
from holdfast.core.model import BatchId, Claim, ClaimRequest
from holdfast.runtime import recover
from holdfast.runtime.operate import doctor
from holdfast.stores.base import find_batch
from holdfast.stores.sqlite import SqliteStore, safety
from holdfast.testing.conformance.kit import DEFINITION, new_item

NOTE = struct.Struct(">QQ")


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir(mode=0o700)
    return tmp_path / "real" / "state.db"


@pytest.fixture
def link(tmp_path: Path, real: Path) -> Path:
    (tmp_path / "names").mkdir(mode=0o700)
    link = tmp_path / "names" / "link.db"
    link.symlink_to(os.path.relpath(real, link.parent))
    return link


def grant(path: Path, times: int = 1) -> list[int]:
    store = SqliteStore(path, is_dead=lambda _owner: True)
    batch = opened(store)
    claims = [store.claim(ClaimRequest(batch=batch, owner="ann", limit=1, seconds=30)) for _ in range(times)]
    store.close()
    return [claim.lease.fence for claim in claims if isinstance(claim, Claim)]


def opened(store: SqliteStore) -> BatchId:
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann").id
    store.add_items(batch, [new_item("a")])
    return batch


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.promise("B7")
def test_a_batch_runs_in_a_store_behind_a_link(link: Path, real: Path) -> None:
    SqliteStore(real).close()
    pages = hf.Pipeline("pages", store=link)
    pages.stage(name="read")(lambda value: value)
    assert pages.run([1, 2], batch="book", progress=False).state == "complete"
    pages.pause("book", reason="to see")
    assert names(real.parent) >= {"state.db", "state.db-wal", "state.db-shm", "state.db-fence"}
    pages.store.close()
    assert names(link.parent) == {"link.db"}
    assert find_batch(SqliteStore(real), "book") is not None


def test_a_link_that_leads_nowhere_yet_gets_its_file(link: Path, real: Path) -> None:
    grant(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600


def test_a_link_into_a_folder_that_is_not_there_is_refused(link: Path, real: Path) -> None:
    real.parent.rmdir()
    with pytest.raises(UsageError, match="no file can be created at"):
        SqliteStore(link)


def test_a_removed_log_is_told_by_its_own_name(link: Path, real: Path) -> None:
    store = SqliteStore(link)
    opened(store)
    Path(f"{real}-wal").unlink()
    with pytest.raises(Damaged, match=r"real/state\.db-wal was removed or moved away while it was in use"):
        store.open_batch("other", "pages", DEFINITION, actor="ann")


def test_a_link_that_is_turned_to_another_file_is_noticed(link: Path, tmp_path: Path) -> None:
    store = SqliteStore(link)
    opened(store)
    SqliteStore(tmp_path / "other.db").close()
    link.unlink()
    link.symlink_to(tmp_path / "other.db")
    with pytest.raises(Damaged, match=r"link\.db was replaced by another file while it was in use"):
        store.batches()


def test_a_log_without_its_file_is_not_thrown_away(link: Path, real: Path) -> None:
    Path(f"{real}-wal").write_bytes(b"acknowledged")
    with pytest.raises(Damaged, match=r"it is empty or missing, but its log .*real/state\.db-wal is not"):
        SqliteStore(link)
    assert Path(f"{real}-wal").read_bytes() == b"acknowledged"
    assert "its log" in str(recover.is_damaged(link))


@pytest.mark.promise("C3")
def test_all_names_of_a_file_have_one_note(link: Path, real: Path) -> None:
    given = grant(link, 2) + grant(real, 2) + grant(link, 2)
    assert given == list(range(1, 7))


@pytest.mark.promise("C3")
def test_a_note_beside_the_link_keeps_fences_growing(link: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 0)
    given = grant(real, 2)
    Path(f"{real}-fence").unlink()
    Path(f"{link}-fence").write_bytes(NOTE.pack(1 << 41, 3))
    fences = grant(link, 2)
    assert min(fences) > max(1 << 41, *given)
    assert grant(real) == [fences[1] + 1]


@pytest.mark.promise("C3")
def test_a_store_that_was_set_aside_gives_no_fence_out_again(link: Path, real: Path) -> None:
    given = grant(link, 3)
    with recover.set_aside(link) as moved:
        pass
    assert [Path(name).parent for name in moved] == [real.parent]
    assert min(grant(link)) > max(given)
    assert link.is_symlink()


def test_doctor_looks_at_the_file_itself(link: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grant(link)
    assert not [check for check in doctor.examine(link).checks if check.level is doctor.Level.UNSAFE]
    store = SqliteStore(link)
    store.open_batch("other", "pages", DEFINITION, actor="ann")
    Path(f"{real}-wal").chmod(0o644)
    unsafe = [check.message for check in doctor.examine(link).checks if check.level is doctor.Level.UNSAFE]
    assert unsafe == [f"{real}-wal has mode 0644: others can read it"]
    monkeypatch.setattr(doctor, "WAL_WARN", 0)
    assert doctor.check_wal(link).level is doctor.Level.WARN
    store.close()


def test_who_holds_the_lock_is_found_behind_a_link(
    link: Path, real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(real)
    inode = Path(f"{real}-shm").stat().st_ino
    (tmp_path / "locks").write_text(f"1: POSIX ADVISORY WRITE 4711 fe:01:{inode} 120 120\n")
    monkeypatch.setattr(safety, "LOCKS", tmp_path / "locks")
    assert "process 4711" in safety.advice_about_writers(link)
    store.close()
