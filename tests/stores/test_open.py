"""From what a user writes to a store."""

import gc
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import Refused, UsageError
from holdfast.stores import faults, filesystem
from holdfast.stores.base import Store
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import is_there, open_store, path_of
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.comparison import FAST
from holdfast.testing.conformance import checks
from holdfast.testing.conformance.kit import Kit


@pytest.mark.parametrize("form", ["{}", "sqlite:{}", "sqlite:///{}"])
def test_a_path_or_url_is_a_file(form: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.db"
    store = open_store(form.format(path))
    assert isinstance(store, SqliteStore)
    assert store.path == path
    assert path.exists()
    store.close()


def test_without_a_name_it_is_the_one_of_the_environment_or_of_this_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    open_store().close()
    assert (tmp_path / ".holdfast" / "state.db").exists()
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "other.db"))
    open_store().close()
    assert (tmp_path / "other.db").exists()


def test_memory_and_open_stores_are_taken_as_they_are() -> None:
    store = open_store("memory:")
    assert isinstance(store, MemoryStore)
    assert open_store(store) is store


def test_a_directory_may_be_used_as_a_bucket(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/state"
    with pytest.raises(UsageError, match="there is no store at"):
        open_store(url, must_exist=True)
    assert list(tmp_path.iterdir()) == []
    assert not is_there(url)
    store = open_store(url)
    assert isinstance(store, BucketStore)
    assert store.url == url
    assert is_there(url)
    assert path_of(url) is None
    store.close()


def test_a_directory_that_other_hosts_may_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "kind_of", lambda path: "nfs4")
    with pytest.raises(Refused, match="network file system"):
        open_store(f"file://{tmp_path}/state")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file://", "file://host/dir", "file:///", "s3://", "az:///x"])
def test_a_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="does not name a"):
        open_store(url)


@pytest.mark.parametrize("url", ["s3://me:secret@bucket/x", "az://container/x?sig=secret", "gs://secret@bucket"])
def test_credentials_in_the_url_of_a_bucket_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="credentials come from the environment") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://host/db"])
def test_a_store_of_a_later_version_is_refused_by_name(url: str) -> None:
    with pytest.raises(UsageError, match="is not known to this version"):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["mysql://me:secret@host/db", "http://host/x", "ftp://host/x", "sqllite:///x.db", "memory:///x", "://x"]
)
def test_a_url_that_nobody_knows_is_no_path_and_its_secret_is_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"name a file.*s3://…, az://…, gs://…") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_three_slashes_name_a_file_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:///deep/state.db").close()
    assert (tmp_path / "deep" / "state.db").exists()
    with pytest.raises(UsageError, match=r"write sqlite:///state\.db for a file in this folder, or sqlite:////"):
        open_store("sqlite://state.db")


def test_where_only_the_file_is_there_that_it_used_to_mean_both_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, url = tmp_path / "state.db", f"sqlite://{tmp_path}/state.db"
    open_store(old).close()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(hf.Refused, match=re.escape(f"write sqlite:///{old} for that one, or {str(old)[1:]} for a new")):
        open_store(url)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert open_store(f"sqlite:///{old}", must_exist=True).url == str(old)
    open_store(str(old)[1:]).close()
    assert open_store(url, must_exist=True).url == str(old)[1:], "once it is there, it is the one that is meant"


@pytest.mark.parametrize("nothing", ["", "sqlite:", "sqlite:///", "."])
def test_no_name_at_all_is_refused(nothing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is a directory"):
        open_store(nothing)
    assert list(tmp_path.iterdir()) == []


HOSTILE: list[Any] = ["~nobody-of-that-name/x.db", "a\0b", "\ud800.db", "sqlite:a\0b", b"s.db", 5, ":memory:",
                      "sqlite:///:memory:"]  # fmt: skip


@pytest.mark.parametrize("must_exist", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_a_store_is_refused(
    name: Any, must_exist: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"is not the name of a file|pass a path|write memory:"):
        hf.open(name, must_exist=must_exist)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("must_exist", [True, False])
@pytest.mark.parametrize("length", [300, 5_000])
def test_a_name_that_is_too_long_is_told(length: int, must_exist: bool, tmp_path: Path) -> None:
    with pytest.raises(hf.HoldfastError, match=r"there is no store at|File name too long"):
        hf.open(tmp_path / ("x" * length), must_exist=must_exist)


@pytest.mark.parametrize("url", ["sqlite://me:hunter2@host/x", "sqlite:///x?password=hunter2", "sqlite:x?a=hunter2"])
@pytest.mark.parametrize("look", [hf.open, is_there, hf.doctor])
def test_a_password_in_the_url_of_a_file_is_not_repeated(url: str, look: Callable[[str], object]) -> None:
    with pytest.raises(UsageError, match="sqlite:////srv/state") as caught:
        look(url)
    assert "hunter2" not in str(caught.value)


def test_a_name_with_a_colon_and_the_home_of_the_user_are_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("~/state.db", "~/night:shift.db"):
        open_store(name).close()
    assert {file.name for file in tmp_path.glob("*.db")} == {"state.db", "night:shift.db"}


def test_a_store_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no store at"):
        open_store(tmp_path / "state.db", must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_a_folder_of_somebody_else_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be read by this user"):
        open_store(tmp_path / "state.db", must_exist=True)


def test_every_point_that_the_store_reaches_has_a_name() -> None:
    reached: set[str] = set()
    faults.arm(reached.add)
    try:
        with tempfile.TemporaryDirectory(dir=FAST) as folder:
            visit_all(Path(folder))
    finally:
        faults.arm(None)
    unnamed = reached - faults.POINTS.keys()
    assert not unnamed, f"name them in holdfast.stores.faults.POINTS: {sorted(unnamed)}"
    own = {point for point in faults.POINTS if not point.startswith(("stage.", "sink."))}
    assert own - reached == set(), "no check of the suite comes by here"


def visit_all(folder: Path) -> None:
    """Do everything that the suite for stores does."""
    for number, check in enumerate(checks()):
        place = folder / str(number)
        kit = Kit(lambda place, **given: SqliteStore(place / "s.db", **given), place)
        check(kit)
        kit.store.close()
    for number, check in enumerate(checks(without=("budget", "events"))):
        if check.__module__.endswith((".ending", ".acting")):
            place = folder / f"bucket-{number}"
            kit = Kit(
                lambda place, clock, **given: BucketStore(LocalBucket(place), clock=clock, monotonic=clock, **given),
                place,
            )
            check(kit)
            kit.store.close()


def test_a_store_that_nobody_closes_leaves_no_file_open(tmp_path: Path) -> None:
    def open_here() -> list[Path]:
        links = (each for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
        return [to for each in links if tmp_path in (to := each.readlink()).parents]

    for _ in range(3):
        store: Store | None = open_store(str(tmp_path / "state.db"))
        assert store is not None
        store.batches()
        assert open_here()
        store = None
    gc.collect()
    assert open_here() == []
