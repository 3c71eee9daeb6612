"""Worker processes of a program, started as quickly as the program itself.

Holdfast starts worker processes with `spawn`: a new interpreter, which imports everything again. A program of a test
may have a helper beside it, forked before it has threads, open files or a store. What it spawns is forked there instead
and becomes a child of the program: it is forked twice, its first parent ends, and the program adopts orphans. It finds
what a new interpreter finds: the handles, the environment and the signals it is given, and a `__main__` of its own.
"""

import json
import multiprocessing.util
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.forkserver import child

MOST = 1 << 20


def prepare() -> None:
    """Start the helper of this process."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child.adopt_orphans()
    parent = os.getpid()
    if os.fork() == 0:
        mine.close()
        _serve(theirs, parent)
    theirs.close()
    multiprocessing.util.spawnv_passfds = Spawner(mine)  # type: ignore[assignment]


class Spawner:
    """Asks the helper for a process. Any thread may."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._turn = threading.Lock()

    def __call__(self, path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        """As `multiprocessing.util.spawnv_passfds`."""
        numbers = sorted({0, 1, 2, *map(int, passfds)})
        order = {
            "args": [os.fsdecode(each) for each in args],
            "cwd": str(Path.cwd()),
            "env": dict(os.environ),
            "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "ignored": [int(each) for each in child.INTERRUPTS if signal.getsignal(each) is signal.SIG_IGN],
            "numbers": numbers,
        }
        with self._turn:
            socket.send_fds(self._line, [json.dumps(order).encode()], numbers)
            return int(self._line.recv(64))


# -- the helper -------------------------------------------------------------------------------------------------------


def _serve(line: socket.socket, parent: int) -> NoReturn:
    """Fork for every order until the program is gone. Signals to its whole group are not for the helper."""
    signal.pthread_sigmask(signal.SIG_BLOCK, child.INTERRUPTS)
    while True:
        data, handles, _, _ = socket.recv_fds(line, MOST, 250)
        if not data:
            os._exit(0)
        order = json.loads(data)
        begun, tell = os.pipe()
        first = os.fork()
        if first == 0:
            pid = os.fork()
            if pid:
                os.write(tell, str(pid).encode())
                os._exit(0)
            for handle in (begun, tell, line.detach()):
                os.close(handle)
            _live(order, handles, parent)
        os.close(tell)
        pid = int(os.read(begun, 64))
        os.waitpid(first, 0)
        for handle in (begun, *handles):
            os.close(handle)
        line.send(str(pid).encode())


def _live(order: dict[str, Any], handles: list[int], parent: int) -> NoReturn:
    while os.getppid() != parent:  # the first parent is about to end
        time.sleep(0.0005)
        _end_if_gone(parent)
    child.place(dict(zip(order["numbers"], handles, strict=True)))
    os.chdir(order["cwd"])
    for number in order["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    at = order["args"].index("-c")
    child.begin(order["env"], ["-c", *order["args"][at + 2 :]])
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    child.leave(lambda: child.run_as_main(order["args"][at + 1], "<string>"))


def _end_if_gone(parent: int) -> None:
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        os._exit(1)
