"""The passes over a partition, told from its checkpoints and resets alone, against a list that knows each delivery."""

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import cursor
from holdfast.core.cursor import Cursor, Standing
from holdfast.core.model import ItemNo, ItemState
from holdfast.runtime.operate import cursor_audit as audit
from holdfast.runtime.partitions import PastCheckpoint

ROWS = 40
AT = Standing(n=ItemNo(0), key=0, place=ItemState(), payload=b"", after=None, until=None, expected=None,
              checkpoint=None)  # fmt: skip


class Walked:
    """A partition with a list of how often each row was delivered."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.at = self.rows = 0
        self.delivered = [0] * ROWS
        self.pasts: list[PastCheckpoint] = []

    def walk(self, count: int) -> None:
        here = self.at
        self.at = min(ROWS, here + count)
        for row in range(here, self.at):
            self.delivered[row] += 1
        self.rows += self.at - here
        self._note("checkpoint")

    def reset(self, to: int) -> None:
        self.rows = self.rows if to >= self.at else sum(map(bool, self.delivered[:to]))
        self.at = to
        self._note("reset")

    def _note(self, kind: str) -> None:
        said = cursor.encode(self.cursor_at(self.at)) if self.at else b""
        past = PastCheckpoint(at=0.0, n=0, rows=self.rows, cursor=said, kind=kind, actor="ada", fence=1, commit_id="",
                              entry="")  # fmt: skip
        self.pasts.append(past)

    def cursor_at(self, row: int) -> Cursor:
        return Cursor(self.kind, row if self.kind == "row" else row * 10)

    def __iter__(self) -> Iterator[PastCheckpoint]:
        return iter(self.pasts)


steps = st.lists(st.tuples(st.sampled_from(["walk", "walk", "walk", "reset"]), st.integers(1, ROWS)), max_size=40)


@pytest.mark.promise("C3")
@given(steps=steps, kind=st.sampled_from(["row", "value"]), kept=st.sampled_from([3, 1000]))
@settings(max_examples=400, deadline=None)
def test_every_row_is_in_as_many_passes_as_it_was_delivered(steps: list[tuple[str, int]], kind: str, kept: int) -> None:
    walked = Walked(kind)
    for what, count in steps:
        walked.reset(count) if what == "reset" else walked.walk(1 + count % 7)
    with mock.patch.object(audit, "KEPT", kept):
        found = audit.passes(lambda: walked, AT)
    for row in range(ROWS):
        places = (walked.cursor_at(row) if row else None, walked.cursor_at(row + 1))
        inside = [one for one in found if one.covers(*places)]
        assert len(inside) == walked.delivered[row], (row, walked.pasts)
        for one in inside:
            low, high = one.rows_at(places[0]), one.rows_at(places[1])
            assert low is not None
            assert high is not None
            assert high[1] is not None
            assert 1 <= high[1] - low[0] <= ROWS
            assert kind != "row" or low[0] == low[1] == high[0] - 1
