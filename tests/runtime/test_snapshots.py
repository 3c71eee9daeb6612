"""What is durable before an attempt starts, as another connection reads it while the handler runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core import canonical, commitments, journal, sections
from holdfast.core.model import Batch, chain_of_batch
from holdfast.stores.base import Store, each_entry
from holdfast.stores.sqlite import SqliteStore
from tests.runtime.support import run

WITHIN = 900.0


def bodies(store: Store, chain: int) -> Iterator[tuple[journal.Header, journal.Body]]:
    for entry in each_entry(store, chain):
        yield journal.decode_header(entry.head), sections.decode(entry)


def digest_at_admission(store: Store, batch: Batch, n: int) -> bytes:
    for _, body in bodies(store, chain_of_batch(batch.id)):
        if isinstance(body, journal.Ingested) and body.lo <= n < body.hi:
            return body.digests[(n - body.lo) * 32 : (n - body.lo + 1) * 32]
    raise AssertionError(f"item {n} was never admitted")


@pytest.mark.promise("E5", "E6")
def test_before_each_attempt_its_number_the_last_error_the_deadline_and_the_payload_digest_are_durable(
    folder: Path,
) -> None:
    book = hf.Pipeline("book", store=folder / "state.db")
    told: list[list[tuple[int, str, str, bool]]] = []

    @book.stage(retry=hf.Retry(attempts=3, wait=("1ms", "2ms"), within="15m"))
    def read(number: int, ctx: hf.Context) -> int:
        store = SqliteStore(folder / "state.db")
        (batch,) = store.batches("book")
        (item,) = store.items(batch.id)
        (chunk,) = store.chunks(batch.id)
        entries = [*bodies(store, chunk.id)]
        store.close()
        granted = [header.fence for header, body in entries if isinstance(body, journal.Claimed)]
        assert granted[-1] == ctx.fence, "the claim is durable"
        digest = commitments.payload(batch.uid, item.key, 0, item.salt, canonical.encode(number))
        assert digest_at_admission(store=SqliteStore(folder / "state.db"), batch=batch, n=0) == digest
        before = [
            attempt for _, body in entries if isinstance(body, journal.Checkpointed) for attempt in body.attempts
        ]  # fmt: skip
        starts = [attempt.deadline - WITHIN for attempt in before]
        assert starts == sorted(starts), "time that is not charged moves the deadline on, and nothing moves it back"
        told.append([(each.attempt, each.code, each.message, 0 < each.due < each.deadline) for each in before])
        raise hf.Transient(f"no answer to attempt {ctx.attempt}", code="busy")

    run(book, [7], batch="book")
    first, second = (1, "busy", "no answer to attempt 1", True), (2, "busy", "no answer to attempt 2", True)
    assert told == [[], [first], [first, second]]
