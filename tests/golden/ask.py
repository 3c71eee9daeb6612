"""Ask a golden store everything, as of a moment: python -m tests.golden.ask KIND AT, in an empty folder.

A process of its own, because the clock is set before anything of ours takes it in hand.
"""

import json
import os
import sys
import tarfile
import time
from pathlib import Path

real = time.time


def main() -> None:
    kind, at = sys.argv[1], float(sys.argv[2])
    time.time = lambda: at
    from tests.golden.answers import HERE, answers, resumed, url_of

    with tarfile.open(HERE / f"{kind}.tar.xz") as archive:
        archive.extractall(".", filter="data")
    store = os.environ["HOLDFAST_STORE"] = url_of(kind, Path.cwd())
    found = answers(store)
    ahead = at - real()
    time.time = lambda: real() + ahead
    sys.stdout.write(json.dumps({"as it is": found, "resumed": resumed(store)}))


if __name__ == "__main__":
    main()
