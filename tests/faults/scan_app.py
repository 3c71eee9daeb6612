"""A scan of a CSV file that is made to be killed. Every row that its handler gets is written to a file outside of the
store, with the process that got it, so that an oracle can hold the checkpoints against it.

Broken on purpose, where asked: `restart` begins every range again, whatever its checkpoint says; `skip` says after each
row that the whole page was read.
"""

import argparse
import json
import os
import signal
import zlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.runtime.sources.base import Page
from holdfast.testing.rows import Rows

BATCH = "inventory"
STORE = "state.db"
SOURCE = "inventory.csv"
HANDLED = "handled.log"
CONVERGED = "converged.log"
NAMES = "names.log"

Acc = dict[str, Any]


class Restarting(hf.Csv):
    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        first = after is not None and after.tiebreaker == 0
        return super().read(after if first else None, until)


class Skipping(hf.Csv):
    def read(self, after: Cursor | None, until: Cursor | None) -> Iterator[Page]:
        for page in super().read(after, until):
            real = page.after
            page.after = lambda count, page=page, real=real: real(len(page.rows))  # type: ignore[method-assign, misc]
            yield page


KINDS = {"": hf.Csv, "restart": Restarting, "skip": Skipping}


class Handlers:
    """The three shapes of one fold: a count, an exact total, and a chain that knows the order."""

    def __init__(self, every: int, kill_at: int) -> None:
        self.every, self.kill_at = every, kill_at
        self.handled = 0
        self.log = os.open(HANDLED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.names = os.open(NAMES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def take(self, row: dict[str, str]) -> None:
        self.handled += 1
        if self.handled == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(self.log, f"{os.getpid()} {row['id']}\n".encode())

    def pay(self, ctx: hf.Context) -> None:
        """Every group of rows costs a cent, and has a name of its own."""
        assert ctx.segment is not None
        ctx.spend(usd="0.01", tokens=3)
        ctx.measure(group=1)
        os.write(self.names, f"{ctx.key} {ctx.segment.rows} {ctx.idempotency_key}\n".encode())

    def add(self, row: dict[str, str], acc: Acc) -> Acc:
        self.take(row)
        chain = zlib.crc32(row["id"].encode(), acc["chain"])
        return {"count": acc["count"] + 1, "total": acc["total"] + Decimal(row["price"]), "chain": chain}

    def rows(self, rows: list[dict[str, str]], ctx: hf.Context) -> None:
        self.pay(ctx)
        for row in rows:
            self.take(row)

    def fold(self, rows: list[dict[str, str]], acc: Acc, ctx: hf.Context) -> Acc:
        self.pay(ctx)
        for row in rows:
            acc = self.add(row, acc)
        return acc

    def generator(self, part: Any, ctx: hf.Context) -> Iterator[Acc]:
        acc = part.acc if part.acc is not None else START
        for number, row in enumerate(part, 1):
            if number % self.every == 1:
                self.pay(ctx)
            acc = self.add(row, acc)
            if number % self.every == 0:
                yield acc
        yield acc


START: Acc = {"count": 0, "total": Decimal(0), "chain": 0}


def converge(parts: list[Any]) -> list[Any]:
    """Leaves a line outside of the store each time it is called, and dies where it is told to."""
    log = os.open(CONVERGED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, f"{os.getpid()}\n".encode())
    os.close(log)
    if os.environ.get("SCAN_APP_CONVERGE") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("SCAN_APP_CONVERGE") == "raise":
        raise ValueError("these parts do not fit")
    return [None if part is None else {**part, "total": str(part["total"])} for part in parts]


def scan_of(shape: str, partitions: int, every: int, broken: str = "", kill_at: int = 0, store: str = STORE,
            follow: bool = False) -> hf.Scan:  # fmt: skip
    source = Rows(list(hf.Csv(SOURCE))) if follow else KINDS[broken](SOURCE)
    scan = (hf.Follow(BATCH, source, every=every, store=store) if follow
            else hf.Scan(BATCH, source, every=every, partitions=partitions, store=store))  # fmt: skip
    handler = getattr(Handlers(every, kill_at), shape)
    given = {"initial": START} if shape == "fold" else {}
    scan.handler(handler, **given)
    scan.converge(converge)
    return scan


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=["rows", "fold", "generator"])
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--broken", default="")
    parser.add_argument("--kill-at", type=int, default=0)
    parser.add_argument("--converge", default="", choices=["", "kill", "raise"])
    parser.add_argument("--store", default=STORE)
    parser.add_argument("--lease", default="30s")
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args(argv)
    os.environ["SCAN_APP_CONVERGE"] = given.converge
    scan = scan_of(given.shape, given.partitions, given.every, given.broken, given.kill_at, given.store,
                   given.follow)  # fmt: skip
    report = follow(scan, given.lease) if given.follow else bounded(scan, given.lease)
    print(json.dumps({"rows": report.rows, "result": report.result, "done": report.counts.done,  # noqa: T201
                      "usd": str(report.totals.usd), "tokens": report.totals.tokens}))  # fmt: skip
    return 0 if given.follow else int(report.exit_code)


def bounded(scan: hf.Scan, lease: str) -> hf.ScanReport:
    report: hf.ScanReport = scan.run(progress=False, lease=lease, signals="report")
    return report


def follow(scan: hf.Scan, lease: str) -> hf.ScanReport:
    """Look until there is nothing new."""
    while scan.tick(lease=lease).rows:
        pass
    return scan.report()
