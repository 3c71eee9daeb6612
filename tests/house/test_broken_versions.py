"""Seven versions of Holdfast that lose or double work: each is caught by a test that names it."""

import ast
from collections.abc import Iterator

from tests.house.source import ROOT

BROKEN_VERSIONS = {
    "unfenced": "a commit is taken whatever its fence",
    "unversioned": "a commit is taken whatever its version",
    "acknowledge before commit": "work goes on from what is not yet durable",
    "fence not raised": "a grant leaves the fence as it was",
    "no read-back": "a commit whose reply was lost is not looked up",
    "NORMAL durability": "a commit is answered before the disk has it",
    "no directory sync": "a file is durable, its name is not",
}


def test_each_broken_version_is_caught_by_name() -> None:
    shown = {name for path in (ROOT / "tests").rglob("test_*.py") for name in caught_in(path.read_text("utf-8"))}
    missing = sorted(BROKEN_VERSIONS.keys() - shown)
    assert not missing, f"Mark the test that shows it caught with @pytest.mark.catches(...): {missing}"
    assert not shown - BROKEN_VERSIONS.keys(), f"Give these a line above: {sorted(shown - BROKEN_VERSIONS.keys())}"


def caught_in(source: str) -> Iterator[str]:
    """The names that a test file's marks say, such as `pytest.mark.catches("unfenced")`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.catches":
            yield from (ast.literal_eval(name) for name in node.args)


def test_a_mark_is_found_and_what_is_not_one_is_not() -> None:
    said = "@pytest.mark.catches('unfenced', 'no read-back')\ndef test_it(): pass\nx = 'pytest.mark.catches(1)'\n"
    assert list(caught_in(said)) == ["unfenced", "no read-back"]
