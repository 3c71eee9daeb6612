"""A `yield` is a checkpoint: one that cannot be stored, or that comes too late, changes nothing and is told so."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.errors import UsageError
from holdfast.core.model import State
from holdfast.runtime.define.policy import Retry
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.partitions import history, standings
from holdfast.runtime.scan.scan import Scan
from holdfast.stores.base import Store
from holdfast.testing.rows import Rows
from tests.operations.scanned import BY, Totals


@pytest.mark.promise("B15")
def test_a_yield_that_cannot_be_stored_is_refused_and_moves_nothing(store: Store) -> None:
    scan = Scan("totals", Rows(range(10)), every=5, store=store, retry=Retry(attempts=1))

    @scan.handler
    def add(part: Any) -> Iterator[Any]:
        for row in part:
            if row in (4, 7):
                yield {"total": 10} if row == 4 else {"total": object()}

    with pytest.raises(UsageError, match="cannot be stored"):
        scan.run(progress=False)
    (batch,) = store.batches("totals")
    (at,) = standings(store, batch)
    assert (at.place.state, at.rows, at.acc) == (State.PENDING, 5, b'{"total":10}')


@pytest.mark.promise("B15")
def test_a_checkpoint_of_a_finished_range_changes_nothing_and_says_so(store: Store) -> None:
    totals = Totals(store, range(100))
    totals.bad = {0}
    totals.run()
    acts.retry(store, totals.batch(), acts.plan_retry(store, totals.batch()), BY, named=False)
    claim = totals.claim()
    (item,) = store.load(claim, None, 1, 1 << 20)
    assert totals.write(item, claim, 10, 0).landed
    assert acts.settle(store, totals.batch(), BY, "0", b"7").changed == 1
    before = list(history(store, totals.batch()))
    assert not totals.write(item, claim, 20, 1).landed
    assert list(history(store, totals.batch())) == before
    assert totals.rows() == [10]
    assert totals.run().result == 7
