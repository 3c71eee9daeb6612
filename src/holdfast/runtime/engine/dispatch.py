"""How much work a run begins and claims: the queue of each stage, its measured pace, and how many items the run keeps
ready."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core import retry
from holdfast.core.errors import Damaged
from holdfast.core.limits import BREAKER_PAUSE, CLAIM_ITEMS, DEFERRED_SECONDS, SLICE_ITEMS
from holdfast.core.model import Chunk, Item
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome
from holdfast.core.retry import Circuit, Phase, Policy, Rule
from holdfast.core.settle import Reached, Settled, booked
from holdfast.runtime.define.calls import Adopter, Verifier
from holdfast.runtime.define.stage import ORDINARY, WorkFacts
from holdfast.runtime.engine.exchange import Portion
from holdfast.runtime.engine.hold import Hold
from holdfast.runtime.text import command, in_words, many

ENOUGH = 8
"""Outcomes that are needed before a measurement counts."""
QUICK = 200e-6
"""Handlers faster than this are limited by Python, not by waiting: they run on the committing thread."""
SLICE_SECONDS = 0.01
INLINE_SECONDS = 0.04
SAMPLE = 100
"""Outcomes of a group that are measured: enough to know its mean."""
RATE_SECONDS = 0.2
"""How often the rate of a run is measured."""
MEMORY = 0.2
"""Weight of the newest group of outcomes against the older ones."""
AHEAD_SECONDS = 2.0
"""A claim covers about as much work as the worker does in this time."""
CROWDED = 2_000
"""Items a second above which handlers and the reading of the source slow each other down."""

NOT_A_STORM = frozenset({"process_died"})
"""Transient failures that the item itself causes: they say nothing about another service."""
CHECKS = frozenset({Verifier.code, Adopter.code})
"""A verifier or adopter gave no answer. If that failure is transient, it counts like a handler without an answer: the
other service is away."""
SAID_NO = frozenset({"unverified"})
"""The handler answered and the verifier rejected the output: the item is tried again, but no service is away."""


class Pace:
    """The measured seconds of one stage."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        some = outcomes[:: len(outcomes) // SAMPLE + 1]
        measured = [o.seconds for o in some if not isinstance(o, Lost) and o.seconds > 0]
        if not measured:
            return
        mean = sum(measured) / len(measured)
        self.mean = mean if not self.count else self.mean + (mean - self.mean) * max(MEMORY, 1 / (self.count + 1))
        self.count += len(measured)

    @property
    def known(self) -> bool:
        return self.count >= ENOUGH

    @property
    def quick(self) -> bool:
        return self.known and self.mean < QUICK

    def slice(self, inline: bool) -> int:
        """Return how many items to hand over at once."""
        if not self.known:
            return 1
        budget = INLINE_SECONDS if inline else SLICE_SECONDS
        return max(1, min(SLICE_ITEMS, int(budget / max(self.mean, 1e-6))))


class Rate:
    """The number of items that a run settles per second."""

    def __init__(self, moment: float) -> None:
        self.value = 0.0
        self._since = moment
        self._count = 0

    def learn(self, count: int, moment: float) -> bool:
        """Count items that were settled; return whether the rate was measured again."""
        self._count += count
        elapsed = moment - self._since
        if elapsed < RATE_SECONDS:
            return False
        rate = self._count / elapsed
        self.value = rate if not self.value else self.value + 0.5 * (rate - self.value)
        self._since, self._count = moment, 0
        return True


class StageBreaker:
    """Counts failures in a row; pauses the stage when there are too many."""

    def __init__(self, stage: str, rule: Rule | None, longest: float = DEFERRED_SECONDS) -> None:
        self.stage = stage
        self.rule = rule
        self.circuit = Circuit()
        self.until = 0.0
        """When the pause ends, or ended, as long as no attempt has been answered since; 0 while the breaker is
        closed."""
        self.not_before = 0.0
        """Until when the other side asked for a pause; 0 if it did not, or if an attempt was answered since."""
        self.asked = ""
        """The message about that request, set the first time the pause is long."""
        self._asked_for = 0.0
        """How long a pause the other side asked for."""
        self._longest, self._told = longest, False
        self.news: list[str] = []
        """Messages about the pauses, one each time the breaker opens."""

    def ends(self, now: float) -> float:
        """Return when the pause ends or has ended, even if the clock was set back."""
        if not self.until:
            return 0.0
        asked = retry.wait_until(self.not_before, self._asked_for, now)
        return max(retry.wait_until(self.circuit.until, self.circuit.pause, now), asked)

    @property
    def is_calm(self) -> bool:
        """Whether nothing has failed since the last answer, so that successes need not be examined."""
        return not self.until and not self.circuit.row

    @property
    def is_hopeless(self) -> bool:
        return self.rule is not None and retry.breaker_is_hopeless(self.circuit, self.rule)

    def blocks(self, now: float, in_flight: int) -> bool:
        """Return whether nothing may be started: the other side asked for a pause, the breaker is open, or the one item
        on trial has not come back."""
        if not self._was_left_alone(now):
            return True
        phase = retry.breaker_phase(self.circuit, now)
        return phase is Phase.OPEN or (phase is Phase.HALF_OPEN and in_flight > 0)

    def judge(self, outcomes: Sequence[Outcome], now: float) -> list[Outcome]:
        """Return the outcomes as they count: while the breaker is not closed, a transient failure is only a
        deferral."""
        self._listen(outcomes, now)
        judged = list(outcomes)
        if self.rule is not None:
            judged = [self._judge_one(outcome, self.rule, now) for outcome in outcomes]
        self.until = max(self.circuit.until, self.not_before)
        return judged

    def _listen(self, outcomes: Sequence[Outcome], now: float) -> None:
        """Note the longest pause that was asked for; it applies to the whole stage."""
        if self._was_left_alone(now):
            self.not_before = 0.0
        waits = [each.wait for each in outcomes if isinstance(each, Deferred) and each.told]
        longest = min(max(waits, default=0.0), self._longest)
        if now + longest > self.not_before and longest:
            self.not_before, self._asked_for = now + longest, longest
        if longest >= BREAKER_PAUSE and not self._told:
            self._told = True
            how_long = f"stage {self.stage!r} waits for {in_words(longest)}"
            self.asked = f"{how_long}: the service asked for it (Retry-After)"

    def _was_left_alone(self, now: float) -> bool:
        return retry.wait_is_over(self.not_before, self._asked_for, now)

    def _judge_one(self, outcome: Outcome, rule: Rule, now: float) -> Outcome:
        if isinstance(outcome, Lost | Deferred) or (isinstance(outcome, Done) and outcome.adopted):
            return outcome
        if isinstance(outcome, Failed) and _says_nothing(outcome):
            return outcome
        if not isinstance(outcome, Failed) or not outcome.transient or outcome.code in SAID_NO:
            self.circuit = retry.breaker_answered(self.circuit, now)
            return outcome
        before = self.circuit
        self.circuit = retry.breaker_failed(before, outcome.item.n, rule, now)
        if self.circuit.until != before.until:
            self.news.append(self._say(outcome, rule))
        return outcome if not before.until else self._defer(outcome, now)

    def _defer(self, failed: Failed, now: float) -> Deferred:
        left = max(0.0, self.circuit.until - now, failed.after if failed.after is not None else 0.0)
        why = f"the breaker of stage {self.stage!r} is open: {failed.code}: {failed.message}"
        return Deferred(failed.item, left, why, failed.queued, failed.seconds, failed.spend, by_breaker=True)

    def _say(self, failed: Failed, rule: Rule) -> str:
        """Name only error codes: messages of handlers may contain anything."""
        what = "the item that was tried failed again" if self.circuit.pause > rule.pause else (
            f"{rule.failures} items in a row failed")  # fmt: skip
        return f"stage {self.stage!r} pauses for {in_words(self.circuit.pause)}: {what}, the last with {failed.code}"


def _says_nothing(failed: Failed) -> bool:
    """Return whether a failure tells nothing about a service: none was called, or the check beside the handler is
    broken."""
    return failed.code in NOT_A_STORM or (failed.code in CHECKS and not failed.transient)


class PoolKind(StrEnum):
    """The kind of pool in which the handlers of a stage run."""

    THREADS = "threads"
    LOOP = "loop"
    PROCESSES = "processes"
    BORROWED_THREADS = "threads of the user's"
    BORROWED_PROCESSES = "processes of the user's"


class PoolLoad:
    """The items that one pool has at the moment; stages of one kind share it."""

    def __init__(self, kind: PoolKind) -> None:
        self.kind = kind
        self.items = 0


class Slots:
    """How many assignments, or items on the event loop, may be handed over and not yet committed, over all stages."""

    def __init__(self, size: int, *, one_by_one: bool = False) -> None:
        self.free = size
        self.one_by_one = one_by_one
        """With a budget, items travel alone, so that the cost of each is known before the next begins."""
        self.most: int | None = None
        """With a tolerance, no more items travel together than may still die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """The facts about a stage that the desk uses."""

    name: str
    policy: Policy
    maker: str = ""
    concurrency: int | None = None
    has_timeout: bool = False
    asks: bool = False
    """A verifier or adopter of the user is called beside the handler, and may hang."""
    is_bound: bool = False
    """Its resources belong to one thread, which opens and closes them."""
    adopts: bool = False
    reads_files: bool = False
    work: WorkFacts = ORDINARY


class StageQueue:
    """One stage, and everything that decides how many of its items begin at once, and where."""

    def __init__(self, index: int, facts: StageFacts, pool: PoolLoad, slots: Slots, breaker: StageBreaker) -> None:
        self.index, self.facts, self.pool, self.slots, self.breaker = index, facts, pool, slots, breaker
        self.pace = Pace()
        self.took = 0.0
        """Seconds of the attempt that ended last."""
        self.used = 0
        """Slots that this stage occupies."""
        self._surprised = False
        """A handler on the committing thread was slow: no handler of this stage runs there again in this run."""

    # -- starting -------------------------------------------------------------------------------------------------

    def can_start(self, hold: Hold, now: float, left: float) -> bool:
        """Return whether items of a hold may be begun; `left` is the time until the deadline."""
        if hold.lost or not hold.ready[self.index].count or self._free() < 1:
            return False
        if self.breaker.until and self.breaker.blocks(now, self.used):
            return False
        if left != math.inf and self.is_too_late(left):
            return False
        if hold.alone:
            return hold.running == 0 and self.used == 0
        return not hold.suspects or not hold.is_accused or self._pool_is_idle()

    def is_too_late(self, left: float) -> bool:
        """Return whether the deadline would cut off a handler that begins now, so that its work would be wasted. Until
        the pace is known, the duration of the last attempt is used."""
        return not self.facts.work.has_checkpoints and (self.pace.mean if self.pace.known else self.took) > left

    def room(self, holds: Sequence[Hold], workers: int) -> int:
        """Return how many more items could begin here at once, in addition to those at hand. Slots beyond the workers
        do not count, because an item that waits in one has not begun."""
        at_hand = sum(h.running + h.ready_count + len(h.unasked) for h in holds)
        here = sum(h.ready[self.index].count for h in holds)
        limit, free = self.facts.concurrency, workers - at_hand
        return free if limit is None else min(free, limit - self.used - here)

    def begin(self, work: Portion) -> None:
        """Note that a portion is handed over."""
        self.pool.items += len(work.items)
        if not work.inline:
            self.occupy(work, len(work.items) if self.pool.kind is PoolKind.LOOP else 1)

    def occupy(self, work: Portion, slots: int) -> None:
        work.slots = slots
        self.used += slots
        self.slots.free -= slots

    def surprise(self, work: Portion) -> None:
        """Note that a handler on the committing thread is slow: it continues beside it, in a slot."""
        self._surprised = True
        self.occupy(work, 1)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Note how long attempts took."""
        self.pace.learn(outcomes)
        if outcomes and not isinstance(outcomes[-1], Lost):
            self.took = outcomes[-1].seconds

    def finish(self, work: Portion, count: int) -> None:
        """Free the slots of items that came back."""
        work.left -= count
        freed = count if self.pool.kind is PoolKind.LOOP and work.slots else work.slots if work.left == 0 else 0
        self.used -= freed
        self.slots.free += freed

    def _pool_is_idle(self) -> bool:
        return (self.pool.items if self.pool.kind is PoolKind.PROCESSES else self.used) == 0

    def _free(self) -> int:
        limit = self.facts.concurrency
        return self.slots.free if limit is None else min(self.slots.free, limit - self.used)

    def inline(self, hold: Hold) -> bool:
        """Return whether items of a hold run on the committing thread. Items that a stage tries one at a time after a
        pause do not, because an item there occupies no slot."""
        facts = self.facts
        if self.breaker.until:
            return False
        if self.slots.one_by_one or hold.exclusive or facts.has_timeout or facts.asks or facts.work.has_checkpoints:
            return False
        return self.is_inline

    @property
    def is_inline(self) -> bool:
        """Whether its handlers are so quick that they run on the committing thread."""
        if self.facts.is_bound or self.pool.kind is not PoolKind.THREADS:
            return False
        return self.pace.quick and not self._surprised

    def how_many(self, hold: Hold, inline: bool) -> int:
        """Return how many items of a hold to hand over at once."""
        ready, kind = hold.ready[self.index].count, self.pool.kind
        if hold.alone or hold.suspects or self.breaker.until:
            return 1
        if kind is PoolKind.LOOP:
            return min(ready, self._free())
        if self.slots.one_by_one:
            return 1
        if self.facts.has_timeout and kind in (PoolKind.PROCESSES, PoolKind.BORROWED_PROCESSES):
            return 1
        share = ready if inline else -(-ready // max(1, self._free()))
        return max(1, min(share, self.most_together(inline)))

    def most_together(self, inline: bool) -> int:
        """Return how many items travel together; inline, they may come from any number of chunks."""
        size = self.pace.slice(inline)
        return size if self.slots.most is None else max(1, min(size, self.slots.most))


DEAR = 3
"""The cost of the dearest item settled before this run is not recorded; it is estimated as this many times the mean."""


class Purse:
    """The budget of a run and the cost of an item; decides how much to reserve for claimed items."""

    def __init__(
        self, cap: int | None = None, item_cost: int | None = None, chunks: Sequence[Chunk] = (), stages: int = 1
    ) -> None:
        self.cap, self._item_cost = cap, item_cost
        """Units that the batch may spend in all, and the cost of an item that the user declared."""
        self._before = sum(chunk.counts.spent for chunk in chunks)
        paid = sum(max(chunk.counts.done + chunk.counts.dead, chunk.counts.attempts // stages) for chunk in chunks)
        self._mean_before = self._before // paid if paid else 0
        """What an item cost on average. Items that were sent back are not settled, but were paid for."""
        self._now = self._settled = 0
        self._dearest: dict[int, int] = {}
        self._cheapest: dict[int, int] = {}

    def add(self, settled: Settled, reached: Sequence[Reached] = ()) -> None:
        """Add what is durable, including what partitions have cost up to their checkpoints."""
        if self.cap is None:
            return
        settled = booked(settled, reached)
        self._now += settled.counts.spent
        self._settled += settled.counts.settled
        for stage, spend in settled.spends:
            self._dearest[stage] = max(self._dearest.get(stage, 0), spend.usd)
            self._cheapest[stage] = min(self._cheapest.get(stage, spend.usd), spend.usd)

    @property
    def is_empty(self) -> bool:
        return self.cap is not None and self._before + self._now >= self.cap

    def most_at_once(self) -> int | None:
        """Return how many items may be claimed while their cost is unknown: as many as were settled before, so that
        only a few items meet the first high costs."""
        if self.cap is None or self._cost():
            return None
        return max(1, self._settled)

    def reserve(self) -> int:
        """Return how much to reserve for each claimed item: the declared cost of an item, else the highest cost so far.
        While no cost is known, and at the end if the rest would pay for a cheap item, reserve all that is left."""
        if self.cap is None:
            return 0
        left, most, cost = max(1, self.cap - self._before - self._now), self.most_at_once(), self._cost()
        if most is not None:
            return max(1, left // most)
        return left if self._item_cost is None and self._least() <= left < cost else cost

    def _cost(self) -> int:
        """Return the highest cost of an item so far, or the likely one; 0 while no cost is known."""
        if self._item_cost is not None:
            return self._item_cost
        return max(sum(self._dearest.values()), DEAR * self._mean_before)

    def _least(self) -> int:
        """Return the lowest cost of an item so far."""
        return sum(self._cheapest.values()) if self._cheapest else self._mean_before


class Appetite:
    """How many items a worker claims, and when it wants more: as much as it does in a moment, by its measured speed."""

    def __init__(self, queues: Sequence[StageQueue], workers: int, moment: float) -> None:
        self._queues, self._workers = queues, workers
        self._one_by_one = queues[0].facts.work.travels_alone
        self._rate = Rate(moment)

    def learn(self, settled: int, moment: float) -> bool | None:
        """Count items that were settled; return whether handlers and the reading of the source slow each other down, or
        None if the rate was not measured again."""
        return self._rate.value > CROWDED if self._rate.learn(settled, moment) else None

    def wants(self, holds: Sequence[Hold]) -> float:
        """Return how many items are missing from those that should be ready. Items that travel alone are claimed only
        when they can begin."""
        if self._one_by_one:
            return self._workers - len(holds)
        ready = sum(h.ready_count + len(h.unasked) for h in holds)
        return max(self._workers, self._speed() * AHEAD_SECONDS / 8) - ready

    def portion(self) -> int:
        """Return how many items to claim at once."""
        if self._one_by_one:
            return 1
        return max(self._workers, min(CLAIM_ITEMS, int(self._speed() * AHEAD_SECONDS)))

    def _speed(self) -> float:
        """Return items per second: the measured rate, or for very quick handlers an estimate of what they could do."""
        for queue in self._queues:  # called in every round: a generator would take longer
            if not queue.pace.quick:
                return self._rate.value
        return max(self._rate.value, 1 / sum(queue.pace.mean for queue in self._queues) / 4)


class EmptyGrants:
    """Chunks whose last grant had no items to load."""

    def __init__(self, batch: str) -> None:
        self._batch, self._chunks = batch, set[int]()

    def check(self, hold: Hold, items: Sequence[Item]) -> None:
        """Stop at a chunk that counts pending items and has none: it would be claimed and released forever. One empty
        grant is possible, because another process may have settled the items after the grant; a second one is not."""
        chunk = hold.lease.chunk
        if items or hold.loaded_to is not None:
            self._chunks.discard(chunk)
        elif chunk not in self._chunks:
            self._chunks.add(chunk)
        else:
            raise Damaged(
                f"chunk {chunk} of batch {self._batch!r} counts {many(hold.claim.pending, 'pending item')}, but the "
                f"store has no such item: it is damaged; `{command('audit verify', self._batch)}` shows more; restore "
                "a backup"
            )
