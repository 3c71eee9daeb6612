"""Fixtures of the databases: servers that last for the session, and an empty place in each for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.databases import servers

KINDS = ("sqlite", "postgresql", "mariadb")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    with servers.postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[str]:
    with servers.mariadb() as url:
        yield url


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    return tmp_path


@pytest.fixture
def postgresql(postgresql_server: str) -> Iterator[str]:
    yield from _emptied(postgresql_server)


@pytest.fixture
def mariadb(mariadb_server: str) -> Iterator[str]:
    yield from _emptied(mariadb_server)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The address of an empty database, of every kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'shop.db'}"
    else:
        yield from _emptied(request.getfixturevalue(f"{request.param}_server"))


def _emptied(url: str) -> Iterator[str]:
    yield url
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        found = sa.MetaData()
        found.reflect(connection)
        found.drop_all(connection)
    engine.dispose()
