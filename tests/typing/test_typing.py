"""Types survive decorators: on programs of users, type checkers find what is wrong, and nothing else.

The programs in `good` and `wrong` are read by mypy and by basedpyright, both strict, and never run. A line that must be
refused ends with `# error: ` and mypy's codes; of basedpyright, which has other codes, only the line counts.
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.needed import missing

HERE = Path(__file__).parent
SOURCES = Path(holdfast.__file__).parents[1]
PROGRAMS = sorted([*HERE.glob("good/*.py"), *HERE.glob("wrong/*.py")])
MARKER = re.compile(r"  # error: ([\w-]+(?:, [\w-]+)*)$")
MYPY = re.compile(r"(?P<path>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]")


def test_mypy_finds_every_mistake_and_no_other(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = true\nmypy_path = {SOURCES}\nfollow_imports = silent\npython_version = 3.11\n"
        f"cache_dir = {tmp_path / 'cache'}\nshow_error_codes = true\nhide_error_context = true\npretty = false\n"
    )
    told = run("mypy", "--config-file", str(config), "--no-error-summary", *map(str, PROGRAMS), within=tmp_path)
    found = [MYPY.match(line) for line in told.splitlines() if ": note: " not in line]
    assert all(found), told
    assert_same({(Path(each["path"]), int(each["line"]), each["code"]) for each in found if each}, set(marked()), told)


def test_basedpyright_finds_every_mistake_and_no_other(tmp_path: Path) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        missing("basedpyright: make setup installs it")
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps({
        "include": [str(HERE / "good"), str(HERE / "wrong")],
        "extraPaths": [str(SOURCES)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
    }))  # fmt: skip
    told = run(
        "basedpyright", "--outputjson", "--project", str(config), "--pythonpath", sys.executable, within=tmp_path
    )
    report = json.loads(told)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS), told
    found = {(Path(each["file"]), each["range"]["start"]["line"] + 1) for each in report["generalDiagnostics"]}
    assert_same(found, {(path, line) for path, line, _ in marked()}, told)


def test_the_good_programs_use_every_public_name() -> None:
    text = "\n".join(path.read_text() for path in HERE.glob("good/*.py"))
    used = set(re.findall(r"\bhf\.(\w+)", text))
    assert used >= set(holdfast.__all__), f"use these in tests/typing/good: {sorted(set(holdfast.__all__) - used)}"


def run(module: str, *arguments: str, within: Path) -> str:
    """Return what a type checker says. It must find something."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=within, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout, done.stderr
    return done.stdout


def marked() -> Iterator[tuple[Path, int, str]]:
    """Give the lines of all programs that must be refused, with each of mypy's codes."""
    for path in PROGRAMS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := MARKER.search(line):
                yield from ((path, number, code) for code in match[1].split(", "))


def assert_same(found: set[tuple[Path, *tuple[int | str, ...]]], wanted: set[tuple[Path, *tuple[int | str, ...]]],
                told: str) -> None:  # fmt: skip
    amiss = [f"missed: {place(each)}" for each in sorted(wanted - found)]
    amiss += [f"wrong alarm: {place(each)}" for each in sorted(found - wanted)]
    if amiss:
        pytest.fail("\n  ".join([f"{len(amiss)} lines differ from their markers:", *amiss, told]))


def place(each: tuple[Path, *tuple[int | str, ...]]) -> str:
    path, *rest = each
    return ":".join([str(path.relative_to(HERE)), *map(str, rest)])
