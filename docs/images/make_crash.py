# ruff: noqa: INP001, S607, T201 - a script that starts a terminal and says what it made
"""Draws docs/images/crash.svg from a real session: the book pipeline, a real kill -9, the same command again.

    .venv/bin/python docs/images/make_crash.py

A real bash runs in a pseudo-terminal, in an empty folder. This script types the commands, waits until about two hundred
pages are done, and kills the process. What stands in the picture is what the terminal showed; added are only the line
that says when the kill came and the prompt's colour.
"""

import io
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("crash.svg")
WIDTH, HEIGHT = 86, 50
RUN = "holdfast run app.py:book --batch moby-dick --key number"
KILL_AT = 200
PROMPT = "$ "
FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
GREY, RED, GREEN, AMBER, BLUE, VIOLET, CYAN, PALE = (
    (125, 133, 144), (248, 113, 105), (86, 190, 116), (245, 200, 110), (92, 160, 240), (190, 130, 230), (80, 195, 210),
    (200, 206, 214),
)  # fmt: skip
COLOURS = [GREY, RED, GREEN, AMBER, BLUE, VIOLET, CYAN, PALE]
THEME = TerminalTheme((22, 27, 34), (212, 218, 226), COLOURS, COLOURS)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples" / "book", folder, dirs_exist_ok=True)
        session = Session(Path(folder))
        session.start(RUN)
        session.read_until(lambda: pages_done(Path(folder)) >= KILL_AT)
        pid = session.foreground()
        os.kill(pid, signal.SIGKILL)
        session.read_until_prompt()
        session.note(f"   ⚡ kill -9 {pid}, from another terminal")
        session.command(RUN)
        session.command("holdfast audit verify moby-dick --full")
        session.close()
    draw(session.lines)
    print(f"wrote {TARGET.relative_to(ROOT)}")


class Session:
    """A bash in a terminal, and what it has shown."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = [""]
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PS1": PROMPT, "TERM": "xterm-256color",
            "COLORTERM": "truecolor", "LANG": "C.UTF-8", "HOME": str(folder), "HOLDFAST_DEMO_PACE": "12",
            "BASH_SILENCE_DEPRECATION_WARNING": "1",
        }  # fmt: skip
        self._ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True,
            preexec_fn=lambda: ioctl(0, 0x540E, 0),  # noqa: PLW1509 - the terminal becomes the shell's own
        )  # fmt: skip
        os.close(theirs)
        self.read_until_prompt()

    def start(self, command: str) -> None:
        os.write(self._ours, f"{command}\n".encode())
        self._drain(0.3)

    def command(self, command: str) -> None:
        self.start(command)
        self.read_until_prompt()

    def read_until(self, reached: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > end:
                raise TimeoutError("\n".join(self.lines))
            self._drain(0.02)

    def read_until_prompt(self) -> None:
        self.read_until(lambda: self.lines[-1].endswith(PROMPT) and not self._drain(0.15))

    def foreground(self) -> int:
        """The process that the shell waits for."""
        children = Path(f"/proc/{self._bash.pid}/task/{self._bash.pid}/children").read_text("ascii").split()
        return int(children[0])

    def note(self, text: str) -> None:
        """A line of our own, where the shell wrote that its command was killed."""
        at = next(i for i in range(len(self.lines) - 1, -1, -1) if "Killed" in self.lines[i])
        shown, _, _ = self.lines[at].partition("Killed")
        self.lines[at : at + 1] = [shown, f"Killed\x1b[38;2;245;200;110m{text}\x1b[0m"]

    def close(self) -> None:
        self.lines.pop()
        os.write(self._ours, b"exit\n")
        self._bash.wait(timeout=10)
        os.close(self._ours)

    def _drain(self, seconds: float) -> bool:
        ready = bool(select.select([self._ours], [], [], seconds)[0])
        if ready:
            self._show(os.read(self._ours, 1 << 16).decode("utf-8", "replace"))
        return ready

    def _show(self, text: str) -> None:
        """As much of a terminal as a progress bar needs: line ends, carriage returns, up, erase."""
        for piece in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if piece == "\n":
                self.lines.append("")
            elif piece == "\r":
                self._returned = True
                continue
            elif piece.endswith("A"):
                del self.lines[-int(piece[2:-1] or 1) :]
            elif piece.endswith("K"):
                self.lines[-1] = ""
            elif piece.endswith("m") or not piece.startswith("\x1b"):
                self.lines[-1] = piece if self._returned and not piece.startswith("\x1b") else self.lines[-1] + piece
            self._returned = False

    _returned = False


def pages_done(folder: Path) -> int:
    return len(list((folder / "out").glob("page_*.json")))


def draw(lines: list[str]) -> None:
    console = Console(record=True, width=WIDTH, force_terminal=True, color_system="truecolor", file=io.StringIO())
    for line in lines:
        text = Text.from_ansi(line)
        if text.plain.startswith(PROMPT):
            text = Text.assemble((PROMPT, "bold green"), (text.plain[len(PROMPT) :], "bold"))
        console.print(text, soft_wrap=False)
    svg = console.export_svg(title="a crash, survived", theme=THEME, clear=False)
    svg = re.sub(r"\s*@font-face \{.*?\}\n", "\n", svg, flags=re.DOTALL)  # no font from a server
    svg = re.sub(r"font-family: Fira Code, monospace", f"font-family: {FONT}", svg)
    svg = re.sub(r"terminal-\d+", "crash", svg)
    svg = re.sub(r'x="([\d.]+)"( y="[\d.]+") textLength="([\d.]+)"([^>]*)>((?:&#160;)+)', _shift, svg)
    TARGET.write_text(svg, encoding="utf-8")


def _shift(match: re.Match[str]) -> str:
    """Blanks at the start of a text as a distance: some programs drop them."""
    x, y, length, rest, blanks = match.groups()
    by = 12.2 * blanks.count("&#160;")
    return f'x="{float(x) + by:g}"{y} textLength="{float(length) - by:g}"{rest}>'


if __name__ == "__main__":
    main()
