"""Owners of leases: processes, named so that another process on the same host can tell whether one is still alive.

The name is `host/boot/pid-namespace/pid/start/nonce`. A process is known to be dead only if boot and namespace are ours
and no process has that pid and start time; of all others nothing is known, and only the clock decides.
"""

import os
import secrets
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path

from holdfast.core.model import Chunk

IsDead = Callable[[str], bool]


def new_owner() -> str:
    """Return a new, unique name for this process."""
    return "/".join(
        [_host(), _boot(), _namespace(), str(os.getpid()), _start_of(os.getpid()) or "?", secrets.token_hex(4)]
    )


def is_dead(owner: str) -> bool:
    """Return whether the process of that name is known to have ended."""
    parts = owner.split("/")
    if len(parts) != 6 or "?" in parts[1:5]:
        return False
    _, boot, namespace, pid, start, _ = parts
    if boot != _boot() or namespace != _namespace() or not pid.isdigit():
        return False
    return _start_of(int(pid)) != start


def is_live(chunk: Chunk, now: float, is_dead: IsDead = is_dead) -> bool:
    """Return whether the chunk has a live owner: its lease has not ended, and its process is not known to be dead."""
    return chunk.owner is not None and chunk.expires >= now and not is_dead(chunk.owner)


def short(owner: str) -> str:
    """Return the short form of an owner for people: host and pid."""
    parts = owner.split("/")
    return f"{parts[0]} pid {parts[3]}" if len(parts) == 6 else owner


@cache
def _host() -> str:
    return socket.gethostname().replace("/", "-") or "?"


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "?"


@cache
def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).removeprefix("pid:[").removesuffix("]")
    except OSError:
        return "?"


def _start_of(pid: int) -> str | None:
    """Return the start time of a running process in clock ticks; None if there is none, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    fields = stat[stat.rfind(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else fields[19]
