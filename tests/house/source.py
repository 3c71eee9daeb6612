"""The source tree as the house rules see it: modules, their layer, their syntax tree."""

import ast
import importlib.util
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def layer(self) -> str:
        """The first folder below the package; the package's own files are their own layer, named after the file."""
        return self.path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @property
    def package(self) -> list[str]:
        """The dotted package that relative imports start from."""
        return ["holdfast", *self.path.relative_to(PACKAGE).parent.parts]


@cache
def modules() -> tuple[Module, ...]:
    found = tuple(read(path) for path in sorted(PACKAGE.rglob("*.py")))
    assert found, f"no Python file below {PACKAGE.relative_to(ROOT)}"
    return found


def read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path=path, text=text, tree=ast.parse(text, str(path)))


@cache
def committed_files() -> tuple[Path, ...]:
    """Every file that is, or is about to be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


def tool(name: str) -> Any:
    """Load a script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
