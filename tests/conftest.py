"""What every test may use. Fixtures of one layer stand in that layer's own conftest."""

from collections.abc import Iterator

import pytest

from tests.forkserver import ForkServer, end_shared, shared

pytest_plugins = ("tests.bytecode", "tests.needed", "tests.promises")


@pytest.fixture(scope="session", autouse=True)
def _forkserver_ends() -> Iterator[None]:
    """Who started processes through the shared server needs no fixture: it ends with the session in any case."""
    yield
    end_shared()


@pytest.fixture(scope="session")
def forkserver() -> ForkServer:
    """Starts processes quickly."""
    return shared()
