"""The environments of the peers: created on demand below build/peers, with uv if available, else with venv and pip.

An environment is created again when its requirements or the Python change. If it cannot be created, the table shows
that failure with its reason.
"""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers"
HOMES = ROOT / "build" / "peers"


class PeerMissingError(Exception):
    """The environment of a peer could not be created; the message tells why."""


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, which is created if needed."""
    home, wanted = HOMES / peer, f"Python {platform.python_version()}\n{requirements(peer).read_text(encoding='utf-8')}"
    stamp = home / "made-of.txt"
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
        make(peer, home)
        stamp.write_text(wanted, encoding="utf-8")
    return interpreter(home)


def version_of(peer: str, package: str | None = None) -> str:
    """Return the pinned version of the peer."""
    pin = re.search(rf"^{package or peer}==(\S+)", requirements(peer).read_text(encoding="utf-8"), re.MULTILINE)
    assert pin, f"{peer} is not pinned"
    return pin[1]


def requirements(peer: str) -> Path:
    return PEERS / peer / "requirements.txt"


def interpreter(home: Path) -> Path:
    return home / "bin" / "python"


def make(peer: str, home: Path) -> None:
    uv, python, packages = str(ROOT / "tools" / "uv.sh"), str(interpreter(home)), str(requirements(peer))
    with_uv = (
        [uv, "venv", "-q", "--python", sys.executable, str(home)],
        [uv, "pip", "sync", "-q", "--python", python, packages],
    )
    with_pip = (
        [sys.executable, "-m", "venv", str(home)],
        [python, "-m", "pip", "install", "-q", "-r", packages],
    )
    reasons = []
    for way in (with_uv, with_pip):
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(parents=True, exist_ok=True)
        reason = next((reason for command in way if (reason := trouble(command))), None)
        if reason is None:
            return
        reasons.append(reason)
    raise PeerMissingError(f"{peer} could not be installed: {'; '.join(reasons)}")


def trouble(command: list[str]) -> str | None:
    """Return the last line of a command that failed, or None."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else None
