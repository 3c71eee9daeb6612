"""Money is a whole number of 10**-12 dollars: sums are exact, and no float ever holds an amount."""

from decimal import Decimal, InvalidOperation

from holdfast.core.errors import UsageError
from holdfast.core.limits import MONEY_DIGITS

UNIT = 10**MONEY_DIGITS


def to_units(usd: Decimal | float | int | str) -> int:
    """Dollars as units. A float means what it prints (0.1 is ten cents); what is finer than a unit is rounded."""
    try:
        amount = Decimal(str(usd))
    except InvalidOperation:
        raise UsageError(f"usd={usd!r} is not an amount of money") from None
    if not amount.is_finite() or amount < 0:
        raise UsageError(f"usd={usd!r}: an amount of money is a finite number, 0 or more")
    return int((amount * UNIT).to_integral_value())


def to_usd(units: int) -> Decimal:
    """Units as dollars, without trailing zeros beyond the cents."""
    amount = Decimal(units) / UNIT
    cents = amount.quantize(Decimal("0.01"))
    return cents if cents == amount else amount.normalize()
