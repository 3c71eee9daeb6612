"""Fixtures of the layer that spoils files: stores to be spoilt, in memory where there is such a place."""

from pathlib import Path

import pytest

from holdfast.stores import filesystem
from tests.damage.original import Original, make
from tests.simulation.conftest import place

__all__ = ["place"]


@pytest.fixture(autouse=True)
def one_file_system(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """What kind of disk the folder is on is looked up once, not for each damage or each state."""
    kind = filesystem.kind_of(place)
    monkeypatch.setattr(filesystem, "kind_of", lambda _path: kind)


@pytest.fixture
def closed(place: Path) -> Original:
    """One file, as a run that ended leaves it."""
    return make(place / "closed", closed=True)


@pytest.fixture
def killed(place: Path) -> Original:
    """A file and its log, as a process that died leaves them."""
    return make(place / "killed", closed=False)


@pytest.fixture
def spot(place: Path) -> Path:
    """Where spoilt files are looked at."""
    (place / "spoilt").mkdir()
    return place / "spoilt"
