"""Deaths that are not written yet: as long as nothing has succeeded they may all be one mistake in the code.

They become dead letters once an item succeeds at their stage, when nothing else is left to try, or when even all that
are left could not become enough. Where enough items died alike, the run stops instead, and nothing is buried. At most
twice as many are withheld, because a kill forgets them: deaths of many kinds are not one mistake.
"""

import time
from collections import Counter
from collections.abc import Sequence

from holdfast.core import retry
from holdfast.core.errors import DiedAlike
from holdfast.core.limits import WITHHELD_SECONDS, WITHHELD_TIMES
from holdfast.core.model import Chunk, Want
from holdfast.core.outcome import Failed, Outcome, excuse
from holdfast.runtime.ending.watch import Watch
from holdfast.runtime.working.control import Control
from holdfast.runtime.working.holding import Holding
from holdfast.runtime.working.lane import Lane
from holdfast.stores.base import Store

LIKE_THE_OTHERS = "it died like all the others, and was not buried"


def has_success(chunks: Sequence[Chunk]) -> bool:
    """Whether any item of a batch ever succeeded."""
    return any(chunk.counts.done or chunk.counts.skipped for chunk in chunks)


class Withheld:
    """The deaths of one run that wait to be believed."""

    def __init__(self, store: Store, lanes: Sequence[Lane], control: Control, want: Want, watch: Watch, *,
                 active: bool) -> None:  # fmt: skip
        self._store, self._lanes, self._control, self._want, self._watch = store, lanes, control, want, watch
        self._enough = retry.enough_alike(control.workers)
        self._active = active
        self._proven: set[int] = set()
        """Stages at which an item succeeded in this run."""
        self._held: list[tuple[Holding, Failed]] = []
        self._kinds: Counter[retry.Kind] = Counter()
        self._declared = False
        self._quiet_since: float | None = None

    def sift(self, holding: Holding, stage: int, outcomes: list[Outcome]) -> list[Outcome]:
        """Return the outcomes that may be written now."""
        if self._declared:
            return [excuse(outcome, LIKE_THE_OTHERS) for outcome in outcomes]
        if not self._active or self._control.stopping or stage in self._proven:
            return outcomes
        if any(map(retry.is_success, outcomes)):
            self._prove(stage)
            return outcomes
        dying = [outcome for outcome in outcomes if isinstance(outcome, Failed) and retry.is_death(outcome)]
        if not dying:
            return outcomes
        for failed in dying:
            self._hold(holding, failed)
        self._judge(dying)
        return [outcome for outcome in outcomes if not retry.is_death(outcome)]

    def look(self, holdings: Sequence[Holding], pending: int | None) -> None:
        """Bury what is withheld where nothing else is left to try, or nothing came for a while. `pending` is how many
        items of the batch are left, once the source was read to its end."""
        if not self._held:
            return
        if any(holding.is_busy for holding in holdings):
            self._quiet_since = None
            return
        now = time.monotonic()
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        too_few = max(len(self._held), self._enough - 1)  # with those that other processes hold
        nothing_left = pending is not None and pending <= too_few
        if nothing_left or now - self._quiet_since > WITHHELD_SECONDS:
            self.release()

    def release(self) -> None:
        """Believe all of it; so when the run stops, whatever stops it: what was paid for is not forgotten."""
        for holding, failed in self._take():
            holding.outcomes.append(failed)

    def believe(self) -> None:
        """Withhold nothing any more."""
        self._active = False
        self.release()

    def forget(self, holding: Holding) -> None:
        """Its chunk belongs to somebody else now."""
        if holding.withheld:
            self._held = [each for each in self._held if each[0] is not holding]
            self._kinds = Counter(retry.kind_of_death(failed) for _, failed in self._held)

    # -- one mistake? -------------------------------------------------------------------------------------------

    def _prove(self, stage: int) -> None:
        """An item succeeded there."""
        self._proven.add(stage)
        self._active = len(self._proven) < len(self._lanes)
        for holding, failed in self._take():
            if failed.item.place.stage == stage:
                holding.outcomes.append(failed)
            else:
                self._hold(holding, failed)

    def _hold(self, holding: Holding, failed: Failed) -> None:
        holding.withheld += 1
        self._held.append((holding, failed))
        self._kinds[retry.kind_of_death(failed)] += 1

    def _take(self) -> list[tuple[Holding, Failed]]:
        held, self._held = self._held, []
        self._kinds.clear()
        self._quiet_since = None
        for holding, _ in held:
            holding.withheld = 0
        return held

    def _judge(self, dying: Sequence[Failed]) -> None:
        """Whether they died alike; or it is known by other means that they are to be believed."""
        if self._want.cap is not None and any(failed.spend is not None for failed in dying):
            self.release()  # the budget has to see what they cost
            return
        if self._watch.would_exceed(min(len(self._held), self._enough)):
            self.release()  # the tolerance is the smaller number, and has to see them
            return
        (kind, count), *_ = self._kinds.most_common(1)
        if count >= self._enough and not has_success(self._store.chunks(self._want.batch)):  # of another process
            self._declare(next(failed for _, failed in self._held if retry.kind_of_death(failed) == kind), count)
        elif max(count, len(self._held) // WITHHELD_TIMES) >= self._enough:
            self.believe()
        elif self._watch.would_exceed(len(self._held)):
            self.release()

    def _declare(self, example: Failed, count: int) -> None:
        self._declared = True
        lane = self._lanes[example.item.place.stage]
        text = retry.deaths_in_words(example, count, batch=lane.runner.batch, stage=lane.stage.name)
        self._control.fail(DiedAlike(text))
        self._excuse(LIKE_THE_OTHERS)

    def _excuse(self, why: str) -> None:
        for holding, failed in self._take():
            holding.outcomes.append(excuse(failed, why))
