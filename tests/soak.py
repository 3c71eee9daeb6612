"""`python tests/soak.py --hours 8`: the fault generators, one after the other, for as long as you like.

Every round draws a new seed from a first one. Totals are printed as it goes on, and at the end, also after Ctrl-C. A
failure is printed with its seed and how to run that seed again, and the soak goes on; it ends with exit code 1 then, at
once after too many. Simulations and power cuts replay exactly. Damage strikes the same bytes of a store that is made
anew, and may meet other values there. Processes under fire get the same faults, and the machine decides what they meet;
the folder of the failure is kept.

The longest soak is kept in build/soak.json; `make results` adds it to the results of a release.
"""

import argparse
import itertools
import json
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402

from holdfast.testing.simulator import on_a_bucket, search  # noqa: E402
from tests.damage import original, test_flips  # noqa: E402
from tests.faults.chance import Story  # noqa: E402
from tests.faults.scene import Scene  # noqa: E402
from tests.fleet.rampage import Rampage  # noqa: E402
from tests.forkserver import MODULES, ForkServer  # noqa: E402
from tests.iofaults import shim, siege  # noqa: E402
from tests.powerloss import crash_states, survey  # noqa: E402
from tests.powerloss import story as powered  # noqa: E402
from tests.powerloss.judge import Judge  # noqa: E402
from tests.promises import commit_of_this_tree  # noqa: E402

RECORD = ROOT / "build" / "soak.json"
WORLDS, ON_BUCKETS, KILLS, CUTS, FLIPS, FAULTS = 2_000, 1_000, 200, 2_000, 200, 60
"""What one round of each generator does."""
TOO_MANY = 10
"""Failures after which it goes on no more."""
WORTH_KEEPING = 0.5
"""Hours from which on a soak is recorded."""
ENDLESS = 900
"""Seconds after which a round is taken for one that does not end."""


class Failed(Exception):
    """A generator found something."""


class Generators:
    """One method for each kind of fault: it takes a seed, does some of it, and returns what it did."""

    def __init__(self, open_things: ExitStack) -> None:
        self._open = open_things
        memory = Path("/dev/shm")
        self.place = Path(
            open_things.enter_context(tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None))
        )

    def simulation(self, seed: int) -> Counter[str]:
        """Thousands of worlds in virtual time; they are told with the command that replays them."""
        return Counter(worlds=search(range(seed, seed + WORLDS))["worlds"])

    def swaps(self, seed: int) -> Counter[str]:
        """Worlds on a bucket, where every request may go wrong."""
        found = search(range(seed, seed + ON_BUCKETS), on_a_bucket, store="cas")
        return Counter({"worlds on a bucket": found["worlds"]})

    def story(self, seed: int) -> Counter[str]:
        """One batch, and a random sequence of everything that can happen to a process."""
        told = Story(Scene(self._forkserver, new_folder(), items=40), seed)
        look_at(told.tell(), told.scene)
        return told.counts

    def fleet(self, seed: int) -> Counter[str]:
        """Three processes on one file, killed at random; with every second seed stopped and woken, too."""
        fire = Rampage(Scene(self._forkserver, new_folder(), items=120), seed, stops=seed % 2 == 0)
        fire.go_on_until(lambda counts: counts["kills"] >= KILLS)
        look_at(fire.finish(), fire.scene)
        return fire.counts

    def power(self, seed: int) -> Counter[str]:
        """States of the disk that a power cut can leave."""
        told, judging = self._recorded
        found = survey.survey(judging, survey.by_chance(crash_states.windows(told.ops), seed), limit=CUTS)
        if found.complaints:
            raise Failed(f"{found.first} ({found.complaints})")
        return Counter({"power cuts": found.states})

    def damage(self, seed: int) -> Counter[str]:
        """Flipped bits in a database and in its log."""
        closed, killed, spot = self._spoilt
        test_flips.flip(closed, "", spot, seed, FLIPS)
        test_flips.flip(killed, "-wal", spot, seed, FLIPS)
        return Counter({"flipped bits": 2 * FLIPS})

    def disk(self, seed: int) -> Counter[str]:
        """System calls that fail."""
        if self._broken_disk is None:
            return Counter()
        forkserver, calls = self._broken_disk
        laid = siege.Siege(forkserver, new_folder()).lay(siege.sample(calls, seed, FAULTS))
        if laid.complaints:
            raise Failed("\n  ".join([f"in {laid.folder}:", *laid.complaints[:20]]))
        shutil.rmtree(laid.folder)
        return Counter({"I/O faults": laid.counts["faults"]})

    @cached_property
    def _forkserver(self) -> ForkServer:
        return self._open.enter_context(ForkServer(*MODULES))

    @cached_property
    def _recorded(self) -> tuple[powered.Story, Judge]:
        with pytest.MonkeyPatch.context() as patch:
            told = powered.tell(self.place / "recorded", patch)
        return told, Judge(self.place / "judged", told)

    @cached_property
    def _spoilt(self) -> tuple[original.Original, original.Original, Path]:
        (self.place / "spoilt").mkdir()
        closed = original.make(self.place / "closed", closed=True)
        return closed, original.make(self.place / "killed", closed=False), self.place / "spoilt"

    @cached_property
    def _broken_disk(self) -> tuple[ForkServer, list[shim.Call]] | None:
        try:
            library = shim.build(self.place)
        except shim.CannotBuild as error:
            say(f"no I/O faults here: {error}")
            return None
        forkserver = self._open.enter_context(ForkServer(*siege.MODULES, env={"LD_PRELOAD": str(library)}))
        return forkserver, siege.survey(forkserver, new_folder())


ROUND = ("simulation", "swaps", *["story"] * 5, "fleet", "power", "damage", "disk", *["story"] * 5, "fleet")
"""Names of generators, in turn."""


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="holdfast-soak-"))


def look_at(complaints: list[str], scene: Scene) -> None:
    if complaints:
        raise Failed("\n  ".join([f"in {scene.folder}:", *complaints[:20]]))
    scene.forkserver.clear()
    shutil.rmtree(scene.folder)


class Soak:
    """Round after round, until the time is over."""

    def __init__(self, hours: float, base: int) -> None:
        self.hours, self.base = hours, base
        self.began = time.monotonic()
        self.total: Counter[str] = Counter()
        self.seeds = self.failures = 0

    def run(self, rounds: Iterator[tuple[str, int]]) -> int:
        """1 when anything failed; Ctrl-C ends it early and as well."""
        say(f"seeds are drawn from {self.base}")
        with ExitStack() as open_things:
            generators = Generators(open_things)
            try:
                for name, seed in rounds:
                    self._try(name, seed, getattr(generators, name))
                    if self.passed >= self.hours or self.failures >= TOO_MANY:
                        break
            except KeyboardInterrupt:
                say("interrupted")
        say(f"{self.failures} failures in {self.passed:.2f} h, {self.seeds:,} seeds: {in_words(self.total)}")
        return 1 if self.failures else 0

    @property
    def passed(self) -> float:
        """Hours since it began."""
        return (time.monotonic() - self.began) / 3600

    def record(self) -> None:
        """Keep it, if none on record was longer."""
        before = json.loads(RECORD.read_text(encoding="utf-8"))["hours"] if RECORD.exists() else WORTH_KEEPING
        if self.passed < before:
            return
        facts: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(), "commit": commit_of_this_tree(), "base": self.base,
            "hours": round(self.passed, 2), "seeds": self.seeds, "failures": self.failures, "totals": self.total,
        }  # fmt: skip
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        say("recorded in build/soak.json; make results adds it to the results of a release")

    def _try(self, name: str, seed: int, generate: Callable[[int], Counter[str]]) -> None:
        self.seeds += 1
        signal.alarm(ENDLESS)
        try:
            self.total += generate(seed)
        except Exception as error:  # noqa: BLE001 - whatever comes is a finding, and the soak goes on
            self.failures += 1
            say(f"FAILED: {name}, seed {seed}: {type(error).__name__}: {error}")
            say(f"run that seed again: .venv/bin/python tests/soak.py --only {name} --seed {seed}")
        finally:
            signal.alarm(0)
        say(f"{self.passed:.2f} h, {name} seed {seed}: {in_words(self.total)}")


def drawn(base: int, only: str) -> Iterator[tuple[str, int]]:
    """Generators in turn, each with a seed of its own."""
    chance = random.Random(base)
    for name in itertools.cycle([only] if only else ROUND):
        yield name, chance.randrange(1 << 32)


def in_words(total: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(total.items()))


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - printing is what it does


def give_up(*_: object) -> None:
    raise Failed(f"no end after {ENDLESS} s")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the fault generators for some hours.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", choices=sorted(set(ROUND)), default="", help="one generator")
    parser.add_argument("--seed", type=int, help="run one seed of --only and end")
    parser.add_argument(
        "--base", type=int, default=secrets.randbelow(1 << 32), help="the seed that seeds are drawn from"
    )
    given = parser.parse_args(argv)
    if given.seed is not None and not given.only:
        parser.error("--seed needs --only: which generator?")
    signal.signal(signal.SIGALRM, give_up)
    soak = Soak(given.hours, given.base)
    rounds = drawn(given.base, given.only) if given.seed is None else iter([(given.only, given.seed)])
    status = soak.run(rounds)
    if not given.only:
        soak.record()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
