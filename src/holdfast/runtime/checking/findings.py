"""The recorded outputs that a run could not verify, for its report."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from holdfast.core.limits import FINDINGS_LISTED, STAGES
from holdfast.core.model import Key
from holdfast.core.reconcile import Finding, What

WARNED = 5


class Findings:
    """The first findings of a run, and how many there are."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self.stages = stages
        self.count = 0
        self.listed: list[Finding] = []
        self._named = array("Q")
        """Which outputs they are about, in order: few bytes for each."""

    def add(self, key: Key, n: int, stage: int, why: str) -> None:
        """Note that the output of a stage could not be verified: its item stays as it is. Who comes to it again at the
        end of a run adds nothing."""
        output = n * STAGES + stage
        at = bisect_left(self._named, output)
        if at < len(self._named) and self._named[at] == output:
            return
        self._named.insert(at, output)
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
