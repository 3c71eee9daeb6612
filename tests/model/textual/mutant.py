"""A textual mutant: one function of Holdfast with a few words of its source replaced, put in place while it runs."""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import msgspec


class TextualMutant(msgspec.Struct, frozen=True, kw_only=True):
    """One careless edit, and the test that notices it."""

    name: str
    """What is broken, as a sentence."""
    where: str
    """The function: `package.module:Class.method`. Where it moves, only this changes."""
    old: str
    """What stands there, exactly once in the source of the function."""
    new: str
    file: str
    test: str
    """The test that fails with it; it runs Holdfast in its own process."""
    notice: str
    """What a user would notice."""

    def apply(self) -> None:
        """Put the changed function in the place of the real one, in this process: only its code is replaced, so
        whoever holds the function has the changed one, and nothing is imported again."""
        module, qualified = self.where.split(":")
        function = _function(importlib.import_module(module), qualified)
        function.__code__ = _code_of(self.changed(), function.__code__)

    def changed(self) -> str:
        """Return the source of the module with the mutant in it."""
        module, qualified = self.where.split(":")
        text = _text_of(module)
        body = _lines_of(text, qualified)
        found = body.count(self.old)
        assert found == 1, f"{self.name}: its old text stands {found} times in {self.where}, not once"
        assert self.old != self.new, f"{self.name}: nothing is changed"
        return text.replace(body, body.replace(self.old, self.new))


def _text_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no module {module}: was it renamed?"
    assert spec.origin is not None, f"{module} has no file"
    return Path(spec.origin).read_text(encoding="utf-8")


def _lines_of(text: str, qualified: str) -> str:
    """Return the lines of a function."""
    node: Any = dict(_named(ast.parse(text), "")).get(qualified)
    assert node is not None, f"there is no function {qualified}: was it renamed or moved?"
    lines = "".join(text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])
    assert text.count(lines) == 1, f"{qualified} stands there twice"
    return lines


def _named(node: ast.AST, before: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{before}{child.name}", child
            yield from _named(child, f"{before}{child.name}.")


def _function(owner: Any, qualified: str) -> FunctionType:
    """Return the function itself, whatever is wrapped around it."""
    for name in qualified.split("."):
        owner = inspect.getattr_static(owner, name)
    for wrapper in ("fget", "func", "__func__"):
        owner = getattr(owner, wrapper, owner)
    function = inspect.unwrap(owner)
    assert isinstance(function, FunctionType), f"{qualified} is no function"
    return function


def _code_of(text: str, before: CodeType) -> CodeType:
    """Return what the changed text makes of a function."""
    module = compile(text, before.co_filename, "exec", dont_inherit=True)
    (found,) = [code for code in _codes(module) if code.co_qualname == before.co_qualname]
    assert found.co_freevars == before.co_freevars, f"{before.co_qualname} sees other names around it now"
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
