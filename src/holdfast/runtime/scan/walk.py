"""A partition of a source from its checkpoint to its end: rows go to the handler, its results to the store.

If rows are isolated, the group with a row that the handler cannot process is halved until that row is alone, and the
others are handled. Every try gets a fresh copy of the accumulator, so that a failed half leaves nothing in it. Rows may
be passed several times on the way: effects of the handler outside must tolerate that. If a row kills its process, the
next process handles the group in halves, each with a checkpoint.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import CancelledError, wait
from typing import Any, NamedTuple

from holdfast.core import cursor
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Defer, LeaseLost, Skip, UsageError
from holdfast.core.model import Item
from holdfast.core.retry import Policy, classify, host_trouble
from holdfast.core.settle import Reached, further
from holdfast.runtime.define.context import Context, Segment
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.engine.assignment import Assignment, Latch, clock
from holdfast.runtime.engine.control import await_stop
from holdfast.runtime.engine.exchange import CheckpointReached
from holdfast.runtime.engine.failures import with_place
from holdfast.runtime.engine.hold import Saving
from holdfast.runtime.event_loop import Loan
from holdfast.runtime.partitions import span_of
from holdfast.runtime.scan.isolation import Burial, Buried, Seen, malformed
from holdfast.runtime.scan.rows import MISTAKES, Feed, Handler, Interval, Misuse, Shape
from holdfast.runtime.sources.base import Outage, is_away

FOLD_ROWS = 500
"""The most rows a fold gets at once, so that its data stays in the processor's cache. A checkpoint of 10,000 rows in
one list cost half as much again as the same rows in twenty lists."""
GROUP = 500
"""Malformed rows that are buried at once."""
WATCH_SECONDS = 0.1
"""How often the lease of a coroutine is checked."""


class Parked(Exception):
    """The run stops: the partition is left at a checkpoint, and the next run resumes there."""


class RangeLost(LeaseLost):
    """The lease of this partition was lost. A LeaseLost that a handler raises is about something else, and is its
    failure."""


class Partition:
    """A partition of the source, as a generator handler receives it. Iterate over its rows, from the checkpoint on
    (`async for` works as well), and `yield` the accumulator at each checkpoint."""

    def __init__(self, key: Any, acc: Any, rows: Callable[[], Iterator[Any]], ctx: Context | None = None) -> None:
        self.key = key
        """The key of the partition."""
        self.acc = acc
        """The accumulator as of the last checkpoint; None at the start."""
        self._rows = rows
        self._ctx = ctx

    def __repr__(self) -> str:
        return f"<Partition {self.key!r}>"

    @property
    def segment(self) -> Segment | None:
        """The group of rows at hand, from the last `yield` on: as `ctx.segment`."""
        return None if self._ctx is None else self._ctx.segment

    @property
    def idempotency_key(self) -> str:
        """The key of that group: as `ctx.idempotency_key`."""
        return "" if self._ctx is None else self._ctx.idempotency_key

    @property
    def request_id(self) -> str:
        """As `ctx.request_id`."""
        return "" if self._ctx is None else self._ctx.request_id

    def __iter__(self) -> Iterator[Any]:
        return self._rows()

    def __aiter__(self) -> AsyncIterator[Any]:
        return _each(self._rows())


class Walk:
    """One attempt at one partition."""

    def __init__(self, handler: Handler, interval: Interval, work: Assignment, ctx: Context, feed: Feed, *,
                 acc: bytes | None, send: Callable[[CheckpointReached], None], stopping: Callable[[], bool], loan: Loan,
                 burial: Burial | None = None, outage: Outage | None = None) -> None:  # fmt: skip
        self._outage = outage
        """How long to wait for a source that is away; without it that is a failed attempt."""
        self.handler, self.interval, self.feed = handler, interval, feed
        self.item: Item = work.items[0]
        """The item as it is after the last checkpoint."""
        self._work, self._ctx, self._send, self._stopping = work, ctx, send, stopping
        self._loan = loan
        self._burial = burial
        """Buries malformed rows; without it, a malformed row ends the attempt."""
        self._seen = Seen(self.item.key, feed.cursor, feed.rows)
        self._tells_groups = handler.wants_context or handler.shape is Shape.GENERATOR
        """Whether the handler can see which rows it has."""
        self._span = span_of(self.item.input) if self._tells_groups else None
        self._acc = handler.decode(acc)
        self._saved_rows = feed.rows
        self._began = self._saved_at = clock()
        self._handed = 0
        """How many rows the handler got last."""
        self._is_handling = False

    def go(self) -> Any:
        """Walk to the end of the partition; return the result. Raises Parked and RangeLost."""
        if self.handler.shape is Shape.GENERATOR:
            return asyncio.run(self._watched()) if self.handler.is_async else self._generate()
        while not self.feed.at_end:
            began = clock()
            if rows := self._rows():
                self._acc = self._handled(rows)
            self._after_rows(began)
        return self._acc

    def reached(self, *, is_last: bool = False) -> Reached:
        """Return how far it has come: the content of a checkpoint. Malformed rows up to there are buried before. The
        last checkpoint of an attempt that ends with its run, or of a tick, records how long that took."""
        self._bury_malformed()
        at = self.feed.cursor
        reached = Reached(item=self.item, rows=self.feed.rows, cursor=b"" if at is None else cursor.encode(at),
                          acc=self.handler.encode(self._acc), spend=self._ctx.said(self.item.n),
                          seconds=clock() - self._began if is_last else 0.0)  # fmt: skip
        self._ctx.settle_up()
        return reached

    # -- the three shapes -----------------------------------------------------------------------------------------

    def _generate(self) -> Any:
        made = self._generator()
        while True:
            try:
                self._yielded(next(made))
            except StopIteration as end:
                return end.value if end.value is not None else self._acc

    def _generator(self) -> Any:
        self._take_up(self.feed.cursor, self.feed.rows)
        return self.handler.generate(Partition(self.item.key, self._acc, self._one_by_one, self._ctx), self._ctx)

    async def _watched(self) -> Any:
        """Watch an async generator, which reads rows itself and therefore has its own loop. It is cancelled when its
        lease is lost."""
        walking = asyncio.ensure_future(self._generate_async())
        while not walking.done():
            await asyncio.wait([walking], timeout=WATCH_SECONDS)
            if self._work.is_vain and not walking.done():
                walking.cancel()
        if walking.cancelled() and self._work.is_vain:
            raise self._lost()
        return walking.result()

    async def _generate_async(self) -> Any:
        async for acc in self._generator():
            self._yielded(acc)
        return self._acc

    def _handled(self, rows: list[Any]) -> Any:
        """Return the accumulator after some rows."""
        self._is_handling = True
        made = self._kept(self._call(rows, self._acc))
        self._is_handling = False
        return made

    def in_hand(self) -> tuple[Cursor | None, int, int] | None:
        """Return the rows that the handler had when it failed: the cursor before the first, its number in the
        partition, and their count. For a generator, the row that it took last; None if it had none."""
        if self.handler.shape is Shape.GENERATOR:
            return (self.feed.before_last, self.feed.rows, 1) if self.feed.rows > self._saved_rows else None
        if not self._is_handling or not (numbers := self.feed.numbers()):
            return None
        return self.feed.befores()[0], numbers[0], numbers[-1] - numbers[0] + 1

    def _call(self, rows: list[Any], acc: Any) -> Any:
        """Call the handler; a coroutine is awaited on the event loop of the run, and cancelled when its lease is
        lost."""
        made = self.handler.call(rows, acc, self._ctx)
        if not self.handler.is_async:
            return made
        answer = asyncio.run_coroutine_threadsafe(made, self._loan.home.loop)
        try:
            while not wait([answer], WATCH_SECONDS).done:
                if self._work.is_vain:
                    answer.cancel()
            return answer.result()
        except CancelledError:
            if self._work.is_vain:
                raise self._lost() from None
            raise  # the handler itself raised it

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def _yielded(self, acc: Any) -> None:
        """Write a checkpoint of a generator. If it has nothing new, or is at the end of its rows, nothing is
        written."""
        self._acc = acc
        if self.feed.rows > self._saved_rows and not self.feed.at_end:
            self._save_or_park()
        self._take_up(self.feed.cursor, self.feed.rows)

    def _after_rows(self, began: float) -> None:
        now, fresh = clock(), self.feed.rows - self._saved_rows
        self.interval.learn(self._handed, now - began)
        if self.feed.at_end:
            return
        if self.interval.is_due(fresh, now - self._saved_at) or self._stopping():
            self._save_or_park()

    def _save_or_park(self) -> None:
        """Write a checkpoint. If the run ends, the last one records how long the attempt took: one more is written if
        that was not known before."""
        is_last = self._stopping()
        self._save(is_last=is_last)
        if not self._stopping():
            return
        if not is_last:
            self._save(is_last=True)
        raise Parked

    def _save(self, *, is_last: bool = False) -> None:
        began = clock()
        latch = Latch(self._work)
        self._send(CheckpointReached(self._work, Saving(self.reached(is_last=is_last), latch)))
        if not latch.wait():
            raise self._lost()
        self.item = further(self.item)
        self._ctx.attempt = self.item.place.attempt + 1
        self._saved_rows, self._saved_at = self.feed.rows, clock()
        self._seen = Seen(self.item.key, self.feed.cursor, self.feed.rows)
        self.interval.paid(self._saved_at - began)

    # -- rows -------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[Any]:
        if self._work.is_vain:
            raise self._lost()
        self._meet_trouble()
        most = FOLD_ROWS if self.handler.shape is Shape.FOLD else None
        before, after = self.feed.rows, self.feed.cursor if self._tells_groups else None
        rows = self.feed.take(self.interval.rows_at_once(before - self._saved_rows, most))
        self._handed = len(rows)
        if self._tells_groups:
            self._take_up(after, before, self.feed.cursor, len(rows))
        self._bury_malformed(GROUP)
        return rows

    def _take_up(self, after: Cursor | None, rows: int, until: Cursor | None = None, count: int | None = None, *,
                 more: bool = False) -> None:  # fmt: skip
        """Set the rows that the handler has, for its context; for a generator their end is not known."""
        assert self._span is not None
        follows = None if count is None else more or not self.feed.at_end
        self._ctx.take_up(Segment(after, until, rows, count, follows, self.interval.every.said, self._span.after,
                                  self._span.until))  # fmt: skip

    def _one_by_one(self) -> Iterator[Any]:
        work = self._work
        while not self.feed.at_end:
            self._meet_trouble()
            for row in self.feed:
                if work.is_vain:
                    raise self._lost()
                self._bury_malformed(GROUP)
                yield row

    def _meet_trouble(self) -> None:
        """Handle a source that cannot be read further: handled rows are kept, and a source that is away is waited for.
        Only a generator knows when it may be checkpointed: for a generator, the wait that the server asked for happens
        here as well."""
        generates = self.handler.shape is Shape.GENERATOR
        while self.feed.trouble is not None:
            if self.feed.rows > self._saved_rows and not generates:
                self._save()
            if self._outage is None:
                self.feed.fail()
            if not self._outage.endures(self.feed.trouble, told=generates):
                if is_away(self.feed.trouble):
                    raise self._lost() if self._work.is_vain else Parked
                self.feed.fail()
            if self.feed.retry():
                self._outage.over()

    def _bury_malformed(self, least: int = 1) -> None:
        """Make dead letters of malformed rows that were skipped, once there are so many."""
        found = self.feed.malformed
        if len(found) < least:
            return
        if self._burial is None:
            raise Invalid(found[0].row.reason, "invalid")
        self._burial.bury([malformed(each, self._seen) for each in found])
        found.clear()

    def _kept(self, answer: Any) -> Any:
        if self.handler.shape is Shape.ROWS:
            return None
        if answer is None and self._acc is not None:
            raise Misuse(
                f"{self.handler.what} returned None: a fold must return its accumulator, so that it can be stored; "
                "end it with `return acc`, then run again: it resumes at its checkpoint"
            )
        return answer

    def _lost(self) -> RangeLost:
        return RangeLost(
            f"{self.item.key}: its lease was lost, or the run ended; work since the last checkpoint is not kept"
        )


async def _each(rows: Iterator[Any]) -> AsyncIterator[Any]:
    for row in rows:
        yield row


Tries = Generator[tuple[list[Any], bytes | None], Any, bytes | None]
"""Yields calls with some rows and the accumulator before them; is sent the answer, or the exception of the handler."""


class Culprit(NamedTuple):
    """A row that failed alone."""

    at: int
    error: BaseException


class IsolatingWalk(Walk):
    """A walk that buries the rows its handler cannot process."""

    def __init__(self, *args: Any, burial: Burial, policy: Policy, condemned: str = "", **told: Any) -> None:
        super().__init__(*args, burial=burial, **told)
        self._isolates = burial
        self._policy = policy
        self._condemned = condemned
        """Why the first row is buried without being tried."""
        self._first = True
        """No checkpoint of this claim is durable yet: rows may be dead letters already."""

    def _handled(self, rows: list[Any]) -> Any:
        tries = self._tries(rows)
        turn = self._turn(tries.send, None)
        while isinstance(turn, tuple):
            some, acc = turn
            try:
                answer = self._kept(self._call(some, self.handler.decode(acc)))
            except Exception as error:  # noqa: BLE001 - exceptions of the handler are what isolation is for
                turn = self._turn(tries.throw, error)
            else:
                turn = self._turn(tries.send, self.handler.encode(answer))
        return self.handler.decode(turn)

    def _turn(self, advance: Callable[..., tuple[list[Any], bytes | None]], told: Any) -> Any:
        """Return the next call, as a tuple; or the accumulator at the end, as it is stored."""
        try:
            wanted = advance(told)
        except StopIteration as end:
            return end.value
        if self._work.is_vain:
            raise self._lost()
        return wanted

    # -- the search -------------------------------------------------------------------------------------------------

    def _tries(self, rows: list[Any]) -> Tries:
        """Yield calls until the rows are handled; rows that cannot be handled are buried. Returns the accumulator."""
        cursors = self.feed.cursors()
        acc = self.handler.encode(self._acc)
        passed = self._passed(cursors)
        alive = [index for index in range(len(rows)) if index not in passed]
        if self._condemned and 0 not in passed:
            self._bury(rows, cursors, [(alive.pop(0), "killed_process", self._condemned)])
        self._condemned = ""  # only the first row: it may have been buried before, and the next one is not to blame
        culprits: list[Culprit] = []
        acc = yield from self._narrow(rows, alive, acc, culprits, whole=True)
        if len(culprits) > 1 and len(culprits) == len(alive) and all(classify(each.error)[0] for each in culprits):
            raise culprits[0].error  # all rows failed with transient errors: a service is away, and no row is to blame
        found = [(each.at, *_named(each.error)) for each in culprits if not isinstance(each.error, Skip)]
        self._bury(rows, cursors, found)
        return acc

    def _narrow(self, rows: list[Any], some: list[int], acc: bytes | None, culprits: list[Culprit], *,
                whole: bool = False) -> Tries:  # fmt: skip
        if not some:
            return acc
        if self._tells_groups and len(some) < len(rows):
            self._take_up_some(some, more=some[-1] + 1 < len(rows))
        try:
            answer: bytes | None = yield [rows[index] for index in some], acc
            return answer
        except (RangeLost, Parked, Defer, UsageError, *MISTAKES):
            raise
        except Exception as error:
            await_stop(error, self._stopping)
            if self._stopping():  # it may have got the same signal: the partition stays at its checkpoint
                raise Parked from error
            if host_trouble(error) or (whole and self._may_work_next_time(error)):
                raise
            if len(some) == 1:
                culprits.append(Culprit(some[0], error))
                return acc
        middle = len(some) // 2
        acc = yield from self._narrow(rows, some[:middle], acc, culprits)
        return (yield from self._narrow(rows, some[middle:], acc, culprits))

    def _take_up_some(self, some: list[int], *, more: bool) -> None:
        """Set the part of the group that the handler has, for its context."""
        feed, first, last = self.feed, some[0], some[-1]
        self._take_up(feed.befores()[first], feed.numbers()[first] - 1, feed.cursors()[last], len(some), more=more)

    def _may_work_next_time(self, error: Exception) -> bool:
        """Return whether the policy has another attempt for this error: then no row is searched for yet."""
        return classify(error)[0] and self.item.place.attempt + 1 < self._policy.attempts

    # -- burying ----------------------------------------------------------------------------------------------------

    def _bury(self, rows: list[Any], cursors: list[Cursor], found: list[tuple[int, str, str]]) -> None:
        before = self.feed.befores()
        self._isolates.bury([
            Buried(row=rows[at], before=before[at], at=cursors[at], code=code, reason=why, seen=self._seen)
            for at, code, why in found
        ])  # fmt: skip

    def _passed(self, cursors: list[Cursor]) -> set[int]:
        """Return rows that were buried before a crash kept the checkpoint from moving past them."""
        return self._isolates.buried(cursors) if self._first else set()

    def _save(self, *, is_last: bool = False) -> None:
        super()._save(is_last=is_last)
        self._first = False


def _named(error: BaseException) -> tuple[str, str]:
    code = classify(error)[1]
    return str(code), with_place(error)
