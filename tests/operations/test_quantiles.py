"""Quantiles are exact, whether the numbers fit in memory or are read again."""

import statistics as reference
from array import array
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.report.attempts import Column, Quantiles, Room, close_in, keys, number

POINTS = (Fraction(1, 2), Fraction(95, 100))
numbers = st.one_of(
    st.lists(st.integers(-10, 10), min_size=1, max_size=400),
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=400),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.5]), min_size=1, max_size=400),
    st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=400),
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=400),
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0]), min_size=1, max_size=20),
)


def quantiles(values: list, *, room: int, block: int = 7, whole: bool = False) -> tuple[list, int]:
    limit = Room(room)
    column = Column(limit, whole=whole)
    blocks = [values[start : start + block] for start in range(0, len(values), block)]
    for each in blocks:
        column.add(each)
    wanted = Quantiles([column], POINTS, limit)
    passes = close_in([wanted], lambda: ((column, each) for each in blocks))
    return wanted.values(), passes


def expected(values: list) -> list:
    if len(values) == 1:
        return [values[0], values[0]]
    cuts = reference.quantiles([Fraction(value) for value in values], n=100, method="inclusive")
    return [cuts[49], cuts[94]]


@pytest.mark.promise("P14")
@given(values=numbers, room=st.sampled_from([0, 1, 20, 10_000]))
@settings(max_examples=300, deadline=None)
def test_quantiles_equal_the_reference_at_every_size_of_memory(values: list, room: int) -> None:
    whole = all(isinstance(value, int) for value in values)
    found, passes = quantiles(values, room=room, whole=whole)
    assert found == pytest.approx([float(value) for value in expected(values)], rel=1e-9, abs=1e-300)
    assert passes <= 4
    assert room < len(values) or not passes


@pytest.mark.promise("P14")
@given(values=numbers, room=st.sampled_from([0, 40, 400]), point=st.fractions(0, 1))
@settings(max_examples=200, deadline=None)
def test_every_rank_is_the_one_that_sorting_gives(values: list, room: int, point: Fraction) -> None:
    whole = all(isinstance(value, int) for value in values)
    limit, exactly = Room(room), Fraction(int(point * (len(values) - 1)), max(1, len(values) - 1))
    column = Column(limit, whole=whole)
    column.add(list(values))
    wanted = Quantiles([column], [exactly], limit)
    close_in([wanted], lambda: [(column, list(values))])
    assert wanted.values() == [sorted(values)[int(point * (len(values) - 1))]]


@pytest.mark.promise("P14")
@given(values=st.lists(st.floats(allow_nan=False), min_size=1))
@settings(max_examples=200, deadline=None)
def test_keys_have_the_order_of_their_numbers(values: list[float]) -> None:
    made = keys(values, whole=False)
    assert [number(key, whole=False) for key in made] == values
    assert [number(key, whole=False) for key in sorted(made)] == sorted(values)


@pytest.mark.promise("P14")
def test_equal_numbers_take_no_further_pass() -> None:
    found, passes = quantiles([3.5] * 100_000, room=100, block=4096)
    assert (found, passes) == ([3.5, 3.5], 0)


@pytest.mark.promise("P14")
def test_seconds_take_few_passes_though_some_are_zero() -> None:
    values = array("f", (n % 9_973 / 997 for n in range(100_000))).tolist()
    found, passes = quantiles(values, room=3_200, block=4096)
    assert found == pytest.approx([float(value) for value in expected(values)], rel=1e-12)
    assert passes <= 3


@pytest.mark.promise("P14")
def test_numbers_far_beyond_the_room_take_few_passes() -> None:
    values = [(n * 7_919) % 1_000_003 for n in range(200_000)]
    found, passes = quantiles(values, room=20_000, block=4096, whole=True)
    assert found == expected(values)
    assert passes == 2


def test_several_columns_are_taken_together() -> None:
    room = Room(3)
    one, other = Column(room), Column(room)
    blocks = [(one, [1.0, 2.0, 3.0]), (other, [10.0, 20.0]), (one, [4.0])]
    for column, block in blocks:
        column.add(list(block))
    both = Quantiles([one, other], POINTS, room)
    alone = Quantiles([one], POINTS, room)
    close_in([both, alone], lambda: iter(blocks))
    assert both.values()[0] == reference.median([1, 2, 3, 4, 10, 20])
    assert alone.values()[0] == 2.5


def test_a_histogram_counts_every_number_once() -> None:
    column = Column(Room(0), edges=(1, 10))
    column.add([0, 1, 2])
    column.add([10, 11, 12])
    assert column.cells == [2, 2, 2]
    assert (column.count, column.total, column.least, column.most) == (6, 36, 0, 12)
