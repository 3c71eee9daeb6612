"""Every public name says what it is, in the code and in the reference."""

import ast
import re

import pytest

from holdfast.interfaces.cli import status
from tests.house.source import ROOT, modules, tool

LAYERS = ("core", "stores", "runtime")


@pytest.mark.parametrize("name", ["api", "commands"])
def test_the_page_is_made_from_the_code(name: str) -> None:
    written = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert tool(name).page() == written, "the code changed. If users are meant to see it: run `make docs`, and commit"


def test_every_public_name_and_member_has_a_docstring() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    bare = re.findall(r"^\| (`.*`) \|\s*\|$|^### (`.*`)\n\n(?:###|\|)", page, re.MULTILINE)
    assert not bare, f"Write a docstring, one sentence first: {bare}"


def test_every_code_of_a_dead_letter_is_described() -> None:
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    table = page[page.index("## Codes of dead letters") :]
    trees = [ast.parse(module.path.read_text()) for module in modules() if module.layer in LAYERS]
    used = {code for tree in trees for code in _codes(tree)}
    missing = sorted(code for code in used if f"`{code}`" not in table)
    assert not missing, f"Describe in docs/pipelines.md, under Codes of dead letters: {missing}"


def test_every_word_of_status_is_in_the_table_of_operations() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    missing = [word for word in status.WORDS if f"\n| `{word}` |" not in page]
    assert not missing, f"Describe in docs/operations.md: {missing}"


def _codes(tree: ast.AST) -> set[str]:
    """The codes that raised signals carry: of Permanent the first argument, of Transient the keyword."""
    found: set[str] = set()
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in ("Permanent", "Transient")
        ):
            given = [*call.args[:1]] if call.func.id == "Permanent" else []
            given += [keyword.value for keyword in call.keywords if keyword.arg == "code"]
            found |= {each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found
