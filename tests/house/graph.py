"""Who imports whom: modules and rooms of the source tree, imports inside functions and for types included."""

import ast
from collections.abc import Callable, Iterator
from functools import cache

from tests.house.source import PACKAGE, Module, modules

WITH_ROOMS = ("stores", "runtime")


def name_of(module: Module) -> str:
    """The dotted name of a module, without `holdfast`; that of a package is the folder's."""
    parts = module.path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def named() -> dict[str, Module]:
    return {name_of(module): module for module in modules()}


def room_of(name: str) -> str:
    """The room of a module: its folder within `stores` and `runtime`, or itself beside those; else its layer."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] in WITH_ROOMS else 1])


def imports(module: Module, *, only_at_once: bool = False, but_types: bool = False) -> Iterator[tuple[int, str]]:
    """The modules of ours that a module imports, with the line; `only_at_once` leaves out lazy ones and types,
    `but_types` only what is imported for annotations."""
    leaves_out = _is_later if only_at_once else _is_for_types if but_types else _is_nothing
    for node in _nodes(module.tree, leaves_out):
        for target in _targets(module, node):
            if (found := _module(target)) is not None and found != name_of(module):
                yield node.lineno, found


def _nodes(tree: ast.AST, leaves_out: Callable[[ast.AST], bool]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not leaves_out(node):
            yield from _nodes(node, leaves_out)


def _is_later(node: ast.AST) -> bool:
    """Whether what is in it is not run when the module is loaded."""
    return _is_for_types(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_nothing(_: ast.AST) -> bool:
    return False


def _targets(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = module.package[: len(module.package) - node.level + 1] if node.level else []
    start = ".".join([*base, *([node.module] if node.module else [])])
    yield from (f"{start}.{alias.name}" for alias in node.names)


def _module(target: str) -> str | None:
    """The module that a dotted name is or lies in; None for one that is not ours."""
    if target.partition(".")[0] != "holdfast":
        return None
    name = target.removeprefix("holdfast").removeprefix(".")
    while name and name not in named():
        name = name.rpartition(".")[0]
    return name
