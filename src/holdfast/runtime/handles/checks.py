"""Checks of arguments that operators pass, so that a mistake is refused with a sentence."""

from holdfast.core.errors import UsageError


def check_kind(value: object, kind: type, name: str, wanted: str) -> None:
    """Refuse an argument of another type."""
    if not isinstance(value, kind):
        raise UsageError(f"{name}={value!r}: pass {wanted}; nothing was changed")


def check_whole(value: object, name: str) -> None:
    """Refuse anything but a whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name}={value!r}: pass a whole number, 0 or more")
