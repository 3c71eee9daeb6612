"""The row that a handler cannot take: its group is halved until it is alone, and the others are handled.

Every try gets a fresh copy of the accumulator, so that a half that failed leaves nothing in it. Rows may be handed over
several times on the way: what the handler does outside must bear that. Where a row kills its process, the process
after it handles the group in halves, each with a checkpoint.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Defer, Skip, UsageError
from holdfast.core.limits import BLAME, DEADLY_ROWS
from holdfast.core.retry import Policy, classify, host_trouble
from holdfast.runtime.engine.control import await_stop
from holdfast.runtime.engine.runner import with_place
from holdfast.runtime.scans.burial import Burial, Buried
from holdfast.runtime.scans.misuse import MISTAKES
from holdfast.runtime.scans.walk import Parked, RangeLost, Walk

Tries = Generator[tuple[list[Any], bytes | None], Any, bytes | None]
"""Asks for calls with some rows and what was accumulated before them; gets the answer, or what the handler raised."""


class Culprit(NamedTuple):
    """A row that failed alone."""

    at: int
    error: BaseException


class IsolatingWalk(Walk):
    """A walk that buries the rows its handler cannot take."""

    def __init__(self, *args: Any, burial: Burial, policy: Policy, condemned: str = "", **told: Any) -> None:
        super().__init__(*args, burial=burial, **told)
        self._isolates = burial
        self._policy = policy
        self._condemned = condemned
        """Why the first row is buried without being tried."""
        self._first = True
        """No checkpoint of this claim is durable: rows may be dead letters already."""

    def _handled(self, rows: list[Any]) -> Any:
        tries = self._tries(rows)
        turn = self._turn(tries.send, None)
        while isinstance(turn, tuple):
            some, acc = turn
            try:
                answer = self._kept(self._call(some, self.handler.decode(acc)))
            except Exception as error:  # noqa: BLE001 - what a handler raises is what this is about
                turn = self._turn(tries.throw, error)
            else:
                turn = self._turn(tries.send, self.handler.encode(answer))
        return self.handler.decode(turn)

    def _turn(self, advance: Callable[..., tuple[list[Any], bytes | None]], told: Any) -> Any:
        """The next call that is wanted, as a tuple; or what is accumulated in the end, as it is stored."""
        try:
            wanted = advance(told)
        except StopIteration as end:
            return end.value
        if self._work.is_vain:
            raise self._lost()
        return wanted

    # -- the search -------------------------------------------------------------------------------------------------

    def _tries(self, rows: list[Any]) -> Tries:
        """What is accumulated after the rows, those apart that nobody can handle: these are buried."""
        cursors = self.feed.cursors()
        acc = self.handler.encode(self._acc)
        passed = self._passed(cursors)
        alive = [index for index in range(len(rows)) if index not in passed]
        if self._condemned and 0 not in passed:
            self._bury(rows, cursors, [(alive.pop(0), "killed_process", self._condemned)])
        self._condemned = ""  # only the first row: it may have been buried before, and the next is not to blame
        culprits: list[Culprit] = []
        acc = yield from self._narrow(rows, alive, acc, culprits, whole=True)
        if len(culprits) > 1 and len(culprits) == len(alive) and all(classify(each.error)[0] for each in culprits):
            raise culprits[0].error  # all of them, and all for now: the other side is away, and no row is to blame
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
            if self._stopping():  # it may have got the signal that ends the run: the range stays at its checkpoint
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
        """Tell the handler that it has a part of the group in hand."""
        feed, first, last = self.feed, some[0], some[-1]
        self._take_up(feed.befores()[first], feed.numbers()[first] - 1, feed.cursors()[last], len(some), more=more)

    def _may_work_next_time(self, error: Exception) -> bool:
        """Whether the policy has another attempt for it: then no row is looked for yet."""
        return classify(error)[0] and self.item.place.attempt + 1 < self._policy.attempts

    # -- burying ----------------------------------------------------------------------------------------------------

    def _bury(self, rows: list[Any], cursors: list[Cursor], found: list[tuple[int, str, str]]) -> None:
        before = self.feed.befores()
        self._isolates.bury([
            Buried(row=rows[at], before=before[at], at=cursors[at], code=code, reason=why, seen=self._seen)
            for at, code, why in found
        ])  # fmt: skip

    def _passed(self, cursors: list[Cursor]) -> set[int]:
        """Rows that were buried before a crash kept the checkpoint from moving past them."""
        return self._isolates.buried(cursors) if self._first else set()

    def _save(self, *, is_last: bool = False) -> None:
        super()._save(is_last=is_last)
        self._first = False


def _named(error: BaseException) -> tuple[str, str]:
    code = classify(error)[1]
    return str(code), with_place(error)


class DeadlyGroup:
    """Rows of which one kills its process: halved with every death, until one is left that killed several alone."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self.size = 0
        """Rows to handle between two checkpoints; 0: as the interval says."""
        self.window = 0
        """For how many rows."""
        self.condemned = ""
        """Why the next row is buried without being tried."""
        self.trouble = ""
        """Why no row is to blame."""
        self._deaths = self._strikes = self._in_a_row = 0
        self._from = self._last = -1
        """Rows behind the last checkpoint: at the last death, and when a row was condemned last."""

    def died(self, rows: int) -> None:
        """Narrow the group down: a process died with so many rows behind its last checkpoint."""
        self._deaths += 1
        if self.condemned and rows == self._last:
            self.trouble = f"its worker process died {self._deaths:,} times before it came to a row"
            return
        self.condemned = ""
        within = rows < self._from + self.window
        if within and self.size == 1:
            self._strikes = self._strikes + 1 if rows == self._from else 1
            self.window = 1
        else:
            self._strikes = 0
            self.window = self.size if within else self._whole
            self.size = (self.window + 1) // 2
        self._from = rows
        if self._strikes >= BLAME:
            self._condemn(rows)

    def _condemn(self, rows: int) -> None:
        self._in_a_row = self._in_a_row + 1 if rows == self._last + 1 else 1
        self._last, self._strikes = rows, 0
        if self._in_a_row > DEADLY_ROWS:
            self.trouble = f"its worker process died at {self._in_a_row:,} rows in a row: no row is to blame"
        else:
            self.condemned = f"its worker process died {BLAME} times while it was handled alone"
