"""The documentation runs: every Python block and every `$ holdfast ...` line of a page, in order, in an empty folder.

A page becomes one script with the same line numbers, so a failure points at the line of the page. The output shown
below a command, and in a text block right after a Python block, is compared with the real one (`shown.py` has the
wildcards). After the language, a fence may say
    no-run      shown only
    new         python: starts a new script, with nothing imported or defined
    exit=1      console: the last command of the block ends with this code instead of 0
Set-up that readers need not see is in a python block inside an HTML comment. The first page runs in new
interpreters, as it does for a reader; the others in warm ones, which cost a tenth.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.forkserver import shared

ROOT = Path(__file__).parents[2]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.exists()]
READ_FIRST = ("README.md", "guide.md", "pipelines.md")
"""Pages that run in the quick part, too."""
SECONDS = 300.0
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>python|console|text)(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


def _marked(page: Path) -> object:
    marks = () if page.name in READ_FIRST else (pytest.mark.slow,)
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [_marked(page) for page in PAGES])
def test_the_page_runs(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shutil.copy(Path(__file__).with_name("shown.py"), tmp_path)
    if "examples/" in text:
        shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for number, script in enumerate(scripts(text)):
        target = tmp_path / f"page_{number}.py"
        target.write_text(script, encoding="utf-8")
        done = run_script(target, is_new=page.name == "README.md")
        assert done.returncode == 0, f"{page.relative_to(ROOT)} (same line numbers)\n{done.stdout}{done.stderr}"


def run_script(script: Path, *, is_new: bool) -> "subprocess.CompletedProcess[str]":
    """Run a script whose `holdfast` is ours, in new interpreters or in warm ones."""
    if not is_new:
        server = shared()
        return server.program(script.name, cwd=script.parent, env=clean(server.path), spawns=True).completed(SECONDS)
    command, env = [sys.executable, script.name], clean(Path(sys.executable).parent)
    return subprocess.run(command, cwd=script.parent, env=env, capture_output=True, text=True, check=False)


def scripts(text: str) -> list[str]:
    """Return the page as scripts; everything but the blocks that run is blank."""
    total, ended = text.count("\n") + 2, -1
    parts = [[""] * total]
    for match in FENCE.finditer(text):
        info, code, language = match["info"].split(), textwrap.dedent(match["code"]), match["language"]
        fence, is_next = text.count("\n", 0, match.start()), ended >= 0 and not text[ended : match.start()].strip()
        ended = match.end() if language == "python" and "no-run" not in info else -1
        if "no-run" in info:
            continue
        if language == "text":
            parts[-1][fence] = f"shown.printed({code!r})" if is_next else ""
            continue
        if "new" in info:
            parts.append([""] * total)
        lines = ["shown.begin()", *code.splitlines()] if language == "python" else ["", *as_python(code, info)]
        parts[-1][fence : fence + len(lines)] = lines
    return ["\n".join(["import shown", *part[1:]]) for part in parts if any(part)]


def as_python(console: str, info: list[str]) -> list[str]:
    """Return statements that run the `$ holdfast ...` lines and compare what is shown below each."""
    last = next((int(word.removeprefix("exit=")) for word in info if word.startswith("exit=")), 0)
    before, *rest = re.split(r"^\$ (?=holdfast)", console, flags=re.MULTILINE)
    statements = before.count("\n") * [""]
    for number, text in enumerate(rest):
        line, _, below = text.replace("\\\n", "\0").partition("\n")
        shown = re.split(r"^[$#] ", below, maxsplit=1, flags=re.MULTILINE)[0]
        code = last if number == len(rest) - 1 else 0
        statements.append(f"shown.command({line.replace(chr(0), '')!r}, {code}, {shown!r})")
        statements += (text.count("\n") - 1) * [""]
    return statements


def clean(commands: Path) -> dict[str, str]:
    """An environment in which `holdfast` is that of a folder, and nothing points at a store of the developer's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))}
    return kept | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
