"""What a machine should have for the tests: what it lacks is said loudly, and where CI is set it is a failure."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """A laptop may lack a server; CI may not."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}: CI is set, and needs it")
    pytest.skip(f"NOT TESTED: {what}")
