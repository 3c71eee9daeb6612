"""A program with mistakes: scans. Each line that a type checker must refuse says so, with mypy's code."""

from collections.abc import Iterator

import holdfast as hf

stock = hf.Scan("stock", hf.Csv("prices.csv"))
hf.Scan("stock", ["a", "b"])  # error: arg-type
hf.Scan("stock", hf.Csv("prices.csv"), partition=3)  # error: call-arg


@stock.handler
def add(rows: list[dict[str, str]], acc: int) -> int:
    return acc + len(rows)


@stock.handler(initial=0)
def walk(part: hf.Partition) -> Iterator[int]:
    yield from (int(row["price"]) for row in part)


@stock.handler(start=0)  # error: call-overload, untyped-decorator
def begun(rows: list[str], acc: int) -> int:
    return acc + len(rows)


@stock.converge
def total(parts: list[int]) -> int:
    return sum(parts)


@stock.converge  # error: type-var
def takes_two(parts: list[int], start: int) -> int:
    return sum(parts, start)


@stock.on_failure  # error: type-var
def takes_a_text(letter: str) -> None:
    print(letter)


@stock.on_failure
def bury(letter: hf.DeadLetter) -> str:
    return letter.code


@stock.resource
def client() -> Iterator[str]:
    yield "client"


add(["a"], 3)  # error: list-item
add([], "a")  # error: arg-type
sums: str = add([], 1)  # error: assignment
walk(3)  # error: arg-type
total(["a"])  # error: list-item
result: str = total([1])  # error: assignment
bury("a")  # error: arg-type
client("a")  # error: call-arg

tick: hf.Tick = stock.run()  # error: assignment
stock.run(workers="all")  # error: arg-type
stock.run(poll="30s")  # error: call-arg
rows: str = stock.run().rows  # error: assignment

orders = hf.Follow("orders", hf.Table("sqlite:///orders.db", "orders", cursor="changed"))


@orders.handler
def take(rows: list[str]) -> int:
    return len(rows)


take(3)  # error: arg-type
taken: str = take([])  # error: assignment
report: hf.ScanReport = orders.run(poll="30s")  # error: assignment
orders.run()  # error: call-arg
