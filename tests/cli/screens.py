"""Screens of the command as text, on 80 and 200 columns. After a change of them: python -m tests.cli.screens"""

import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.interfaces.cli.app import call
from holdfast.stores.sqlite import SqliteStore
from tests.cli.conftest import work
from tests.operations.world import Clock, World

HERE = Path(__file__).parent / "screens"
WIDTHS = (80, 200)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COMMANDS = (
    "status",
    "status moby-dick --no-statistics",
    "show moby-dick",
    "show moby-dick fine",
    "why moby-dick bad",
    "dead list",
    "dead show moby-dick bad",
    "dead redrive moby-dick --all --dry-run",
    "reset moby-dick --dry-run",
    "cancel moby-dick --dry-run",
    "close moby-dick --dry-run",
    "reconcile moby-dick",
    "orphans",
    "events",
    "status scan --no-statistics",
    "cursor show scan",
    "why scan 0",
    "cursor reset scan 0 --to-beginning --dry-run",
    "plan app.py:pages",
    "--help",
    "dead --help",
    "reconcile --help",
)
APP = """
import holdfast as hf
pages = hf.Pipeline("pages", source=[1, 2, 3])
@pages.stage
def read(n: int) -> int:
    return n
scan = hf.Scan("scan", hf.Csv("stock.csv"), every=5, partitions=2)
@scan.handler
def add(rows, acc: int) -> int:
    assert not any(row["n"] == "13" for row in rows), "unlucky row"
    return acc + len(rows)
"""


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shoot(columns: int) -> str:
    """Return every screen, the figures that differ from day to day masked."""
    with tempfile.TemporaryDirectory() as folder, _world(Path(folder)):
        os.environ["COLUMNS"] = str(columns)
        return "".join(_screen(command) for command in COMMANDS)


def _screen(command: str) -> str:
    before, screen = (sys.stdout, sys.stderr), Screen()
    sys.stdout = sys.stderr = screen
    try:
        code = call(command.split())
    finally:
        sys.stdout, sys.stderr = before
    lines = [line.rstrip() for line in masked(ESCAPE.sub("", screen.getvalue())).splitlines()]
    return "\n".join([f"$ holdfast {command}", *lines, f"(exit code {code})", "", ""])


def masked(text: str) -> str:
    """Return the text with times, durations, digests and processes masked."""
    text = re.sub(r"\b20\d\d-\d\d-\d\d", "2026-01-01", text)
    text = re.sub(r"\d\d:\d\d:\d\d(\.\d+)?", lambda found: re.sub(r"\d", "0", found.group()), text)
    text = re.sub(r"\b[0-9a-f]{32,}\b", lambda found: "f" * len(found.group()), text)
    text = re.sub(r"\b[\d.]+ (?:ms|s)\b", "N ms", text)
    text = re.sub("─{10,}$", "─" * 10, text, flags=re.MULTILINE)
    return re.sub(r"\S+ pid \d+", "host pid 0", text)


@contextmanager
def _world(folder: Path) -> Iterator[None]:
    kept, where = dict(os.environ), Path.cwd()
    os.chdir(folder)
    os.environ.update(TERM="xterm-256color")
    os.environ.pop("HOLDFAST_STORE", None)
    os.environ.pop("NO_COLOR", None)
    try:
        _fill(folder)
        yield
    finally:
        os.chdir(where)
        os.environ.clear()
        os.environ.update(kept)


def _fill(folder: Path) -> None:
    """A batch with every state, one with a long name, and a scan with a dead partition."""
    (folder / "app.py").write_text(APP)
    (folder / "stock.csv").write_text("n,name\n" + "".join(f"{n},customer {n:03d}\n" for n in range(40)))
    clock = Clock(time.time())
    store = SqliteStore(folder / ".holdfast" / "state.db", clock=clock)
    for name in ("moby-dick", "a-batch-with-a-name-that-is-longer-than-most"):
        work(World(store, clock, batch=name))
    store.close()
    quiet, sys.stdout = sys.stdout, io.StringIO()
    try:
        call(["run", "app.py:scan", "--no-progress"])
    finally:
        sys.stdout = quiet


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for width in WIDTHS:
        (HERE / f"{width}.txt").write_text(shoot(width), encoding="utf-8")
