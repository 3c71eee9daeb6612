"""A scan of twelve rows, one of which kills the process that handles it; bounded, or following."""

import json
import os
import signal
from typing import Any

import holdfast as hf
from holdfast.testing.rows import Rows

STORE = "state.db"
DEADLY = 5


def main(argv: list[str]) -> int:
    scan = (hf.Follow if "follow" in argv else hf.Scan)(
        "orders", Rows(list(range(12)), page=5), store=STORE, every=4, isolate=True
    )

    @scan.handler
    def keep(rows: list[int], acc: list[int]) -> list[int]:
        if DEADLY in rows:
            os.kill(os.getpid(), signal.SIGKILL)
        return [*acc, *rows]

    told: Any = scan.tick() if scan.follows else scan.run(progress=False)
    print(json.dumps({"result": scan.report().result, "rows": told.rows}))  # noqa: T201
    return 0
