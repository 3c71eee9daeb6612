"""Output shown on a page, compared with the output of the page's code. Copied beside the script that a page becomes.

Figures that differ from run to run (durations, rates, moments, decimals, entries, free space, process ids, digests)
match any other of their kind, a run of blanks or of box lines any other, `…` anything within a line, and a line that is
only `...` any number of lines. Every other number is compared.
"""

import difflib
import re
import subprocess
import sys
from typing import TextIO

FIGURES = re.compile(
    r"""
    \b[0-9a-f]{12,}\b                                # a digest
    | \b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::[\d.]+)?Z?)?  # a moment
    | \b\d+(?::\d\d)+(?:\.\d+)?Z?                      # a time
    | <?(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?\ ?(?:ms|s|min|h)\b  # a duration
    | (?<![\w.$])\d[\d,]*(?:\.\d+)?(?=(?:\ (?:rows|items))?/s)  # a rate
    | (?<![\w.$])\d[\d,]*\.\d+(?:e-?\d+)?               # a decimal that is not money
    | (?<=pid\ )\d+ | \b[\d,]+(?=\ (?:entry|entries|MiB)\b)
    """,
    re.VERBOSE,
)
RULE = re.compile(r"[─━═┄╌-]{2,}")
BLANK = re.compile(r"\s+")


class Recorder:
    """A stream that keeps a copy of what is printed."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.kept = stream, list[str]()

    def write(self, text: str) -> int:
        self.kept.append(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


recorder = Recorder(sys.stdout)


def begin() -> None:
    """Record what is printed from here on."""
    sys.stdout = recorder  # type: ignore[assignment]
    recorder.kept.clear()


def printed(expected: str) -> None:
    """Compare the output of the Python block above."""
    compare("".join(recorder.kept), expected)


def command(line: str, code: int, expected: str) -> None:
    """Run a command line; compare its exit code, and its output, or else its errors, if the page shows any."""
    done = subprocess.run(line, shell=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout + done.stderr)
    assert done.returncode == code, f"exit code {done.returncode}, not {code}: {line}"
    if expected.strip():
        compare(done.stdout or done.stderr, expected)


def compare(actual: str, expected: str) -> None:
    """Raise with the difference if the output is not what the page shows."""
    shown, real = lines(expected), lines(actual)
    if not re.fullmatch("".join(pattern(line) for line in shown), "".join(f"{line}\n" for line in real)):
        raise AssertionError("the page shows other output\n" + "\n".join(difflib.ndiff(shown, real)))


def lines(text: str) -> list[str]:
    """Return the lines that are not blank, with figures, blanks and rules made alike."""
    for mark, expression in (("0", FIGURES), ("──", RULE)):
        text = expression.sub(mark, text)
    return [alike for line in text.splitlines() if (alike := BLANK.sub(" ", line).strip())]


def pattern(line: str) -> str:
    """Return the expression for a line of a page."""
    return r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("…"))) + r"\n"
