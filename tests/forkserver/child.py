"""A process that was forked by the server: how it becomes itself, what it does, how it ends."""

import atexit
import builtins
import ctypes
import fcntl
import importlib
import importlib.util
import io
import multiprocessing.process
import os
import random
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from holdfast.stores import faults
from tests.forkserver import PATH

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER."""


def place(handles: Mapping[int, int]) -> None:
    """Give handles the numbers they shall have: number -> handle."""
    beyond = max([*handles, *handles.values()]) + 1
    moved = {number: fcntl.fcntl(handle, fcntl.F_DUPFD, beyond) for number, handle in handles.items()}
    for handle in set(handles.values()):
        os.close(handle)
    for number, handle in moved.items():
        os.dup2(handle, number)
        os.close(handle)


def begin(env: Mapping[str, str], argv: list[str]) -> None:
    """What a new interpreter finds: its environment, its arguments, its chance."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    random.seed()
    sys.argv = argv
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        setattr(sys, name, _stream(number, errors, unbuffered=bool(env.get("PYTHONUNBUFFERED"))))
    faults.arm(faults.parse(env["HOLDFAST_FAULT"]) if env.get("HOLDFAST_FAULT") else None)


def _stream(number: int, errors: str, *, unbuffered: bool) -> io.TextIOWrapper:
    binary = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115 - to its end
    return io.TextIOWrapper(binary, "utf-8", errors, line_buffering=number == 2, write_through=unbuffered)


def run_file(file: str) -> None:
    """Run a file as the interpreter runs one that it is started with."""
    _leave_the_tests(Path.cwd().joinpath(file).parent)
    run_as_main(Path(file).read_bytes(), file, __file__=file)


def run_module(name: str) -> None:
    """Run a package as `python -m` does."""
    _leave_the_tests(Path.cwd())
    spec = importlib.util.find_spec(f"{name}.__main__")
    assert spec is not None
    assert spec.origin is not None
    run_as_main(Path(spec.origin).read_bytes(), spec.origin, __file__=spec.origin, __spec__=spec, __package__=name)


def _leave_the_tests(folder: Path) -> None:
    """Nothing of the tests can be imported any more, but what stands in that folder."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(folder), *given, *(each for each in sys.path if each not in PATH.split(os.pathsep))]
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]


def run_as_main(source: bytes | str, name: str, **attributes: Any) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, **attributes)
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec"), main.__dict__)


def adopt_orphans() -> None:
    """From now on, processes that lose their parent below this one become children of this one."""
    ctypes.CDLL(None, use_errno=True).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)


def leave(life: Callable[[], Any]) -> NoReturn:
    """Live, wait for threads, do what is to be done at the exit, and end. The interpreter is not taken apart: that
    would copy every page that is shared with the server, and cost three times as much as all the rest of a short
    life."""
    status = _status_of(life)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _status_of(life: Callable[[], Any]) -> int:
    """The exit status that the interpreter finds."""
    try:
        return int(life() or 0)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        sys.stderr.write(f"{left.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the program
        trace = error.__traceback__
        while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == Path(__file__).parent:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
