"""The pipelines and the scan that the golden stores were made with. Their code is part of what is stored: leave it."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

import holdfast as hf

ROWS = 30
KEYS = (
    *("done", "retried", "skipped", "dead", "redriven", "resolved", "discarded", "rewound", "reset", "left"),
    "again",
)
BROKEN = {"dead", "redriven", "resolved", "discarded"}
"""Keys whose handler raises for good; a story takes them out one by one."""
BAD_ROWS = {4, 17}
"""Rows that the scan's handler refuses."""


class Page(BaseModel):
    name: str
    text: str = ""


class Words(BaseModel):
    name: str
    words: int


def pages(keys: Iterable[str] = KEYS) -> list[dict[str, object]]:
    return [{"name": key, "text": f"the page {key}"} for key in keys]


def book(store: str) -> hf.Pipeline:
    """Two stages: one that stores its answers, and one that writes files."""
    made = hf.Pipeline("book", store=store)

    @made.stage(retry=hf.Retry(attempts=3, wait=("0s", "0s")))
    def read(page: Page, ctx: hf.Context) -> Words:
        ctx.spend(usd="0.01", tokens=3, model="small")
        if page.name in BROKEN:
            raise hf.Permanent(f"{page.name} cannot be read")
        if page.name == "retried" and ctx.attempt == 1:
            raise hf.Transient("busy")
        if page.name == "skipped":
            raise hf.Skip("blank")
        return Words(name=page.name, words=len(page.text.split()))

    @made.stage(sink=hf.Files("out/{batch}/{key}.json"))
    def write(words: Words) -> dict[str, object]:
        return {"name": words.name, "words": words.words}

    return made


def mail(store: str) -> hf.Pipeline:
    """Messages that come one by one: one is handled, one is put off."""
    made = hf.Pipeline("mail", store=store)

    @made.stage
    def answer(page: Page) -> Words:
        if page.name == "later" and "later" in BROKEN:
            raise hf.Defer(600.0, "too early")
        return Words(name=page.name, words=len(page.text))

    return made


def totals(store: str) -> hf.Scan:
    """A sum over the rows of a file, in three partitions, with rows that cannot be handled."""
    made = hf.Scan("totals", hf.Csv("rows.csv"), every=4, partitions=3, store=store, isolate=True,
                   retry=hf.Retry(attempts=1, wait=("0s", "0s")))  # fmt: skip

    @made.handler
    def add(rows: list[dict[str, str]], acc: int) -> int:
        numbers = [int(row["n"]) for row in rows]
        if BAD_ROWS.intersection(numbers):
            raise ValueError("one of these rows is bad")
        return acc + sum(numbers)

    made.converge(sum)
    return made


def feed(store: str) -> hf.Scan:
    """A table that is followed."""
    table = hf.Table("sqlite:///feed.db", "orders", cursor="changed", key="id", lateness="0s")
    made = hf.Follow("feed", table, every=4, store=store)

    @made.handler
    def count(rows: list[dict[str, object]], acc: int) -> int:
        return acc + len(rows)

    return made


def write_rows(folder: Path) -> None:
    lines = ["id,n", *(f"{n},{n}" for n in range(1, ROWS + 1)), ""]
    (folder / "rows.csv").write_text("\n".join(lines), encoding="utf-8")
