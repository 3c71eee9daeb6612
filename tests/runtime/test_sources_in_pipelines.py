"""A pipeline reads its items through every source, by key: a second run adds nothing."""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from tests.runtime.support import run

Make = Callable[[Path], Any]


def table(folder: Path) -> hf.Table:
    shop = sqlite3.connect(folder / "shop.db")
    shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
    shop.executemany("INSERT INTO orders VALUES (?, '2026-01-01 00:00:00')", [(n,) for n in range(5)])
    shop.commit()
    shop.close()
    return hf.Table(f"sqlite:///{folder / 'shop.db'}", "orders", cursor="at", key="id")


def query(folder: Path) -> hf.Query:
    table(folder)
    return hf.Query(f"sqlite:///{folder / 'shop.db'}", "SELECT id, at FROM orders", cursor="at", key="id")


def parquet(folder: Path) -> hf.Parquet:
    from pyarrow import Table, parquet

    rows = [{"id": n, "price": Decimal("1.50")} for n in range(5)]
    parquet.write_table(Table.from_pylist(rows), folder / "a.parquet", row_group_size=2)
    return hf.Parquet(folder / "a.parquet")


def objects(folder: Path) -> hf.Objects:
    for n in range(5):
        (folder / "in" / f"{n}").parent.mkdir(exist_ok=True)
        (folder / "in" / f"{n}").write_text("x")
    return hf.Objects((folder / "in").as_uri())


def files(folder: Path) -> hf.Folder:
    objects(folder)
    return hf.Folder(folder / "in")


def csv(folder: Path) -> hf.Csv:
    (folder / "a.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(5)))
    return hf.Csv(folder / "a.csv")


def lines(folder: Path) -> hf.JsonLines:
    (folder / "a.jsonl").write_text("".join(f'{{"id": {n}}}\n' for n in range(5)))
    return hf.JsonLines(folder / "a.jsonl")


def reader(folder: Path) -> hf.Reader:
    return hf.Reader(lambda after: ((n, {"id": n}) for n in range(5)), name="five")


@pytest.fixture
def pages() -> Iterator[Make]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            at = int(self.path.partition("cursor=")[2] or 0)
            body = {"data": [{"id": at}, {"id": at + 1}][: 5 - at], "next": at + 2 if at < 4 else None}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield lambda folder: hf.Pages(f"http://127.0.0.1:{server.server_port}/orders", rows="data", next="next")
    server.shutdown()
    server.server_close()


class Order(BaseModel):
    """What is no JSON by itself needs its type: a moment, a Decimal."""

    id: int
    at: datetime | None = None
    price: Decimal | None = None


def check(source: Any, folder: Path) -> None:
    book = hf.Pipeline("book", store=folder / "state.db")
    seen: list[str] = []

    def plain(item: Any) -> None:
        seen.append(str(item["id"]))

    def file(item: hf.File) -> None:
        assert item.read_bytes() == b"x"
        seen.append(item.name)

    def thing(item: hf.Object) -> None:
        assert item.read_bytes() == b"x"
        seen.append(item.name)

    def order(item: Order) -> None:
        assert not isinstance(source, hf.Table) or item.at == datetime(2026, 1, 1)  # noqa: DTZ001 - as it is stored
        assert not isinstance(source, hf.Parquet) or item.price == Decimal("1.50")
        seen.append(str(item.id))

    stages = {hf.Table: order, hf.Parquet: order, hf.Folder: file, hf.Objects: thing}
    book.stage(stages.get(type(source), plain))
    by = {} if isinstance(source, hf.Objects | hf.Folder) else {"key": "id"}
    report = run(book, source, **by)
    assert (report.counts.done, report.counts.expected, report.exit_code) == (5, 5, 0)
    assert sorted(seen) == list("01234")
    assert sorted(str(result.key) for result in book.results()) == list("01234")
    again = run(book, source, **by)
    assert (again.counts.done, again.counts.expected, len(seen)) == (5, 5, 5), "it is read again by key: nothing is new"


@pytest.mark.parametrize(
    "make", [table, query, parquet, objects, files, csv, lines, reader], ids=lambda make: str(make.__name__)
)
def test_a_pipeline_reads_its_items_through_a_source(make: Make, folder: Path) -> None:
    check(make(folder), folder)


def test_a_pipeline_reads_its_items_through_an_api(pages: Make, folder: Path) -> None:
    check(pages(folder), folder)
