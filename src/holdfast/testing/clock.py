"""A clock that stands still until it is told to move: tests say `clock.advance(31)` and never sleep."""

START = 1_700_000_000.0
"""When manual clocks begin: a moment in 2023, so that no time of day is ever 0."""


class ManualClock:
    """A clock that moves only when told to. Pass it to a store as its `clock`."""

    def __init__(self, start: float = START) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0, f"time does not go back: advance({seconds:g})"
        self.now += seconds
