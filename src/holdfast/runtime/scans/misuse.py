"""What is wrong with a scan as it is written or installed, found only while a range is read: nothing is buried for it.

The run is refused, and every range stays where it stands: once it is put right, the next run goes on there.
"""

from holdfast.core.errors import UsageError


class Misuse(UsageError):
    """A source that cannot be read as it was given, or a handler that does not answer as its shape must."""
