"""What the items of a batch are: of a scan, partitions and rows that were buried, which nobody should take for each
other; of any other batch, items."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.model import Batch, State
from holdfast.runtime.cursors.standing import is_scan
from holdfast.runtime.reports.status import Counts
from holdfast.runtime.scans.burial import is_row
from holdfast.runtime.words import many
from holdfast.stores.base import Store, each_item

STATES = ("done", "skipped", "dead", "cancelled", "pending")


@dataclass(frozen=True, slots=True)
class Kinds:
    """How many there are of each, by what has become of them."""

    items: Mapping[str, int]
    """Partitions, where it is a scan."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of a scan that were buried."""
    noun: str = "item"

    @property
    def count(self) -> int:
        return sum(self.items.values())

    def all(self) -> str:
        """`All 5 items are`."""
        return f"All {self.count:,} {self.noun}s are" if self.count != 1 else f"Its one {self.noun} is"

    def died(self) -> str:
        """How many died, of how many."""
        mine, rows = self.items.get("dead", 0), self.rows.get("dead", 0)
        if not rows:
            return f"{mine:,} of {many(self.count, self.noun)}"
        return f"{mine:,} of {many(self.count, self.noun)} and {many(rows, 'row')}" if mine else many(rows, "row")

    def pending(self) -> str:
        """How many are left, in words."""
        mine, rows = self.items.get("pending", 0), self.rows.get("pending", 0)
        told = [many(mine, self.noun)] if mine or not rows else []
        return " and ".join([*told, *([many(rows, "buried row")] if rows else [])])

    def lines(self) -> list[str]:
        """For the report."""
        sums = " + ".join(f"{self.items.get(name, 0):,} {name}" for name in STATES)
        label = "items" if self.noun == "item" else "parts"
        found = [f"  {label}    {self.count:,} = {sums}"]
        if self.rows:
            told = " + ".join(f"{count:,} {name}" for name, count in self.rows.items())
            found.append(f"  buried   {many(sum(self.rows.values()), 'row')} = {told}")
        return found


def kinds_of(store: Store, batch: Batch, counts: Counts) -> Kinds:
    """The items of a batch. Those of a scan are read, to tell rows from partitions."""
    mine = {name: getattr(counts, name) for name in STATES}
    if not is_scan(batch):
        return Kinds(mine)
    rows = Counter[str]()
    for state in State:
        if mine.get(state.value):
            rows[state.value] = sum(is_row(item.key) for item in each_item(store, batch.id, state=state))
    return Kinds({name: count - rows[name] for name, count in mine.items()}, dict(+rows), "partition")
