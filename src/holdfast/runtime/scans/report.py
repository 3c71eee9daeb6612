"""What a scan tells: the report of its ranges, as of any batch, and what came of them."""

from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import Incomplete
from holdfast.runtime.report import Report
from holdfast.runtime.text import printable


@dataclass(frozen=True, slots=True)
class ScanReport:
    """How a scan stands: what a run tells at its end."""

    run: Report
    """Of its ranges, as of any batch."""
    rows: int
    """Rows that were handled, in all."""
    parts: tuple[Any, ...] = ()
    """What came of each range, in their order, and of rows that were redriven; complete once every range is done."""
    result: Any = None
    """What `converge` made of them; without it, what came of the only part. None where there are several: then nobody
    said how to bring them together, and `parts` has them."""
    unconverged: str = ""
    """Why there is no result, though nothing is left to do for the ranges; empty where there is one."""
    run_again: bool = False
    """Whether the next run continues with it, or calls `converge`."""

    def __getattr__(self, name: str) -> Any:
        """Everything else is as with any batch: counts, state, dead, warnings …"""
        return getattr(object.__getattribute__(self, "run"), name)

    @property
    def why(self) -> str:
        """What to know about the state, and what to do next."""
        return f"{self.run.why} {self.unconverged}".strip()

    @property
    def exit_code(self) -> int:
        """As with any batch; a scan without the result it shall have is not complete."""
        if self.run.exit_code or not self.unconverged:
            return self.run.exit_code
        return 75 if self.run_again else 1

    @property
    def is_complete(self) -> bool:
        """Whether every range is accounted for, and what shall come of them is there."""
        return self.exit_code == 0

    def raise_unless_complete(self) -> "ScanReport":
        """Raise Incomplete, with what is missing, unless the scan is complete."""
        if not self.is_complete:
            raise Incomplete(f"batch {self.run.batch!r} is {self.run.state}: {self.why}", self)
        return self

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for machines."""
        told = {"why": self.why, "exit_code": self.exit_code, "run_again": self.run_again}
        return {**self.run.as_dict(), **told}

    @property
    def are_apart(self) -> bool:
        """Whether several parts came to something, and nothing brings them together."""
        return self.result is None and sum(part is not None for part in self.parts) > 1

    def __str__(self) -> str:
        return printable(f"{self.run}\n  result   {self.unconverged}") if self.unconverged else str(self.run)
