"""What a total leaves out and counts twice, told from checkpoints and resets alone, against a total that knows."""

import json
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.core import cursor, journal, passes, tally
from holdfast.core.cursor import Cursor
from holdfast.core.model import Checkpoint, ItemNo, Place
from holdfast.core.passes import Mark
from holdfast.core.tally import Many, Tally

SIZE = 60
KINDS = {
    "row": lambda row: Cursor("row", row),
    "name": lambda row: Cursor("name", f"{row * 7:05d}"),  # nobody can count between two of them
    "byte": lambda row: Cursor("byte", row // 20 * 200, row % 20),  # within a block one can
}


class Range:
    """A range of sixty rows, whose total is known row by row."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.marks: list[Mark] = []
        self.at = self.rows = 0
        self.acc: Counter[int] = Counter()
        self.handled: Counter[int] = Counter()
        self.saved: list[tuple[int, int, Counter[int]]] = []
        self.furthest = 0

    def place(self, row: int) -> Cursor:
        return KINDS[self.kind](row)

    @property
    def digest(self) -> bytes:
        return json.dumps(sorted(self.acc.items())).encode() if self.acc else b""

    def walk(self, count: int) -> None:
        end = min(SIZE, self.at + count)
        if end == self.at:
            return
        self.acc.update(range(self.at, end))
        self.handled.update(range(self.at, end))
        self.rows, self.at = self.rows + end - self.at, end
        self.furthest = max(self.furthest, end)
        self.marks.append(Mark(at=self.place(end), rows=self.rows, acc=self.digest, is_end=end == SIZE))

    def save(self) -> None:
        self.saved.append((self.at, self.rows, self.acc.copy()))

    def to_cursor(self, row: int, keep: bool) -> None:
        if not self.marks:
            return
        last = Checkpoint(ItemNo(0), self.rows, cursor.encode(self.place(self.at)) if self.at else b"", self.digest)
        here = cursor.Standing(n=ItemNo(0), key=0, place=Place(), salt=b"", payload=b"",
                                checkpoint=last, until=self.place(SIZE))  # fmt: skip
        past = [journal.Position(0, each.rows, cursor.encode(each.at) if each.at else b"") for each in self.marks]
        to, _ = cursor.at_cursor(here, self.place(row), past, "keep" if keep else "drop")
        self._set(row, to.rows, self.acc if keep else Counter(), self.place(row))

    def to_state(self, which: int) -> None:
        if self.saved:
            row, rows, acc = self.saved[which % len(self.saved)]
            self._set(row, rows, acc.copy(), self.place(row) if row else None)

    def to_beginning(self) -> None:
        self._set(0, 0, Counter(), None)

    def _set(self, row: int, rows: int, acc: Counter[int], place: Cursor | None) -> None:
        self.at, self.rows, self.acc = row, rows, acc
        self.furthest = max(self.furthest, row)
        self.marks.append(Mark(at=place, rows=rows, acc=self.digest, is_act=True))

    def told(self) -> Tally:
        return tally.tally(passes.story(lambda: self.marks, None, self.place(SIZE)))

    def true(self) -> tuple[int, int]:
        """Rows that the total leaves out and counts twice, once the pass at hand is as far as any was."""
        acc = self.acc + Counter(range(self.at, self.furthest))
        return sum(not acc[row] for row in range(self.furthest)), sum(count - 1 for count in acc.values())


MOVES = st.one_of(
    st.tuples(st.just("walk"), st.integers(1, 40)),
    st.tuples(st.just("to_cursor"), st.integers(1, SIZE), st.booleans()),
    st.tuples(st.just("to_state"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["save", "to_beginning"])),
)


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from([*KINDS]), moves=st.lists(MOVES, max_size=12))
def test_what_is_said_of_a_total_is_true(kind: str, moves: list[tuple[Any, ...]]) -> None:
    at = Range(kind)
    at.walk(5)
    for name, *given_ in moves:
        getattr(at, name)(*given_)
    told, (left_out, twice) = at.told(), at.true()
    assert _within(told.left_out, left_out), (told, left_out, at.marks)
    assert _within(told.twice, twice), (told, twice, at.marks)
    if kind == "row":
        assert (told.left_out, told.twice) == (Many(left_out, left_out), Many(twice, twice)), "rows are counted"
    assert told.is_whole or left_out or twice or kind != "row"


def _within(many: Many, true: int) -> bool:
    return many.low <= true and (many.high is None or true <= many.high)


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize(
    ("keep", "ahead", "standing"),
    [
        (False, "30 rows leave the total", "its total leaves out 30 rows"),
        (True, "30 rows count twice in the total", "its total counts 30 rows twice"),
    ],
)
def test_a_reset_to_a_checkpoint_is_told_exactly(kind: str, keep: bool, ahead: str, standing: str) -> None:
    at = Range(kind)
    at.walk(30)
    at.walk(30)
    assert at.told().is_whole
    at.to_cursor(30, keep)
    assert at.told().ahead() == ahead, "before a row is handled again"
    at.walk(17)
    at.walk(13)
    assert at.told().standing() == standing


def test_a_reset_between_two_checkpoints_is_told_exactly_once_the_end_is_reached() -> None:
    at = Range("name")
    at.walk(40)
    at.walk(20)
    at.to_cursor(25, keep=False)
    assert at.told().ahead() == "at most 40 rows leave the total"
    at.walk(SIZE)
    assert at.told().standing() == "its total leaves out 25 rows"


def test_a_range_that_begins_again_has_a_whole_total() -> None:
    at = Range("row")
    at.walk(40)
    at.to_cursor(20, keep=True)
    at.to_beginning()
    at.walk(SIZE)
    assert at.told() == tally.WHOLE


def test_words_for_one_row_and_for_rows_that_nobody_counted() -> None:
    assert Tally(Many(1, 1), Many(1, 1)).ahead() == "1 row leaves the total and 1 row counts twice in the total"
    assert Tally(Many(0, None)).standing() == "its total leaves out rows, nobody knows how many"
    assert Tally(Many(), Many(0, None)).standing() == "its total counts rows, nobody knows how many, twice"
    assert Tally(Many(3, 3), of_total=False).standing() == "3 rows were passed by and never handled"
