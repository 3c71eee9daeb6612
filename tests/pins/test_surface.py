"""What users touch stays as it is: a module may move, a name, a signature or a help text may not change unnoticed."""

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pins.surface import PINS


@pytest.mark.parametrize(("path", "make"), PINS.items(), ids=[path.stem for path in PINS])
def test_the_surface_is_as_it_was_pinned(path: Path, make: Callable[[], str]) -> None:
    pinned, now = path.read_text(encoding="utf-8").splitlines(), make().splitlines()
    changed = [*difflib.unified_diff(pinned, now, "pinned", "now", lineterm="", n=1)]
    told = [f"{path.name} changed. If users are meant to see it: python -m tests.pins, and commit.", *changed]
    assert not changed, "\n".join(told)
