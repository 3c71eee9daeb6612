"""The server: an interpreter with one thread that has imported everything, opens nothing, and forks for every order."""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from tests.forkserver import child, spawning
from tests.forkserver.warming import warm_up

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Server:
    """Hears orders of the test on its standard input, and those of the stub on a socket."""

    def __init__(self, line: str) -> None:
        self._bell = _bell()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.bind(line)
        self._line.listen()
        self._orders: dict[int, int] = {}
        """Number of a living process -> its order."""
        self._askers: dict[int, socket.socket] = {}
        """Number of a living process -> the stub that waits for it."""
        self._unread = b""

    def serve(self) -> None:
        """Fork for every order, tell how children end."""
        wanted = select.poll()
        for handle in (0, self._bell, self._line.fileno()):
            wanted.register(handle, select.POLLIN | select.POLLHUP)
        while True:
            ready = {handle for handle, _ in wanted.poll()}
            if self._bell in ready:
                os.read(self._bell, 4096)
                self._tell_news()
            if self._line.fileno() in ready:
                self._hear_stub()
            if 0 in ready and not self._hear_test():
                return

    def _hear_test(self) -> bool:
        data = os.read(0, 65_536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = self._fork(order, partial(_streams, order["out"], order["err"]))
            os.write(1, f"started {order['order']} {pid}\n".encode())
            self._orders[pid] = order["order"]
        return bool(data)

    def _hear_stub(self) -> None:
        asker, _ = self._line.accept()
        data, handles, _, _ = socket.recv_fds(asker, 1 << 20, 3)
        while more := asker.recv(1 << 20):
            data += more
        pid = self._fork({"kind": "command", "target": "holdfast", **json.loads(data)}, lambda: handles)
        self._askers[pid] = asker
        for handle in handles:
            os.close(handle)

    def _fork(self, order: dict[str, Any], streams: Callable[[], list[int]]) -> int:
        """A child is not interrupted before it is itself."""
        signal.pthread_sigmask(signal.SIG_BLOCK, child.INTERRUPTS)
        pid = os.fork()
        if pid == 0:
            for handle in (self._line, *self._askers.values()):
                handle.close()
            os.close(self._bell)
            _live(order, streams())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, child.INTERRUPTS)
        return pid

    def _tell_news(self) -> None:
        """Of the children, and of processes that they left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if pid in self._orders:
                    word = "stopped" if os.WIFSTOPPED(status) else "running"
                    os.write(1, f"{word} {self._orders[pid]} 0\n".encode())
                continue
            code = os.waitstatus_to_exitcode(status)
            if pid in self._orders:
                os.write(1, f"exited {self._orders.pop(pid)} {code}\n".encode())
            elif pid in self._askers:
                with suppress(BrokenPipeError), self._askers.pop(pid) as asker:
                    asker.send(str(code).encode())


def _bell() -> int:
    """Can be read from when a child has news. A handler alone would not do: a signal that comes in the moment before
    one begins to wait does not end the waiting."""
    bell, button = os.pipe()
    os.set_blocking(button, False)
    signal.set_wakeup_fd(button, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return bell


def _streams(out: str, err: str) -> list[int]:
    return [os.open(os.devnull, os.O_RDONLY), os.open(out, _NEW, 0o644), os.open(err, _NEW, 0o644)]


def _live(order: dict[str, Any], streams: list[int]) -> NoReturn:
    """Do what was ordered, and end as an interpreter does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(signal.set_wakeup_fd(-1))
    os.setsid()
    os.chdir(order["cwd"])
    child.place(dict(enumerate(streams)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, child.INTERRUPTS)
    kind, target, argv = order["kind"], order["target"], order["argv"]
    if kind == "main":
        child.begin({**os.environ, **order["env"]}, [target, *argv])
        child.leave(lambda: importlib.import_module(target).main(argv))
    os.environ.clear()
    os.environ.update(order["env"])
    if order.get("spawns"):
        spawning.prepare()
    child.begin(order["env"], [target, *argv])
    child.leave(lambda: child.run_module(target) if kind == "command" else child.run_file(target))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    warm_up()
    child.adopt_orphans()  # what they took is counted, too
    gc.freeze()
    Server(sys.argv[1]).serve()
