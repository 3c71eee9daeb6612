"""A rehearsal of a desk: it is told what the store and the workers would say, and all that it asks for is noted."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.model import (
    LANDED,
    START,
    Batch,
    BatchId,
    ChunkId,
    Claim,
    ClaimRequest,
    DeadLimit,
    Item,
    ItemNo,
    Kind,
    Lease,
    Receipt,
)
from holdfast.core.outcome import Done, Failed, Outcome
from holdfast.core.retry import Policy
from holdfast.runtime.define.stage import ORDINARY, WorkFacts
from holdfast.runtime.engine import exchange as ex
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.dispatch import (
    Appetite,
    PoolKind,
    PoolLoad,
    Purse,
    Slots,
    StageBreaker,
    StageFacts,
    StageQueue,
)
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.engine.withheld import WithheldDeaths, WithheldReturns
from holdfast.stores.base import Idle

NOW = 1_700_000_000.0
LEASE = 30.0
NOTHING_LEFT = Idle(pending=0)
MOST_EFFECTS = 500
"""A desk that asks for more than that goes round in circles."""


def item(n: int) -> Item:
    return Item(ItemNo(n), str(n), b"1", START, True)


def claim(lo: int, hi: int, *, blame: int = 0, kind: Kind = Kind.ITEMS, expires: float = NOW + LEASE,
          stages: int = 1) -> Claim:  # fmt: skip
    lease = Lease(chunk=ChunkId(lo + 1), fence=1, owner="ann", expires=expires)
    return Claim(lease=lease, batch=BatchId(1), uid=bytes(16), number=1, lo=ItemNo(lo), hi=ItemNo(hi), version=0,
                 blame=blame, pending=hi - lo, kind=kind, end=stages)  # fmt: skip


def held(pending: int, *, stages: int = 1) -> Hold:
    return Hold(claim(0, pending, stages=stages), stages, LEASE, moment=0.0)


def queue_of(slots: Slots | None = None, *, work: WorkFacts = ORDINARY, breaker: StageBreaker | None = None,
             kind: PoolKind = PoolKind.THREADS, **facts: Any) -> StageQueue:  # fmt: skip
    """The queue of one stage."""
    told = StageFacts(name="read", policy=Policy(), work=work, **facts)
    pause = breaker if breaker is not None else StageBreaker("read", None)
    return StageQueue(0, told, PoolLoad(kind), slots if slots is not None else Slots(8), pause)


def done(one: Item, seconds: float = 0.5) -> Done:
    return Done(one, b"1", 0.0, seconds)


def died(one: Item) -> Failed:
    return Failed(one, False, "blank", "nothing is on it", 0.0, 0.0, 0.5)


class Rehearsal:
    """One run of one stage. Claims are granted in order; without more of them nothing is left. What is begun comes back
    when the rehearsal is told so."""

    def __init__(self, *claims: Claim | Idle, workers: int = 4, work: WorkFacts = ORDINARY, cap: int | None = None,
                 tolerance: DeadLimit | None = None) -> None:  # fmt: skip
        self.claims: list[Claim | Idle] = list(claims)
        self.orders = ex.Orders(workers)
        self.orders.ingested = True
        self.batch = Batch(id=BatchId(1), name="book", pipeline="book", definition=b"", opened_at=NOW, admitted=100)
        self.chunks: list[Any] = []
        self.receipts: list[Receipt] = []
        """Answers to the next commits; the rest land."""
        self.beats: list[ex.Beat] = []
        self.noted: list[Any] = []
        """Every effect but waits, in order."""
        self.begun: list[ex.Portion] = []
        """What is in flight."""
        ids, queue = itertools.count(), queue_of(Slots(workers), work=work)
        request = ClaimRequest(batch=BatchId(1), owner="ann", limit=8, seconds=LEASE, cap=cap, tolerance=tolerance)
        deaths = WithheldDeaths("book", ["read"], workers, active=True, has_cap=False, tolerance=tolerance)
        returns = WithheldReturns(is_open=True, allowed=1.0, workers=workers, refusal=lambda *_: AssertionError())
        self.desk = Desk(ex.Rules(request=request, name="book", grace=60.0, look_seconds=5.0), [queue], self.orders,
                         Purse(cap), Appetite([queue], workers, 0.0), deaths, returns,
                         new_id=lambda: str(next(ids)).encode())  # fmt: skip
        self._moment = 0.0

    def play(self, *scenes: Callable[[], Sequence[ex.Event]], seconds: float = 0.1) -> "Rehearsal":
        """Let the desk work; whenever it waits, the next scene says what happened in that time. After the last one
        everything that is in flight succeeds."""
        acts, work, answer = list(scenes), self.desk.work(), None
        for _ in range(MOST_EFFECTS):
            self.desk.at(NOW + self._moment, self._moment)
            try:
                effect = work.send(answer)
            except StopIteration:
                return self
            if isinstance(effect, ex.Wait):
                self._moment += seconds
                answer = acts.pop(0)() if acts else self.all_succeed()
            else:
                self.noted.append(effect)
                answer = self._answer(effect)
        raise AssertionError(f"it goes round in circles: {self.noted[-5:]}")

    def _answer(self, effect: Any) -> Any:
        if isinstance(effect, ex.AskFor):
            return self.claims.pop(0) if self.claims else NOTHING_LEFT
        if isinstance(effect, ex.Read):
            first = effect.claim.lo if effect.after is None else effect.after + 1
            return [item(n) for n in range(first, effect.claim.hi)][: effect.most]
        if isinstance(effect, ex.Write):
            return [self.receipts.pop(0) if self.receipts else LANDED for _ in effect.group]
        if isinstance(effect, ex.LookAt):
            return {ex.Look.BATCH: self.batch, ex.Look.CHUNKS: self.chunks, ex.Look.BLAME: True}[effect.what]
        if isinstance(effect, ex.Renew):
            return self.beats
        if isinstance(effect, ex.Begin):
            self.begun.append(effect.work)
        if isinstance(effect, ex.StopRun):
            self.orders.stopping = True
        return () if isinstance(effect, ex.CutOff | ex.ReadCheckpoints) else None

    # -- scenes -----------------------------------------------------------------------------------------------------

    def nothing(self) -> Sequence[ex.Event]:
        return []

    def all_succeed(self) -> Sequence[ex.Event]:
        return self.come_back(done)

    def all_die(self) -> Sequence[ex.Event]:
        return self.come_back(died)

    def come_back(self, outcome: Callable[[Item], Outcome]) -> Sequence[ex.Event]:
        begun, self.begun = self.begun, []
        return [ex.Answer(work, [outcome(each) for each in work.items]) for work in begun]

    # -- what was noted -----------------------------------------------------------------------------------------------

    def all(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.noted if isinstance(effect, kind)]

    def written(self, state: str) -> int:
        """How many items were written down in that state."""
        return sum(getattr(each.settled.counts, state) for effect in self.all(ex.Write) for each in effect.group)

    @property
    def stopped(self) -> list[str]:
        return [str(effect.reason) for effect in self.all(ex.StopRun)]
