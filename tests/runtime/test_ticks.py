"""Ticks on a clock that stands still: who waits is not called, who is deadly is not run again."""

import os
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.core.limits import BLAME, SUSPECT
from holdfast.core.model import Claim, ClaimRequest, ItemNo, State
from holdfast.runtime.acts import Actor
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.operate.operations import redrive
from holdfast.runtime.scan.tick import Ended, unsettled
from holdfast.runtime.sources.base import Horizon
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.rows import Rows
from tests.runtime.support import Calls

BY = Actor(name="ann", reason="it was corrected")
WAIT = 10.0


class Orders:
    """A scan that follows some rows; those that are "away" fail for now, those that are "poison" for good."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: Store = MemoryStore(clock=self.clock)
        self.rows: list[Any] = []
        self.given = Calls()
        self.scan = self.beside()

    def beside(self) -> hf.Scan:
        """The scan, as another process has it."""
        scan = hf.Follow("orders", Rows(self.rows, page=4), store=self.store, isolate=True,
                       retry=hf.Retry(attempts=5, wait=(WAIT, WAIT)))  # fmt: skip
        scan.handler(self._keep)
        return scan

    def _keep(self, some: list[Any]) -> None:
        for row in some:
            self.given(row)
            if "poison" in str(row):
                raise hf.Permanent("poison")
            if "away" in str(row):
                raise hf.Transient("the other side is away")

    def bury_and_send_again(self, row: str) -> None:
        """A row is buried, corrected so far that it only fails for now, and sent on its way again."""
        self.rows.append(f"poison {row}")
        assert self.scan.tick().dead == 1
        self.rows[-1] = f"away {row}"
        assert redrive(self.store, self.store.batches()[0], BY)

    def die(self, n: int) -> None:
        """Die under an item as often as it takes to be held against it."""
        for _ in range(SUSPECT + BLAME):
            want = ClaimRequest(batch=self.store.batches()[0].id, owner="gone", limit=1, seconds=30.0, only=ItemNo(n))
            claim = self.store.claim(want)
            assert isinstance(claim, Claim)
            if claim.blame >= SUSPECT:
                assert self.store.commit([Hold(claim, 1, 30.0, moment=0.0).start(os.urandom(16))])[0].landed
            self.clock.advance(31.0)


@pytest.fixture
def orders() -> Orders:
    return Orders()


@pytest.mark.promise("E7")
def test_a_handler_that_failed_for_now_is_not_called_before_its_wait_is_over(orders: Orders) -> None:
    orders.rows.append("away")
    first = orders.scan.tick()
    assert (first.ended, first.due) == (Ended.WAITING, orders.clock() + WAIT)
    tries = len(orders.given)
    assert orders.scan.tick().ended is Ended.WAITING
    assert len(orders.given) == tries, "every tick of a cron job would cost an attempt"
    orders.clock.advance(WAIT)
    orders.scan.tick()
    assert len(orders.given) > tries


@pytest.mark.promise("E7")
def test_of_rows_that_were_redriven_each_waits_for_itself_and_the_first_is_told(orders: Orders) -> None:
    orders.bury_and_send_again("a")
    began = orders.clock()
    assert orders.scan.tick().due == began + WAIT
    orders.clock.advance(WAIT / 2)
    orders.bury_and_send_again("b")
    told = orders.scan.tick()
    assert (told.waiting, told.due) == (2, began + WAIT)
    assert (orders.given.seen.count("away a"), orders.given.seen.count("away b")) == (1, 1)
    idle = orders.scan.tick()
    assert (idle.waiting, idle.due) == (2, began + WAIT), "not when the last of them is due"
    assert len(orders.given.seen) == 4


@pytest.mark.promise("A15")
def test_a_row_under_which_the_process_died_too_often_is_buried_unseen(orders: Orders) -> None:
    orders.scan.tick()
    orders.rows += ["deadly", 1]
    orders.die(0)
    told = orders.scan.tick()
    assert (told.dead, told.rows, orders.given.seen) == (1, 2, [1])


@pytest.mark.promise("A15")
def test_a_redriven_row_under_which_the_process_died_too_often_is_buried_unseen(orders: Orders) -> None:
    orders.bury_and_send_again("a")
    orders.die(1)
    told = orders.scan.tick()
    assert (told.dead, told.redriven, orders.given.seen) == (1, 0, ["poison a"])
    (row,) = orders.store.items(orders.store.batches()[0].id, lo=1, hi=2)
    assert (row.place.state, row.place.code) == (State.DEAD, "killed_process")


@pytest.mark.promise("C17")
@pytest.mark.parametrize(("newest", "waits"), [("11:59:59", False), ("12:00:00", True), ("12:00:01", True)])
def test_a_row_at_the_border_of_what_is_final_is_still_to_come(newest: str, waits: bool) -> None:
    def at(time: str) -> Cursor:
        return Cursor("column", f"2026-01-01T{time}")

    assert unsettled(Horizon(newest=at(newest), until=at("12:00:00"))) is waits


@pytest.mark.promise("C8", "C16")
def test_rows_that_another_process_handled_between_the_look_and_the_claim_are_not_handled_again(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.scan.tick()
    orders.rows += [1, 2]
    claim, other = orders.store.claim, orders.beside()

    def overtaken(want: ClaimRequest) -> Any:
        monkeypatch.setattr(orders.store, "claim", claim)
        assert other.tick().rows == 2
        return claim(want)

    monkeypatch.setattr(orders.store, "claim", overtaken)
    told = orders.scan.tick()
    assert (orders.given.seen, told.rows, told.total) == ([1, 2], 0, 2)
