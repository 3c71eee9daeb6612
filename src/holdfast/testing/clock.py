"""A clock that moves only on request: tests call `clock.advance(31)` and never sleep."""

START = 1_700_000_000.0
"""The initial time of manual clocks: a moment in 2023, so that no time is ever 0."""


class ManualClock:
    """A clock to pass to a store as its `clock`."""

    def __init__(self, start: float = START) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0, f"time does not go back: advance({seconds:g})"
        self.now += seconds
