"""Every public name says what it is, in the code and in the reference."""

import ast
import importlib.util
import re

import holdfast
from holdfast import testing
from holdfast.interfaces.cli import status
from tests.house.source import ROOT, modules

LAYERS = ("core", "stores", "runtime")


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
    names = [name for name in sorted(holdfast.NAMES) if not name.startswith("__")]
    assert names, "holdfast.NAMES is empty: the public names stand there"
    return names


def test_every_code_of_a_dead_letter_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    table = page[page.index("### Codes of dead letters") : page.index("\n## Sources\n")]
    trees = [ast.parse(module.path.read_text()) for module in modules() if module.layer in LAYERS]
    used = {code for tree in trees for code in _codes(tree)}
    missing = sorted(code for code in used if f"`{code}`" not in table)
    assert not missing, f"Describe in docs/reference.md, under Codes of dead letters: {missing}"


def test_every_word_of_status_is_in_the_table_of_operating() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    missing = [word for word in status.WORDS if f"\n| `{word}` |" not in page]
    assert not missing, f"Describe in docs/operating.md: {missing}"


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


def test_the_page_of_commands_is_made_from_the_code() -> None:
    spec = importlib.util.spec_from_file_location("commands_tool", ROOT / "tools" / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    written = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert tool.page() == written, "a command changed. If users are meant to see it: run `make docs`, and commit"
