"""Reading in pages comes to an end, also in a store whose rows are no longer in order."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.core.errors import NotOurs
from holdfast.core.model import BatchId
from holdfast.stores.base import OUTPUT_PAGE, Store, each_entry, each_item, each_output

BATCH = BatchId(1)


class RoundAndRound:
    """Whatever one asks for, the rows before it come again."""

    url = "state.db"

    def items(self, *_: Any, lo: int = 0, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(n=n) for n in (range(3) if lo < 3 else range(2))]

    def outputs(self, *_: Any, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(n=n % 3) for n in range(OUTPUT_PAGE)]

    def entries(self, *_: Any, **__: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(seq=seq) for seq in (1, 2, 1)]


@pytest.mark.parametrize(
    "read", [lambda s: each_item(s, BATCH), lambda s: each_output(s, BATCH), lambda s: each_entry(s, 1)]
)
@pytest.mark.promise("A8")
def test_rows_out_of_order_are_told_instead_of_read_for_ever(read: Callable[[Store], Iterable[object]]) -> None:
    with pytest.raises(NotOurs, match=r"state\.db: its rows are out of order"):
        for _ in read(cast("Store", RoundAndRound())):
            pass
