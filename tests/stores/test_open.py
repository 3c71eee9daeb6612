"""From what a user writes to a store."""

from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.stores import faults
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance import checks
from holdfast.testing.conformance.kit import Kit


@pytest.mark.parametrize("form", ["{}", "sqlite:{}", "sqlite://{}"])
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


@pytest.mark.parametrize("url", ["postgresql://host/db", "s3://bucket/path", "gs://bucket"])
def test_a_store_of_a_later_version_is_refused_by_name(url: str) -> None:
    with pytest.raises(UsageError, match="is not known to this version"):
        open_store(url)


def test_a_store_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no store at"):
        open_store(tmp_path / "state.db", must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_every_point_that_the_store_reaches_has_a_name(tmp_path: Path) -> None:
    reached: set[str] = set()
    faults.arm(reached.add)
    try:
        for number, check in enumerate(checks()):
            place = tmp_path / str(number)
            kit = Kit(lambda place, clock, is_dead: SqliteStore(place / "s.db", clock=clock, is_dead=is_dead), place)
            check(kit)
            kit.store.close()
    finally:
        faults.arm(None)
    unnamed = reached - faults.POINTS.keys()
    assert not unnamed, f"name them in holdfast.stores.faults.POINTS: {sorted(unnamed)}"
    own = {point for point in faults.POINTS if not point.startswith(("stage.", "sink."))}
    assert own - reached == set(), "no check of the suite comes by here"
