"""Outcomes that are withheld for a while: deaths before anything has succeeded, and returns before enough was
inspected.

Deaths: as long as nothing has succeeded, they may all have one cause, a mistake in the code. They become dead letters
once an item succeeds at their stage, when nothing else is left to try, or when even all remaining items would be too
few. If enough items died alike, the run stops instead, and nothing is buried. At most twice as many are withheld,
because a kill forgets them: deaths of many kinds are not one mistake.

Returns: the input of an item does not hold. The item goes back to the last stage that does, once enough was inspected
to tell damage from a wrong folder or a wrong database.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

from holdfast.core import retry
from holdfast.core.course import is_exceeded
from holdfast.core.errors import DiedAlike
from holdfast.core.limits import WITHHELD_SECONDS, WITHHELD_TIMES
from holdfast.core.model import Chunk, DeadLimit
from holdfast.core.outcome import Done, Failed, Lost, Outcome, Skipped, excuse
from holdfast.core.verify import is_enough_to_judge, is_too_much
from holdfast.runtime.engine.exchange import Effect, InputAnswer, Inspect, Look, LookAt, Question, StopRun
from holdfast.runtime.engine.hold import Hold

LIKE_THE_OTHERS = "it died like all the others and was not buried"
TOGETHER = 16
"""Items that are verified together before their results are returned."""

Effects = Generator[Effect, Any, None]


def successes(chunks: Sequence[Chunk]) -> int:
    """Return how many items of a batch have succeeded so far."""
    return sum(chunk.counts.done + chunk.counts.skipped for chunk in chunks)


def _is_success(outcome: Outcome) -> bool:
    """Return whether an outcome proves that the program code of its stage works."""
    return isinstance(outcome, Skipped) or (isinstance(outcome, Done) and not outcome.adopted)


class WithheldDeaths:
    """The deaths of one run that are withheld."""

    def __init__(self, batch: str, stages: Sequence[str], workers: int, *, active: bool, has_cap: bool,
                 tolerance: DeadLimit | None, before: int = 0) -> None:  # fmt: skip
        self._batch, self._stages, self._has_cap, self._tolerance = batch, stages, has_cap, tolerance
        self._before = before
        """How many items had succeeded before the run: that was other program code, so they prove nothing about the
        present code."""
        self._workers = workers
        self._active = active
        self._proven: set[int] = set()
        """Stages at which an item succeeded in this run."""
        self._held: list[tuple[Hold, Failed]] = []
        self._kinds: Counter[retry.WayToDie] = Counter()
        self._declared = False
        self._quiet_since: float | None = None

    def sift(self, hold: Hold, stage: int, outcomes: list[Outcome], *,
             stopping: bool) -> Generator[Effect, Any, list[Outcome]]:  # fmt: skip
        """Return the outcomes that may be written now."""
        if self._declared:
            return [excuse(outcome, LIKE_THE_OTHERS) for outcome in outcomes]
        if not self._active or stopping or stage in self._proven:
            return outcomes
        if any(map(_is_success, outcomes)):
            self._prove(stage)
            return outcomes
        dying = [outcome for outcome in outcomes if isinstance(outcome, Failed) and retry.is_death(outcome)]
        if not dying:
            return outcomes
        for failed in dying:
            self._hold(hold, failed)
        yield from self._judge(dying)
        return [outcome for outcome in outcomes if not retry.is_death(outcome)]

    def look(self, holds: Sequence[Hold], pending: int | None, moment: float) -> None:
        """Bury withheld deaths if nothing else is left to try, or if nothing came for a while. `pending` is how many
        items of the batch are left, once the source was read to its end."""
        if not self._held:
            return
        if any(hold.is_busy for hold in holds):
            self._quiet_since = None
            return
        self._quiet_since = moment if self._quiet_since is None else self._quiet_since
        too_few = max(len(self._held), self._enough - 1)  # including those that other processes hold
        nothing_left = pending is not None and pending <= too_few
        if nothing_left or moment - self._quiet_since > WITHHELD_SECONDS:
            self.release()

    def release(self) -> None:
        """Release all withheld deaths, also when the run stops for any reason: an attempt that was paid for is not
        forgotten."""
        for hold, failed in self._take():
            hold.outcomes.append(failed)

    def believe(self) -> None:
        """Withhold nothing from now on."""
        self._active = False
        self.release()

    def forget(self, hold: Hold) -> None:
        """Forget the deaths of a hold that is over."""
        if hold.withheld:
            self._held = [each for each in self._held if each[0] is not hold]
            self._kinds = Counter(retry.kind_of_death(failed) for _, failed in self._held)

    @property
    def _enough(self) -> int:
        return retry.enough_alike(self._workers)

    # -- one mistake? -------------------------------------------------------------------------------------------

    def _prove(self, stage: int) -> None:
        """Note that an item succeeded at a stage."""
        self._proven.add(stage)
        self._active = len(self._proven) < len(self._stages)
        for hold, failed in self._take():
            if failed.item.place.stage == stage:
                hold.outcomes.append(failed)
            else:
                self._hold(hold, failed)

    def _hold(self, hold: Hold, failed: Failed) -> None:
        hold.withheld += 1
        self._held.append((hold, failed))
        self._kinds[retry.kind_of_death(failed)] += 1

    def _take(self) -> list[tuple[Hold, Failed]]:
        held, self._held = self._held, []
        self._kinds.clear()
        self._quiet_since = None
        for hold, _ in held:
            hold.withheld = 0
        return held

    def _judge(self, dying: Sequence[Failed]) -> Effects:
        """Judge whether items died alike, unless something else already decides that they are buried."""
        if self._has_cap and any(failed.spend is not None for failed in dying):
            self.release()  # the budget must include their cost
            return
        if (yield from self._would_exceed(min(len(self._held), self._enough))):
            self.release()  # the tolerance is the smaller number and must include them
            return
        (kind, count), *_ = self._kinds.most_common(1)
        if count >= self._enough and not (yield from self._is_proved_elsewhere()):
            yield from self._declare(next(f for _, f in self._held if retry.kind_of_death(f) == kind), count)
        elif max(count, len(self._held) // WITHHELD_TIMES) >= self._enough:
            self.believe()
        elif (yield from self._would_exceed(len(self._held))):
            self.release()

    def _is_proved_elsewhere(self) -> Generator[Effect, Any, bool]:
        """Return whether an item has succeeded since the run began, in another process."""
        chunks = yield LookAt(Look.CHUNKS)
        return successes(chunks or ()) > self._before

    def _would_exceed(self, more: int) -> Generator[Effect, Any, bool]:
        """Return whether so many more dead letters would be too many."""
        if self._tolerance is None:
            return False
        batch = yield LookAt(Look.BATCH)
        chunks = yield LookAt(Look.CHUNKS)
        if batch is None or chunks is None:
            return False
        return is_exceeded(self._tolerance, sum(chunk.counts.dead for chunk in chunks) + more, batch)

    def _declare(self, example: Failed, count: int) -> Effects:
        self._declared = True
        stage = self._stages[example.item.place.stage]
        text = retry.deaths_in_words(example, count, batch=self._batch, stage=stage)
        yield StopRun("trouble", DiedAlike(text))
        for hold, failed in self._take():
            hold.outcomes.append(excuse(failed, LIKE_THE_OTHERS))


class WithheldReturns:
    """Items whose inputs are being verified, and items that go back as soon as it is known that not all of them do."""

    def __init__(self, *, is_open: bool, allowed: float, workers: int,
                 refusal: Callable[[int, int, Lost], BaseException]) -> None:  # fmt: skip
        self._is_open, self._allowed, self._refusal = is_open, allowed, refusal
        """`is_open`: nothing is verified, and an item whose input is found to be gone goes back at once."""
        self.asked = self.bad = 0
        self._free = self._size = workers
        self._withheld: list[tuple[Hold, Lost]] = []

    def can_start(self, hold: Hold) -> bool:
        if hold.lost or not hold.unasked or not self._free:
            return False
        return hold.running == 0 if hold.alone else True

    def start(self, holds: Sequence[Hold]) -> Effects:
        """Ask about as many items as there are threads for."""
        for hold in holds:
            while self.can_start(hold):
                size = 1 if hold.alone else max(1, min(TOGETHER, len(hold.unasked) // self._free))
                items = [hold.unasked.popleft() for _ in range(min(size, len(hold.unasked)))]
                hold.running += len(items)
                self._free -= 1
                known = {int(item.n): hold.known_lost.pop(item.n) for item in items if item.n in hold.known_lost}
                yield Inspect(Question(hold, items, known))

    def take(self, passed: InputAnswer, outcomes: Sequence[Outcome], moment: float) -> Effects:
        """Take the answer: items become ready, are withheld, or get an outcome."""
        hold = passed.question.hold
        self._free += 1
        hold.running -= len(passed.question.items)
        self.asked += len(passed.question.items)
        if hold.lost:
            return
        hold.clear_for_stage(passed.cleared, moment)
        for outcome in outcomes:
            if isinstance(outcome, Lost):
                self._withhold(hold, outcome)
            else:
                hold.outcomes.append(outcome)
        yield from self._judge()

    def hear(self, hold: Hold, lost: Sequence[Lost], *, others: int) -> Effects:
        """Take items whose input a stage found gone, while that of others was in its file: decide how far back they
        go."""
        self.asked += others
        for each in lost:
            if self._is_open:
                hold.outcomes.append(each)
            elif each.to_stage < 1:
                self.asked += 1
                self._withhold(hold, each)
            else:
                hold.known_lost[each.item.n] = each.why
                hold.unasked.append(each.item)
        if lost:
            yield from self._judge()

    def let_through(self, holds: Sequence[Hold], *, nothing_left: bool) -> None:
        """Send withheld items back once there is nothing left to ask."""
        if not self._withheld:
            return
        if any(hold.exclusive for hold in holds):
            self.give_back()
        elif nothing_left and self._free == self._size and not any(h.unasked or not h.loaded_all for h in holds):
            self._release()

    def give_back(self) -> None:
        """Forget withheld items: they are pending in the store and are verified again."""
        for hold, _ in self._withheld:
            hold.running -= 1
        self._withheld.clear()

    def _withhold(self, hold: Hold, lost: Lost) -> None:
        self.bad += 1
        if hold.exclusive:
            hold.outcomes.append(lost)
        else:
            hold.running += 1
            self._withheld.append((hold, lost))

    def _judge(self) -> Effects:
        if self._withheld and is_too_much(self.bad, self.asked, self._allowed):
            lost = self._withheld[0][1]
            self.give_back()
            yield StopRun("trouble", self._refusal(self.bad, self.asked, lost))
        elif is_enough_to_judge(self.asked, self._allowed):
            self._release()

    def _release(self) -> None:
        for hold, lost in self._withheld:
            hold.running -= 1
            if not hold.lost:
                hold.outcomes.append(lost)
        self._withheld.clear()
