"""The recheck of recorded outputs, the rewinding of items that fail it, and items that came again with another
payload."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from msgspec import structs

from holdfast.core import canonical, course, ingest, verify
from holdfast.core.acts import change_of
from holdfast.core.errors import UndoRefused
from holdfast.core.limits import ACT_ITEMS, LISTED_NAMES
from holdfast.core.model import (
    Batch,
    Change,
    Chunk,
    ItemNo,
    ItemOrigin,
    ItemState,
    Key,
    NewItem,
    Output,
    State,
    StoredItem,
)
from holdfast.core.states import RESOLVED, Transition, keeps_outputs, move
from holdfast.core.verify import Decision, GoesBack, Unclear, rewound
from holdfast.runtime.acts import Actor, Acts
from holdfast.runtime.define.options import Level
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.text import command
from holdfast.runtime.verify.inspector import IN_THE_WAY, Findings, OutputInspector, RecordedItem
from holdfast.runtime.verify.observe import Digests, recorded_digests
from holdfast.stores import owners
from holdfast.stores.base import Store, each_output


class LeftAlone:
    """Dead letters that came again with another payload: only a person decides about them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def note(self, key: Key) -> None:
        self.count += 1
        if len(self._first) < LISTED_NAMES:
            self._first.append(canonical.key_text(key))

    def warning(self, batch: str) -> str:
        """Return how many there were, and how a person can accept the new payload."""
        what = "1 dead letter" if self.count == 1 else f"{self.count:,} dead letters"
        more = ", …" if self.count > len(self._first) else ""
        return (
            f"{what} of {batch} came with another payload and {'was' if self.count == 1 else 'were'} left alone "
            f"({', '.join(self._first)}{more}): a run never changes a dead letter. To use the new payload, discard the "
            f"old one with `{command('dead discard', batch, 'KEY', options='--reason …')}`, then run again with "
            'changed="rerun"'
        )


def renew(
    store: Store, batch: Batch, n: ItemNo, item: NewItem, left: LeftAlone, *, origin: ItemOrigin, actor: str
) -> State | None:
    """Add a revision of the payload and send the item to the first stage in a new epoch; a live owner is fenced off.
    Return the state that the item had; None for a dead letter, which keeps its payload and is left alone."""
    stored = store.items(batch.id, lo=n, hi=n + 1)[0]
    if stored.place.state is State.DEAD:
        left.note(stored.key)
        return None
    stages = len(canonical.decode(batch.definition)["stages"])
    reason = _reason(stored.payload, item.payload)
    place = _renewed(stored.place, item.place, stages, reason=reason)
    change = structs.replace(change_of(n, stored.place, place), renewed=item, origin=origin)
    events = [course.item_dead(n, stored.key, place)] if place.state is State.DEAD else []
    Acts(store, batch, Actor(name=actor, reason=reason)).write("renewed", [change], seize=True, events=events)
    return stored.place.state


def _renewed(before: ItemState, new: ItemState, stages: int, *, reason: str) -> ItemState:
    """Return the place of an item that begins again with a new payload, or is buried because the payload is invalid."""
    if new.state is State.DEAD:
        return move(before, Transition.RENEW, to=State.DEAD, stages=stages, code=new.code, reason=new.reason)
    return move(before, Transition.RENEW, to=State.PENDING, stages=stages, reason=reason)


def _reason(before: bytes, after: bytes) -> str:
    """Return the reason for the journal: the names of the fields that differ, never their content."""
    names = ingest.changed_fields(before, after)
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    said = f": {', '.join(names[:LISTED_NAMES])}{more} differ" if names else ""
    return f"came again with another payload{said}"


Back = tuple[Key, Change]
"""The key of an item, and its change."""


class Sent(NamedTuple):
    """The result of sending items back."""

    changed: int
    buried: list[ItemNo]
    """Changed items that had gone back too often and are now dead letters."""
    done: int
    """The number of changed items that were done."""


def back(key: Key, n: ItemNo, place: ItemState, stage: int, stages: int, *, reason: str) -> Back:
    """Return the change of an item that goes back to a stage."""
    after = rewound(place, stage, stages, reason=reason)
    return key, change_of(n, place, after)


def send_back(store: Store, batch: Batch, items: Sequence[Back], by: Actor) -> Sent:
    """Rewind items in one act, or bury them. A live owner checks again before it continues."""
    acts, now = Acts(store, batch, by), store.now()
    held = [(chunk.lo, chunk.hi) for chunk in store.chunks(batch.id) if owners.is_live(chunk, now)]
    kept: list[Back] = []
    free: list[Back] = []
    for key, change in items:
        (kept if any(lo <= change.n < hi for lo, hi in held) else free).append((key, change))
    changed = _send(acts, free, seize=True) + _send(acts, kept, seize=False)
    buried = {change.n for _, change in items if change.place.state is State.DEAD}
    done = {change.n for _, change in items if change.state is State.DONE}
    return Sent(len(changed), [n for n in changed if n in buried], sum(n in done for n in changed))


def _send(acts: Acts, items: Sequence[Back], *, seize: bool) -> list[ItemNo]:
    dead = [(key, change) for key, change in items if change.place.state is State.DEAD]
    events = [course.item_dead(change.n, key, change.place) for key, change in dead]
    return acts.write("rewound", [change for _, change in items], seize=seize, events=events)


GROUP = 500
"""Items that are read, or checked quickly, together."""
ASKED_TOGETHER = 20
"""Items that one thread passes to verifiers before it returns their answers."""
THREADS = 64
BY_HAND_NAMED = 20
"""The most items resolved by hand that a report names when they go back."""


class RecordedGroup(NamedTuple):
    """Some items of one chunk, with the digests of their outputs from the journal."""

    pasts: list[RecordedItem]
    digests: Digests


class Checker:
    """One check of everything that a batch has recorded."""

    def __init__(self, store: Store, batch: Batch, inspector: OutputInspector, level: Level, *, actor: str,
                 threads: int, allowed: float, findings: Findings, stopping: Callable[[], bool],
                 tell: Callable[[str], None]) -> None:  # fmt: skip
        self.store, self.batch, self.inspector = store, batch, inspector
        self.full = level == "full"
        self.actor = actor
        self.threads = min(threads, THREADS) if self.full else 1
        self.allowed = allowed
        self.findings = findings
        self.stopping = stopping
        self.tell = tell
        self.chunks: list[Chunk] = []
        self.looked_at = 0
        self.buried: list[ItemNo] = []
        """Items that had gone back too often, and are now dead letters."""
        self.undone = 0
        """The number of items that went back and were done."""
        self.notes: list[str] = []
        """Notes about items that went back although a person had given their output."""

    def recheck(self) -> int:
        """Check everything, then send back the items that fail; return how many went back."""
        with_files = any(stage.sink is not None for stage in self.inspector.stages)
        if not (self.full or with_files) or not self.batch.admitted:
            return 0
        self.chunks = self.store.chunks(self.batch.id)
        bad, example = self._look()
        if self.stopping() or not bad:
            return 0
        if verify.is_too_much(len(bad), self.looked_at, self.allowed):
            raise refusal(self.batch.name, len(bad), self.looked_at, *example)
        return self._send_back(bad)

    def _look(self) -> tuple["array[int]", tuple[Key, str]]:
        """Return the numbers of the items that fail the check, and an example."""
        bad = array("Q")
        example: tuple[Key, str] = ("", "")
        for results in spread(self._judge, self._recorded(), self.threads):
            for past, decision in results:
                self.looked_at += 1
                if isinstance(decision, GoesBack) and past.place.state is State.DEAD:
                    self.findings.add(
                        past.key, past.n, decision.stage, f"{decision.why}; {left_alone(self.batch.name)}"
                    )
                elif isinstance(decision, GoesBack):
                    example = example if bad else (past.key, decision.why)
                    bad.append(past.n)
                elif isinstance(decision, Unclear):
                    self._note(past, decision)
            self.tell(f"checked {self.looked_at:,} recorded items, {len(bad):,} failed")
            if self.stopping():
                break
        return bad, example

    def _judge(self, group: RecordedGroup) -> list[tuple[RecordedItem, Decision]]:
        """Check every recorded output of every item of a group."""
        results: list[tuple[RecordedItem, Decision]] = []
        for past in group.pasts:
            if self.full and self.stopping():
                break
            results.append((past, self.inspector.look_over(past, full=self.full, digests=group.digests)))
        return results

    def _note(self, past: RecordedItem, unclear: Unclear) -> None:
        self.findings.add(past.key, past.n, unclear.seen.stage, unclear.seen.why)

    # -- reading --------------------------------------------------------------------------------------------------

    def _recorded(self) -> Iterator[RecordedGroup]:
        """Yield items that have outputs to check, with these outputs, a few at a time."""
        for chunk in self.chunks:
            digests = self._digests(chunk)
            lo = int(chunk.lo)
            while lo < chunk.hi:
                hi = min(lo + GROUP, chunk.hi)
                pasts = self._pasts(chunk, lo, hi)
                size = ASKED_TOGETHER if self.full else GROUP
                for first in range(0, len(pasts), size):
                    yield RecordedGroup(pasts[first : first + size], digests)
                lo = hi

    def _pasts(self, chunk: Chunk, lo: int, hi: int) -> list[RecordedItem]:
        outputs: dict[int, list[Output]] = {}
        for output in self.store.outputs(self.batch.id, lo=lo, hi=hi, limit=(hi - lo) * 64):
            outputs.setdefault(output.n, []).append(output)
        if not outputs:
            return []
        found = self.store.items(self.batch.id, lo=lo, hi=hi, limit=hi - lo)
        return [
            past_of(item, outputs[item.n], chunk.fence)
            for item in found
            if keeps_outputs(item.place) and item.n in outputs
        ]

    def _digests(self, chunk: Chunk) -> Digests:
        return recorded_digests(self.store, self.chunks, chunk) if self.full else {}

    # -- sending back ---------------------------------------------------------------------------------------------

    def _send_back(self, bad: "array[int]") -> int:
        """Check failed items again and send them back; consecutive items with the same reason go in one act."""
        sent, reason, stages = 0, "", len(self.inspector.stages)
        group: list[Back] = []
        for results in spread(self._judge, self._again(bad), self.threads):
            for past, decision in results:
                if not isinstance(decision, GoesBack):
                    continue
                if group and (decision.why != reason or len(group) >= ACT_ITEMS):
                    sent += self._send(group, reason)
                    group = []
                reason = decision.why
                if past.place.code == RESOLVED:
                    self._tell_by_hand(past, reason)
                group.append(back(past.key, past.n, past.place, decision.stage, stages, reason=reason))
        return sent + (self._send(group, reason) if group else 0)

    def _send(self, group: Sequence[Back], reason: str) -> int:
        sent = send_back(self.store, self.batch, group, Actor(name=self.actor, reason=reason))
        self.buried += sent.buried
        self.undone += sent.done
        return sent.changed

    def _tell_by_hand(self, past: RecordedItem, why: str) -> None:
        if len(self.notes) < BY_HAND_NAMED:
            see = command("why", self.batch.name, canonical.key_text(past.key))
            self.notes.append(f"item {past.key!r} was resolved by hand, but goes back: {why}; see `{see}`")

    def _again(self, bad: "array[int]") -> Iterator[RecordedGroup]:
        chunks = iter(self.chunks)
        chunk, digests = None, Digests()
        for n in bad:
            if self.stopping():
                return
            while chunk is None or n >= chunk.hi:
                chunk = next(chunks)
                digests = self._digests(chunk) if n < chunk.hi else {}
            yield RecordedGroup(self._pasts(chunk, n, n + 1), digests)


def left_alone(batch: str) -> str:
    """Return what a person can do about a dead letter whose output fails the check."""
    return (
        "a run never changes a dead letter, so redrive it, or have its output made again: "
        f"`{command('reconcile', batch, options='--full --repair')}`"
    )


def past_of(item: StoredItem, outputs: Iterable[Output], fence: int) -> RecordedItem:
    """Return an item with the outputs of the stages that it has passed."""
    return RecordedItem.of(item, [output for output in outputs if output.stage < item.place.stage], fence=fence)


def publish_leftovers(store: Store, batch: Batch, stages: Sequence[Stage], findings: Findings) -> None:
    """Give final names to recorded outputs that have none, because the process died before it could rename them, or
    something was in the way. An output that still cannot be renamed is a finding."""
    for index, stage in enumerate(stages):
        left = stage.sink.leftovers() if stage.sink is not None else ()
        staged = {each.path for each in left if each.kind == "staged"}
        for output in each_output(store, batch.id, stage=index) if staged else ():
            evidence = Evidence.decode(output.file) if output.file is not None else None
            if evidence is None or evidence.staged not in staged or stage.sink is None:
                continue
            if isinstance(stage.sink, Files) and stage.sink.taken_by(evidence) is not None:
                continue  # the name now belongs to another batch
            try:
                stage.sink.publish([evidence])
            except OSError as error:
                if error.errno not in IN_THE_WAY:
                    raise
                item = store.items(batch.id, lo=output.n, hi=output.n + 1)[0]
                findings.add(item.key, item.n, index, _in_the_way(evidence, error))


def _in_the_way(evidence: Evidence, error: OSError) -> str:
    return (
        f"its output is safe in {evidence.staged}, but cannot be renamed to {evidence.final}: {error.strerror}; fix "
        "that, then run again"
    )


def refusal(batch: str, bad: int, looked_at: int, key: Key, why: str) -> UndoRefused:
    """Return the refusal to undo so much, with the likely causes."""
    return UndoRefused(
        f"{bad:,} of {looked_at:,} recorded items of batch {batch!r} no longer hold and would be done again. `undo`"
        f" does not allow so many; nothing is undone. Item {key!r}, for example: {why}. Is a folder not mounted, or is"
        ' this another working directory or another database? If this is what you want, pass undo="100%"'
    )


def spread(
    function: Callable[[RecordedGroup], list[tuple[RecordedItem, Decision]]],
    groups: Iterable[RecordedGroup],
    threads: int,
) -> Iterator[list[tuple[RecordedItem, Decision]]]:
    """Yield the result of the function for each group, in order, computed on several threads; only a few groups are in
    memory at a time."""
    if threads == 1:
        yield from map(function, groups)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-check")
    window: deque[Future[list[tuple[RecordedItem, Decision]]]] = deque()
    try:
        for group in groups:
            window.append(pool.submit(function, group))
            if len(window) > 2 * threads:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
