"""The shim on the side of Python: built once, armed in a child, and its log of calls read back."""

import ctypes
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tools import machine

SOURCE = Path(__file__).with_name("shim.c")
LOG = "calls.tsv"


class Call(NamedTuple):
    """One call on a file of the disk under attack."""

    n: int
    kind: str
    """write, sync, create, open, rename, unlink, mkdir, truncate, map, read, lock"""
    call: str
    file: str
    offset: int
    length: int
    fate: str
    """How it was made to fail, or `none`."""
    verb: str
    """In the middle of what."""

    def __str__(self) -> str:
        return f"call {self.n}, {self.call} of {self.file} at {self.offset} in {self.verb!r}"


class CannotBuild(Exception):
    """This machine has no C compiler, or is not Linux."""


def build(folder: Path) -> Path:
    """Compile the shim into a folder."""
    compiler = machine.find("cc")
    if compiler is None or not Path("/proc/self/fd").exists():
        raise CannotBuild("I/O faults need Linux and a C compiler: install gcc and libc6-dev")
    target = folder / "shim.so"
    command = [*compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(target), str(SOURCE)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return target


def plan(folder: Path, disk: Path, fault: str = "") -> dict[str, str]:
    """The environment for a process whose disk fails; without a fault its calls are written down and nothing else."""
    return {"IOFAULT_ROOT": str(disk), "IOFAULT_LOG": str(folder / LOG), "IOFAULT_PLAN": fault}


def arm() -> None:
    """Called by the process itself, when it is ready. Does nothing where no disk is named."""
    if "IOFAULT_ROOT" in os.environ:
        ctypes.CDLL(None).iofault_arm()


def mark(verb: str) -> None:
    """The calls from here on belong to this verb."""
    if "IOFAULT_LOG" in os.environ:
        handle = os.open(os.environ["IOFAULT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, f"#\t{verb}\n".encode())
        os.close(handle)


def read_log(folder: Path) -> list[Call]:
    """The calls of the process, in their order."""
    calls, verb = [], "start"
    path = folder / LOG
    for line in path.read_text().splitlines() if path.exists() else []:
        parts = line.split("\t")
        if parts[0] == "#":
            verb = parts[1]
        else:
            n, kind, call, file, offset, length, fate = parts
            calls.append(Call(int(n), kind, call, file, int(offset), int(length), fate, verb))
    return calls
