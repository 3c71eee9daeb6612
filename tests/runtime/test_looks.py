"""How a message looks for the end of its batch: by what the journal knows and not by clocks, and cheaply where its end
is known already."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.canonical import decode
from holdfast.runtime import lookup, message
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.runtime.report import reconcile
from holdfast.stores.bucket.store import BucketStore
from holdfast.stores.buckets.memory import MemoryBucket
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

BY = Actor(name="ann", reason="because")


class Killed(BaseException):
    """The process is gone at this point."""


def define(store: Any, **options: Any) -> tuple[hf.Pipeline, set[int]]:
    """A pipeline, and the numbers that it refuses."""
    made, bad = hf.Pipeline("letters", store=store), set[int]()

    @made.stage(**options)
    def bind(number: int) -> str:
        if number in bad:
            raise hf.Permanent("unlucky")
        return f"letter {number}"

    return made, bad


def told(letters: hf.Pipeline) -> list[str]:
    return [decode(each.body)["end"] for each in letters.store.events() if each.kind == "batch.finished"]


def spied(monkeypatch: pytest.MonkeyPatch, target: Any, *names: str) -> Counter[str]:
    """Count how often each function is called; a probe for one chunk is not a look at all of them."""
    seen = Counter[str]()

    def counted(name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: (
            seen.update([] if {"of", "pending"} & named.keys() else [name]),
            whole(*args, **named),
        )[1]

    for name in names:
        monkeypatch.setattr(target, name, counted(name, getattr(target, name)))
    return seen


@pytest.mark.promise("A14", "A15")
def test_an_end_is_told_after_a_kill_and_a_clock_that_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = [7200.0]
    store = SqliteStore(tmp_path / "state.db", clock=lambda: time.time() + ahead[0])
    letters, bad = define(store)
    bad.add(2)
    letters.expect(None, 2)
    for number in (1, 2):
        letters.process(number)
    assert told(letters) == ["complete with dead letters"]
    ahead[0] = 0.0
    bad.clear()
    operations.redrive(store, lookup.batch_named(store, "letters"), BY)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(message.reconcile, "look_for_end", die)
        with pytest.raises(Killed):
            letters.process(2)
    letters.process(2)
    assert told(letters) == ["complete with dead letters", "complete"]


def test_a_message_that_comes_again_after_the_end_reads_the_chunks_of_its_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, _ = define(tmp_path / "state.db")
    letters.expect(None, 3)
    for number in range(3):
        letters.process(number)
    seen, compared = spied(monkeypatch, letters.store, "chunks"), spied(monkeypatch, reconcile, "reconcile")
    for number in (0, 1, 2, 0):
        letters.process(number)
    assert (seen["chunks"] <= 1, compared) == (True, {})


def test_a_new_message_after_an_end_looks_at_no_files_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, _ = define(tmp_path / "state.db", sink=hf.Files(tmp_path / "out" / "{key}.txt"))
    hows, whole = list[str](), reconcile.reconcile
    monkeypatch.setattr(
        reconcile, "reconcile", lambda *args, **named: (hows.append(named["how"]), whole(*args, **named))[1]
    )
    letters.run([1, 2], progress=False)
    for number in (3, 4):
        letters.process(number)
    assert (hows, told(letters)) == (["sums", "sums"], ["complete"] * 3)
    letters.close()
    letters.expect(None, 5, reason="one is lacking")
    assert told(letters) == [*["complete"] * 3, "stopped"]


def test_the_first_end_that_a_message_brings_looks_at_the_files(tmp_path: Path) -> None:
    letters, _ = define(tmp_path / "state.db", sink=hf.Files(tmp_path / "out" / "{key}.txt"))
    letters.expect(None, 2)
    letters.process(1)
    (tmp_path / "out" / "1.txt").unlink()
    letters.process(2)
    assert told(letters) == []


def test_a_message_that_comes_again_asks_a_bucket_no_more_after_the_end_than_before() -> None:
    bucket = MemoryBucket()
    letters, _ = define(BucketStore(bucket))
    letters.expect(None, 21)
    for number in range(20):
        letters.process(number)
    before = asked_for(bucket, letters, 3)
    letters.process(20)
    asked_for(bucket, letters, 3)
    after = asked_for(bucket, letters, 3)
    assert after["list"] == 0
    assert after["get"] <= before["get"] + 4, (after, before)


def asked_for(bucket: MemoryBucket, letters: hf.Pipeline, number: int) -> Counter[str]:
    """What a message that comes again asks of the bucket."""
    bucket.calls.clear()
    letters.process(number)
    return Counter(verb for verb, _ in bucket.calls)


def test_a_process_that_knows_nothing_reads_the_keys_of_a_bucket_several_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = MemoryBucket()
    letters, _ = define(BucketStore(bucket))
    for number in range(2):
        letters.process(number)
    both, get = threading.Barrier(2, timeout=10), bucket.get

    def together(name: str) -> Any:
        if name.endswith(".keys"):
            both.wait()
        return get(name)

    monkeypatch.setattr(bucket, "get", together)
    letters, _ = define(BucketStore(bucket))
    assert letters.process(0).state == "done"


def killed_before_it_looks(letters: hf.Pipeline, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring a message to its end in a process that dies before it looks for the end of the batch."""
    with monkeypatch.context() as patched:
        patched.setattr(message.Processor, "_look_for_end", lambda *_: None)
        letters.process(number)


@pytest.mark.promise("A14", "A15")
def test_an_end_that_nobody_told_after_a_redrive_is_told_by_a_message_that_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters, bad = define(MemoryStore())
    bad.add(2)
    letters.expect(None, 2)
    for number in (1, 2, 2):
        letters.process(number)
    bad.clear()
    operations.redrive(letters.store, lookup.batch_named(letters.store, "letters"), BY)
    killed_before_it_looks(letters, 2, monkeypatch)
    letters.process(2)
    assert told(letters) == ["complete with dead letters", "complete"]


@pytest.mark.promise("A14", "A15")
def test_an_end_that_nobody_told_after_another_number_was_expected_is_told_by_a_message_that_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters, _ = define(MemoryStore())
    letters.expect(None, 2)
    for number in (1, 2, 1):
        letters.process(number)
    letters.expect(None, 3, reason="one was forgotten")
    killed_before_it_looks(letters, 3, monkeypatch)
    letters.process(1)
    assert len(told(letters)) == 2
