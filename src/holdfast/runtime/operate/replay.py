"""The items and chunks of one ingested group, replayed from the journal: the state that the store should hold for each.

A group is the items that one `ingested` entry admitted; every chunk cut from it lies inside its range. So only one
group at a time has to be in memory.
"""

from array import array
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from holdfast.core import journal, record
from holdfast.core.commitments import DIGEST_BYTES, GRANT_BYTES
from holdfast.core.journal import FLOAT32, UINT16, unpack
from holdfast.core.limits import MONEY_DIGITS
from holdfast.core.model import Chunk, Counts, Entry, ItemNo, Kind, State, StoredItem
from holdfast.runtime.verify.inspector import RecordedDigest

replace = msgspec.structs.replace
STATES = list(State)
PENDING, DEAD, DONE, SKIPPED = (STATES.index(state) for state in (State.PENDING, State.DEAD, State.DONE, State.SKIPPED))
SETTLED = (State.DONE, State.SKIPPED, State.DEAD, State.CANCELLED)
UNKNOWN = 0xFFFFFFFF
"""The epoch of an output whose digest can no longer be computed: in format 1, its item has another salt now."""
PAYLOAD = -1
"""In place of a stage: the payload."""


class Inconsistent(Exception):
    """An entry does not fit the entries before it; the message says why."""


class AdmittedGroup(NamedTuple):
    """The items that one entry admitted, with what the entry itself adds."""

    body: journal.Ingested
    number: int
    """The number of their chunk within the batch."""
    form: int
    """The format of the entry."""
    seq: int
    start: bytes
    """The hash of the entry, at which the chain of the chunk begins."""


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
    grant: bytes = b""
    """The id of the last grant."""
    parent: int | None = None
    """The number of the chunk that it was cut off or that it succeeds."""
    kind: Kind | None = None
    """None if an older version wrote the entry."""
    window: tuple[int, int, int] = (0, 0, 0)
    """Its leg, its first stage, and the stage before which its items are done."""
    origin: int = 0
    is_ended: bool = False


class ReplayedPosition(msgspec.Struct):
    """How far a partition has been read, with the format of the entry that says so."""

    at: journal.Position
    form: int
    restated: bytes = b""
    """The commitment of format 2 to an accumulator that was recorded in format 1, if a successor has one."""

    @property
    def cursor(self) -> bytes | None:
        """The cursor; None if it was removed from the journal."""
        return None if self.at.said else self.at.cursor


class Ending(NamedTuple):
    """The end of a chain, as the first entry of its successor must tell it."""

    predecessor: int
    seq: int
    head: bytes
    state: bytes


class OutputColumn(NamedTuple):
    """The newest output of one stage, for every item of a group."""

    digests: bytearray
    made_in: "array[int]"
    """1 + the epoch in which it was made; 0 if there is none, or UNKNOWN."""
    forms: bytearray
    """The format of the entry that recorded it."""


class Trouble(msgspec.Struct):
    """The failures and waits of an item at its stage."""

    attempt: int = 0
    due: float = 0.0
    said: tuple[str, str | None] | None = ("", "")
    """The code, and the reason in words, which is None if it was removed; None if the journal has neither."""
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

    def __init__(self, group: AdmittedGroup, stages: int, uid: bytes, numbers: Mapping[int, int]) -> None:
        """`numbers` has the number within the batch of every chunk in the store."""
        body = group.body
        self.lo, self.hi = body.lo, body.hi
        self._uid, self._numbers = uid, numbers
        size = self.hi - self.lo
        self._state = bytearray([PENDING]) * size
        self._stage = array("H", [body.first]) * size
        self._epoch = array("I", bytes(4 * size))
        self._payload = bytearray(body.digests)
        self._payload_forms = bytearray([group.form]) * size
        self._outputs: dict[int, OutputColumn] = {}
        self._restated: dict[tuple[int, int], bytes] = {}
        """(item, stage) -> the commitment of format 2 to content that was recorded in format 1: a successor has it."""
        self._trouble: dict[int, Trouble] = {}
        self._refuse(body)
        self.positions: dict[int, ReplayedPosition] = {}
        """For items that are partitions of a source: how far each has been read."""
        self.parents = dict(body.parents)
        self._revisions: dict[int, int] = {}
        """Item -> the number of its newest revision, if that is not the first."""
        self._superseded: dict[int, list[RecordedDigest]] = {}
        """Item -> the digests of its earlier revisions, oldest first."""
        self._raws = set(body.raw_items or ())
        """Items whose newest payload has a commitment to the item as its source gave it."""
        self._totals: dict[int, Counts] = {}
        is_first = group.form == 1
        window = (0, 0, stages) if is_first else (body.leg, body.first, body.end)
        root = ReplayedChunk(self.lo, self.hi, kind=body.kind, window=window, origin=0 if is_first else group.seq)
        self._standing = {group.number: root}
        self._endings: dict[int, Ending] = {}

    def _refuse(self, body: journal.Ingested) -> None:
        """Replay items that were dead letters from the beginning."""
        reasons = {each.n: None if each.said else each.reason for each in body.refusals}
        for n, code in body.invalid:
            at = self._at(n)
            self._state[at], self._stage[at] = DEAD, 0
            self._trouble[at] = Trouble(said=(code, reasons[n]) if n in reasons else None)

    def number_of(self, header: journal.Header, named: int) -> int:
        """Return the number within the batch of a chunk that an entry names. In format 1 entries use the number that
        the store gave it; minus that number if the store has no such chunk."""
        return named if header.format != 1 else self._numbers.get(named, -named)

    # -- replaying ----------------------------------------------------------------------------------------------

    def replay(self, number: int, entry: Entry, header: journal.Header, body: journal.Body) -> None:
        """Replay one entry of the chain of the chunk with that number; entries come in order, a parent's before its
        child's. Raise Inconsistent if it does not fit those before."""
        standing = self._standing.get(number)
        if standing is None:
            raise Inconsistent("no entry before it says where its chunk comes from")
        if standing.is_ended:
            raise Inconsistent("it follows the end of its chain")
        if number in self._endings and not isinstance(body, journal.Continued):
            raise Inconsistent("it is the first entry of a successor, but does not say what it takes over")
        fence, standing.fence = standing.fence, header.fence
        if isinstance(body, journal.Claimed):
            self._claimed(number, standing, fence, header, body)
        elif isinstance(body, journal.Checkpointed):
            if header.grant != standing.grant:
                raise Inconsistent("it was written under another grant than that of its chunk")
            self._checkpointed(number, body, header.format)
            standing.version += 1
            if body.released:
                standing.owner, standing.due = None, body.due
        elif isinstance(body, journal.Acted):
            standing.owner, standing.due = None if body.seized else standing.owner, 0.0
            standing.version = 0 if body.seized else standing.version
            for moved in body.items:
                self._moved(moved, header.format)
        elif isinstance(body, journal.ChainEnded):
            self._ended(number, standing, entry, body)
        elif isinstance(body, journal.Continued):
            self._continued(number, standing, header, body)

    def _claimed(
        self, number: int, standing: ReplayedChunk, fence: int | None, header: journal.Header, body: journal.Claimed
    ) -> None:
        if header.format != 1 and (len(header.grant) != GRANT_BYTES or header.grant == standing.grant):
            raise Inconsistent("its grant has no id of its own")
        if body.child is not None:
            named, lo, hi = body.child
            child = self.number_of(header, named)
            if child in self._standing:
                raise Inconsistent(f"it cuts off chunk number {child} of the batch, which was there before")
            self._standing[child] = ReplayedChunk(lo, hi, fence, due=standing.due, parent=number, kind=standing.kind,
                                                  window=standing.window, origin=standing.origin)  # fmt: skip
        standing.hi, standing.owner, standing.due, standing.version = body.hi, header.actor, 0.0, 0
        standing.grant = header.grant

    def _checkpointed(self, chunk: int, body: journal.Checkpointed, form: int) -> None:
        attempts, seconds = 0, 0.0
        for position in body.positions:
            self._trouble.pop(self._at(position.n), None)
            self.positions[position.n] = ReplayedPosition(position, form)
            seconds += position.seconds
        for group in body.advanced:
            self._advanced(group, form)
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

    def _advanced(self, group: journal.Advanced, form: int) -> None:
        digests, made_in, forms = self._of_stage(group.stage)
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
            forms[first:last] = bytes([form]) * count
            for at in range(first, last) if self._trouble or self._restated else ():
                self._trouble.pop(at, None)
                self._restated.pop((at + self.lo, group.stage), None)
            return
        for index, n in enumerate(group.items):
            at = self._at(n)
            self._trouble.pop(at, None)
            self._state[at], self._stage[at], made_in[at] = state, group.stage + 1, 1 + epochs[index]
            digests[_span(at)], forms[at] = group.digests[_span(index)], form
            self._restated.pop((n, group.stage), None)

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

    def _moved(self, moved: journal.Moved, form: int) -> None:
        at = self._at(moved.n)
        before = self._trouble.get(at, CLEAN)
        here = (self._stage[at], self._epoch[at])
        if moved.after != State.PENDING and moved.epoch == self._epoch[at]:
            self._trouble[at] = replace(before, said=None)
        elif moved.before == moved.after and here == (moved.stage_after, moved.epoch):  # requeued
            self._trouble[at] = Trouble(before.attempt, said=None, requeues=before.requeues + 1, spent=before.spent,
                                        deferred=before.deferred)  # fmt: skip
        else:
            self._trouble[at] = Trouble(said=None)
        self._state[at] = STATES.index(State(moved.after))
        self._stage[at], self._epoch[at] = moved.stage_after, moved.epoch
        if moved.digest:
            self._renewed(moved, form)
        if moved.position is not None:
            self.positions[moved.n] = ReplayedPosition(moved.position, form)
        if moved.output_digest:
            digests, made_in, forms = self._of_stage(moved.stage_after - 1)
            made_in[at], forms[at] = 1 + moved.epoch, form
            digests[_span(at)] = moved.output_digest
            self._restated.pop((moved.n, moved.stage_after - 1), None)

    def _renewed(self, moved: journal.Moved, form: int) -> None:
        """Replay the next revision of a payload. In format 1 it replaced the one before, and the salt of all outputs
        with it."""
        at = self._at(moved.n)
        if form != 1:
            before = RecordedDigest(self._payload_forms[at], bytes(self._payload[_span(at)]))
            self._superseded.setdefault(moved.n, []).append(before)
        self._payload[_span(at)], self._payload_forms[at] = moved.digest, form
        self._restated.pop((moved.n, PAYLOAD), None)
        if form == 1:
            for made in self._outputs.values():
                made.made_in[at] = UNKNOWN if made.made_in[at] else 0
            return
        number = self._revisions.get(moved.n, 0)
        if moved.revision != number + 1:
            raise Inconsistent(f"it gives item {moved.n} revision {moved.revision} after {number}")
        self._revisions[moved.n] = moved.revision
        (self._raws.add if moved.raw_digest else self._raws.discard)(moved.n)

    def _of_stage(self, stage: int) -> OutputColumn:
        if stage not in self._outputs:
            size = self.hi - self.lo
            made = OutputColumn(bytearray(DIGEST_BYTES * size), array("I", bytes(4 * size)), bytearray(size))
            self._outputs[stage] = made
        return self._outputs[stage]

    def _at(self, n: int) -> int:
        if not self.lo <= n < self.hi:
            raise IndexError(f"item {n}")
        return n - self.lo

    # -- the end of a chain -------------------------------------------------------------------------------------

    def _ended(self, number: int, standing: ReplayedChunk, entry: Entry, body: journal.ChainEnded) -> None:
        """Replay the end of a chain: items, totals and an owner whose lease has ended go to the successor."""
        if body.successor in self._standing:
            raise Inconsistent(f"its successor, chunk number {body.successor} of the batch, was there before")
        self._standing[body.successor] = replace(standing, parent=number)
        self._totals[body.successor] = self._totals.pop(number, Counts())
        self._endings[body.successor] = Ending(number, entry.seq, entry.hash, body.state)
        standing.hi, standing.due, standing.owner, standing.is_ended = standing.lo, 0.0, None, True

    def _continued(self, number: int, standing: ReplayedChunk, header: journal.Header, body: journal.Continued) -> None:
        """Check what a successor takes over, and that nothing was lost on the way."""
        ending = self._endings.pop(number, None)
        if header.seq != 1 or ending != (body.predecessor, body.seq, body.head, body.state):
            raise Inconsistent("it does not continue the chain that ended before it")
        if body.state != record.state_of(self._uid, body.predecessor, body.items, body.counts):
            raise Inconsistent("it takes over something else than the chain before it left")
        totals = self._totals[number]
        told = [*self._counted(standing.lo, standing.hi), totals.attempts, totals.spent, totals.tokens]
        if (body.lo, body.hi, body.counts) != (standing.lo, standing.hi, told) or _differ(body.seconds, totals.seconds):
            raise Inconsistent("it takes over another range or other totals than those of the chain before it")
        if [item.n for item in body.items] != list(range(standing.lo, standing.hi)):
            raise Inconsistent("it does not take over every item of the chain before it")
        for item in body.items:
            self._carried(item)

    def _counted(self, lo: int, hi: int) -> list[int]:
        """Return how many items of a range are done, skipped, dead and cancelled."""
        states = self._state[lo - self.lo : hi - self.lo]
        return [states.count(STATES.index(state)) for state in SETTLED]

    def _carried(self, item: journal.Carried) -> None:
        at, told = self._at(item.n), self._revisions.get(item.n, 0)
        here = (STATES[self._state[at]], self._stage[at], self._epoch[at], told)
        if here != (item.state, item.stage, item.epoch, item.revision):
            raise Inconsistent(f"it takes over item {item.n} in another state, or with another payload")
        self._restate(item.n, PAYLOAD, self._payload_forms[at], bytes(self._payload[_span(at)]), item.payload)
        if sorted(self.outputs(ItemNo(item.n))) != sorted(stage for stage, _, _ in item.outputs):
            raise Inconsistent(f"it takes over other outputs of item {item.n}")
        for stage, epoch, digest in item.outputs:
            made = self._outputs[stage]
            if made.made_in[at] == UNKNOWN:
                made.made_in[at], made.forms[at], made.digests[_span(at)] = 1 + min(epoch, 0xFFFF), 2, digest
            elif made.made_in[at] != 1 + min(epoch, 0xFFFF):
                raise Inconsistent(f"it takes over an output of item {item.n} of another epoch")
            self._restate(item.n, stage, made.forms[at], bytes(made.digests[_span(at)]), digest)
        self._carried_position(item.n, item.position)

    def _carried_position(self, n: int, carried: journal.Position | None) -> None:
        told = self.positions.get(n)
        other = Inconsistent(f"it takes over another checkpoint of item {n}")
        if told is None or carried is None:
            if told is not None or carried is not None:
                raise other
            return
        cursor = told.cursor if not carried.said else None
        if told.at.rows != carried.rows or cursor not in (None, carried.cursor):
            raise other
        if (told.form != 1 and told.at.digest != carried.digest) or bool(told.at.digest) != bool(carried.digest):
            raise other
        told.restated = carried.digest if told.form == 1 else b""

    def _restate(self, n: int, stage: int, form: int, told: bytes, digest: bytes) -> None:
        """Compare a commitment of a successor with the recorded one. One of format 1 cannot be compared: both are held
        against the store."""
        if form == 1:
            self._restated[n, stage] = digest
        elif told != digest:
            raise Inconsistent(f"it takes over another payload or output of item {n}")

    # -- comparing ----------------------------------------------------------------------------------------------

    def _proofs(self, n: ItemNo, stage: int, form: int, digest: bytes) -> list[RecordedDigest]:
        found = [RecordedDigest(form, digest)]
        if self._restated and (n, stage) in self._restated:
            found.append(RecordedDigest(2, self._restated[n, stage]))
        return found

    def payload_digests(self, n: ItemNo) -> list[RecordedDigest]:
        """Return the recorded digests of the newest payload; mostly there is one."""
        at = n - self.lo
        return self._proofs(n, PAYLOAD, self._payload_forms[at], bytes(self._payload[_span(at)]))

    def superseded_digests(self, n: ItemNo) -> list[RecordedDigest]:
        """Return the recorded digests of the payloads that later ones replaced, oldest first."""
        return self._superseded.get(n, [])

    def output_digests(self, n: ItemNo, stage: int) -> tuple[int, list[RecordedDigest]] | None:
        """Return (epoch, digests) of the last output at a stage: None if the journal has none, epoch -1 if the digest
        can no longer be checked."""
        made, at = self._outputs.get(stage), n - self.lo
        if made is None or not made.made_in[at]:
            return None
        epoch = -1 if made.made_in[at] == UNKNOWN else made.made_in[at] - 1
        return epoch, self._proofs(n, stage, made.forms[at], bytes(made.digests[_span(at)]))

    def outputs(self, n: ItemNo) -> list[int]:
        """Return the stages for which the journal has an output of the item."""
        return [stage for stage, made in self._outputs.items() if made.made_in[n - self.lo]]

    def origin_difference(self, item: StoredItem) -> str | None:
        """Return how parent, revision and raw form of a stored item differ from those of the journal, or None."""
        held = (item.parent, item.revision, bool(item.raw_salt))
        told = (self.parents.get(item.n), self._revisions.get(item.n, 0), item.n in self._raws)
        if held == told:
            return None
        return _differences(
            ("it was made of", _parent(held[0]), _parent(told[0])),
            ("its payload is", f"revision {held[1]}", f"revision {told[1]}"),
            ("validation", _changed(held[2]), _changed(told[2])),
        )

    def difference(self, item: StoredItem) -> str | None:
        """Return how the stored place differs from the journal's, or None."""
        at, place = item.n - self.lo, item.place
        told = (STATES[self._state[at]], self._stage[at], self._epoch[at])
        if told != (place.state, place.stage, place.epoch):
            return f"it is {_words(place.state, place.stage, place.epoch)}, but its journal says {_words(*told)}"
        trouble = self._trouble.get(at, CLEAN)
        knows_words = trouble.said is not None and trouble.said[1] is not None
        reason = place.reason if knows_words or place.reason else None  # removed words are removed here as well
        said = (place.code, reason) if trouble.said is not None else None
        spent = place.spent if trouble.spent is not None and item.n not in self.positions else trouble.spent
        deferred = place.deferred if trouble.deferred is not None else None
        wait = place.wait if trouble.wait is not None else None
        held = Trouble(place.attempt, place.due, said, place.requeues, spent, deferred, place.used, wait)
        if place.state is not State.PENDING:  # a settled item no longer waits
            held.due, held.wait = place.due or trouble.due, held.wait or trouble.wait
        return _trouble_words(held, trouble) if trouble != held else None

    def chunk_difference(self, chunk: Chunk) -> str | None:
        """Return how range, fence, grant, owner, window and waiting time on a chunk's row differ from those of the
        journal, or None."""
        told = self._standing[chunk.number]
        held = ReplayedChunk(
            chunk.lo, chunk.hi, chunk.fence if told.fence is not None else None, chunk.owner, chunk.due, chunk.version,
            grant=chunk.grant if chunk.owner is not None else told.grant,
            parent=None if chunk.parent is None else self._numbers.get(chunk.parent, -chunk.parent),
            kind=chunk.kind if told.kind is not None else None, window=(chunk.leg, chunk.first, chunk.end),
            origin=chunk.origin, is_ended=chunk.is_ended,
        )  # fmt: skip
        return None if held == told else _standing_words(held, told)

    def count_difference(self, chunk: Chunk) -> str | None:
        """Return how the totals on a chunk's row differ from those of the journal, or None."""
        totals = self._totals.get(chunk.number, Counts())
        counted = self._counted(chunk.lo, chunk.hi)
        told: dict[str, int] = {state.value: count for state, count in zip(SETTLED, counted, strict=True)}
        told |= {"attempts": totals.attempts, "spent": totals.spent, "tokens": totals.tokens}
        wrong = [
            f"{name} {getattr(chunk.counts, name):,} instead of {value:,}"
            for name, value in told.items()
            if getattr(chunk.counts, name) != value
        ]
        if _differ(chunk.counts.seconds, totals.seconds):
            wrong.append(f"seconds {chunk.counts.seconds:.3f} instead of {totals.seconds:.3f}")
        return ", ".join(wrong) if wrong else None


def _after(before: Trouble, attempt: journal.Attempted, cost: int) -> Trouble:
    """Return the trouble of an item after one more attempt. Number 0 is not an attempt: it records that an output was
    lost."""
    words = None if attempt.said else attempt.message
    if attempt.outcome == "rewind":
        return Trouble(said=("", words))
    if attempt.attempt == 0:
        went_back = attempt.to_stage < attempt.stage
        held = CLEAN if went_back else before  # the first file format buried such an item at its current stage
        return replace(held, said=("rewound_too_often", words))
    count = attempt.attempt if attempt.outcome in ("retry", "bury") else before.attempt
    spent = before.spent if attempt.outcome == "skip" or before.spent is None else before.spent + cost
    is_old = attempt.outcome == "defer" and not attempt.deferred
    deferred = attempt.deferred or (None if is_old else before.deferred)
    wait = (attempt.wait or None) if attempt.due else 0.0
    return Trouble(count, attempt.due, (attempt.code, words), before.requeues, spent, deferred, attempt.used, wait)


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
        ("it is held under the grant", held.grant.hex() or "without an id", told.grant.hex() or "without an id"),
        ("it comes from", _family(held.parent), _family(told.parent)),
        ("it is of the kind", str(held.kind), str(told.kind)),
        ("its leg, its first stage and its end are", str(held.window), str(told.window)),
        ("it was admitted by", f"entry {held.origin} of the batch", f"entry {told.origin} of the batch"),
        ("its chain", "has ended" if held.is_ended else "continues", "has ended" if told.is_ended else "continues"),
    )


def _differ(held: float, told: float) -> bool:
    """Return whether two sums of seconds differ by more than rounding."""
    return abs(held - told) > 1e-6 * max(1.0, told)


def _differences(*facts: tuple[str, str, str]) -> str:
    wrong = [f"{what} {held}, but its journal says {told}" for what, held, told in facts if held != told]
    return "; ".join(wrong)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _family(parent: int | None) -> str:
    return "no other chunk" if parent is None else f"chunk number {parent} of the batch"


def _parent(parent: int | None) -> str:
    return "no other item" if parent is None else f"item {parent}"


def _changed(by_validation: bool) -> str:
    return "changed it" if by_validation else "did not change it"


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


def _told(said: tuple[str, str | None] | None) -> str:
    if said is None or said == ("", ""):
        return "nothing"
    return repr(said[0]) if said[1] is None else f"{said[0]!r} ({said[1]})"
