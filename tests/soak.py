"""`python tests/soak.py --hours 8`: the fault generators, one after the other, for as long as you like.

Every round draws a new seed. Totals are printed as it goes on; the first failure ends it with exit code 1, the seed,
and how to run that seed again. Simulations replay exactly. Processes under fire do not: the same seed gives the same
faults, and the machine decides what they meet; the folder of the failure is kept.
"""

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from holdfast.testing.simulator import search  # noqa: E402
from tests.faults.chance import Story  # noqa: E402
from tests.faults.nursery import Nursery  # noqa: E402
from tests.faults.scene import Scene  # noqa: E402
from tests.fleet.rampage import Rampage  # noqa: E402

WORLDS = 2_000
Generator = Callable[[int], Counter[str]]


class Failed(Exception):
    """A generator found something."""


def simulation(seed: int) -> Counter[str]:
    """Thousands of worlds in virtual time; they are told with the command that replays them."""
    return Counter({"worlds": search(range(seed, seed + WORLDS))["worlds"]})


def story(nursery: Nursery, seed: int) -> Counter[str]:
    """One batch, and a random sequence of everything that can happen to a process."""
    told = Story(Scene(nursery, new_folder(), items=40), seed)
    judge(told.tell(), told.scene)
    return told.counts


def fleet(nursery: Nursery, seed: int) -> Counter[str]:
    """Three processes on one file, killed at random; with every second seed stopped and woken, too."""
    fire = Rampage(Scene(nursery, new_folder(), items=120), seed, stops=seed % 2 == 0)
    fire.go_on_until(lambda counts: counts["kills"] >= 200)
    judge(fire.finish(), fire.scene)
    return fire.counts


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="holdfast-soak-"))


def judge(complaints: list[str], scene: Scene) -> None:
    if complaints:
        raise Failed("\n  ".join([f"in {scene.folder}:", *complaints[:20]]))
    for path in sorted(scene.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    scene.folder.rmdir()
    scene.nursery.clear()


def rounds(nursery: Nursery) -> Iterator[tuple[str, Generator]]:
    while True:
        yield "simulation", simulation
        for _ in range(10):
            yield "story", lambda seed: story(nursery, seed)
        for _ in range(2):
            yield "fleet", lambda seed: fleet(nursery, seed)


def soak(hours: float, only: str, seed: int | None) -> int:
    """Round after round until the time is over; 1 at the first failure."""
    began = time.monotonic()
    total: Counter[str] = Counter()
    passed = 0.0
    with Nursery() as nursery:
        for name, generate in rounds(nursery):
            if only and name != only:
                continue
            drawn = secrets.randbelow(1 << 32) if seed is None else seed
            try:
                total += generate(drawn)
            except (AssertionError, Failed) as error:
                say(f"FAILED: {name}, seed {drawn}: {error}")
                say(f"run that seed again: python tests/soak.py --only {name} --seed {drawn}")
                return 1
            passed = (time.monotonic() - began) / 3600
            if name == "fleet" or only:
                say(f"{passed:.2f} h, {name} seed {drawn}: {in_words(total)}")
            if passed >= hours or seed is not None:
                break
    say(f"no failure in {passed:.2f} h: {in_words(total)}")
    return 0


def in_words(total: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(total.items()))


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - printing is what it does


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the fault generators for some hours.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", choices=["simulation", "story", "fleet"], default="")
    parser.add_argument("--seed", type=int, help="run one seed of --only and end")
    given = parser.parse_args()
    sys.exit(soak(given.hours, given.only, given.seed))
