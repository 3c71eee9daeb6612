"""Pipelines whose handlers wait until the test lets them go: something to interrupt.

`HANG=threads` and the others choose where the handler runs. A handler writes down that it began, waits for the file
`go`, writes down that it ended. `inline` is quick until item 40, so that by then it runs on the committing thread.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.stores.sqlite import file as sqlite_file

ITEMS = 8
QUICK = 40
WAY = os.environ.get("HANG", "threads")
TIMEOUT = os.environ.get("HANG_TIMEOUT")
GO = Path("go")
LOG = "handled.log"
HUNG = 1
"""With a time-out, this is the only item that hangs."""

hanging = hf.Pipeline("hanging", store="state.db")


def tell(word: str, number: int) -> None:
    handle = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{word} {number} {os.getpid()}\n".encode())
    os.close(handle)


def must_wait(number: int) -> bool:
    if GO.exists() or (WAY == "inline" and number < QUICK) or WAY == "source":
        return False
    return TIMEOUT is None or number == HUNG


def hang(number: int) -> int:
    tell("began", number)
    while must_wait(number):
        time.sleep(0.002)
    tell("ended", number)
    return number


async def hang_async(number: int) -> int:
    tell("began", number)
    while must_wait(number):  # noqa: ASYNC110 - what it waits for is a file that another process makes
        await asyncio.sleep(0.002)
    tell("ended", number)
    return number


async def block(number: int) -> int:
    """Async in name only: it holds up the loop."""
    return hang(number)


def politely(number: int, ctx: hf.Context) -> int:
    """Comes to an end when it is asked to."""
    tell("began", number)
    while must_wait(number) and not ctx.stopping:
        time.sleep(0.002)
    tell("ended" if GO.exists() else "was asked to end", number)
    return number


HANDLERS = {"async": hang_async, "blocked": block, "polite": politely, "polite processes": politely}
hanging.stage(
    name="hang",
    timeout=TIMEOUT,
    retry=hf.Retry(attempts=2, wait=("0s", "0.01s")),
    executor="processes" if "processes" in WAY else None,
)(HANDLERS.get(WAY, hang))


@hanging.source
def numbers() -> Iterator[int]:
    for number in range(QUICK + 12 if WAY == "inline" else ITEMS):  # more than may hang at once
        if WAY == "source" and number == 3:
            tell("reading", number)
            while not GO.exists():
                time.sleep(0.002)
        yield number


def main(argv: list[str]) -> int:
    options: dict[str, Any] = json.loads(argv[0]) if argv else {}
    sqlite_file.BUSY_MS = 20_000
    report = hanging.run(workers=4, progress=False, signals="report", **options)
    print(json.dumps(report.as_dict(), default=str))  # noqa: T201 - what the test reads
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
