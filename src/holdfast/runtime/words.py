"""Numbers for people."""

from decimal import Context, Decimal

WIDE = Context(prec=60)
"""Never the context of the program we run in, which may round at six digits."""


def many(count: int, noun: str, plural: str = "") -> str:
    """`1 item`, `2 items`; the plural of what takes no s is passed, too."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural if plural else f'{noun}s'}"


def printable(text: str) -> str:
    """The text with everything that is not printed shown as an escape; line ends and tabs stay. What comes from
    outside cannot give orders to a terminal then."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def usd(value: Decimal | None) -> str:
    """Money: cents, and more digits where it has a few more, or where cents say nothing."""
    if value is None:
        return "-"
    if value == value.quantize(Decimal("0.0001"), context=WIDE) != value.quantize(Decimal("0.01"), context=WIDE):
        return f"${value:,.4f}".rstrip("0")
    return f"${value:,.2f}" if value == 0 or value >= Decimal("0.10") else f"${value:,.6f}".rstrip("0")
