"""Real processes, started quickly: an interpreter that has imported Holdfast and forks one child per order.

A child is a process like any other: it has a pid of its own, takes signals, ends with a status. The server opens no
store and has one thread, so a child inherits nothing but imported modules. A start costs a few milliseconds instead of
half a second, and a test can afford hundreds of them. What is about the start of an interpreter itself, or about what
Holdfast imports, starts a new one instead.

    process = forkserver.start("tests.faults.app", ["run", "--items", "20"], cwd=folder, fault="commit.after:3:kill")
    assert process.wait() == -signal.SIGKILL
    forkserver.program("app.py", cwd=folder)         # python app.py
    forkserver.command("status", "--json", cwd=here)  # python -m holdfast status --json
"""

import atexit
import builtins
import gc
import importlib
import importlib.util
import json
import multiprocessing.process
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
ENVIRONMENT = dict(os.environ)
"""As it was before the first test changed it for itself."""
PATIENCE = 60.0
"""Far more than anything takes on a slow machine: what is not there by then never comes."""
MODULES = (
    "holdfast.__main__",
    *(f"holdfast.interfaces.cli.{name}" for name in ("run", "status", "dead", "data", "reconcile", "steer", "cursor")),
    *(f"tests.faults.{name}" for name in ("app", "sabotage", "scan_app", "typed_app", "deadly_app")),
)
"""Imported once, for all children: what reads nothing of its environment when it is imported."""


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
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", *modules], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-forkserver-"))
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

    def program(self, file: str | Path, *argv: str, cwd: Path, env: Mapping[str, str] | None = None) -> "Process":
        """Run a file as `python file …` does; `env` replaces the environment of the test."""
        return self._order("program", str(file), argv, cwd, os.environ if env is None else env, self._folder)

    def command(self, *argv: str, cwd: Path, env: Mapping[str, str] | None = None) -> "Process":
        """Run the command as `python -m holdfast …` does."""
        return self._order("command", "holdfast", argv, cwd, os.environ if env is None else env, self._folder)

    def _order(
        self, kind: str, target: str, argv: Sequence[str], cwd: Path, env: Mapping[str, str], folder: Path
    ) -> "Process":
        self._orders += 1
        order = self._orders
        out, err = folder / f"process-{order}.out", folder / f"process-{order}.err"
        places = {"cwd": str(cwd), "out": str(out), "err": str(err)}
        command = {"order": order, "kind": kind, "target": target, "argv": argv, "env": dict(env), **places}
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

    def completed(self, seconds: float = PATIENCE) -> "subprocess.CompletedProcess[str]":
        """How it ended and all it printed, as `subprocess.run` gives it."""
        status = self.wait(seconds)
        return subprocess.CompletedProcess(self.command, status, self.out, self.err)

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


# -- the server itself ------------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork for every order, tell how children end."""
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
            return
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
            pid = os.fork()
            if pid == 0:
                os.close(bell)
                _leave(_live(order))
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


def _live(order: dict[str, Any]) -> int:
    """Do what was ordered; return the exit status, as the interpreter finds it."""
    try:
        _be_born(order)
        if order["kind"] == "main":
            return int(importlib.import_module(order["target"]).main(order["argv"]))
        _become_main(order["target"], is_module=order["kind"] == "command")
    except SystemExit as left:
        if left.code is not None and not isinstance(left.code, int):
            sys.stderr.write(f"{left.code}\n")
            return 1
        return left.code or 0
    except KeyboardInterrupt as error:
        _tell_error(error)
        return -signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the program
        _tell_error(error)
        return 1
    return 0


def _tell_error(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error, trace)


def _leave(status: int) -> NoReturn:
    """Wait for threads, do what is to be done at the exit, and end. The interpreter is not taken apart: that would copy
    every page that is shared with the server, and cost three times as much as all the rest of a short life."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _be_born(order: dict[str, Any]) -> None:
    """Become a process of its own: handles, folder, environment, chance."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(signal.set_wakeup_fd(-1))
    os.setsid()
    os.chdir(order["cwd"])
    for target, path, mode in ((0, os.devnull, os.O_RDONLY), (1, order["out"], _NEW), (2, order["err"], _NEW)):
        handle = os.open(path, mode, 0o644)
        os.dup2(handle, target)
        os.close(handle)
    if order["kind"] != "main":
        os.environ.clear()
    os.environ.update(order["env"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    random.seed()
    sys.argv = [order["target"], *order["argv"]]
    if "HOLDFAST_FAULT" in order["env"]:
        faults.arm(faults.parse(order["env"]["HOLDFAST_FAULT"]))


def _become_main(target: str, *, is_module: bool) -> None:
    """Run a file, or a package, as the interpreter runs what it is started with. Nothing of the tests can be imported
    from there."""
    spec = importlib.util.find_spec(f"{target}.__main__") if is_module else None
    file = (spec.origin if spec is not None else target) or target
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=file, __spec__=spec, __builtins__=builtins)
    sys.modules["__main__"] = main
    first = Path.cwd() if is_module else Path.cwd().joinpath(file).parent
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(first), *given, *(each for each in sys.path if each not in PATH.split(os.pathsep))]
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    time.tzset()
    exec(compile(Path(file).read_bytes(), file, "exec"), main.__dict__)


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

    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    serve()
