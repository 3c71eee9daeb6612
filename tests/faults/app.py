"""A small pipeline that is made to be killed. What its handlers do is written to a file outside of the store, so that
an oracle can hold the store against it.

Three stages: `read` is plain, `price` is async and costs money, `bind` writes a file. What happens to an item is a
function of its number alone, so every run, whole or in pieces, must come to the same end.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import holdfast as hf
from holdfast.core.course import to_reopen
from holdfast.core.errors import CommitUnknown
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor
from holdfast.runtime.define import definition
from holdfast.runtime.engine.control import Control
from holdfast.runtime.engine.ingester import Ingester
from holdfast.runtime.engine.ledger import Ledger
from holdfast.runtime.operate import operations
from holdfast.stores import faults
from holdfast.stores.open import open_store
from holdfast.stores.sqlite import file as sqlite_file
from tests.faults import ending

BATCH = "parcels"
STORE = "state.db"
EFFECTS = "effects.jsonl"
STAGES = ("read", "price", "bind")
ATTEMPTS = 3
INVALID = "not a number"


class Parcel(BaseModel):
    number: int
    label: str


class Priced(BaseModel):
    number: int
    label: str
    cents: int


class Bound(BaseModel):
    number: int
    text: str


def source(count: int) -> Iterator[dict[str, Any]]:
    """So many parcels, and one thing that is none."""
    for number in range(count):
        yield {"number": number, "label": f"parcel {number}"}
        if number == 2:
            yield {"number": INVALID, "label": "?"}


def fate(number: int) -> str:
    """What the script has in store for a parcel at `price`."""
    if number == 5:
        return "skip"
    if number == 7:
        return "permanent"
    if number == 8:
        return "exhausted"
    return {1: "retry", 4: "defer"}.get(number % 10, "plain")


def cost(number: int, stage: str) -> int:
    """What one call of a handler costs, in cents."""
    return {"read": 0, "price": 1 + number % 7, "bind": 3}[stage]


def bound(number: int) -> Bound:
    """What comes out at the end."""
    return Bound(number=number, text=f"PARCEL {number} costs {100 + number} " + "x" * (number * 37 % 500))


class Effects:
    """One line per call of a handler, written before it does anything else. A kill does not lose it."""

    def __init__(self, pace: float, killer: int | None) -> None:
        self.pace = pace
        self.killer = killer
        self._file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._calls: Counter[int] = Counter()

    def tell(self, number: int, stage: str, ctx: hf.Context | None) -> None:
        cents = cost(number, stage)
        line = {"key": number, "stage": stage, "pid": os.getpid(), "cents": cents, "at": time.time()}
        if ctx is not None:
            line |= {"attempt": ctx.attempt, "fence": ctx.fence}
            ctx.spend(usd=f"{cents / 100}", tokens=number, model="scale")
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def is_first_call(self, number: int) -> bool:
        """Of this process: a parcel that is deferred is let through when it comes again."""
        self._calls[number] += 1
        return self._calls[number] == 1


def build(effects: Effects) -> hf.Pipeline:
    """The pipeline, with its files in the current folder."""
    parcels = hf.Pipeline("parcels", store=STORE)
    quick = hf.Retry(attempts=ATTEMPTS, wait=("0s", "0.01s"))

    @parcels.stage
    def read(parcel: Parcel) -> Parcel:
        effects.tell(parcel.number, "read", None)
        return Parcel(number=parcel.number, label=parcel.label.upper())

    @parcels.stage(retry=quick)
    async def price(parcel: Parcel, ctx: hf.Context) -> Priced:
        effects.tell(parcel.number, "price", ctx)
        await asyncio.sleep(effects.pace)
        word = fate(parcel.number)
        if word == "skip":
            raise hf.Skip("no postage needed")
        if word == "permanent":
            raise hf.Permanent("no_address", f"parcel {parcel.number} has no address")
        if word == "exhausted" or (word == "retry" and ctx.attempt == 1):
            raise hf.Transient("the scale is busy", code="busy")
        if word == "defer" and effects.is_first_call(parcel.number):
            raise hf.Defer(0.01)
        return Priced(number=parcel.number, label=parcel.label, cents=100 + parcel.number)

    @parcels.stage(retry=quick, sink=hf.Files("out/{key:03d}.json"))
    def bind(priced: Priced, ctx: hf.Context) -> Bound:
        effects.tell(priced.number, "bind", ctx)
        if priced.number == effects.killer:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(effects.pace)
        return bound(priced.number)

    @read.after
    def all_read() -> dict[str, str]:
        return {"read": "all of it"}

    return parcels


def run(given: argparse.Namespace) -> int:
    """Run the batch, or go on with it, and print the report."""
    parcels = build(Effects(given.pace, given.killer))
    if given.only_read:
        read_in(parcels, given.items)
        return 0
    if given.stop:
        stop_between_writes(parcels.store, given.stop)
    items = source(given.items) if given.items else None
    report = parcels.run(items, batch=BATCH, key="number", workers=given.workers, lease=given.lease, tolerate=1_000,
                         deadline=given.deadline, verify=given.verify, progress=False, seal=given.seal,
                         signals="report")  # fmt: skip
    print(json.dumps(report.as_dict(), default=str))  # noqa: T201 - what the test reads
    return report.exit_code


def read_in(parcels: hf.Pipeline, count: int) -> None:
    """Admit the items and handle none of them."""
    described = definition.describe(parcels.name, parcels.stages, definition.keyed_by("number", "key"))
    batch = parcels.store.open_batch(BATCH, parcels.name, described, actor="reader")
    ingester = Ingester(parcels.store, batch, parcels.stages[0].input, key="number", identity="key", changed="refuse",
                        owner="reader", rerun=lambda *_: None)  # fmt: skip
    ingester.read(source(count), Control(1), Ledger([]), lambda: None)


def redrive(given: argparse.Namespace) -> int:
    """An operator tries dead letters again."""
    store = open_store(STORE, must_exist=True)
    by = Actor(name="operator", reason="the scale is back")
    result = operations.redrive(store, lookup.batch_named(store, BATCH), by, code=given.code)
    print(json.dumps(result.as_dict()))  # noqa: T201 - what the test reads
    return 0


def reopen(given: argparse.Namespace) -> int:
    """An operator lifts the seal."""
    store = open_store(STORE, must_exist=True)
    store.amend(lookup.batch_named(store, BATCH).id, to_reopen(given.reason), actor="operator")
    return 0


def end(_: argparse.Namespace) -> int:
    """Another, small batch comes to its end."""
    ending.Ending().live()
    return 0


def count_points(target: Path) -> None:
    """Write down how often each fault point was reached, whatever happens to the process."""
    file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    faults.arm(lambda point: os.write(file, point.encode() + b"\n"))


def lose_replies(hit: int, at: str = "commit.after") -> None:
    """From the commit of that number on, every third reply is lost; before `commit.after`, the commit is, too."""
    seen = 0

    def hook(point: str) -> None:
        nonlocal seen
        if point == at:
            seen += 1
            if seen >= hit and (seen - hit) % 3 == 0:
                raise CommitUnknown("the reply was lost on its way")

    faults.arm(hook)


def stop_between_writes(store: Any, spec: str) -> None:
    """Stop at `point:hit` while no other thread is inside a transaction: a stopped writer would hold up everybody."""
    point, hit = spec.split(":")
    left = int(hit)

    def hook(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if reached == point and left == 0:
            with store._file._lock:
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    faults.arm(hook)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["run", "redrive", "reopen", "end"])
    parser.add_argument("--items", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lease", default="30s")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--deadline")
    parser.add_argument("--only-read", action="store_true")
    parser.add_argument("--verify", default="quick")
    parser.add_argument("--code")
    parser.add_argument("--count", type=Path)
    parser.add_argument("--lose-replies", type=int)
    parser.add_argument("--lose-requests", type=int)
    parser.add_argument("--killer", type=int)
    parser.add_argument("--stop")
    parser.add_argument("--busy-ms", type=int)
    parser.add_argument("--sabotage")
    parser.add_argument("--seal", action="store_true")
    parser.add_argument("--reason", default="one more look")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    given = parse(argv)
    if given.sabotage:
        from tests.faults import sabotage

        sabotage.commit_it(given.sabotage)
    if given.count:
        count_points(given.count)
    if given.lose_replies:
        lose_replies(given.lose_replies)
    if given.lose_requests:
        lose_replies(given.lose_requests, at="commit.before")
    if given.busy_ms:
        sqlite_file.BUSY_MS = given.busy_ms
    return {"run": run, "redrive": redrive, "reopen": reopen, "end": end}[given.what](given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
