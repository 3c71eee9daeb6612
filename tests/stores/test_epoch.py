"""No fence is given out twice: not by a copy of the file, not by a backup that was put back."""

import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.core.model import BatchId, Claim, ClaimRequest
from holdfast.stores import faults
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import DEFINITION, new_item

pytestmark = pytest.mark.promise("C3")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def grant(path: Path, times: int = 1, owner: str = "ann") -> list[int]:
    """The fences of so many grants of the one chunk there is, each after the last one's process died."""
    store = SqliteStore(path, is_dead=lambda _owner: True)
    batch = store.open_batch("book", "pages", DEFINITION, actor=owner).id
    store.add_items(batch, [new_item("a")])
    claims = [store.claim(ClaimRequest(batch=batch, owner=owner, limit=1, seconds=30)) for _ in range(times)]
    store.close()
    return [claim.lease.fence for claim in claims if isinstance(claim, Claim)]


def backup(path: Path) -> Path:
    """A copy made the right way, while the store may be open."""
    copy = path.with_name("backup.db")
    source, target = apsw.Connection(str(path)), apsw.Connection(str(copy))
    with target.backup("main", source, "main") as job:
        job.step()
    source.close()
    target.close()
    return copy


def put_back_in_place(path: Path, copy: Path) -> None:
    path.write_bytes(copy.read_bytes())


def put_back_as_another_file(path: Path, copy: Path) -> None:
    shutil.copy(copy, path.with_name("new.db"))
    path.with_name("new.db").replace(path)


def put_back_after_deleting(path: Path, copy: Path) -> None:
    path.unlink()
    shutil.copy(copy, path)


WAYS: list[Callable[[Path, Path], None]] = [put_back_in_place, put_back_as_another_file, put_back_after_deleting]


def test_opening_again_goes_on_with_the_next_fence(path: Path) -> None:
    assert grant(path, 2) + grant(path) + grant(path) == [1, 2, 3, 4]


@pytest.mark.parametrize("put_back", WAYS)
def test_a_backup_that_was_put_back_gives_no_fence_out_again(
    put_back: Callable[[Path, Path], None], path: Path
) -> None:
    before = grant(path, 2)
    copy = backup(path)
    lost = grant(path, 5)
    put_back(path, copy)
    after = grant(path, 5)
    assert min(after) > max(before + lost)
    assert after == sorted(set(after))
    assert grant(path)[0] > max(after)


@pytest.mark.parametrize("put_back", WAYS)
def test_not_even_when_it_is_put_back_again_and_again(put_back: Callable[[Path, Path], None], path: Path) -> None:
    given = grant(path, 2)
    copy = backup(path)
    for _ in range(4):
        fences = grant(path, 3)
        assert min(fences) > max(given)
        given += fences
        put_back(path, copy)
    assert len(given) == len(set(given))


def test_a_copy_gives_out_higher_fences_than_its_original(path: Path, tmp_path: Path) -> None:
    grant(path, 3)
    copy = shutil.copy(path, tmp_path / "clone.db")
    assert min(grant(Path(copy), 3)) > max(grant(path, 3))


def test_a_store_made_anew_in_the_same_place_gives_no_fence_out_again(path: Path) -> None:
    given = grant(path, 3)
    path.unlink()
    assert min(grant(path, 3)) > max(given)


def test_a_lost_note_costs_an_epoch(path: Path) -> None:
    given = grant(path, 3)
    Path(f"{path}-fence").unlink()
    fences = grant(path, 2)
    assert fences[0] > max(given)
    assert grant(path) == [fences[1] + 1]


def test_a_clock_that_was_set_back_makes_no_difference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = grant(path, 2)
    copy = backup(path)
    for year in (2026, 2024, 1970, 2025):
        monkeypatch.setattr("time.time_ns", lambda year=year: (year - 1970) * 365 * 86_400 * 10**9)
        put_back_in_place(path, copy)
        fences = grant(path, 3)
        assert min(fences) > max(given)
        given += fences


def test_fences_stay_small_enough_for_every_language(path: Path) -> None:
    grant(path)
    Path(f"{path}-fence").unlink()
    assert grant(path)[0] < 2**53


def test_a_damaged_note_costs_an_epoch_at_most(path: Path) -> None:
    given = grant(path, 3)
    for note in (b"", b"short", b"\xff" * 16, bytes(16), bytes(7) + b"\x05" + bytes(8)):
        Path(f"{path}-fence").write_bytes(note)
        fences = grant(path)
        assert min(fences) > max(given)
        given += fences


# -- the whole folder, with the note ----------------------------------------------------------------------------------


def folder_over_the_old_one(folder: Path, copy: Path) -> None:
    for file in copy.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


def folder_after_deleting_the_old_one(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def folder_with_its_times(folder: Path, copy: Path) -> None:
    shutil.copytree(copy, folder, dirs_exist_ok=True, copy_function=shutil.copy2)


@pytest.mark.parametrize(
    "put_back", [folder_over_the_old_one, folder_after_deleting_the_old_one, folder_with_its_times]
)
def test_a_folder_that_was_put_back_with_its_note_gives_no_fence_out_again(
    put_back: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    folder, copy = tmp_path / "store", tmp_path / "copy"
    folder.mkdir()
    given = grant(folder / "state.db", 2)
    shutil.copytree(folder, copy)
    for _ in range(3):
        fences = grant(folder / "state.db", 3)
        assert min(fences) > max(given)
        given += fences
        put_back(folder, copy)
    assert len(given) == len(set(given))


def test_a_process_that_has_the_file_open_does_not_hide_a_newer_epoch(path: Path) -> None:
    names = [new_item("a"), new_item("b")]
    old = SqliteStore(path)
    batch = old.open_batch("book", "pages", DEFINITION, actor="ann").id
    for name in names:
        old.add_items(batch, [name])
    copy = backup(path)
    faults.arm(faults.parse("claim.written:1:raise"))
    with pytest.raises(OSError, match="injected"):
        old.claim(ClaimRequest(batch=batch, owner="ann", limit=1, seconds=30))
    faults.arm(None)
    newer = SqliteStore(path)
    given = [claim_one(newer, batch), claim_one(old, batch)]
    old.close()
    newer.close()
    put_back_in_place(path, copy)
    restored = SqliteStore(path)
    assert claim_one(restored, batch) > max(given)
    restored.close()


def claim_one(store: SqliteStore, batch: BatchId) -> int:
    claim = store.claim(ClaimRequest(batch=batch, owner="ann", limit=1, seconds=30))
    assert isinstance(claim, Claim)
    return claim.lease.fence


def test_a_grant_of_an_older_epoch_does_not_lower_the_note(path: Path) -> None:
    """Somebody began a newer one while this process was at work: whoever opens the file next must know of it."""
    store = SqliteStore(path, is_dead=lambda _owner: True)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann").id
    store.add_items(batch, [new_item("a")])
    newer = 1 << 50
    store._epoch._write(newer, 0)
    assert isinstance(store.claim(ClaimRequest(batch=batch, owner="ann", limit=1, seconds=30)), Claim)
    assert store._epoch._read()[0] == newer
    store.close()
    assert grant(path)[0] > newer
