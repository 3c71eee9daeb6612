"""What a run could not find out about recorded outputs, for its report."""

from dataclasses import dataclass

from holdfast.core.limits import FINDINGS_LISTED
from holdfast.core.model import Key

WARNED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A recorded output that could not be verified: its item stays as it is."""

    key: Key
    number: int
    stage: str
    message: str


class Findings:
    """The first findings of a run, and how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: list[Finding] = []

    def add(self, finding: Finding) -> None:
        self.count += 1
        if len(self.listed) < FINDINGS_LISTED:
            self.listed.append(finding)

    def warnings(self) -> list[str]:
        """What a person reads about them."""
        lines = [f"item {f.key!r}, stage {f.stage!r} could not be verified: {f.message}" for f in self.listed[:WARNED]]
        more = self.count - len(lines)
        return [*lines, f"{more:,} more could not be verified"] if more > 0 else lines
