"""The items and chunks of one ingested group, replayed from the journal: the state that the store should hold for each.

A group is the items that one `ingested` entry admitted; every chunk cut from it lies inside its range. So only one
group at a time has to be in memory.
"""

from array import array
from datetime import UTC, datetime

import msgspec

from holdfast.core import journal
from holdfast.core.canonical import DIGEST_BYTES
from holdfast.core.journal import FLOAT32, UINT16, unpack
from holdfast.core.limits import MONEY_DIGITS
from holdfast.core.model import Chunk, Counts, ItemNo, State, StoredItem

STATES = list(State)
PENDING, DEAD, DONE, SKIPPED = (STATES.index(state) for state in (State.PENDING, State.DEAD, State.DONE, State.SKIPPED))
UNKNOWN = 0xFFFFFFFF
"""The epoch of an output whose digest can no longer be computed: its item has another salt now."""


class ReplayedChunk(msgspec.Struct):
    """A chunk as the journal has it: its items, its owner, and when it may be claimed."""

    lo: int
    hi: int
    fence: int | None = None
    """None before the first grant."""
    owner: str | None = None
    due: float = 0.0
    version: int = 0
    """Commits since the grant."""


class Trouble(msgspec.Struct):
    """The failures and waits of an item at its stage."""

    attempt: int = 0
    due: float = 0.0
    said: tuple[str, str] | None = ("", "")
    """The code, and the reason in words; None if the journal does not have them."""
    requeues: int = 0
    spent: int | None = 0
    """None if the journal does not separate it from the cost of the partition's rows."""
    deferred: float | None = 0.0
    """None if an older version wrote the entry."""
    used: float = 0.0
    wait: float | None = 0.0
    """None if an older version wrote the entry."""


CLEAN = Trouble()


class Projection:
    """State, stage, epoch, trouble and output digests of a range of items; ranges, owners and totals of its chunks."""

    def __init__(self, group: journal.Ingested, stages: int) -> None:
        self.lo, self.hi = group.lo, group.hi
        self.stages = stages
        size = group.hi - group.lo
        self._state = bytearray([PENDING]) * size
        self._stage = array("H", bytes(2 * size))
        self._epoch = array("I", bytes(4 * size))
        self._payload = bytearray(group.digests)
        self._digests: dict[int, bytearray] = {}
        self._made_in: dict[int, array[int]] = {}
        self._trouble: dict[int, Trouble] = {}
        for n, _ in group.invalid:
            self._state[n - self.lo] = DEAD
            self._trouble[n - self.lo] = Trouble(said=None)
        self.positions: dict[int, journal.Position] = {}
        """For items that are partitions of a source: how far each has been read."""
        self._totals: dict[int, Counts] = {}
        self._standing = {group.chunk: ReplayedChunk(group.lo, group.hi)}
        self._kind = group.kind

    # -- replaying ----------------------------------------------------------------------------------------------

    def replay(self, header: journal.Header, body: journal.Body) -> None:
        """Replay one entry of a chunk's chain; entries come in order, a parent's before its child's."""
        standing = self._standing[header.chain]
        fence, standing.fence = standing.fence, header.fence
        if isinstance(body, journal.Claimed):
            if body.child is not None:
                self._standing[body.child[0]] = ReplayedChunk(*body.child[1:], fence, due=standing.due)
            standing.hi, standing.owner, standing.due, standing.version = body.hi, header.actor, 0.0, 0
        elif isinstance(body, journal.Checkpointed):
            self._checkpointed(header.chain, body)
            standing.version += 1
            if body.released:
                standing.owner, standing.due = None, body.due
        elif isinstance(body, journal.Acted):
            standing.owner, standing.due = None if body.seized else standing.owner, 0.0
            standing.version = 0 if body.seized else standing.version
            for moved in body.items:
                self._moved(moved)

    def _checkpointed(self, chunk: int, body: journal.Checkpointed) -> None:
        attempts, seconds = 0, 0.0
        for position in body.positions:
            self._trouble.pop(self._at(position.n), None)
            self.positions[position.n] = position
            seconds += position.seconds
        for group in body.advanced:
            self._advanced(group)
            if not group.adopted:
                attempts += len(group.items)
                seconds += sum(unpack(FLOAT32, group.seconds))
        costs = {said.n: said.usd for _, said in body.spends} if body.attempts else {}
        for attempt in body.attempts:
            self._attempted(attempt, costs.get(attempt.n, 0))
            attempts += attempt.attempt > 0
            seconds += attempt.seconds
        spent = sum(said.usd for _, said in body.spends)
        tokens = sum(said.tokens for _, said in body.spends)
        made = Counts(attempts=attempts, seconds=seconds, spent=spent, tokens=tokens)
        self._totals[chunk] = self._totals.get(chunk, Counts()).plus(made)

    def _advanced(self, group: journal.Advanced) -> None:
        digests, made_in = self._of_stage(group.stage)
        count, first = len(group.items), self._at(group.items.lo)
        epochs = array("I", unpack(UINT16, group.epochs)) if group.epochs else array("I", bytes(4 * count))
        if len(group.digests) != DIGEST_BYTES * count or len(epochs) != count or group.items.hi > self.hi:
            raise ValueError(f"{count} items, {len(group.digests)} bytes of digests")
        state = DONE if group.finished else PENDING
        if not group.items.picks:
            last = first + count
            self._state[first:last] = bytes([state]) * count
            self._stage[first:last] = array("H", [group.stage + 1]) * count
            made_in[first:last] = array("I", [1 + epoch for epoch in epochs])
            digests[first * DIGEST_BYTES : last * DIGEST_BYTES] = group.digests
            for at in range(first, last) if self._trouble else ():
                self._trouble.pop(at, None)
            return
        for index, n in enumerate(group.items):
            at = self._at(n)
            self._trouble.pop(at, None)
            self._state[at], self._stage[at], made_in[at] = state, group.stage + 1, 1 + epochs[index]
            digests[_span(at)] = group.digests[_span(index)]

    def _attempted(self, attempt: journal.Attempted, cost: int) -> None:
        at = self._at(attempt.n)
        self._trouble[at] = _after(self._trouble.get(at, CLEAN), attempt, cost)
        if attempt.outcome == "rewind":
            self._stage[at] = attempt.to_stage
            self._epoch[at] = attempt.epoch + 1
        elif attempt.outcome in ("skip", "bury"):
            self._state[at] = SKIPPED if attempt.outcome == "skip" else DEAD
            if attempt.attempt == 0 and attempt.to_stage < attempt.stage:  # it was rewound too often
                self._stage[at], self._epoch[at] = attempt.to_stage, attempt.epoch + 1

    def _moved(self, moved: journal.Moved) -> None:
        at = self._at(moved.n)
        before = self._trouble.get(at, CLEAN)
        here = (self._stage[at], self._epoch[at])
        if moved.after != State.PENDING and moved.epoch == self._epoch[at]:
            self._trouble[at] = msgspec.structs.replace(before, said=None)
        elif moved.before == moved.after and here == (moved.stage_after, moved.epoch):  # requeued
            self._trouble[at] = Trouble(before.attempt, said=None, requeues=before.requeues + 1, spent=before.spent,
                                        deferred=before.deferred)  # fmt: skip
        else:
            self._trouble[at] = Trouble(said=None)
        self._state[at] = STATES.index(State(moved.after))
        self._stage[at], self._epoch[at] = moved.stage_after, moved.epoch
        if moved.digest:
            self._payload[_span(at)] = moved.digest
            for made_in in self._made_in.values():
                made_in[at] = UNKNOWN if made_in[at] else 0
        if moved.position is not None:
            self.positions[moved.n] = moved.position
        if moved.output_digest:
            digests, made_in = self._of_stage(moved.stage_after - 1)
            made_in[at] = 1 + moved.epoch
            digests[_span(at)] = moved.output_digest

    def _of_stage(self, stage: int) -> tuple[bytearray, "array[int]"]:
        if stage not in self._digests:
            size = self.hi - self.lo
            self._digests[stage] = bytearray(DIGEST_BYTES * size)
            self._made_in[stage] = array("I", bytes(4 * size))
        return self._digests[stage], self._made_in[stage]

    def _at(self, n: int) -> int:
        if not self.lo <= n < self.hi:
            raise IndexError(f"item {n}")
        return n - self.lo

    # -- comparing ----------------------------------------------------------------------------------------------

    def payload_digest(self, n: ItemNo) -> bytes:
        return bytes(self._payload[_span(n - self.lo)])

    def output_digest(self, n: ItemNo, stage: int) -> tuple[int, bytes] | None:
        """Return (epoch, digest) of the last output at a stage: None if the journal has none, epoch -1 if the digest
        can no longer be checked."""
        if stage not in self._made_in or not self._made_in[stage][n - self.lo]:
            return None
        made_in = self._made_in[stage][n - self.lo]
        return (-1 if made_in == UNKNOWN else made_in - 1), bytes(self._digests[stage][_span(n - self.lo)])

    def outputs(self, n: ItemNo) -> list[int]:
        """Return the stages for which the journal has an output of the item."""
        return [stage for stage, made_in in self._made_in.items() if made_in[n - self.lo]]

    def difference(self, item: StoredItem) -> str | None:
        """Return how the stored place differs from the journal's, or None."""
        at, place = item.n - self.lo, item.place
        told = (STATES[self._state[at]], self._stage[at], self._epoch[at])
        if told != (place.state, place.stage, place.epoch):
            return f"it is {_words(place.state, place.stage, place.epoch)}, but its journal says {_words(*told)}"
        trouble = self._trouble.get(at, CLEAN)
        said = (place.code, place.reason) if trouble.said is not None else None
        spent = place.spent if trouble.spent is not None and item.n not in self.positions else trouble.spent
        deferred = place.deferred if trouble.deferred is not None else None
        wait = place.wait if trouble.wait is not None else None
        held = Trouble(place.attempt, place.due, said, place.requeues, spent, deferred, place.used, wait)
        if place.state is not State.PENDING:  # a settled item no longer waits
            held.due, held.wait = place.due or trouble.due, held.wait or trouble.wait
        return _trouble_words(held, trouble) if trouble != held else None

    def chunk_difference(self, chunk: Chunk) -> str | None:
        """Return how kind, range, fence, owner and waiting time on a chunk's row differ from those of the journal, or
        None."""
        if chunk.kind is not self._kind is not None:
            return f"kind {chunk.kind} instead of {self._kind}"
        told = self._standing[chunk.id]
        fence = chunk.fence if told.fence is not None else None
        held = ReplayedChunk(chunk.lo, chunk.hi, fence, chunk.owner, chunk.due, chunk.version)
        return None if held == told else _standing_words(held, told)

    def count_difference(self, chunk: Chunk) -> str | None:
        """Return how the totals on a chunk's row differ from those of the journal, or None."""
        states = self._state[chunk.lo - self.lo : chunk.hi - self.lo]
        totals = self._totals.get(chunk.id, Counts())
        told: dict[str, int] = {
            state.value: states.count(STATES.index(state)) for state in State if state is not State.PENDING
        }
        told |= {"attempts": totals.attempts, "spent": totals.spent, "tokens": totals.tokens}
        wrong = [
            f"{name} {getattr(chunk.counts, name):,} instead of {value:,}"
            for name, value in told.items()
            if getattr(chunk.counts, name) != value
        ]
        if abs(chunk.counts.seconds - totals.seconds) > 1e-6 * max(1.0, totals.seconds):
            wrong.append(f"seconds {chunk.counts.seconds:.3f} instead of {totals.seconds:.3f}")
        return ", ".join(wrong) if wrong else None


def _after(before: Trouble, attempt: journal.Attempted, cost: int) -> Trouble:
    """Return the trouble of an item after one more attempt. Number 0 is not an attempt: it records that an output was
    lost."""
    if attempt.outcome == "rewind":
        return Trouble(said=("", attempt.message))
    if attempt.attempt == 0:
        went_back = attempt.to_stage < attempt.stage
        held = CLEAN if went_back else before  # the first file format buried such an item at its current stage
        said = ("rewound_too_often", attempt.message)
        return msgspec.structs.replace(held, said=said)
    count = attempt.attempt if attempt.outcome in ("retry", "bury") else before.attempt
    spent = before.spent if attempt.outcome == "skip" or before.spent is None else before.spent + cost
    is_old = attempt.outcome == "defer" and not attempt.deferred
    deferred = attempt.deferred or (None if is_old else before.deferred)
    wait = (attempt.wait or None) if attempt.due else 0.0
    said = (attempt.code, attempt.message)
    return Trouble(count, attempt.due, said, before.requeues, spent, deferred, attempt.used, wait)


def _span(at: int) -> slice:
    return slice(at * DIGEST_BYTES, (at + 1) * DIGEST_BYTES)


def _words(state: State, stage: int, epoch: int) -> str:
    return f"{state} at stage {stage} in epoch {epoch}"


def _trouble_words(held: Trouble, told: Trouble) -> str:
    """Return the facts about an item's trouble that differ, in words."""
    return _differences(
        ("it has had", _count(held.attempt, "attempt"), _count(told.attempt, "attempt")),
        ("it is due", _due(held.due), _due(told.due)),
        ("its error is", _told(held.said), _told(told.said)),
        ("it was requeued", _count(held.requeues, "time"), _count(told.requeues, "time")),
        ("its stage has cost", _money(held.spent), _money(told.spent)),
        ("it was deferred for", _seconds(held.deferred), _seconds(told.deferred)),
        ("of its time it has used", _seconds(held.used), _seconds(told.used)),
        ("its wait was planned for", _seconds(held.wait), _seconds(told.wait)),
    )


def _standing_words(held: ReplayedChunk, told: ReplayedChunk) -> str:
    """Return the facts about a chunk that differ, in words."""
    return _differences(
        ("it covers", f"items {held.lo} to {held.hi - 1}", f"items {told.lo} to {told.hi - 1}"),
        ("its fence is", str(held.fence), str(told.fence)),
        ("it is held by", held.owner or "no owner", told.owner or "no owner"),
        ("it is due", _due(held.due), _due(told.due)),
        ("since its grant it has had", _count(held.version, "commit"), _count(told.version, "commit")),
    )


def _differences(*facts: tuple[str, str, str]) -> str:
    wrong = [f"{what} {held}, but its journal says {told}" for what, held, told in facts if held != told]
    return "; ".join(wrong)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _money(units: int | None) -> str:
    return "something" if units is None else f"${units / 10**MONEY_DIGITS:,.12f}".rstrip("0")


def _seconds(seconds: float | None) -> str:
    return "some time" if seconds is None else f"{seconds:,.6f} s"


def _due(at: float) -> str:
    return "at once" if not at else f"at {moment(at)}"


def moment(at: float) -> str:
    """Return a time to the microsecond, so that two different times almost never read alike."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(sep=" ")
    except (OverflowError, OSError, ValueError):  # a damaged number
        return repr(at)


def _told(said: tuple[str, str] | None) -> str:
    return "nothing" if said is None or said == ("", "") else f"{said[0]!r} ({said[1]})"
