"""Print the trace of one seed, or search many: `python -m holdfast.testing.simulator --seed 7 --trace`."""

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.stores.base import Store
from holdfast.testing.simulator import Failure, in_folders, in_memory, on_a_bucket, search, simulate, tell
from holdfast.testing.simulator.world import MakeStore

ON_A_BUCKET = "cas"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the world to run, or the first of several")
    parser.add_argument("--count", type=int, default=1, help="how many seeds to run, one after the other")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--last", type=int, default=10**9, help="print only this many lines from the end of the trace")
    parser.add_argument(
        "--store", default="", metavar="MODULE:FUNCTION",
        help="your function (place, *, clock, is_dead) -> Store; or `cas`: a bucket, with faults in every request",
    )  # fmt: skip
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=_memory()) as place:
        make_store = _store(given.store, Path(place))
        if given.trace:
            return _story(given.seed, given.last, make_store, given.store)
        return _search(given.seed, given.count, make_store, given.store)


def _store(said: str, place: Path) -> MakeStore:
    if said == ON_A_BUCKET:
        return on_a_bucket
    return in_folders(_named(said), place) if said else in_memory


def _search(first: int, count: int, make_store: MakeStore, store: str) -> int:
    began = time.perf_counter()
    try:
        counts = search(range(first, first + count), make_store, store=store)
    except Failure as failure:
        sys.stdout.write(f"{failure}\n")
        return 1
    seconds = time.perf_counter() - began
    told = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    sys.stdout.write(f"{count:,} seeds in {seconds:.1f} s ({count / seconds:,.0f} a second): {told}\n")
    return 0


def _story(seed: int, last: int, make_store: MakeStore, store: str) -> int:
    trace: list[str] = []
    try:
        simulate(seed, make_store, trace=trace)
    except Exception as error:  # noqa: BLE001 - any error is reported
        sys.stdout.write(tell(seed, make_store, error, last, store=store) + "\n")
        return 1
    sys.stdout.write("\n".join(trace[-last:]) + "\n")
    return 0


def _named(target: str) -> Callable[..., Store]:
    """Return the function that the command line names, imported from the current directory."""
    sys.path.insert(0, str(Path.cwd()))
    module, _, name = target.partition(":")
    make_store: Callable[..., Store] = getattr(importlib.import_module(module), name)
    return make_store


def _memory() -> str | None:
    """Return a folder in memory, if there is one: simulations test decisions, not disks."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of its own is made below it


if __name__ == "__main__":
    sys.exit(main())
