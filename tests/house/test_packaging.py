"""What is installed is what is in the repository: a complete lock, a complete wheel."""

import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from tests.house.source import PACKAGE, ROOT, committed_files

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_lock_pins_every_dependency_by_hash() -> None:
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *itertools.chain(*extras)]
    blocks = re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE)[1:]
    pinned = {block.partition("==")[0].lower(): "--hash=sha256:" in block for block in blocks}
    missing = {plain(name) for name in wanted} - pinned.keys()
    assert not missing, f"pyproject.toml asks for {sorted(missing)}, requirements.lock does not have it: run make lock"
    assert all(pinned.values()), "requirements.lock has entries without a hash: run make lock"


def test_the_lock_names_no_url() -> None:
    assert "://" not in LOCK, "requirements.lock names a URL: make it with make lock"


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = {str(path.relative_to(PACKAGE.parent)) for path in committed_files() if path.is_relative_to(PACKAGE)}
    assert not source - packed, f"Not in the wheel, see .gitignore and [tool.hatch]: {sorted(source - packed)}"
    assert "holdfast/py.typed" in packed, "add src/holdfast/py.typed: the types are part of the product"


def plain(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")
