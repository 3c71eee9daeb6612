"""Numbers and moments for people."""

from datetime import UTC, datetime
from decimal import Decimal


def many(count: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def when(at: float) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def usd(value: Decimal | None) -> str:
    """Money: cents, and more digits only where cents say nothing."""
    if value is None:
        return "-"
    return f"${value:,.2f}" if value == 0 or value >= Decimal("0.10") else f"${value:,.6f}".rstrip("0")
