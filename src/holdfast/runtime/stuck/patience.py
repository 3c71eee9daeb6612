"""How long an item may stand still, and a dead letter stay open, before somebody should look: kept with the batch."""

from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical
from holdfast.core.errors import UsageError
from holdfast.core.limits import DEAD_AGE, ORPHAN_GRACE
from holdfast.core.model import Batch
from holdfast.runtime.durations import Duration, seconds


@dataclass(frozen=True, slots=True)
class Patience:
    """The two bounds, in seconds."""

    orphan_after: float = ORPHAN_GRACE
    dead_after: float = DEAD_AGE

    @staticmethod
    def check(orphan_after: Duration, dead_after: Duration) -> "Patience":
        """From what a user wrote."""
        found = Patience(seconds(orphan_after, "orphan_after"), seconds(dead_after, "dead_after"))
        for name, given, value in (
            ("orphan_after", orphan_after, found.orphan_after),
            ("dead_after", dead_after, found.dead_after),
        ):
            if value <= 0:
                raise UsageError(f"{name}={given!r}: a time longer than 0, such as '30m', '2h' or '7d'")
        return found

    @staticmethod
    def of(batch: Batch) -> "Patience":
        """As the batch was last run with."""
        said = canonical.decode(batch.definition)
        return Patience(
            float(said.get("orphan_after", ORPHAN_GRACE)),
            float(said.get("dead_after", DEAD_AGE)),
        )

    def describe(self) -> dict[str, Any]:
        """What of it is kept with a batch: what is not as usual."""
        said = {"orphan_after": self.orphan_after, "dead_after": self.dead_after}
        usual = {"orphan_after": ORPHAN_GRACE, "dead_after": DEAD_AGE}
        return {name: value for name, value in said.items() if value != usual[name]}


USUAL = Patience()
