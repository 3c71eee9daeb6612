"""A comparison of a store with the memory store: the same random calls must give the same answers after each call.

    from holdfast.testing.comparison import comparison

    TestMyStore = comparison(lambda place, **given: MyStore(place, **given)).TestCase

The machine does what workers, ingesters and operators do, correctly and incorrectly: commits under stale fences and
versions, commits sent twice, acts on items that have moved since. Because every entry of the journal is chained, equal
heads mean that everything ever written is equal, byte for byte.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from holdfast.core import canonical, ingest
from holdfast.core.acts import change_of, requeued
from holdfast.core.commitments import INDEX_KEY_BYTES
from holdfast.core.course import to_note, to_reopen, to_steer, warning
from holdfast.core.errors import HoldfastError
from holdfast.core.journal import Acted, Spend
from holdfast.core.limits import REQUEUES
from holdfast.core.model import (
    Act,
    BatchMode,
    Change,
    Checkpoint,
    Claim,
    ClaimRequest,
    Commit,
    DeadLimit,
    Item,
    ItemNo,
    Kind,
    NewItem,
    State,
    StoredItem,
    chain_of_batch,
)
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Outcome, Skipped
from holdfast.core.retry import Policy
from holdfast.core.settle import NOTHING, Reached, commit, further, settle
from holdfast.core.states import Transition, move
from holdfast.stores.base import Idle, Store, find_item, has_landed, outbox_of
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.kit import MakeStore, holder_of
from holdfast.testing.replay import compare, replay

STAGES = 2
LATE = 60
"""A batch is not cancelled before this many ids were used, because little happens afterwards."""
POLICIES = [Policy(attempts=2), Policy(attempts=3, money=20)]
DEFINITIONS = [canonical.encode({"stages": ["a", "b"], "edition": edition}) for edition in range(2)]
OWNERS = st.sampled_from(["ann", "bob", "cid"])
KEYS = st.sampled_from(["a", "\0a", "\0\0a", "b", 7, "7", None, *(f"k{n}" for n in range(12))])
KINDS = st.sampled_from(Kind)
PIPELINES = st.sampled_from(["pages", "pages", "letters"])
WAITS = st.sampled_from([0.0, 0.0, 20.0, 40.0])
FATES = st.sampled_from(["done", "done", "done", "transient", "permanent", "skip", "defer", "lost", "leave"])
RARELY = st.sampled_from([True, False, False, False])
FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of its own is made there


class Comparison(RuleBasedStateMachine):
    """Both stores, side by side."""

    make_store: Callable[..., Store]

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.dead = ManualClock(), set[str]()
        self.place = tempfile.TemporaryDirectory(dir=FAST)
        named: dict[str, Any] = {"clock": self.clock, "is_dead": self.dead.__contains__, "draw": self.draw}
        self.calls = 0
        self.memory, self.other = MemoryStore(**named), type(self).make_store(Path(self.place.name), **named)
        self.batch = self.both(lambda store: store.open_batch("book", "pages", DEFINITIONS[0], actor="ann")).id
        self.held: list[tuple[Claim, int]] = []
        """Claims with the version that their holder expects; some were lost long ago."""
        self.sent: list[Commit] = []
        self.decided: list[Change] = []
        self.ids = 0

    def both(self, call: Callable[[Store], Any]) -> Any:
        """Call both stores; they must give the same answer, or both refuse."""
        self.calls += 1
        wanted, answer = _answer(call, self.memory), _answer(call, self.other)
        assert answer == wanted, f"answered {answer!r}, but the memory store {wanted!r}"
        return answer

    def draw(self, count: int) -> bytes:
        """Return bytes that are the same for both stores within a call, however often and in which order they ask. The
        key of the index is the same whenever a store makes it."""
        calls = 0 if count == INDEX_KEY_BYTES else self.calls
        return hashlib.shake_128(b"%d %d" % (calls, count)).digest(count)

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    # -- batches and items --------------------------------------------------------------------------------------

    @initialize(rows=st.lists(st.tuples(KEYS, st.just(0)), min_size=4, max_size=10))
    def begin(self, rows: list[tuple[Any, int]]) -> None:
        self.admit(rows[:6], ended=False)
        self.admit(rows[6:], ended=True)

    @rule(rows=st.lists(st.tuples(KEYS, st.integers(0, 1)), max_size=6), ended=st.booleans(), kind=KINDS)
    def admit(self, rows: list[tuple[Any, int]], ended: bool, kind: Kind = Kind.ITEMS) -> None:
        items: list[NewItem] = [ingest.admit(key, b"%d" % edition) for key, edition in rows]
        self.both(lambda store: store.known(self.batch, items))
        self.both(lambda store: store.add_items(self.batch, items, kind=kind, ended=ended, actor="ann"))
        self.both(lambda store: store.known(self.batch, items))
        self.both(lambda store: [find_item(store, self.batch, canonical.key_text(key)) for key, _ in rows])

    @rule(kind=st.sampled_from(["noted", "marked"]), once=st.booleans(), edition=st.integers(0, 1), pipeline=PIPELINES)
    def tell(self, kind: str, once: bool, edition: int, pipeline: str) -> None:
        self.both(lambda store: store.amend(self.batch, to_note(kind, Acted(reason="so"), once=once), actor="ann"))
        self.both(lambda store: store.open_batch("book", pipeline, DEFINITIONS[edition], actor="ann"))

    # -- time ---------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 10.0, 29.0, 30.0, 31.0, 100.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(owner=OWNERS)
    def kill_or_revive(self, owner: str) -> None:
        self.dead ^= {owner}

    # -- work ---------------------------------------------------------------------------------------------------

    @rule(owner=OWNERS, limit=st.integers(1, 5), cap=st.sampled_from([None, None, 0, 50]), reserve=st.integers(0, 12),
          keeping=st.booleans())  # fmt: skip
    def claim(self, owner: str, limit: int, cap: int | None, reserve: int, keeping: bool = False) -> None:
        cap = cap if self.other.capabilities.budget else None
        mine = frozenset(claim.lease.chunk for claim, _ in self.held if keeping and claim.lease.owner == owner)
        self._claim(
            ClaimRequest(batch=self.batch, owner=owner, limit=limit, seconds=30.0, cap=cap, reserve=reserve, keeps=mine)
        )

    @rule(owner=OWNERS, count=st.sampled_from([None, 1, 3]), share=st.sampled_from([None, 0.2]),
          only=st.sampled_from([None, 0, 2, 5, 99]))  # fmt: skip
    def claim_with_care(self, owner: str, count: int | None, share: float | None, only: int | None) -> None:
        """Claim within a tolerance, or one item only."""
        tolerance = DeadLimit(count=count, share=share)
        n = None if only is None else ItemNo(only)
        self._claim(ClaimRequest(batch=self.batch, owner=owner, limit=2, seconds=30.0, tolerance=tolerance, only=n))

    def _claim(self, want: ClaimRequest) -> None:
        answer = self.both(lambda store: store.claim(want))
        if isinstance(answer, Claim):
            self.held.append((answer, 0))

    @rule(data=st.data(), owner=OWNERS, limit=st.integers(2, 9), wait=WAITS)
    def work_through(self, data: st.DataObject, owner: str, limit: int, wait: float) -> None:
        """Claim, settle all items, release."""
        before = len(self.held)
        self.claim(owner, limit, None, 0)
        if len(self.held) > before:
            self._write([before], [self._commit(data, before, release=True, wait=wait, slip=0)])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), release=st.booleans(), wait=WAITS, slip=st.sampled_from([0, 0, 0, 0, 1, -1]))
    def work(self, data: st.DataObject, release: bool, wait: float, slip: int) -> None:
        """Settle some items of one or two claims and commit them together, some under a wrong version."""
        recent = range(max(0, len(self.held) - 5), len(self.held))
        chosen = data.draw(st.lists(st.sampled_from(recent), min_size=1, max_size=2, unique=True))
        self._write(chosen, [self._commit(data, at, release=release, wait=wait, slip=slip) for at in chosen])

    def _write(self, chosen: list[int], commits: list[Commit]) -> None:
        receipts = self.both(lambda store: store.commit(commits))
        for at, receipt, written in zip(chosen, receipts, commits, strict=True):
            claim, version = self.held[at]
            self.held[at] = (claim, version + receipt.landed)
            if written.version <= version:
                self.sent.append(written)

    def _commit(self, data: st.DataObject, at: int, *, release: bool, wait: float, slip: int) -> Commit:
        claim, version = self.held[at]
        some, most = data.draw(st.sampled_from([(9, 1 << 20), (9, 1 << 20), (2, 1 << 20), (9, 3)]))
        items = self.both(lambda store: store.load(claim, None, some, most))
        reached = [self._reached(item, data.draw(st.sampled_from([None, b"7"]))) for item in items if data.draw(RARELY)]
        drawn = []
        for item in items:
            fate = data.draw(FATES)
            # The checkpoint at the end of a partition belongs to the attempt that reached it; any other clears earlier
            # attempts.
            comes_further = fate != "done" and any(item is each.item for each in reached)
            drawn.append(_outcome(further(item) if comes_further else item, fate))
        outcomes = [outcome for outcome in drawn if outcome is not None]
        settled = settle(outcomes, stages=STAGES, policies=POLICIES, now=self.clock()) if outcomes else NOTHING
        holder = holder_of(claim, max(0, version + slip))
        due = self.clock() + wait if wait else 0.0
        return commit(holder, settled, commit_id=self.new_id(), release=release, due=due, reserved=5, reached=reached)

    def _reached(self, item: Item, acc: bytes | None) -> Reached:
        self.ids += 1
        return Reached(item=item, rows=self.ids, cursor=b"%d" % self.ids, acc=acc)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        again = data.draw(st.lists(st.sampled_from(self.sent), min_size=1, max_size=2))
        self.both(lambda store: [has_landed(store, each) for each in again])
        self.both(lambda store: store.commit(again))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.sampled_from([5.0, 30.0, 60.0]))
    def renew(self, data: st.DataObject, seconds: float) -> None:
        leases = [claim.lease for claim, _ in data.draw(st.lists(st.sampled_from(self.held), max_size=3))]
        self.both(lambda store: store.renew(leases, seconds))

    # -- operators ----------------------------------------------------------------------------------------------

    @rule(data=st.data(), seize=st.booleans(), at_once=st.booleans())
    def act(self, data: st.DataObject, seize: bool, at_once: bool) -> None:
        """Decide on some items in their current state; do it, or do something decided earlier."""
        decided = [change for row in self.memory.items(self.batch) if (change := _change(data, row)) is not None]
        chosen = (
            decided if at_once or not self.decided else data.draw(st.lists(st.sampled_from(self.decided), max_size=4))
        )
        self.decided += decided
        changes = tuple(chosen)
        act = Act(
            id=self.new_id(), batch=self.batch, kind="changed", actor="op", reason="so", at_items=changes, seize=seize
        )
        self.both(lambda store: store.act(act))

    # -- how it ends --------------------------------------------------------------------------------------------

    @rule(course=st.sampled_from([BatchMode.OPEN, BatchMode.OPEN, BatchMode.PAUSED]), end=st.sampled_from([None, 2e9]))
    def steer(self, course: BatchMode, end: float | None) -> None:
        self.both(lambda store: store.amend(self.batch, to_steer(course, reason="so", ends_at=end), actor="op"))

    @rule(expected=st.sampled_from([1, 5, 40]), reason=st.sampled_from(["", "so"]))
    def expect(self, expected: int, reason: str) -> None:
        self.both(lambda store: store.amend(self.batch, to_steer(None, reason=reason, expected=expected), actor="op"))

    @precondition(lambda self: self.ids > LATE)
    @rule()
    def close(self) -> None:
        self.both(lambda store: store.amend(self.batch, to_steer(None, reason="so", close=True), actor="op"))

    @precondition(lambda self: self.ids > LATE)
    @rule()
    def cancel(self) -> None:
        self.both(lambda store: store.amend(self.batch, to_steer(BatchMode.CANCELLED, reason="so"), actor="op"))

    @rule(told=st.booleans())
    def seal(self, told: bool) -> None:
        events = [warning("sealed", "so")] if told else []
        reason = "so" if told else ""
        self.both(lambda store: store.seal(self.batch, actor="op", reconciliation=b"{}", reason=reason, events=events))

    @rule()
    def reopen(self) -> None:
        self.both(lambda store: store.amend(self.batch, to_reopen("so"), actor="op"))

    @rule(receiver=st.sampled_from(["file", "hook"]), up_to=st.integers(0, 9))
    def deliver(self, receiver: str, up_to: int) -> None:
        if self.other.capabilities.events:
            self.both(lambda store: outbox_of(store).delivered(receiver, up_to))

    # -- what must be equal -------------------------------------------------------------------------------------

    @invariant()
    def both_have_written_the_same(self) -> None:
        self.both(lambda store: (store.batches(), store.chunks(self.batch), store.chunks(self.batch, pending=True)))

    def teardown(self) -> None:
        try:
            self.both(lambda store: store.items(self.batch))
            self.both(lambda store: [store.items(self.batch, state=state, lo=1, limit=3) for state in State])
            if self.other.capabilities.events:
                self.both(lambda store: (outbox_of(store).events(), outbox_of(store).events(2, limit=3)))
            self.both(lambda store: store.outputs(self.batch))
            self.both(lambda store: (store.checkpoints(self.batch), store.checkpoints(self.batch, lo=1, hi=4, limit=2)))
            self.both(lambda store: [store.outputs(self.batch, stage=stage, lo=1, limit=3) for stage in range(STAGES)])
            chains = [chain_of_batch(self.batch), *(chunk.id for chunk in self.memory.chunks(self.batch))]
            self.both(lambda store: [store.entries(chain) for chain in chains])
            compare(self.other, self.batch, replay(self.other, self.batch, POLICIES))
        finally:
            self.other.close()
            self.place.cleanup()


def comparison(make_store: MakeStore) -> type[Comparison]:
    """Return the machine for a store; pytest runs its `TestCase`, and `TestCase.settings` sets how much."""
    return type("StoreComparison", (Comparison,), {"make_store": staticmethod(make_store)})


def _change(data: st.DataObject, row: StoredItem) -> Change | None:
    kind = data.draw(st.sampled_from([None, None, None, *_LEGAL[row.place.state]]))
    if kind is None or (kind is Transition.REQUEUE and row.place.requeues >= REQUEUES):
        return None
    if kind is Transition.RESET:
        target = data.draw(st.integers(0, min(row.place.stage, STAGES - 1)))
        after = move(row.place, kind, stage=target, stages=STAGES, reason="so")
        begin = Checkpoint(row.n, 0, b"") if data.draw(RARELY) else None
        return replace(change_of(row.n, row.place, after), checkpoint=begin)
    if kind is Transition.REQUEUE:
        after = requeued(row.place, STAGES, reason="so")
    elif kind is Transition.REDRIVE:
        after = move(row.place, kind, stages=STAGES)
    else:
        after = move(row.place, kind, to=State.SKIPPED if kind is Transition.RESOLVE else None, stages=STAGES)
    return change_of(row.n, row.place, after)


_LEGAL = {
    State.PENDING: [Transition.CANCEL, Transition.REQUEUE, Transition.RESET],
    State.DONE: [Transition.RESET],
    State.SKIPPED: [Transition.RESET],
    State.DEAD: [Transition.REDRIVE, Transition.RESOLVE, Transition.DISCARD, Transition.RESET],
    State.CANCELLED: [Transition.RESET],
}


def _outcome(item: Item, fate: str) -> Outcome | None:
    output = item.input + b"+"
    match fate:
        case "done":
            return Done(item, output, 0.5, 1.5, _spend(item))
        case "transient" | "permanent":
            return Failed(item, fate == "transient", fate, "no", 0.5, 0.5, 1.5, spend=_spend(item))
        case "skip":
            return Skipped(item, "blank", 0.5, 1.5)
        case "defer":
            return Deferred(item, 15.0, "closed", 0.5, 1.5)
        case "lost":
            return Lost(item, item.place.stage - 1, "gone")
    return None


def _spend(item: Item) -> Spend:
    return Spend(item.n, usd=7, tokens=3)


def _answer(call: Callable[[Store], Any], store: Store) -> Any:
    try:
        answer = call(store)
        return replace(answer, mark=None) if isinstance(answer, Idle) else answer
    except HoldfastError as error:
        return type(error).__name__
