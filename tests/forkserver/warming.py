"""A small batch that the server runs before the first order, so that its children find every cache filled."""

import os
import tempfile
import threading
from pathlib import Path

from pydantic import BaseModel

import holdfast as hf


class Page(BaseModel):
    number: int
    text: str


def warm_up() -> None:
    """Nothing is left of it but what was imported, compiled and remembered; no thread, no open file."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _run_a_batch()
        finally:
            os.chdir(before)
    assert threading.active_count() == 1, threading.enumerate()


def _run_a_batch() -> None:
    book = hf.Pipeline("book", store="state.db")

    @book.stage
    def read(page: Page) -> Page:
        return page

    @book.stage(retry=hf.Retry(attempts=2, wait=("0s", "1ms")), sink=hf.Files("out/{key:03d}.json"))
    def write(page: Page, ctx: hf.Context) -> Page:
        ctx.spend(usd="0.01", tokens=1, model="small")
        if page.number == 1:
            raise hf.Permanent("blank")
        if page.number == 2:
            raise hf.Transient("busy")
        return page

    pages = [{"number": number, "text": "a"} for number in range(4)]
    report = book.run(pages, key="number", workers=2, tolerate=4, progress=False, signals="report")
    assert report.counts.done == 2
    assert report.as_dict()
    book.store.close()
