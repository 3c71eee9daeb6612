"""Real processes, started quickly: an interpreter that has imported Holdfast and forks one child per order.

A child is a process like any other: it has a pid of its own, takes signals, ends with a status. The server opens no
store and has one thread, so a child inherits nothing but imported modules. A start costs a few milliseconds instead of
half a second, and a test can afford hundreds of them. What is about the start of an interpreter itself, or about what
Holdfast imports, starts a new one instead.

    process = forkserver.start("tests.faults.app", ["run", "--items", "20"], cwd=folder, fault="commit.after:3:kill")
    assert process.wait() == -signal.SIGKILL
    forkserver.program("app.py", cwd=folder)  # python app.py
    forkserver.command("status", cwd=folder)  # python -m holdfast status

`__main__` is the server; `spawning` lets programs start their worker processes as quickly.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
ENVIRONMENT = dict(os.environ)
"""As it was before the first test changed it for itself."""
PATIENCE = 60.0
"""Far more than anything takes on a slow machine: what is not there by then never comes."""
MODULES = (
    "holdfast.__main__",
    *(f"holdfast.interfaces.cli.{name}" for name in ("run", "status", "dead", "data", "reconcile", "steer", "cursor")),
    *(f"tests.faults.{name}" for name in ("app", "sabotage", "scan_app", "typed_app", "deadly_app", "cursor_acts")),
)
"""Imported once, for all children: what reads nothing of its environment when it is imported."""

STUB = """#!{python} -IS
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({line!r})
order = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
socket.send_fds(line, [json.dumps(order).encode()], [0, 1, 2])
line.shutdown(socket.SHUT_WR)
status = int(line.recv(16))
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@cache
def shared() -> "ForkServer":
    """The one that all tests of this process share; it ends with the session."""
    return ForkServer(*MODULES)


def end_shared() -> None:
    if shared.cache_info().currsize:
        shared().close()
        shared.cache_clear()


class ForkServer:
    """The side of the test: starts processes and hears how they end. What it imports, children need not."""

    def __init__(self, *modules: str, env: dict[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-forkserver-"))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", str(self._folder / "line"), *modules], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**ENVIRONMENT, "PYTHONPATH": PATH, **(env or {})},
            bufsize=0, start_new_session=True,  # Ctrl-C is for the one who started it
        )  # fmt: skip
        assert self._server.stdout is not None
        self._news = select.poll()  # `select` cannot wait for the handles of a process that has more than a thousand
        self._news.register(self._server.stdout, select.POLLIN | select.POLLHUP)
        self._unread = b""
        self._orders = 0
        self._pids: dict[int, int] = {}
        self._states: dict[int, tuple[str, int]] = {}
        self.processes: list[Process] = []

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.clear()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE)
        self._server.stdout.close()  # type: ignore[union-attr]
        shutil.rmtree(self._folder)

    def start(
        self, module: str, argv: list[str], *, cwd: Path, fault: str = "", env: dict[str, str] | None = None
    ) -> "Process":
        """Run `main(argv)` of a module in a folder; what it prints is kept in two files there."""
        given = {**(env or {}), **({"HOLDFAST_FAULT": fault} if fault else {})}
        return self._order("main", module, argv, cwd, given, cwd)

    def program(
        self, file: str | Path, *argv: str, cwd: Path, env: Mapping[str, str] | None = None, spawns: bool = False
    ) -> "Process":
        """Run a file as `python file …` does; `env` replaces the environment of the test. With `spawns`, processes that
        the program starts with `spawn` come from the server, too."""
        given = os.environ if env is None else env
        return self._order("program", str(file), argv, cwd, given, self._folder, spawns=spawns)

    def command(self, *argv: str, cwd: Path, env: Mapping[str, str] | None = None) -> "Process":
        """Run the command as `python -m holdfast …` does."""
        return self._order("command", "holdfast", argv, cwd, os.environ if env is None else env, self._folder)

    @cached_property
    def path(self) -> Path:
        """A folder for PATH with a `holdfast` that runs as `command` does, for those who call it by its name."""
        folder = self._folder / "bin"
        folder.mkdir()
        stub = folder / "holdfast"
        stub.write_text(STUB.format(python=sys.executable, line=str(self._folder / "line")))
        stub.chmod(0o755)
        return folder

    def _order(
        self, kind: str, target: str, argv: Sequence[str], cwd: Path, env: Mapping[str, str], folder: Path, **more: Any
    ) -> "Process":
        self._orders += 1
        order = self._orders
        out, err = folder / f"process-{order}.out", folder / f"process-{order}.err"
        places = {"cwd": str(cwd), "out": str(out), "err": str(err)}
        command = {"order": order, "kind": kind, "target": target, "argv": argv, "env": dict(env), **places, **more}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(command).encode() + b"\n")
        limit = time.monotonic() + PATIENCE
        while order not in self._pids:
            assert self.listen(limit - time.monotonic()), "the fork server does not answer"
        process = Process(self, order, self._pids.pop(order), out, err, [target, *argv, env.get("HOLDFAST_FAULT", "")])
        self.processes.append(process)
        return process

    def clear(self) -> None:
        """End what still runs, and forget it."""
        for process in self.processes:
            if process.is_running:
                process.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes.clear()
        self._states.clear()

    def state_of(self, order: int) -> tuple[str, int]:
        """What is known of a process, by its order: its own number may be given to another when it has ended."""
        return self._states.get(order, ("running", 0))

    def listen(self, seconds: float) -> bool:
        """Take in news from the server; False when there were none in that time."""
        assert self._server.stdout is not None
        if not self._news.poll(max(0.0, seconds) * 1000):
            return False
        data = os.read(self._server.stdout.fileno(), 65_536)
        if not data:
            raise RuntimeError("the fork server has died")
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, one, other = line.decode().split(" ")
            if word == "started":
                self._pids[int(one)] = int(other)
            else:
                self._states[int(one)] = (word, int(other))
        return True


class Process:
    """One process of a test."""

    def __init__(self, forkserver: ForkServer, order: int, pid: int, out: Path, err: Path, command: list[str]) -> None:
        self._forkserver = forkserver
        self._order = order
        self._status: int | None = None
        self.pid = pid
        self.out_file = out
        self.err_file = err
        self.command = command

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit status, as `subprocess` gives it: minus the signal that ended it."""
        self._wait_for({"exited"}, seconds)
        assert self._status is not None
        return self._status

    def wait_until_stopped(self, seconds: float = PATIENCE) -> bool:
        """Wait for a SIGSTOP; False when it ended instead."""
        return self._wait_for({"stopped", "exited"}, seconds) == "stopped"

    def has_ended_within(self, seconds: float) -> bool:
        """Whether it ends in that time. The answer no is no failure."""
        limit = time.monotonic() + seconds
        while self.is_running and (left := limit - time.monotonic()) > 0:
            self._forkserver.listen(left)
        return not self.is_running

    @property
    def is_running(self) -> bool:
        while self._forkserver.listen(0.0):
            pass
        return self._state() != "exited"

    def _state(self) -> str:
        if self._status is None:
            word, status = self._forkserver.state_of(self._order)
            self._status = status if word == "exited" else None
            return word
        return "exited"

    def signal(self, number: int) -> None:
        """Send a signal; harmless when it has ended, and its number is another's."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> int:
        self.signal(signal.SIGKILL)
        return self.wait()

    # -- as `subprocess` has it: tests that start an interpreter of their own read alike

    def completed(self, seconds: float = PATIENCE) -> "subprocess.CompletedProcess[str]":
        status = self.wait(seconds)
        return subprocess.CompletedProcess(self.command, status, self.out, self.err)

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        self.wait(timeout)
        return self.out, self.err

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return None if self.is_running else self._status

    def send_signal(self, number: int) -> None:
        self.signal(number)

    @property
    def out(self) -> str:
        return self.out_file.read_text() if self.out_file.exists() else ""  # killed before it could print anything

    @property
    def err(self) -> str:
        return self.err_file.read_text() if self.err_file.exists() else ""

    @property
    def report(self) -> dict[str, Any]:
        """The last line it printed, which is its report."""
        return json.loads(self.out.splitlines()[-1])  # type: ignore[no-any-return]

    def _wait_for(self, words: set[str], seconds: float) -> str:
        limit = time.monotonic() + seconds
        while (word := self._state()) not in words:
            left = limit - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{self.command} (pid {self.pid}) is {word} after {seconds:g} s\n{self.err}")
            self._forkserver.listen(left)
        return word
