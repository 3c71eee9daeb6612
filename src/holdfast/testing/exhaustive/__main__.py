"""See all of a small world: `python -m holdfast.testing.exhaustive --items 2 --letters 1`."""

import argparse
import sys
import time

from holdfast.testing.exhaustive import Counterexample, Scope, explore
from holdfast.testing.exhaustive.scope import ON_BATCH, ON_ITEMS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.exhaustive", description=__doc__)
    for name in ("items", "limit", "stages", "attempts", "act_count", "letters"):
        default = Scope.__struct_defaults__[Scope.__struct_fields__.index(name)]
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--fates", nargs="+", default=["done"], help="done, transient, permanent, skip, lost")
    acts = f"on items {', '.join(ON_ITEMS)}, with ! seizing the chunk; on the batch {', '.join(ON_BATCH)}"
    parser.add_argument("--acts", nargs="+", default=[], help=acts)
    parser.add_argument("--lets-go", action="store_true", help="workers may release what is not finished")
    parser.add_argument("--most", type=int, default=10_000_000, help="how many states to see at most")
    given = vars(parser.parse_args())
    most = given.pop("most")
    scope = Scope(**given | {"fates": tuple(given["fates"]), "acts": tuple(given["acts"])})
    began = time.perf_counter()
    try:
        seen = explore(scope, most)
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
