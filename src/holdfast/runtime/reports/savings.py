"""What the items cost that a run found done and left alone: added up from their own attempts, as they are recorded."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from holdfast.core import journal
from holdfast.core.columns import FLOAT32, UINT16, unpack
from holdfast.core.model import Chunk, State
from holdfast.stores.base import Store, each_entry


class Cost:
    """What the attempts of one item at one stage took and cost, in its last epoch there."""

    __slots__ = ("epoch", "seconds", "spent")

    def __init__(self, epoch: int) -> None:
        self.epoch, self.seconds, self.spent = epoch, 0.0, 0


class Savings:
    """Items that were done before a run and that nobody touched since, with what they cost."""

    def __init__(self) -> None:
        self._costs: dict[int, dict[int, Cost]] = {}
        self._done: set[int] = set()

    @property
    def items(self) -> int:
        return len(self._done)

    def sum(self) -> tuple[float, int]:
        """Return the seconds, and the money in units, of what is kept."""
        kept = [cost for n in self._done for cost in self._costs.get(n, {}).values()]
        return sum(cost.seconds for cost in kept), sum(cost.spent for cost in kept)

    def learn(self, body: journal.Body) -> None:
        """Take in an entry from before the run."""
        if isinstance(body, journal.Acted):
            for moved in body.items:
                (self._done.add if moved.after == State.DONE else self._done.discard)(moved.n)
        elif isinstance(body, journal.Checkpointed):
            for group in body.advanced:
                self._advanced(group)
            for attempt in body.attempts:
                self._at(attempt.n, attempt.stage, attempt.epoch).seconds += attempt.seconds
            for at in body.positions:
                self._at(at.n, 0, self._epoch(at.n, 0)).seconds += at.seconds
            for stage, spend in body.spends:
                self._at(spend.n, stage, self._epoch(spend.n, stage)).spent += spend.usd

    def forget(self, body: journal.Body) -> None:
        """Take in an entry of the run: what it names was not left alone."""
        if isinstance(body, journal.Acted):
            self._done.difference_update(moved.n for moved in body.items)
        elif isinstance(body, journal.Checkpointed):
            self._done.difference_update(*(group.items for group in body.advanced))
            self._done.difference_update(attempt.n for attempt in body.attempts)

    def _advanced(self, group: journal.Advanced) -> None:
        epochs: Iterable[int] = unpack(UINT16, group.epochs) if group.epochs else repeat(0, len(group.items))
        took: Iterable[float] = repeat(0.0, len(group.items)) if group.adopted else unpack(FLOAT32, group.seconds)
        for n, epoch, seconds in zip(group.items, epochs, took, strict=True):
            self._at(n, group.stage, epoch).seconds += seconds
        if group.finished:
            self._done.update(group.items)

    def _at(self, n: int, stage: int, epoch: int) -> Cost:
        """Return what is known of an item at a stage; what it cost in an epoch before was made again."""
        stages = self._costs.setdefault(n, {})
        if stage not in stages or stages[stage].epoch != epoch:
            stages[stage] = Cost(epoch)
        return stages[stage]

    def _epoch(self, n: int, stage: int) -> int:
        known = self._costs.get(n, {}).get(stage)
        return 0 if known is None else known.epoch


def read(store: Store, chunks: Sequence[Chunk], began_with: Mapping[int, int]) -> Savings:
    """Replay a batch; `began_with` tells how long the chain of each chunk was when the run began."""
    found = Savings()
    for chunk in sorted(chunks, key=lambda each: each.id):
        before = began_with.get(chunk.id, 0)
        for entry in each_entry(store, chunk.id):
            take = found.learn if entry.seq <= before else found.forget
            take(journal.decode_body(entry.body))
    return found
