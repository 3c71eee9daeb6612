"""A range that fails goes on at its last checkpoint, also within the run that wrote it."""

import pytest

import holdfast as hf
from holdfast.runtime.scan import Scan
from holdfast.testing.rows import Rows


@pytest.mark.promise("B1", "B7", "B10")
def test_a_retry_begins_at_the_last_checkpoint_and_not_where_the_range_was_claimed() -> None:
    scan = Scan("totals", Rows(range(1000)), every=200, store="memory:", retry=hf.Retry(wait=("10ms", "20ms")))
    given: list[int] = []

    @scan.handler
    def add(rows: list[int], acc: int) -> int:
        given.append(rows[0])
        if given.count(600) == 1 and rows[0] == 600:
            raise hf.Transient("no answer")
        return acc + sum(rows)

    assert scan.run(progress=False).result == sum(range(1000))
    assert given == [0, 200, 400, 600, 600, 800]
