"""A lane: one stage on its way through a pool, with its pace, its share of the workers and what is in flight."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from holdfast.core.errors import StoreError, UsageError
from holdfast.core.limits import SLOW_SECONDS
from holdfast.core.model import Item
from holdfast.core.outcome import Outcome
from holdfast.core.settle import Settled
from holdfast.runtime.define.policy import Breaker
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.ending.breaker import StageBreaker
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.working.assignment import Answer, Assignment, clock
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.executors import BorrowedProcesses, BorrowedThreads
from holdfast.runtime.working.holding import Holding
from holdfast.runtime.working.loop import Loop
from holdfast.runtime.working.pace import Pace
from holdfast.runtime.working.pools import Finished, Pool, Threads, Unable
from holdfast.runtime.working.processes import Processes
from holdfast.runtime.working.role import HandedOn, Role
from holdfast.runtime.working.runner import StageRunner

log = logging.getLogger("holdfast.lane")

INLINE_PATIENCE = SLOW_SECONDS / 2
"""After this time on the committing thread, handlers are not as quick as they were taken for."""
LOOP_PATIENCE = 2.0
"""What the event loop may be late by before a handler is said to block it."""


class Slots:
    """How many assignments, or items on the event loop, may be handed over and not committed, over all stages."""

    def __init__(self, size: int, *, one_by_one: bool = False) -> None:
        self.free = size
        self.one_by_one = one_by_one
        """With a budget items travel alone: what each cost is known before the next is begun."""
        self.most: int | None = None
        """With a tolerance no more items travel together than may still die."""


class Lane:
    """One stage and everything that decides how its items are run."""

    def __init__(
        self, index: int, runner: StageRunner, pool: Pool, slots: Slots, control: Control, finished: Finished,
        open_resources: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.index = index
        self.runner = runner
        self.stage: Stage = runner.stage
        self.pool = pool
        self.slots = slots
        self.control = control
        self.finished = finished
        self.open_resources = open_resources
        """Opens those of all stages, before the first item of the run: what cannot be opened costs nothing then."""
        self.pace = Pace()
        runner.is_too_late = self._is_too_late
        said = self.stage.breaker
        rule = said.rule() if isinstance(said, Breaker) else None
        self.breaker = StageBreaker(self.stage.name, rule, self.stage.policy.defer_within)
        self.used = 0
        """Slots this lane holds."""
        self.active: dict[int, Assignment] = {}
        self.role: Role | None = None
        """Moves on where a handler on the committing thread is slow."""
        self._surprised = False
        """One was: none of this stage is run there again in this run."""
        self._begun = False
        self._unpublished = False
        """Some outputs did not get their final names; that was said once, and the end of the run says it again."""

    # -- starting -------------------------------------------------------------------------------------------------

    def can_start(self, holding: Holding) -> bool:
        if holding.lost or not holding.ready[self.index].count or self._free() < 1:
            return False
        if self.breaker.until and self.breaker.blocks(self.runner.now(), self.used):
            return False
        if self._is_too_late():
            return False
        if holding.alone:
            return holding.running == 0 and self.used == 0
        return not holding.suspects or not holding.is_accused or self._pool_is_idle()

    def _is_too_late(self) -> bool:
        """Return whether a handler that begins now would be cut off by the deadline, and paid for nothing. Before the
        pace is known, the last one that ended is believed."""
        seconds = self.pace.mean if self.pace.known else self.runner.took
        return not self.stage.takes_ranges and self.control.ends_within(seconds)

    def room(self, holdings: Sequence[Holding]) -> int:
        """How many more items could be begun here at once, beside what is at hand; slots beyond the workers do not
        count, because what waits in them is not begun."""
        at_hand = sum(h.running + h.ready_count + len(h.unasked) for h in holdings)
        here = sum(h.ready[self.index].count for h in holdings)
        limit = self.stage.concurrency
        free = self.control.workers - at_hand
        return free if limit is None else min(free, limit - self.used - here)

    def start(self, holding: Holding) -> float:
        """Hand over some items, or run them at once on this thread; returns how much that is of all that is run there
        between two commits."""
        if not self._begun:
            self._begun = True
            self.open_resources()
            self.stage.hooks.before.call(self.runner.batch, self.runner.loan)
        inline = self._inline(holding)
        at, items = holding.ready[self.index].take(self._how_many(holding, inline))
        resumed = False
        if holding.resumed:
            resumed = any(item.n in holding.resumed for item in items)
            holding.resumed.difference_update(item.n for item in items)
        work = Assignment(self.index, items, holding.lease.fence, at, holding, resumed)
        deaths = holding.suspects.get(items[0].n, 0)
        work.fresh, work.lone = deaths > 0, deaths > 1
        holding.running += len(items)
        if inline:
            self._run_here(work)
            return len(items) / self._most_together(inline)
        self._occupy(work, len(items) if isinstance(self.pool, Loop) else 1)
        if holding.lease.expires > self.runner.now():
            work.valid = holding.lease.expires
        self.active[id(work)] = work
        self.pool.submit(self.runner, work)
        return 0.0

    def _occupy(self, work: Assignment, slots: int) -> None:
        work.slots = slots
        self.used += slots
        self.slots.free -= slots

    def _run_here(self, work: Assignment) -> None:
        """Run items on this thread. If they turn out to be slow after all, the rest is left for other threads. If one
        of them is so slow that another thread took the role, this one hands in what became of it, and leaves."""
        work.patience = INLINE_PATIENCE
        self.control.inline = work
        if self.control.stopping:
            work.cut = True
        if self.role is not None:
            self.role.lend(self, work)
        trouble = None
        try:
            self.runner.run(work)
        except BaseException as error:  # noqa: BLE001 - raised below, on whichever thread has the role by then
            trouble = error
        answer = work.answer()
        if work.is_split:
            self._leave(answer, trouble)
        self.control.inline = None
        if self.role is not None:
            self.role.keep()
        if trouble is not None:
            raise trouble
        self.finished.put(answer)

    def _leave(self, answer: Answer | None, trouble: BaseException | None) -> NoReturn:
        """Another thread has the role: hand in what it waits for, and touch nothing else."""
        try:
            if isinstance(self.pool, Threads):
                self.pool.take_back()
        except BaseException as error:  # noqa: BLE001 - no thread can be had for what waits in the pool
            trouble = trouble or error
        if trouble is not None:
            self.finished.put(Unable(trouble))
        elif answer is not None:
            self.finished.put(answer)
        raise HandedOn

    def handed_on(self, work: Assignment, answer: Answer) -> None:
        """On the thread that took the role: an item is slow. It holds its slot and the place of a worker until it ends,
        and its stage is not run inline again."""
        self._surprised = True
        self._occupy(work, 1)
        self.active[id(work)] = work
        if isinstance(self.pool, Threads):
            self.pool.lend()
        self.control.pace_ingest(False)
        self.finished.put(answer)

    def split_slow(self) -> Iterator[Answer]:
        """What is finished before a slow item on another thread, and what waits behind it."""
        if isinstance(self.pool, Threads | BorrowedThreads):
            since = clock() - SLOW_SECONDS
            slow = [work.split() for work in self.active.values() if work.is_slow(since)]
            yield from (answer for answer in slow if answer is not None)

    def until_slow(self) -> float:
        """How long until one of those may have to be split."""
        if not isinstance(self.pool, Threads | BorrowedThreads):
            return math.inf
        oldest = min((work.started for work in self.active.values() if work.is_slow(math.inf)), default=math.inf)
        return oldest + SLOW_SECONDS - clock()

    def _pool_is_idle(self) -> bool:
        return self.pool.is_idle if isinstance(self.pool, Processes) else self.used == 0

    def _free(self) -> int:
        limit = self.stage.concurrency
        return self.slots.free if limit is None else min(self.slots.free, limit - self.used)

    def _inline(self, holding: Holding) -> bool:
        if self.slots.one_by_one or holding.exclusive or self.stage.timeout is not None or self.runner.asks:
            return False
        if self.stage.takes_ranges:  # its checkpoints wait for the committing thread
            return False
        return self.is_inline

    @property
    def is_inline(self) -> bool:
        """Whether its handlers are so quick that they run on the committing thread."""
        if not self.runner.handed.is_fixed:  # resources of a thread belong to one that closes them
            return False
        return isinstance(self.pool, Threads) and self.pace.quick and not self._surprised

    def _how_many(self, holding: Holding, inline: bool) -> int:
        ready = holding.ready[self.index].count
        if holding.alone or holding.suspects or self.breaker.until:
            return 1
        if self.slots.one_by_one and not isinstance(self.pool, Loop):
            return 1
        if isinstance(self.pool, Loop):
            return min(ready, self._free())
        if isinstance(self.pool, Processes | BorrowedProcesses) and self.stage.timeout is not None:
            return 1
        share = ready if inline else -(-ready // max(1, self._free()))
        return max(1, min(share, self._most_together(inline)))

    def _most_together(self, inline: bool) -> int:
        """How many items travel together; inline, from however many chunks."""
        size = self.pace.slice(inline)
        return size if self.slots.most is None else max(1, min(size, self.slots.most))

    # -- finishing ------------------------------------------------------------------------------------------------

    def finish(self, work: Assignment, count: int) -> None:
        """Some items of an assignment came back: give their slots back."""
        work.left -= count
        freed = count if isinstance(self.pool, Loop) else work.slots if work.left == 0 else 0
        self.used -= freed
        self.slots.free += freed
        if work.left == 0:
            self.active.pop(id(work), None)

    def overdue(self) -> Iterator[tuple[Assignment, list[Outcome], list[Item]]]:
        """Assignments whose handler does not answer: what they finished, with the item at hand as timed out, and the
        items they did not come to."""
        timeout = self.stage.timeout
        if timeout is None or not self.active:
            return
        if isinstance(self.pool, Loop):
            self._watch_loop(self.pool, timeout)
            return
        if isinstance(self.pool, BorrowedProcesses):
            return  # how long it waits in a queue that is not ours cannot be told from how long it runs
        grace = self._grace()
        for work in [w for w in self.active.values() if w.started and clock() - w.started > timeout + grace]:
            work.abandoned = True
            self.pool.abandon(work)
            first, last = work.owed
            outcomes = list(work.outcomes)
            if len(outcomes) < last:
                outcomes.append(self.runner.timed_out(work.items[len(outcomes)], work, work.started))
            yield work, outcomes[first:], work.items[len(outcomes) : last]

    def cut_off(self) -> Iterator[tuple[Assignment, list[Outcome], list[Item]]]:
        """Yield for each assignment of a run that ends at once the outcomes it has, with the cost of the items at hand,
        and the items it did not come to. Nothing is known of processes."""
        for work in list(self.active.values()) if isinstance(self.pool, Loop | Threads | BorrowedThreads) else ():
            work.abandoned = True
            if isinstance(self.pool, Loop):
                running = self.pool.at_work(work)
                self.pool.abandon(work)
                yield work, [self.runner.cut_off(item, work, work.ready_at) for item in running], []
                continue
            if work.is_answered:
                continue
            self.pool.abandon(work)
            first, last = work.owed
            outcomes = list(work.outcomes)
            if len(outcomes) < last and work.started:
                outcomes.append(self.runner.cut_off(work.items[len(outcomes)], work, work.started))
            yield work, outcomes[first:], work.items[len(outcomes) : last]

    def _watch_loop(self, loop: Loop, timeout: float) -> None:
        """The loop times out its handlers itself, unless one of them keeps it from turning."""
        item = loop.blocked_by(timeout + LOOP_PATIENCE)
        if item is not None:
            raise UsageError(
                f"the async handler of item {item.key!r} blocks the event loop, so that its timeout cannot break in: "
                "await what takes long, or write a plain function; nothing is lost, run again to continue"
            )

    def _grace(self) -> float:
        """Worker processes break in on their handlers themselves; only if that fails is there nothing left but to end
        them. How quick the machine is shows in how long they take to start."""
        return 1.0 + 3.0 * self.pool.start_seconds if isinstance(self.pool, Processes) else 0.0

    def give_back(self) -> None:
        """The run stops: nothing more is begun, and what is handed over is left between two items."""
        self.pool.give_back()
        for work in self.active.values():
            work.cut = True

    def abandon_all(self) -> None:
        """The run ends at once: nobody waits for what is in flight."""
        self.pool.give_back()
        for work in self.active.values():
            work.abandoned = True
            self.pool.abandon(work)

    def look_again(self) -> None:
        """A chunk was claimed: its last owner may have left outputs that were never recorded."""
        if self.stage.sink is not None:
            self.stage.sink.look_again()

    # -- outputs in files -------------------------------------------------------------------------------------------

    def sync_outputs(self, batch: Sequence[Settled]) -> None:
        """Before a commit: the staged outputs it speaks of are durable."""
        if self.stage.sink is not None:
            found = [record for settled in batch for record in self._evidence(settled)]
            if found:
                try:
                    self.stage.sink.sync_folders(found)
                except OSError as error:
                    raise StoreError(
                        f"{len(found)} outputs of stage {self.stage.name!r} could not be made durable: {error}; "
                        "nothing that was acknowledged is lost: see to the disk, then run again"
                    ) from error

    def publish(self, landed: Sequence[Settled]) -> None:
        """After a commit: its outputs get their final names. What fails here is durable all the same, under the name
        it was staged with, and gets its final name when it is next looked at."""
        if self.stage.sink is not None:
            found = [record for settled in landed for record in self._evidence(settled)]
            try:
                self.stage.sink.publish(found)
            except OSError as error:
                if not self._unpublished:
                    self._unpublished = True
                    log.warning(
                        "outputs of stage %s are safe, but cannot get their final names yet: %s", self.stage.name, error
                    )

    def _evidence(self, settled: Settled) -> list[Evidence]:
        return [Evidence.decode(o.file) for o in settled.outputs if o.file is not None and o.stage == self.index]
