"""One fault at a time: a life with a disk that fails at the n-th call, then one with a good disk, then the inquest.

`every_case` yields each call with each way to fail; `sample` draws from them by a seed. Both take the calls of a life
that nothing disturbs, which `survey` writes down.

    with siege.forkserver(folder) as forkserver:
        calls = siege.survey(forkserver, folder / "survey")
        laid = siege.Siege(forkserver, folder / "siege").lay(siege.sample(calls, seed, 100))
        assert not laid.complaints, (seed, laid.complaints)
"""

import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.forkserver import ForkServer, Process
from tests.iofaults import inquest, life, shim
from tests.iofaults.shim import Call

MODES: dict[str, tuple[str, ...]] = {
    "write": ("eio", "enospc", "full", "short", "short_full", "torn_eio", "torn_kill", "kill", "eintr"),
    "sync": ("eio", "lost", "enospc", "kill"),
    "create": ("eio", "late_eio", "enospc", "full", "kill", "kill_after"),
    "mkdir": ("eio", "late_eio", "enospc", "full", "kill", "kill_after"),
    "truncate": ("eio", "late_eio", "enospc", "kill", "kill_after"),
    "rename": ("eio", "late_eio", "enospc", "kill", "kill_after"),
    "unlink": ("eio", "late_eio", "kill", "kill_after"),
    "map": ("eio", "kill"),
    "open": ("eio",),
    "read": ("eio", "short"),
    "lock": ("eio",),
}
"""What may become of a call. A lock that fails gets ENOLCK. A kill after a write is one before the next call."""
MODULES = ("tests.iofaults.life", "tests.iofaults.inquest", "tests.iofaults.pipeline")
"""What the forkserver imports once, for all."""
DEADLY = ("kill", "kill_after", "torn_kill")
ADVICE = re.compile(r"again|free some space|check |choose another|restore|name another", re.IGNORECASE)


class Case(NamedTuple):
    """One fault: the number of a call, how it fails, and what that call was in the life that was surveyed."""

    n: int
    mode: str
    was: Call

    def __str__(self) -> str:
        return f"{self.n}:{self.mode} ({self.was})"


def forkserver(folder: Path) -> ForkServer:
    """Processes with the shim in them; it is built in that folder."""
    return ForkServer(*MODULES, env={"LD_PRELOAD": str(shim.build(folder))})


def survey(forkserver: ForkServer, folder: Path, *broken: str) -> list[Call]:
    """The calls of a life on a good disk."""
    process = start(forkserver, folder, *broken)
    assert process.wait() == 0, process.err
    return shim.read_log(folder)


def every_case(calls: Iterable[Call]) -> Iterator[Case]:
    """Each call with each way to fail."""
    for call in calls:
        for mode in MODES[call.kind]:
            yield Case(call.n, mode, call)


def sample(calls: Iterable[Call], seed: int, count: int) -> list[Case]:
    """So many cases, drawn by a seed."""
    drawn = list(every_case(calls))
    return random.Random(seed).sample(drawn, min(count, len(drawn)))


def chosen(calls: Iterable[Call]) -> list[Case]:
    """Every place in every way, and every call that changes the disk in one way at least.

    A place is a verb, a kind of call and a file. A transaction writes many pages, one like the other: the first of them
    stands for the place, and the others take turns with what may happen to them.
    """
    met: Counter[tuple[str, str, str]] = Counter()
    picked = []
    for call in calls:
        place = (call.verb, call.kind, re.sub(r"(tmp-|~).*", "", call.file))
        modes = MODES[call.kind]
        at = met[place]
        met[place] += 1
        if at == 0:
            picked += [Case(call.n, mode, call) for mode in modes]
        elif call.kind not in ("read", "lock", "open"):
            picked.append(Case(call.n, modes[at % len(modes)], call))
    return picked


def start(forkserver: ForkServer, folder: Path, *words: str, fault: str = "") -> Process:
    disk = folder / life.DISK
    disk.mkdir(parents=True, exist_ok=True)
    return forkserver.start("tests.iofaults.life", list(words), cwd=folder, env=shim.plan(folder, disk, fault))


class Siege:
    """Runs cases in folders of their own and collects what is wrong with them."""

    def __init__(self, forkserver: ForkServer, folder: Path, *, sabotage: str = "") -> None:
        self.forkserver = forkserver
        self.folder = folder
        self.broken = [sabotage] if sabotage else []
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []

    def lay(self, cases: Iterable[Case]) -> "Siege":
        for case in cases:
            place = self.folder / f"{case.n:04d}-{case.mode}"
            found = self.run(case, place)
            self.complaints += [f"{case}: {each}" for each in found]
            if not found:
                shutil.rmtree(place)
            self.forkserver.processes.clear()
        return self

    def run(self, case: Case, place: Path) -> list[str]:
        """Everything that is wrong after one fault, and after the life that went on from there."""
        victim = start(self.forkserver, place, *self.broken, fault=f"{case.n}:{case.mode}")
        status = victim.wait()
        calls = shim.read_log(place)
        struck = next((call for call in calls if call.fate != "none"), None)
        if struck is None:
            self.counts["not met"] += 1
            return [] if status == 0 else [f"it met no fault and ended with {status}\n{victim.err}"]
        self.counts["faults"] += 1
        found = judge(case, victim, status, calls, struck) + inquest.look_at_files(place)
        (place / shim.LOG).unlink()
        heir = start(self.forkserver, place, *self.broken, "check")
        if heir.wait() != 0:
            return [*found, f"the life after it ended with {heir.wait()}: {heir.out} {heir.err}"]
        if status == 0:
            found += [f"it reported success, and {each}" for each in inquest.left_to(place, heir.pid)]
        self.counts["survived" if status == 0 else "killed" if status < 0 else "told"] += 1
        return found + [f"{each} [{victim.out.strip()}]" for each in heir.report["complaints"]]


def judge(case: Case, victim: Process, status: int, calls: list[Call], struck: Call) -> list[str]:
    """Whether the process ended as it should: by the kill, with an error that helps, or well."""
    if case.mode in DEADLY:
        return [] if status == -signal.SIGKILL else [f"it was to be killed and ended with {status}\n{victim.err}"]
    if status == 0:
        return []
    if status not in (life.TYPED, life.SINK):
        last = victim.err.strip().splitlines()[-1:]
        return [f"it ended with {status} and an error that is nobody's: {last} (in {struck})"]
    said = victim.report
    found = []
    if status == life.TYPED and not ADVICE.search(said["message"]):
        found.append(f"its error does not say what to do: {said['error']}: {said['message']}")
    if case.mode in ("eio", "lost") and struck.kind == "sync" and status == life.TYPED:
        if not said["afterwards"].startswith(("refused", "nothing")):
            found.append(f"a sync failed ({struck}), and the store continued: {said}")
        later = [call for call in calls if call.n > struck.n and (call.kind, call.file) == ("write", struck.file)]
        if later and struck.file.endswith("-wal"):
            found.append(f"a sync failed ({struck}), and more was written behind it: {later[0]}")
    return found
