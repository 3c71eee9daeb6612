"""Tell the story of one seed, or search many: `python -m holdfast.testing.simulator --seed 7 --trace`."""

import argparse
import sys
import time

from holdfast.testing.simulator import Failure, in_memory, search, simulate, tell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the world to run, or the first of several")
    parser.add_argument("--count", type=int, default=1, help="how many seeds to run, one after the other")
    parser.add_argument("--trace", action="store_true", help="tell everything that happened")
    parser.add_argument("--last", type=int, default=10**9, help="of the trace, tell only so many lines from the end")
    given = parser.parse_args()
    if given.trace:
        return _story(given.seed, given.last)
    began = time.perf_counter()
    try:
        counts = search(range(given.seed, given.seed + given.count))
    except Failure as failure:
        sys.stdout.write(f"{failure}\n")
        return 1
    seconds = time.perf_counter() - began
    told = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    sys.stdout.write(f"{given.count:,} seeds in {seconds:.1f} s ({given.count / seconds:,.0f} a second): {told}\n")
    return 0


def _story(seed: int, last: int) -> int:
    trace: list[str] = []
    try:
        simulate(seed, trace=trace)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is told
        sys.stdout.write(tell(seed, in_memory, error, last) + "\n")
        return 1
    sys.stdout.write("\n".join(trace[-last:]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
