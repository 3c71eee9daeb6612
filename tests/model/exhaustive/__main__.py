"""See all of a small world: `python -m tests.model.exhaustive --items 2 --letters 1`."""

import argparse
import sys
import time

from tests.model.exhaustive import Counterexample, Scope, explore, explore_swaps
from tests.model.exhaustive.scope import ON_BATCH, ON_ITEMS

SWAPS = {"chunks": 1, "workers": 2, "rows": 2, "requests": 2, "resets": 1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model.exhaustive", description=__doc__)
    for name in ("items", "limit", "stages", "attempts", "act_count", "letters"):
        default = Scope.__struct_defaults__[Scope.__struct_fields__.index(name)]
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--fates", nargs="+", default=["done"], help="done, transient, permanent, skip, lost")
    acts = f"on items {', '.join(ON_ITEMS)}, with ! seizing the chunk; on the batch {', '.join(ON_BATCH)}"
    parser.add_argument("--acts", nargs="+", default=[], help=acts)
    parser.add_argument("--lets-go", action="store_true", help="workers may release what is not finished")
    parser.add_argument("--swaps", action="store_true", help="explore leases and commits on compare-and-swap documents")
    for name, default in SWAPS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"with --swaps: how many {name}")
    parser.add_argument("--most", type=int, default=10_000_000, help="how many states to see at most")
    given = vars(parser.parse_args())
    most, swaps = given.pop("most"), given.pop("swaps")
    sizes = {name: given.pop(name) for name in SWAPS}
    scope = Scope(**given | {"fates": tuple(given["fates"]), "acts": tuple(given["acts"])})
    began = time.perf_counter()
    try:
        seen = explore_swaps(**sizes, most=most) if swaps else explore(scope, most)
    except Counterexample as found:
        sys.stdout.write(f"{found}\n")
        return 1
    seconds = time.perf_counter() - began
    sys.stdout.write(
        f"{'all' if seen.complete else 'the first'} {seen.states:,} states and {seen.moves:,} moves between them in "
        f"{seconds:.1f} s ({seen.states / seconds:,.0f} states a second); {seen.stores:,} different stores; "
        f"at most {seen.deepest} moves from the first\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
