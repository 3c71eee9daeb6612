"""Imports point left only: core <- stores <- runtime <- interfaces. And the core is a function of its arguments."""

import ast
from collections.abc import Iterator

from tests.house.source import Module, modules

MAY_IMPORT = {
    "core": {"core"},
    "stores": {"core", "stores"},
    "runtime": {"core", "stores", "runtime"},
    "interfaces": {"core", "stores", "runtime", "interfaces", "__init__"},
    "testing": {"core", "stores", "runtime", "interfaces", "testing", "__init__"},
    "__init__": {"core", "stores", "runtime"},
    "__main__": {"interfaces"},
}

# Modules that read a clock, a random number, a file, the environment, or write a log.
IMPURE = {
    *("time", "sched", "random", "secrets", "os", "sys", "io", "pathlib", "tempfile", "shutil", "glob", "fcntl"),
    *("logging", "warnings", "threading", "multiprocessing", "concurrent", "asyncio", "queue", "signal", "select"),
    *("subprocess", "socket", "ssl", "urllib", "http", "platform", "getpass", "sqlite3", "apsw", "rich", "typer"),
}
PURE_ALL_THE_SAME = {
    "socket.gaierror",
    "ssl.SSLError",
    "ssl.SSLCertVerificationError",
}  # exceptions, for classifying by type
IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today", "uuid1", "uuid4", "uuid6", "uuid7", "urandom"}


def test_imports_point_left_only() -> None:
    wrong = [
        f"{module.place}:{line}: {module.layer} imports {target}"
        for module in modules()
        for line, target in layers_imported(module)
        if target not in MAY_IMPORT.get(module.layer, set())
    ]
    assert not wrong, tell(
        "Imports point left only: core <- stores <- runtime <- interfaces; only testing imports testing. "
        "Move what is needed to the left, or hand it in as an argument.",
        wrong,
    )


def test_the_package_holds_nothing_but_its_layers() -> None:
    wrong = sorted({module.place for module in modules() if module.layer not in MAY_IMPORT})
    assert not wrong, tell("Only __init__.py and __main__.py stand beside the layers; move these into one.", wrong)


SANS_IO = {f"runtime/engine/{name}.py" for name in ("hold", "desk", "dispatch", "exchange", "withheld")}
"""What decides in the engine: whoever drives it hands in time, ids and the answers of the store."""


def test_what_decides_in_the_engine_is_pure() -> None:
    decide = [module for module in modules() if any(module.place.endswith(name) for name in SANS_IO)]
    assert len(decide) == len(SANS_IO)
    wrong = [f"{module.place}:{line}: {what}" for module in decide for line, what in impurities(module)]
    assert not wrong, tell("Hold and Desk read no clock and call nobody: yield an effect, or take an argument.", wrong)


def test_the_core_is_pure() -> None:
    core = [module for module in modules() if module.layer == "core"]
    wrong = [f"{module.place}:{line}: {what}" for module in core for line, what in impurities(module)]
    assert not wrong, tell(
        "The core reads no clock, file or random number and writes no log: take the value as an argument, "
        "or move the code to runtime.",
        wrong,
    )


def layers_imported(module: Module) -> Iterator[tuple[int, str]]:
    for line, target in imports(module, module.tree):
        parts = target.split(".")
        if parts[0] == "holdfast":
            yield line, parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"


def impurities(module: Module) -> Iterator[tuple[int, str]]:
    for line, target in imports(module, without_type_checking(module.tree)):
        if target.split(".")[0] in IMPURE and target not in PURE_ALL_THE_SAME:
            yield line, f"imports {target}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and (name := called(node)) in IMPURE_CALLS:
            yield node.lineno, f"calls {name}()"


def imports(module: Module, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import of a tree as (line, absolute dotted name), lazy ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.package[: len(module.package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def without_type_checking(tree: ast.Module) -> ast.Module:
    body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(body=body, type_ignores=[])


def called(node: ast.Call) -> str:
    return ast.unparse(node.func).rsplit(".", 1)[-1]


def tell(fix: str, places: list[str]) -> str:
    return "\n  ".join([fix, *places])
