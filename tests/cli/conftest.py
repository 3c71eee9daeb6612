"""The command, called in this process and as a process of its own, on stores with known content."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import canonical
from holdfast.core.journal import Spend
from holdfast.core.model import Item
from holdfast.interfaces.cli.app import call
from holdfast.stores.sqlite import SqliteStore
from tests.forkserver import Process, shared
from tests.operations.world import Clock, World, done, failed, skipped


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    return tmp_path


@pytest.fixture
def holdfast(here: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process."""

    def run(*args: str) -> Answer:
        capsys.readouterr()
        code = call(args)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


@pytest.fixture
def world(here: Path) -> Iterator[World]:
    """The default store with one batch: `fine` done, `blank` skipped, `bad` and `worse` dead, `rest` pending."""
    clock = Clock(time.time())
    store = SqliteStore(here / ".holdfast" / "state.db", clock=clock)
    made = World(store, clock)
    work(made)
    yield made
    store.close()


def work(world: World) -> None:
    """Bring a batch into every state: `fine` done, `blank` skipped, `bad` and `worse` dead, `rest` pending."""
    world.add("fine", "blank", "bad", "worse", "rest")
    turns = {"blank": skipped, "rest": lambda _: None}

    def price(item: Item) -> Spend:
        return Spend(item.n, usd=canonical.to_units("0.25"), tokens=10, model="small")

    world.work(lambda item: turns.get(item.key, lambda item: done(item, spend=price(item)))(item))
    dead = {"bad": "http_404", "worse": "no_such_page"}
    world.work(
        lambda item: (
            failed(item, transient=False, code=dead[item.key])
            if item.key in dead
            else None
            if item.key == "rest"
            else done(item)
        )
    )


def at_a_terminal(args: list[str], here: Path, *, answers: list[tuple[str, str]]) -> tuple[int, str]:
    """Run the command at a terminal that controls it, and answer its questions; an answer may be Ctrl-C."""
    mine, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *args], cwd=here, stdin=theirs, stdout=theirs, stderr=theirs,
        env=clean_environment(TERM="xterm", COLUMNS="100"), start_new_session=True,
        preexec_fn=_at_its_terminal,  # noqa: PLW1509 - no other thread is at work
    )  # fmt: skip
    os.close(theirs)
    said, deadline = "", time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([mine], [], [], 0.1)[0]:
            try:
                said += os.read(mine, 4096).decode()
            except OSError:
                break
        if answers and answers[0][0] in said:
            os.write(mine, answers.pop(0)[1].encode())
    os.close(mine)
    return child.wait(timeout=10), said


def _at_its_terminal() -> None:
    """Let the terminal control this process, which heeds Ctrl-C though the tests may run in the background."""
    ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def python(*args: str, cwd: Path, **environment: str) -> Answer:
    """Run `python -m holdfast …` as a process of its own."""
    done = start(*args, cwd=cwd, **environment).completed()
    return Answer(done.returncode, done.stdout, done.stderr)


def start(*args: str, cwd: Path, **environment: str) -> Process:
    return shared().command(*args, cwd=cwd, env=clean_environment(**environment))


def new_python(*args: str, cwd: Path, **environment: str) -> Answer:
    """Run it in an interpreter of its own, as a user does; `python` is the same at a tenth of the cost."""
    command = [sys.executable, "-m", "holdfast", *args]
    env = clean_environment(**environment)
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def clean_environment(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return plain | more
