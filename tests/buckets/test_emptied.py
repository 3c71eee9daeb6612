"""A prefix that somebody empties in mid-run: that is said in plain words, and never taken for an empty batch."""

import re
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import Damaged
from holdfast.stores.base import find_batch, find_item
from holdfast.stores.buckets.memory import MemoryBucket
from tests.buckets.test_away import life
from tests.buckets.worker import Worker

WORDS = r"was emptied or moved away while it was in use: .* is gone, and so is root\.json; stop every process"
MADE = 8
"""Requests by which a store is made: who empties a place before that takes nothing away."""
REQUESTS = ("get", "part", "list", "create", "replace")


class Emptied:
    """A bucket whose objects are all gone from some request on."""

    def __init__(self, at: int) -> None:
        self._bucket, self._at, self.seen = MemoryBucket(), at, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bucket, name)
        if name not in REQUESTS:
            return found

        def call(*args: Any, **facts: Any) -> Any:
            self.seen += 1
            if self.seen == self._at:
                self._bucket._objects.clear()
            return found(*args, **facts)

        return call


def test_whenever_it_is_emptied_the_run_says_so_or_had_done_everything() -> None:
    plain = Emptied(0)
    life(plain, [])
    answers = [answer(Emptied(at)) for at in range(MADE, plain.seen + 1)]
    assert {told for told in answers if not re.search(WORDS, told)} <= {"20 are done"}
    assert answers.count("20 are done") < plain.seen // 4


def answer(bucket: Emptied) -> str:
    try:
        return f"{life(bucket, []).counts.done} are done"
    except Damaged as error:
        return str(error)


def test_every_question_about_a_batch_that_is_gone_is_answered_with_the_same_words() -> None:
    bucket = MemoryBucket()
    worker = Worker(bucket)
    worker.admit("a", "b")
    worker.work()
    store, batch = worker.store, worker.batch
    (chunk,) = store.chunks(batch)[:1]
    bucket._objects.clear()
    for ask in (
        lambda: find_batch(store, "book"), store.batches, lambda: store.chunks(batch), lambda: store.items(batch),
        lambda: store.outputs(batch), lambda: store.checkpoints(batch), lambda: store.entries(-batch),
        lambda: store.entries(chunk.id), lambda: find_item(store, batch, "a"),
    ):  # fmt: skip
        with pytest.raises(Damaged, match=WORDS):
            ask()


def test_a_directory_that_is_emptied_by_hand_is_told_with_its_url(tmp_path: Path) -> None:
    lines = hf.Pipeline("lines", store=f"file://{tmp_path}/state")

    @lines.stage
    def length(line: str) -> int:
        for file in [each for each in (tmp_path / "state").rglob("*") if each.is_file()]:
            file.unlink(missing_ok=True)
        return len(line)

    with pytest.raises(Damaged, match=f"^file://{re.escape(str(tmp_path))}/state {WORDS}"):
        lines.run(["a"], progress=False)
