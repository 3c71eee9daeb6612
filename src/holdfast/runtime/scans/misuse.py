"""What is wrong with a scan as it is written or installed, found only while a range is read: nothing is buried for it.

The run is refused, and every range stays where it stands: once it is put right, the next run resumes there.
"""

from holdfast.core.errors import UsageError

MISTAKES = (NameError, ImportError, SyntaxError)
"""Errors that no row can be to blame for: the code, or what is installed, is."""


class Misuse(UsageError):
    """A source that cannot be read as it was given, or a handler that does not answer as its shape must."""


def mistaken(what: str, error: BaseException, place: str) -> Misuse:
    """Return the refusal of a handler that cannot work, whatever the row."""
    return Misuse(
        f"{what} cannot work: {type(error).__name__}: {place}; correct it, then run again: nothing was buried, and it "
        "continues at its checkpoint"
    )
