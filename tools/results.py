"""The results that are published with a release (guarantees, benchmarks, soak), collected in build/results/.

Each was measured on one commit, so it belongs to a release, not to the repository (docs/decisions/0018-results.md).
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MADE_BY = {
    "build/guarantees.md": "make test",
    "build/guarantees.json": "make test",
    "build/soak.json": "make soak HOURS=8",
    "docs/benchmarks.json": 'make bench ARGS="--full --write"',
}
"""Every result, and the command that makes it."""


def main(root: Path = ROOT) -> int:
    """Copy what is there, name what is missing, and return 1 if anything is."""
    target = root / "build" / "results"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    missing = []
    for name, command in MADE_BY.items():
        if (root / name).exists():
            shutil.copy2(root / name, target)
        else:
            missing.append(f"results: {name} is missing: run {command}")
    print("\n".join([f"results: {len(MADE_BY) - len(missing)} of {len(MADE_BY)} are in build/results", *missing]))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
