"""A program that stages, commits and publishes three outputs, and is killed once at every call that touches the disk.

`python crasher.py FOLDER` forks a child for each moment: FOLDER/001 is what the first left behind, and so on until a
child comes to its end. `careless` writes outputs straight to their staged names, to show that the test would notice.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.runtime.sinks import Evidence, Files, Provenance, names
from holdfast.stores import faults
from tests.sinks.making import output, place

KEYS = (1, 2, 3)
CALLS = ("open", "write", "fsync", "replace", "mkdir")


class Careless(Files):
    """No temporary name and no sync: a kill leaves half an output under the name of a whole one."""

    def stage(self, where: Provenance, data: bytes) -> Evidence:
        name = names.staged_name(where, sha256(data + b"\n").digest(), is_text=False)
        target = Path("out", ".holdfast", name)
        target.parent.mkdir(exist_ok=True)
        handle = os.open(target, os.O_CREAT | os.O_WRONLY, 0o666)
        os.write(handle, data + b"\n")
        info = target.stat()
        return Evidence(f"out/{where.key}.json", str(target), info.st_size, info.st_mtime_ns, info.st_ino,
                        sha256(data + b"\n").digest(), is_text=False)  # fmt: skip


class Countdown:
    """Kills the process when it has been told of so many moments."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, _moment: str = "") -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self()
            answer = call(*args, **kwargs)
            self()
            return answer

        return wrapped

    def half_way(self, write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        def wrapped(handle: int, data: Any) -> int:
            self()
            done = write(handle, data[: len(data) // 2])
            self()
            return done + write(handle, data[done:])

        return wrapped


def work(sink: Files, killer: Countdown) -> None:
    real = os.replace
    for name in CALLS:
        call = getattr(os, name)
        setattr(os, name, killer.half_way(call) if name == "write" else killer.around(call))
    faults.arm(killer)
    made = [sink.stage(place(key, n=key), output(key)) for key in KEYS]
    sink.sync_folders(made)
    Path("ledger.new").write_text(json.dumps([each.encode().hex() for each in made]))
    killer()
    real("ledger.new", "ledger")  # the commit
    killer()
    sink.publish(made)


def main(root: Path, kind: type[Files]) -> None:
    for moment in range(1, 1000):
        home = root / f"{moment:03d}"
        (home / "out").mkdir(parents=True)
        (home / "out" / "1.json").write_text("yesterday")
        pid = os.fork()
        if pid == 0:
            os.chdir(home)
            work(kind("out/{key}.json"), Countdown(moment))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Careless if "careless" in sys.argv else Files)
