"""A digest of what a handler does: of its syntax, so that comments, blank lines, docstrings, decorators and the layout
of its source may change, and the code counts as the same."""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core import canonical


def code_of(function: Callable[..., Any]) -> str:
    """The digest of a handler's code; of its text where that cannot be parsed, of its name where it cannot be had.
    What a handler calls is not part of it."""
    if isinstance(function, functools.partial):
        return canonical.fingerprint([code_of(function.func), _bound(function)])
    named = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        text = inspect.getsource(named)
    except (OSError, TypeError):
        return canonical.fingerprint(getattr(function, "__qualname__", repr(type(function))))
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:  # a lambda in the middle of a call, for example
        return canonical.fingerprint(text)
    return canonical.fingerprint(_bare(tree))


def _bare(node: Any) -> Any:
    """A tree as plain values, without what says nothing about what it does. What is empty is left out, so that another
    version of Python, which knows more kinds of things to leave empty, gives the same."""
    if isinstance(node, list):
        return [_bare(each) for each in node]
    if isinstance(node, ast.Constant):
        return [type(node.value).__name__, repr(node.value)]
    if not isinstance(node, ast.AST):
        return node if isinstance(node, str | int) else repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _SAYS_NOTHING}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
        fields["body"] = node.body[1:] if _begins_with_text(node) else node.body
        fields.pop("decorator_list", None)
    kept = {name: _bare(value) for name, value in fields.items() if value is not None and value != []}
    return [type(node).__name__, kept] if kept else type(node).__name__


_SAYS_NOTHING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def _begins_with_text(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _bound(function: "functools.partial[Any]") -> Any:
    """What a partial binds, where that is plain; what is not plain prints differently in every run."""
    try:
        return canonical.decode(canonical.encode([function.args, function.keywords]))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return None
