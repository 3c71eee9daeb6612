"""Reading in pages comes to an end, also in a store whose rows are no longer in order."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.core.errors import NotOurs
from holdfast.core.model import BatchId
from holdfast.stores.base import (
    ENTRIES_AT_A_TIME,
    OUTPUT_PAGE,
    Store,
    each_entry,
    each_item,
    each_output,
    newest_entries,
)

BATCH = BatchId(1)


class RoundAndRound:
    """Whatever one asks for, the rows before it come again."""

    url = "state.db"

    def items(self, *_: Any, lo: int = 0, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(n=n) for n in (range(3) if lo < 3 else range(2))]

    def outputs(self, *_: Any, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(n=n % 3) for n in range(OUTPUT_PAGE)]

    def entries(self, *_: Any, limit: int, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(seq=seq) for seq in (*range(1, limit), 1)]


@pytest.mark.parametrize(
    "read", [lambda s: each_item(s, BATCH), lambda s: each_output(s, BATCH), lambda s: each_entry(s, 1)]
)
@pytest.mark.promise("A8")
def test_rows_out_of_order_are_told_instead_of_read_for_ever(read: Callable[[Store], Iterable[object]]) -> None:
    with pytest.raises(NotOurs, match=r"state\.db: its rows are out of order"):
        for _ in read(cast("Store", RoundAndRound())):
            pass


class Chain:
    """A chain of so many entries, and how often it was asked."""

    url = "state.db"

    def __init__(self, length: int) -> None:
        self.length, self.asked = length, 0

    def entries(self, _: int, *, after: int = 0, limit: int = 1000) -> list[SimpleNamespace]:
        self.asked += 1
        return [SimpleNamespace(seq=seq) for seq in range(after + 1, min(after + limit, self.length) + 1)]


@pytest.mark.parametrize("length", [0, 1, ENTRIES_AT_A_TIME, ENTRIES_AT_A_TIME + 1, 5 * ENTRIES_AT_A_TIME - 1])
def test_the_newest_entries_come_first_and_all_of_them_do(length: int) -> None:
    found = newest_entries(cast("Store", Chain(length)), 1, length)
    assert [entry.seq for entry in found] == list(range(length, 0, -1))


def test_no_more_of_a_chain_is_read_than_is_asked_for() -> None:
    chain = Chain(1_000)
    found = newest_entries(cast("Store", chain), 1, 1_000)
    assert chain.asked == 0
    assert [next(iter(found)).seq for _ in range(1)] == [1_000]
    assert chain.asked == 1
