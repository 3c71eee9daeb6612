"""Money is exact: what goes in comes out, and sums have no crumbs."""

import decimal
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canonical import UNIT, to_units, to_usd
from holdfast.core.errors import UsageError
from holdfast.core.limits import MONEY_USD
from tests.core.made import PROPERTY


@pytest.mark.parametrize(
    ("usd", "units"),
    [
        (0, 0),
        (-0.0, 0),
        (1, UNIT),
        (0.1, UNIT // 10),
        (1e-05, 10_000_000),
        (Decimal("0.000000000001"), 1),
        (1e-12, 1),
        (Decimal("12.345678901234"), 12_345_678_901_234),
        ("0.25", UNIT // 4),
        (MONEY_USD, MONEY_USD * UNIT),
    ],
)
def test_an_amount_in_units(usd: Decimal | float | str, units: int) -> None:
    assert to_units(usd) == units


def test_a_float_means_what_it_prints() -> None:
    assert sum(to_units(0.1) for _ in range(3)) == to_units(0.3)
    assert sum(to_units(0.01) for _ in range(500)) == to_units(5)
    assert to_units(0.1 * 3) == to_units(0.30000000000000004) == to_units("0.3")


def test_what_is_finer_than_a_unit_is_rounded_to_the_nearest() -> None:
    finer = [Decimal(f"0.0000000000{digits}") for digits in ("014", "016", "015", "025", "005", "000001")]
    assert [to_units(usd) for usd in finer] == [1, 2, 2, 2, 0, 0]


@pytest.mark.parametrize(
    "usd",
    [-1, -0.01, Decimal("-1e-12"), float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("sNaN"),
     "five dollars", "", "$5", None, True, [1], MONEY_USD + 0.01, 10**30, Decimal("1e999999")],
)  # fmt: skip
def test_what_is_no_amount_is_refused_and_shown(usd: object) -> None:
    with pytest.raises(UsageError) as caught:
        to_units(usd)  # type: ignore[arg-type]
    assert f"usd={usd!r}" in str(caught.value)


@PROPERTY
@given(st.integers(0, MONEY_USD * UNIT))
def test_units_become_dollars_and_units_again(units: int) -> None:
    assert to_units(to_usd(units)) == units
    assert to_usd(units) * UNIT == units


@PROPERTY
@given(st.lists(st.decimals(0, 1000, places=12), max_size=50))
def test_a_sum_of_amounts_is_the_amount_of_the_sum(amounts: list[Decimal]) -> None:
    with decimal.localcontext() as context:
        context.prec = 60
        assert to_usd(sum(map(to_units, amounts))) == sum(amounts)


@pytest.mark.parametrize(
    ("units", "shown"),
    [(0, "0.00"), (UNIT, "1.00"), (5 * UNIT // 2, "2.50"), (1, "1E-12"), (UNIT // 1000, "0.001"), (30 * UNIT, "30.00")],
)
def test_dollars_show_cents_and_no_more_digits_than_there_are(units: int, shown: str) -> None:
    assert str(to_usd(units)) == shown


def test_the_totals_of_many_batches_stay_exact() -> None:
    assert str(to_usd(10**6 * MONEY_USD * UNIT)) == "9000000000000.00"


def test_how_the_program_around_us_reckons_changes_nothing() -> None:
    with decimal.localcontext() as context:
        context.prec, context.rounding = 3, decimal.ROUND_UP
        context.traps[decimal.Inexact] = True
        assert to_units("1.234567890123") == 1_234_567_890_123
        assert to_units(Decimal("0.0000000000001")) == 0
        assert str(to_usd(1_234_567_890_123)) == "1.234567890123"
        assert str(to_usd(123_450_000_000_000)) == "123.45"
