"""Rows with a page of foresight, and one more where there is time: order, cursor and end stay the same."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cursor import Cursor
from holdfast.runtime.scans.feed import Feed
from holdfast.testing.rows import RowPage, Rows


@given(count=st.integers(0, 40), page=st.integers(1, 7), takes=st.lists(st.tuples(st.integers(1, 9), st.booleans())))
def test_reading_early_changes_nothing_but_the_time(count: int, page: int, takes: list[tuple[int, bool]]) -> None:
    plain, early = (Feed(Rows(list(range(count)), page=page).read(None, None), 0) for _ in range(2))
    for most, now in takes:
        if now:
            early.read_early()
        assert early.take(most) == plain.take(most)
        assert (early.cursor, early.rows, early.at_end) == (plain.cursor, plain.rows, plain.at_end)


def test_what_reading_early_runs_into_comes_in_its_place() -> None:
    def pages() -> Iterator[Any]:
        yield RowPage(["a"], 0)
        yield RowPage(["b"], 1)
        raise OSError("the disk is gone")

    feed = Feed(pages(), 0)
    assert feed.take(1) == ["a"]
    feed.read_early()
    assert (feed.cursor, feed.at_end) == (Cursor("row", 1), False)
    with pytest.raises(OSError, match="the disk is gone"):
        feed.take(1)
