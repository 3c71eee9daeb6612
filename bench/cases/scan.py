"""The cost of a fold over a CSV file that can be resumed at any moment, beside a bare loop that cannot.

The floor is the sum of two things: a loop over `csv.reader` that does the same work, and for every checkpoint one
durable commit of the same document by hand. It is measured twice: with rows as lists, and with rows as the dictionaries
that a handler gets.
"""

import csv
import random
import time
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bench import subject
from bench.case import Case, Goal, Probe, Reading, Size, Stopwatch
from bench.database import database

NAMES = ("id", "sku", "warehouse", "quantity", "price")
SCHEMA = "CREATE TABLE document (id INTEGER PRIMARY KEY, body BLOB NOT NULL)"
WRITE = "INSERT OR REPLACE INTO document VALUES (1, ?)"
BY_HAND = "WAL, FULL, a commit per checkpoint"
WARM, WINDOW, TRIES = 50, 100, 200
NEAR, FAR = 100, 10_000


def by_hand(place: Path, seed: int, count: int, every: int, rows: str) -> Reading:
    """Run the loop and the commits; the rows are lists or dictionaries."""
    path = inventory(place, count, seed)
    with Stopwatch() as watch, database(place / "floor.db", SCHEMA) as db, path.open(newline="") as file:
        reader = csv.reader(file)
        names = next(reader)
        total, done, before = Decimal(0), 0, -1
        while done > before:
            before = done
            for row in islice(reader, every):
                done += 1
                if rows == "lists":
                    total += int(row[3]) * Decimal(row[4])
                else:
                    named = dict(zip(names, row, strict=True))
                    total += int(named["quantity"]) * Decimal(named["price"])
            if done > before:
                db.execute(WRITE, (msgspec.json.encode({"cursor": done, "rows": done, "acc": str(total)}),))
    assert done == count
    return Reading(items=count, seconds=watch.seconds)


def holdfast(place: Path, seed: int, count: int, every: int, partitions: int = 1) -> Reading:
    """Run a scan from its first row to its report."""
    scan = scan_of(place, inventory(place, count, seed), every, partitions)
    with Stopwatch() as watch:
        report = scan.run(progress=False)
    report.raise_unless_complete()
    assert report.rows == count
    return Reading(items=count, seconds=watch.seconds)


def checkpoints(place: Path, seed: int, count: int, every: int, partitions: int) -> Reading:
    """Run the same, with checkpoints as items."""
    reading = holdfast(place, seed, count * every, every, partitions)
    return Reading(items=count, seconds=reading.seconds)


def resume(place: Path, seed: int, count: int, rows: int, at: str) -> Reading:
    """Read the rows after a cursor: near the start of the file, or near its end."""
    import holdfast as hf

    source = hf.Csv(inventory(place, rows, seed))
    wanted = 2_000 if at == "start" else rows - 3_000
    cursor, passed = None, 0
    for page in source.read(None, None):
        if passed + len(page.rows) > wanted:
            cursor = page.after(max(1, wanted - passed))
            break
        passed += len(page.rows)
    assert cursor is not None
    with Stopwatch() as watch:
        found = sum(len(next(source.read(cursor, None)).rows) for _ in range(count))  # type: ignore[call-overload]
    assert found
    return Reading(items=count, seconds=watch.seconds)


def nth(place: Path, seed: int, count: int, at: int) -> Reading:
    """Measure the cost of each of some checkpoints after so many others: one for every row."""
    times: list[float] = []

    def note(rows: list[dict[str, str]], acc: int = 0) -> int:
        times.append(time.perf_counter())
        return acc + len(rows)

    scan_of(place, inventory(place, at + WARM + count, seed), 1, 1, note).run(progress=False)
    return Reading(items=count, seconds=times[at + WARM + count - 1] - times[at + WARM - 1])


def fold(rows: list[dict[str, str]], total: Decimal = Decimal(0)) -> Decimal:
    """Return the value of the stock, to the cent."""
    for row in rows:
        total += int(row["quantity"]) * Decimal(row["price"])
    return total


def scan_of(place: Path, path: Path, every: int, partitions: int, handler: Any = fold) -> Any:
    import holdfast as hf  # the harness must work even if Holdfast does not

    scan = hf.Scan("bench", hf.Csv(path), every=every, partitions=partitions, store=str(place / "state.db"))
    scan.handler(handler)
    scan.converge(sum)
    return scan


def inventory(place: Path, count: int, seed: int) -> Path:
    """Return the file, made once for each place."""
    path = place / f"inventory-{count}.csv"
    if not path.exists():
        with path.open("w") as file:
            file.write(",".join(NAMES) + "\n")
            file.writelines(lines(count, random.Random(seed)))
    return path


def lines(count: int, chance: random.Random) -> Iterator[str]:
    for n in range(count):
        cents = chance.randrange(100_000)
        yield f"{n},SKU-{n % 977:05},W{n % 7},{cents % 500},{cents / 100:.2f}\n"


def case(size: Size) -> Case:
    count = size.scaled(1_000_000)
    return Case(
        name="scan",
        asks=f"A fold over a CSV file of {count:,} rows, with checkpoints",
        metric="cost",
        at_most_rounds=3,
        note="An item is a row; for resuming it is one resume, for the n-th checkpoint and for syncs one checkpoint. "
        "`by hand` is the loop over csv.reader and a raw commit for each checkpoint, in one process.",
        probes=(
            *(probe for every in (1_000, 10_000) for probe in folds(count, every)),
            less(count),
            *(resumed(count, at) for at in ("start", "end")),
            *(late(size.scaled(at)) for at in (NEAR, FAR)),
            *(synced(size.scaled(1_000), partitions) for partitions in (1, 5)),
        ),
        goals=(
            *(goal for every in (1_000, 10_000) for goal in bounds(every)),
            Goal(says="peak memory, all rows ÷ a tenth of them", of="holdfast-1000", over="holdfast-tenth",
                 metric="peak", at_most=1.15),
            Goal(says="resuming at the end ÷ at the start", of="resume-end", over="resume-start", metric="cost",
                 at_most=1.5),
            Goal(says=f"checkpoint {FAR:,} ÷ checkpoint {NEAR}", of=f"late-{size.scaled(FAR)}",
                 over=f"late-{size.scaled(NEAR)}", metric="cost", at_most=1.25),
            Goal(says="syncs per checkpoint, five ranges ÷ one", of="syncs-5", over="syncs-1", metric="syncs",
                 at_most=0.6),
        ),
    )  # fmt: skip


def folds(count: int, every: int) -> Iterator[Probe]:
    for rows in ("lists", "dictionaries"):
        yield Probe(name=f"{rows}-{every}", label=f"by hand, rows as {rows}, every {every:,}", run=by_hand, items=count,
                    params={"every": every, "rows": rows}, durability=BY_HAND)  # fmt: skip
    yield Probe(name=f"holdfast-{every}", label=f"Holdfast, every {every:,}", run=holdfast, items=count,
                params={"every": every}, durability=subject.DURABILITY)  # fmt: skip


def bounds(every: int) -> Iterator[Goal]:
    yield Goal(says=f"Holdfast ÷ by hand with dictionaries, every {every:,}", of=f"holdfast-{every}",
               over=f"dictionaries-{every}", metric="cost", at_most=1.15)  # fmt: skip
    yield Goal(says=f"Holdfast ÷ by hand with lists, every {every:,}", of=f"holdfast-{every}", over=f"lists-{every}",
               metric="cost", at_most=1.15)  # fmt: skip


def less(count: int) -> Probe:
    return Probe(name="holdfast-tenth", label="Holdfast, a tenth of the rows", run=holdfast, items=count // 10,
                 params={"every": 1_000}, durability=subject.DURABILITY)  # fmt: skip


def resumed(rows: int, at: str) -> Probe:
    return Probe(name=f"resume-{at}", label=f"a resume near the {at} of the file", run=resume, items=TRIES,
                 params={"rows": rows, "at": at}, durability="nothing to write")  # fmt: skip


def late(at: int) -> Probe:
    return Probe(name=f"late-{at}", label=f"a checkpoint after {at:,} others", run=nth, items=WINDOW,
                 params={"at": at}, durability=subject.DURABILITY)  # fmt: skip


def synced(count: int, partitions: int) -> Probe:
    return Probe(name=f"syncs-{partitions}", label=f"Holdfast, {partitions} range(s), every 100", run=checkpoints,
                 items=count, params={"every": 100, "partitions": partitions}, traced=True,
                 durability=subject.DURABILITY)  # fmt: skip
