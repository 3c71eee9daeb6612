"""Every public name says what it is, in the code and in the reference."""

import re

import holdfast
from holdfast import testing
from tests.house.source import ROOT


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    missing = [name for name in public_names() if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", page)]
    assert not missing, f"Describe in docs/reference.md, as `hf.Name`: {missing}"


def test_every_public_name_exists_and_has_a_docstring() -> None:
    bare = [name for name in public_names() if not (getattr(holdfast, name).__doc__ or "").strip()]
    assert not bare, f"Write a docstring, one sentence first: {bare}"


def test_every_name_for_tests_is_in_the_reference_and_has_a_docstring() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Testing\n") : page.index("\n## Environment\n")]
    missing = [name for name in testing.__all__ if not re.search(rf"`{name}\b[^`\n]*`", section)]
    assert not missing, f"Describe in docs/reference.md, under Testing: {missing}"
    bare = [name for name in testing.__all__ if callable(it := getattr(testing, name)) and not it.__doc__]
    assert not bare, f"Write a docstring, one sentence first: {bare}"


def public_names() -> list[str]:
    names = [name for name in holdfast.__all__ if not name.startswith("__")]
    assert names, "holdfast.__all__ is empty: the public names stand there"
    return names
