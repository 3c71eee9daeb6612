"""Money is a whole number of 10**-12 dollars: sums are exact, and no float ever holds an amount."""

from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

from holdfast.core.errors import UsageError
from holdfast.core.limits import MONEY_DIGITS, MONEY_USD

UNIT = 10**MONEY_DIGITS
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
"""Never the context of the program we run in, which may round at six digits."""


def to_units(usd: Decimal | float | int | str) -> int:
    """Dollars as units. A float means what it prints (0.1 is ten cents); what is finer than a unit is rounded."""
    try:
        amount = Decimal(str(usd))
    except InvalidOperation:
        raise UsageError(f"usd={usd!r} is not an amount of money") from None
    if not amount.is_finite() or amount < 0:
        raise UsageError(f"usd={usd!r}: an amount of money is a finite number, 0 or more")
    if amount > MONEY_USD:
        raise UsageError(f"usd={usd!r}: an amount of money is at most {MONEY_USD:,} dollars")
    return int(amount.scaleb(MONEY_DIGITS, _EXACT).to_integral_value(context=_EXACT))


def to_usd(units: int) -> Decimal:
    """Units as dollars, without trailing zeros beyond the cents."""
    amount = Decimal(units).scaleb(-MONEY_DIGITS, _EXACT)
    cents = amount.quantize(Decimal("0.01"), context=_EXACT)
    return cents if cents == amount else amount.normalize(_EXACT)
