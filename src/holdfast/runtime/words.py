"""Numbers for people."""

from decimal import Decimal


def many(count: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def usd(value: Decimal | None) -> str:
    """Money: cents, and more digits only where cents say nothing."""
    if value is None:
        return "-"
    return f"${value:,.2f}" if value == 0 or value >= Decimal("0.10") else f"${value:,.6f}".rstrip("0")
