"""A correct program: scans and sources. It is type-checked and never run."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, assert_type

import holdfast as hf

Row = dict[str, Any]


class Prices:
    """Stands for a client."""

    def of(self, name: str) -> float:
        return float(len(name))


def numbers(after: int | None) -> Iterator[tuple[int, Row]]:
    yield (after or 0) + 1, {"price": 1}


@hf.Reader
def letters(after: str | None) -> Iterator[tuple[str, Row]]:
    yield (after or "") + "a", {"price": 1}


@hf.Reader(name="more letters", page=10)
def more_letters(after: str | None) -> Iterator[tuple[str, Row]]:
    yield (after or "") + "a", {"price": 1}


SOURCES: list[hf.Readable] = [
    hf.Csv("prices.csv", delimiter=";"),
    hf.JsonLines(Path("prices.jsonl")),
    hf.Parquet("prices.parquet", columns=["price"]),
    hf.Folder("prices", "*.json"),
    hf.Objects("s3://prices/today/"),
    hf.Table("sqlite:///prices.db", "prices", cursor="changed", key="id"),
    hf.Query("sqlite:///prices.db", "SELECT * FROM prices", cursor="changed", key=["id"]),
    hf.Pages("http://localhost/prices", rows="items", next="next"),
    hf.Reader(numbers, name="numbers"),
    letters,
    more_letters,
]
ITEMS: list[hf.Source] = [hf.Csv("prices.csv"), hf.Folder("prices"), hf.Objects("s3://prices/")]

stock = hf.Scan("stock", hf.Csv("prices.csv"), every="auto", partitions=5, retry=hf.Retry(attempts=2), isolate=True)


@stock.resource
def prices() -> Iterator[Prices]:
    yield Prices()


@stock.resource(scope="process")
async def rates() -> AsyncIterator[dict[str, float]]:
    yield {}


@stock.handler
def add(rows: list[Row], acc: float = 0.0, *, prices: Prices) -> float:
    return acc + sum(prices.of(row["name"]) for row in rows)


@stock.handler(initial={"rows": 0}, executor="processes")
def count(rows: list[Row], acc: dict[str, int]) -> dict[str, int]:
    return {"rows": acc["rows"] + len(rows)}


@stock.handler()
def walk(part: hf.Partition, ctx: hf.Context) -> Iterator[int]:
    for number, _row in enumerate(part):
        segment = ctx.segment
        if segment is not None:
            assert_type(segment, hf.Segment)
            assert_type(segment.after, hf.Cursor | None)
        yield number


@stock.converge
def total(parts: list[float], start: float = 0.0) -> float:
    return sum(parts, start)


@stock.on_failure
def bury(letter: hf.DeadLetter) -> str:
    return letter.code


def check_functions(letter: hf.DeadLetter, part: hf.Partition, ctx: hf.Context) -> None:
    assert_type(prices(), Iterator[Prices])
    assert_type(rates(), AsyncIterator[dict[str, float]])
    assert_type(add([{}], acc=1.0, prices=Prices()), float)
    assert_type(count([], {"rows": 0}), dict[str, int])
    assert_type(walk(part, ctx=ctx), Iterator[int])
    assert_type(total([1.0], start=2.0), float)
    assert_type(bury(letter=letter), str)


def register_without_decorators(letters: list[hf.DeadLetter]) -> None:
    stock.converge(sum)
    stock.converge(max)
    stock.on_failure(letters.append)
    stock.handler(len)
    assert_type(stock.handler(total, initial=0)([1.0]), float)


def use() -> None:
    report = stock.run("today", workers=5, deadline="1h", progress=False, budget=hf.Budget(3))
    assert_type(report, hf.ScanReport)
    assert_type(report.rows, int)
    assert_type(report.result, Any)
    assert_type(report.raise_unless_complete(), hf.ScanReport)
    assert_type(stock.report(), hf.ScanReport)
    assert_type(stock.plan(), hf.Plan)


orders = hf.Follow("orders", hf.Table("sqlite:///orders.db", "orders", cursor="changed"), every=100)


@orders.handler
def take(rows: list[Row]) -> None:
    print(len(rows))


@orders.on_failure
def bury_order(letter: hf.DeadLetter) -> str:
    return letter.code


def follow(letter: hf.DeadLetter) -> None:
    take(rows=[{"id": 1}])
    assert_type(bury_order(letter=letter), str)
    assert_type(orders.tick(), hf.Tick)
    assert_type(orders.run(poll="30s", signals="report"), hf.Tick)
    assert_type(orders.redriven(), int)
    assert_type(orders.report(), hf.ScanReport)


def read_files(files: Iterable[hf.File], objects: Iterable[hf.Object]) -> None:
    for file in files:
        assert_type(file.read_text(), str)
    for each in objects:
        assert_type(each.read_bytes(), bytes)


def ranges(source: hf.Readable) -> Sequence[hf.Span]:
    return source.split(3)


def readable() -> Iterator[Row | hf.Malformed]:
    for row in hf.Csv("prices.csv"):
        yield row if isinstance(row, hf.Malformed) else {"price": row["price"]}
