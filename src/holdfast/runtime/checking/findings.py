"""The recorded outputs that a run could not verify, for its report."""

from collections.abc import Sequence

from holdfast.core.limits import FINDINGS_LISTED
from holdfast.core.model import Key
from holdfast.core.reconcile import Finding, What

WARNED = 5


class Findings:
    """The first findings of a run, and how many there are."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self.stages = stages
        self.count = 0
        self.listed: list[Finding] = []

    def add(self, key: Key, n: int, stage: int, why: str) -> None:
        """Note that the output of a stage could not be verified: its item stays as it is."""
        self.count += 1
        if len(self.listed) < FINDINGS_LISTED:
            self.listed.append(Finding(what=What.UNVERIFIED, why=why, n=n, key=key, stage=stage))

    def warnings(self) -> list[str]:
        """Return what a person reads about them."""
        lines = [
            f"item {f.key!r}, stage {self.stages[f.stage or 0]!r} could not be verified: {f.why}"
            for f in self.listed[:WARNED]
        ]
        more = self.count - len(lines)
        return [*lines, f"{more:,} more could not be verified"] if more > 0 else lines
