"""Quantiles are exact, whether the numbers fit in memory or are read again."""

import statistics as reference
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.report.attempts import SAMPLE, Column, Quantiles, Room, Sample, close_in

POINTS = (Fraction(1, 2), Fraction(95, 100))
numbers = st.one_of(
    st.lists(st.integers(-10, 10), min_size=1, max_size=400),
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=400),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.5]), min_size=1, max_size=400),
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
    assert (passes == 0) == (room >= len(values))


@pytest.mark.promise("P14")
def test_a_million_equal_numbers_take_one_further_pass() -> None:
    found, passes = quantiles([3.5] * 100_000, room=100, block=4096)
    assert (found, passes) == ([3.5, 3.5], 1)


@pytest.mark.promise("P14")
def test_numbers_far_beyond_the_room_take_few_passes() -> None:
    values = [(n * 7_919) % 1_000_003 for n in range(200_000)]
    found, passes = quantiles(values, room=20_000, block=4096, whole=True)
    assert found == expected(values)
    assert passes <= 4


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


@given(st.lists(st.integers(1, 3000), max_size=60))
@settings(max_examples=50, deadline=None)
def test_a_sample_is_evenly_spread(sizes: list[int]) -> None:
    sample, n = Sample(), 0
    for size in sizes:
        sample.add(list(range(n, n + size)))
        n += size
    gaps = {b - a for a, b in zip(sample.values, sample.values[1:], strict=False)}
    assert len(gaps) <= 1
    assert len(sample.values) <= 2 * SAMPLE
