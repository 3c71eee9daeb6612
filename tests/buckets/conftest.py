"""Buckets of every kind, each empty."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.stores.buckets.base import Bucket
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.buckets.obstore import ObstoreBucket
from tests.buckets import google, servers

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    pytest.importorskip("moto.server")
    with servers.moto() as address:
        yield address


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    with servers.azurite() as address:
        yield address


@pytest.fixture
def new_s3(moto: str) -> Callable[[], Bucket]:
    def make() -> Bucket:
        name = f"bucket-{next(_numbers)}"
        servers.make_s3_bucket(moto, name)
        return ObstoreBucket(f"s3://{name}/some/prefix", **servers.s3_options(moto))

    return make


@pytest.fixture
def new_azure(azurite: str) -> Callable[[], Bucket]:
    def make() -> Bucket:
        name = f"container-{next(_numbers)}"
        servers.make_container(azurite, name)
        return ObstoreBucket(f"az://{name}/some/prefix", **servers.azure_options(azurite))

    return make


@pytest.fixture(scope="session")
def google_server() -> Iterator[str]:
    with google.running() as address:
        yield address


@pytest.fixture
def new_google(google_server: str) -> Callable[[], Bucket]:
    def make() -> Bucket:
        name = f"bucket-{next(_numbers)}"
        return ObstoreBucket(f"gs://{name}/some/prefix", **google.options(google_server))

    return make


@pytest.fixture(
    params=[
        "memory",
        "local",
        "google",
        pytest.param("s3", marks=pytest.mark.slow),
        pytest.param("azure", marks=pytest.mark.slow),
    ]
)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    """An empty bucket of every kind."""
    if request.param == "memory":
        return MemoryBucket()
    if request.param == "local":
        return LocalBucket(tmp_path / "bucket")
    made: Bucket = request.getfixturevalue(f"new_{request.param}")()
    return made
