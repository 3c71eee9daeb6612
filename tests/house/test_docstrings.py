"""A function's docstring begins with what it does: Return, Write, Refuse, Yield."""

import ast
from collections.abc import Iterator
from dataclasses import replace

from tests.house.source import Module, modules

RELATIVE = {"What", "Whether", "How", "Who", "Whoever", "Which", "Where", "When", "Why", "Whose"}
NOUNS = {"The", "A", "An", "Every", "One", "Its", "All", "Those"}
TELLS = ("property", "contextmanager", "overload", "command", "callback", "fixture")
"""Decorators under which a docstring tells what something is, or what its user reads."""


def test_a_function_that_returns_something_begins_with_a_verb() -> None:
    wrong = [found for module in modules() for found in _begin_otherwise(module)]
    assert not wrong, "\n  ".join(['Begin with a verb in the imperative, as in "Return the …" or "Write …":', *wrong])


def _begin_otherwise(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
            continue
        under = " ".join(ast.unparse(each) for each in node.decorator_list)
        text = ast.get_docstring(node) or ""
        returns = node.returns is not None and ast.unparse(node.returns) != "None"
        first = text.split(maxsplit=1)[0] if text else ""
        if returns and first in RELATIVE | NOUNS and not any(word in under for word in TELLS):
            yield f"{module.place}:{node.lineno}: {node.name}: {text.splitlines()[0]}"


def test_the_rule_sees_what_it_shall_see() -> None:
    texts = {
        'def f() -> int:\n    "The number."': True,
        'def f() -> int:\n    "Whether it is one."': True,
        'def f() -> int:\n    "Return the number."': False,
        'def f() -> None:\n    "The end."': False,
        '@property\ndef f(self) -> int:\n    "The number."': False,
    }
    for text, is_wrong in texts.items():
        assert bool(list(_begin_otherwise(_of(text)))) is is_wrong, text


def _of(text: str) -> Module:
    return replace(modules()[0], tree=ast.parse(text))
