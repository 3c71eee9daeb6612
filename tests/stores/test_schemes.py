"""Stores that other packages bring, found by the scheme of a URL."""

from pathlib import Path

import pytest

from examples.own_store.log_store import LogStore
from holdfast.core.errors import UsageError
from holdfast.stores.open import capabilities_of, is_there, open_store, path_of
from holdfast.stores.sqlite import SqliteStore


def install(folder: Path, name: str, *points: str) -> None:
    """Make a folder look as if a package with these entry points were installed in it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[holdfast.stores]", *points]))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    install(folder, "log", "log = examples.own_store.log_store:open_log")
    return folder


@pytest.mark.parametrize("form", ["log:{}", "log://{}"])
def test_the_store_of_another_package_is_opened_by_its_scheme(packages: Path, form: str, tmp_path: Path) -> None:
    url = form.format(tmp_path / "state.log")
    assert not is_there(url)
    with pytest.raises(UsageError, match="there is no store at"):
        open_store(url, must_exist=True)
    assert not (tmp_path / "state.log").exists()
    store = open_store(url)
    assert isinstance(store, LogStore)
    store.close()
    assert is_there(url)
    assert path_of(url) is None
    assert capabilities_of(url) == LogStore.capabilities


def test_a_scheme_that_no_package_brings_is_refused_and_a_path_with_a_colon_is_a_path(
    packages: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is not known"):
        open_store("etcd://host/batch")
    store = open_store(str(tmp_path / "night:shift.db"))
    assert isinstance(store, SqliteStore)
    store.close()


def test_schemes_of_ours_cannot_be_taken(packages: Path, tmp_path: Path) -> None:
    install(packages, "greedy", "sqlite = examples.own_store.log_store:open_log")
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    assert isinstance(store, SqliteStore)
    store.close()


def test_a_scheme_that_two_packages_bring_is_refused(packages: Path, tmp_path: Path) -> None:
    install(packages, "other", "log = examples.own_store.log_store:LogStore")
    with pytest.raises(UsageError, match=r"claimed by .*LogStore and .*open_log"):
        open_store(f"log:{tmp_path / 'state.log'}")
