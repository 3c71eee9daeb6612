"""Real processes, started quickly: an interpreter that has imported everything and forks one child per order.

A child is a process like any other: it has a pid of its own, takes signals, ends with a status. The nursery opens no
store and has one thread, so a child inherits nothing but imported modules. A start costs a few milliseconds instead of
half a second, and a test can afford hundreds of kills.

    with Nursery() as nursery:
        process = nursery.start("tests.faults.app", ["run", "--items", "20"], cwd=folder, fault="commit.after:3:kill")
        assert process.wait() == -signal.SIGKILL
"""

import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
PATIENCE = 60.0
"""Far more than anything takes on a slow machine: what is not there by then never comes."""


class Nursery:
    """The side of the test: starts processes and hears how they end. What `modules` import, children need not."""

    def __init__(self, *modules: str, env: dict[str, str] | None = None) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery", *modules], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PATH, **(env or {})},
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

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE)
        self._server.stdout.close()  # type: ignore[union-attr]

    def start(
        self, module: str, argv: list[str], *, cwd: Path, fault: str = "", env: dict[str, str] | None = None
    ) -> "Process":
        """A new process that runs `main(argv)` of a module in a folder; what it prints is kept in two files there."""
        self._orders += 1
        order = self._orders
        out, err = cwd / f"process-{order}.out", cwd / f"process-{order}.err"
        given = {**(env or {}), **({"HOLDFAST_FAULT": fault} if fault else {})}
        command = {
            "order": order,
            "module": module,
            "argv": argv,
            "cwd": str(cwd),
            "env": given,
            "out": str(out),
            "err": str(err),
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(command).encode() + b"\n")
        limit = time.monotonic() + PATIENCE
        while order not in self._pids:
            assert self.listen(limit - time.monotonic()), "the nursery does not answer"
        process = Process(self, order, self._pids.pop(order), out, err, [module, *argv, fault])
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
        """Take in news from the nursery; False when there were none in that time."""
        assert self._server.stdout is not None
        if not self._news.poll(max(0.0, seconds) * 1000):
            return False
        data = os.read(self._server.stdout.fileno(), 65_536)
        if not data:
            raise RuntimeError("the nursery has died")
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

    def __init__(self, nursery: Nursery, order: int, pid: int, out: Path, err: Path, command: list[str]) -> None:
        self._nursery = nursery
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
            self._nursery.listen(left)
        return not self.is_running

    @property
    def is_running(self) -> bool:
        while self._nursery.listen(0.0):
            pass
        return self._state() != "exited"

    def _state(self) -> str:
        if self._status is None:
            word, status = self._nursery.state_of(self._order)
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
            self._nursery.listen(left)
        return word


# -- the nursery itself ------------------------------------------------------------------------------------------------


def serve() -> int:
    """Fork for every order, tell how children end; in a child, return what its `main` returns."""
    bell = _bell()
    wanted = select.poll()
    wanted.register(0, select.POLLIN | select.POLLHUP)
    wanted.register(bell, select.POLLIN)
    unread = b""
    while True:
        ready = {handle for handle, _ in wanted.poll()}
        if bell in ready:
            os.read(bell, 4096)
            _tell_news()
        if 0 not in ready:
            continue
        data = os.read(0, 65_536)
        if not data:
            return 0
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
            pid = os.fork()
            if pid == 0:
                os.close(bell)
                return _be_born(order)
            os.write(1, f"started {order['order']} {pid}\n".encode())
            ORDERS[pid] = order["order"]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)


def _bell() -> int:
    """Can be read from when a child has news. A handler alone would not do: a signal that comes in the moment before
    one begins to wait does not end the waiting."""
    bell, button = os.pipe()
    os.set_blocking(button, False)
    signal.set_wakeup_fd(button, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return bell


def _be_born(order: dict[str, Any]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(signal.set_wakeup_fd(-1))
    os.setsid()
    os.chdir(order["cwd"])
    for target, path, mode in ((0, os.devnull, os.O_RDONLY), (1, order["out"], _NEW), (2, order["err"], _NEW)):
        handle = os.open(path, mode, 0o644)
        os.dup2(handle, target)
        os.close(handle)
    os.environ.update(order["env"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    random.seed()
    if "HOLDFAST_FAULT" in order["env"]:
        faults.arm(faults.parse(order["env"]["HOLDFAST_FAULT"]))
    sys.argv = [order["module"], *order["argv"]]
    return int(importlib.import_module(order["module"]).main(order["argv"]))


BLOCKED = (signal.SIGINT, signal.SIGTERM)
"""While a child is being born: it shall not be interrupted before it is itself."""
ORDERS: dict[int, int] = {}
"""Number of a living process -> its order."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _tell_news() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            news = f"stopped {ORDERS[pid]} 0"
        elif os.WIFCONTINUED(status):
            news = f"running {ORDERS[pid]} 0"
        else:
            news = f"exited {ORDERS.pop(pid)} {os.waitstatus_to_exitcode(status)}"
        os.write(1, news.encode() + b"\n")


if __name__ == "__main__":
    from holdfast.stores import faults
    from tests.faults import app, sabotage  # noqa: F401 - imported once, for all children

    for name in sys.argv[1:]:
        importlib.import_module(name)
    sys.exit(serve())
