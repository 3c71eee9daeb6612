"""The tools of the suite's checks: a store, a clock, and short functions for the actions of workers."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec.structs import replace

from holdfast.core import canonical, cursor, ingest
from holdfast.core.acts import change_of
from holdfast.core.commitments import Draw
from holdfast.core.course import to_steer
from holdfast.core.journal import Body, Spend, decode_header
from holdfast.core.model import (
    Act,
    Admitted,
    Batch,
    BatchId,
    Change,
    Checkpoint,
    Chunk,
    ChunkId,
    Claim,
    ClaimRequest,
    Commit,
    Entry,
    Item,
    ItemNo,
    ItemState,
    Kind,
    NewItem,
    Receipt,
    State,
    chain_of_batch,
)  # fmt: skip
from holdfast.core.outcome import Deferred, Done, Failed, Outcome, Skipped
from holdfast.core.retry import Policy
from holdfast.core.sections import decode
from holdfast.core.settle import NOTHING, Holder, Reached, commit, settle, start
from holdfast.core.states import Transition, move
from holdfast.stores.base import (
    CopiedItem,
    Idle,
    Store,
    each_checkpoint,
    each_entry,
    each_item,
    each_output,
    random_bytes,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.replay import Story, compare, replay

STAGES = 2
POLICIES = [Policy()] * STAGES
LEASE = 30.0
DEFINITION = canonical.encode({"stages": [{"name": "read"}, {"name": "write"}]})
ONE_STAGE = canonical.encode({"stages": [{"name": "read"}]})


class MakeStore(Protocol):
    """A function that makes an empty store. `place` is an empty folder, for stores that keep files. The store takes the
    time from `clock`, and random bytes for ids and salts from `draw`."""

    def __call__(
        self, place: Path, *, clock: Callable[[], float], is_dead: Callable[[str], bool], draw: Draw
    ) -> Store: ...


class Kit:
    """One store with one open batch of two stages."""

    def __init__(self, make_store: MakeStore, place: Path) -> None:
        self._make_store, self._place = make_store, place
        self.clock = ManualClock()
        self.dead: set[str] = set()
        """Owners whose process is known to have ended."""
        self.store = self.open_again()
        self.batch: BatchId = self.store.open_batch("book", "pages", DEFINITION, actor="tester").id
        self._ids = itertools.count(1)

    def open_again(self) -> Store:
        """Return another handle on the same place."""
        return self._make_store(self._place, clock=self.clock, is_dead=self.dead.__contains__, draw=random_bytes)

    def new_id(self) -> bytes:
        return next(self._ids).to_bytes(16, "big")

    # -- words for what workers do ------------------------------------------------------------------------------

    def admit(
        self, *keys: object, payload: bytes | None = None, kind: Kind = Kind.ITEMS, ended: bool = False
    ) -> Admitted:
        items = [new_item(key, payload) for key in keys]
        return self.store.add_items(self.batch, items, kind=kind, ended=ended, actor="ingester")

    def want(
        self, owner: str = "ann", limit: int = 100, seconds: float = LEASE, reserve: int = 0, cap: int | None = None,
        only: int | None = None, keeps: frozenset[ChunkId] = frozenset(),
    ) -> ClaimRequest:  # fmt: skip
        return ClaimRequest(batch=self.batch, owner=owner, limit=limit, seconds=seconds, reserve=reserve, cap=cap,
                    only=None if only is None else ItemNo(only), keeps=keeps)  # fmt: skip

    def claim(
        self, owner: str = "ann", limit: int = 100, seconds: float = LEASE, reserve: int = 0, cap: int | None = None,
        only: int | None = None, keeps: frozenset[ChunkId] = frozenset(),
    ) -> Claim:  # fmt: skip
        """Return a claim that must be granted."""
        answer = self.store.claim(self.want(owner, limit, seconds, reserve, cap, only, keeps))
        assert isinstance(answer, Claim), f"nothing was granted to {owner}: {answer}"
        return answer

    def idle(
        self, owner: str = "ann", limit: int = 100, seconds: float = LEASE, reserve: int = 0, cap: int | None = None,
        only: int | None = None, keeps: frozenset[ChunkId] = frozenset(),
    ) -> Idle:  # fmt: skip
        """Return the answer to a claim that must not be granted, without the mark, which may have any value."""
        answer = self.store.claim(self.want(owner, limit, seconds, reserve, cap, only, keeps))
        assert isinstance(answer, Idle), f"{owner} was granted {answer}"
        return replace(answer, mark=None)

    def load(self, claim: Claim) -> list[Item]:
        return self.store.load(claim, None, 1000, 1 << 30)

    def commit_of(self, claim: Claim, outcomes: Sequence[Outcome] = (), *, version: int = 0, release: bool = False,
                  due: float = 0.0, reserved: int = 0) -> Commit:  # fmt: skip
        """Return the commit that follows from the outcomes, not yet written."""
        settled = settle(outcomes, stages=claim.end, policies=POLICIES, now=self.clock()) if outcomes else NOTHING
        return commit(holder_of(claim, version), settled, commit_id=self.new_id(), release=release, due=due,
                      reserved=reserved)  # fmt: skip

    def land(self, claim: Claim, outcomes: Sequence[Outcome] = (), *, version: int = 0, release: bool = False,
             due: float = 0.0, reserved: int = 0) -> Commit:  # fmt: skip
        """Return a commit that must land."""
        written = self.commit_of(claim, outcomes, version=version, release=release, due=due, reserved=reserved)
        assert self.store.commit([written]) == [Receipt(landed=True)]
        return written

    def reach(self, claim: Claim, item: Item, rows: int, *, version: int = 0, acc: bytes | None = None,
              outcomes: Sequence[Outcome] = (), release: bool = False) -> Commit:  # fmt: skip
        """Return the commit of a checkpoint after that many rows, not yet written."""
        at = Reached(item=item, rows=rows, cursor=cursor.encode(cursor.Cursor("row", rows)), acc=acc)
        settled = settle(outcomes, stages=claim.end, policies=POLICIES, now=self.clock()) if outcomes else NOTHING
        return commit(holder_of(claim, version), settled, commit_id=self.new_id(), release=release, reached=[at])

    def start(self, claim: Claim) -> Commit:
        """Commit the start of an item on trial, which must land."""
        written = start(holder_of(claim, claim.version), commit_id=self.new_id())
        assert self.store.commit([written]) == [Receipt(landed=True)]
        return written

    def finish(self, claim: Claim, *, version: int = 0) -> int:
        """Take every item of the claim through its remaining stages, and release it; return the version after that."""
        while True:
            items = self.load(claim)
            left = [item for item in items if item.place.stage < STAGES - 1]
            self.land(claim, [done(item) for item in left or items], version=version, release=not left)
            version += 1
            if not left:
                return version

    def act(self, kind: str, *changes: Change, seize: bool = False, beyond: int = 0) -> list[ItemNo]:
        act = Act(
            id=self.new_id(),
            batch=self.batch,
            kind=kind,
            actor="operator",
            reason="because",
            at_items=changes,
            seize=seize,
            beyond=beyond,
        )
        return self.store.act(act)

    def expect(self, expected: int, reason: str = "") -> Batch:
        """Set the expected number of items of the batch."""
        return self.store.amend(self.batch, to_steer(None, reason=reason, expected=expected), actor="operator").batch

    # -- words for what there is ------------------------------------------------------------------------------------

    def place(self, n: int) -> ItemState:
        (row,) = self.store.items(self.batch, lo=n, hi=n + 1)
        return row.place

    def states(self) -> list[State]:
        return [row.place.state for row in self.store.items(self.batch)]

    def chunk(self, number: int) -> Chunk:
        """Return the chunk with that id."""
        return next(chunk for chunk in self.store.chunks(self.batch) if chunk.id == number)

    def chain(self, chain: int | None = None) -> list[Entry]:
        """Return the entries of a chunk, or of the batch."""
        return self.store.entries(chain_of_batch(self.batch) if chain is None else chain)

    def kinds(self, chain: int | None = None) -> list[str]:
        return [decode_header(entry.head).kind for entry in self.chain(chain)]

    def last(self, chain: int | None = None) -> Body:
        """Return the body of the last entry."""
        return decode(self.chain(chain)[-1])

    def everything(self) -> tuple[object, ...]:
        """Return everything that can be read: equal results before and after mean that nothing changed."""
        store, batch = self.store, self.batch
        chunks = store.chunks(batch)
        chains = [store.entries(chain) for chain in (chain_of_batch(batch), *(chunk.id for chunk in chunks))]
        return store.batches(), chunks, store.items(batch), store.outputs(batch), store.checkpoints(batch), chains

    def at(self, store: Store, batch: BatchId) -> "Kit":
        """Return a kit for a batch of a store, with the same clock and the same counter of ids."""
        other = copy(self)
        other.store, other.batch = store, batch
        return other

    def check(self) -> Story:
        """Check that every chain verifies, and that items and chunks agree with the journal."""
        story = replay(self.store, self.batch, POLICIES)
        compare(self.store, self.batch, story)
        return story


class HeldCopy:
    """A copy of a batch, read from any store and held in memory: for `Store.install`."""

    def __init__(self, store: Store, batch: BatchId) -> None:
        self.batch = next(each for each in store.batches() if each.id == batch)
        self.chunks: Sequence[Chunk] = store.chunks(batch)
        self._checkpoints = list(each_checkpoint(store, batch))
        made = list(each_output(store, batch))
        self._items = [
            CopiedItem(store.revisions(batch, item.n), [output for output in made if output.n == item.n])
            for item in each_item(store, batch)
        ]
        chains = [(0, chain_of_batch(batch)), *((chunk.number, int(chunk.id)) for chunk in self.chunks)]
        self._entries = [(number, entry) for number, chain in chains for entry in each_entry(store, chain)]

    def items(self) -> Iterator[CopiedItem]:
        return iter(self._items)

    def checkpoints(self) -> Iterator[Checkpoint]:
        return iter(self._checkpoints)

    def entries(self) -> Iterator[tuple[int, Entry]]:
        return iter(self._entries)

    def content(self) -> tuple[object, ...]:
        """Return everything, without the numbers that another store gives to the batch and its chunks."""
        numbers = {chunk.id: chunk.number for chunk in self.chunks}
        chunks = [
            replace(chunk, id=ChunkId(chunk.number), batch=BatchId(0),
                    parent=None if chunk.parent is None else ChunkId(numbers[chunk.parent]))
            for chunk in self.chunks
        ]  # fmt: skip
        entries = [(number, replace(entry, chain=number)) for number, entry in self._entries]
        return replace(self.batch, id=BatchId(0)), chunks, self._items, self._checkpoints, entries


# -- outcomes and changes -----------------------------------------------------------------------------------------


def holder_of(claim: Claim, version: int, seconds: float = LEASE) -> Holder:
    """Return the grant under which a commit is made."""
    lease = claim.lease
    return Holder(batch=claim.batch, uid=claim.uid, chunk=lease.chunk, number=claim.number, fence=lease.fence,
                  grant=lease.grant, version=version, seconds=seconds)  # fmt: skip


def answer(*, added: int, lo: int, known: int = 0, changed: Sequence[tuple[int, int]] = ()) -> Admitted:
    """Return the expected answer of `add_items`."""
    return Admitted(added=added, lo=ItemNo(lo), known=known, changed=tuple((at, ItemNo(n)) for at, n in changed))


def new_item(key: object, payload: bytes | None = None) -> NewItem:
    text = canonical.storable(str(key))
    return ingest.admit(key, canonical.encode({"key": text}) if payload is None else payload)


def output_of(item: Item) -> bytes:
    """Return the output of a stage for the input of an item."""
    return item.input + b"|%d" % item.place.stage


def done(item: Item, *, usd: int = 0) -> Done:
    output = output_of(item)
    spend = Spend(item.n, usd=usd, tokens=7) if usd else None
    return Done(item, output, 0.25, 0.5, spend)


def failed(item: Item, *, transient: bool = True, usd: int = 0) -> Failed:
    spend = Spend(item.n, usd=usd) if usd else None
    return Failed(item, transient, "http_503" if transient else "http_404", "no answer", 0.5, 0.25, 0.5, spend=spend)


def skipped(item: Item) -> Skipped:
    return Skipped(item, "blank", 0.25, 0.5)


def deferred(item: Item, seconds: float = 60.0) -> Deferred:
    return Deferred(item, seconds, "closed", 0.25, 0.5)


def redrive(n: int, place: ItemState) -> Change:
    """Return the change that redrives a dead item."""
    return change_of(ItemNo(n), place, move(place, Transition.REDRIVE, stages=STAGES))


def reset(n: int, place: ItemState, stage: int = 0) -> Change:
    """Return the change that makes an item begin again at a stage, in the next epoch."""
    after = move(place, Transition.RESET, stage=stage, stages=STAGES, reason="because")
    return change_of(ItemNo(n), place, after)


def cancel(n: int, place: ItemState) -> Change:
    after = move(place, Transition.CANCEL, stages=STAGES)
    return change_of(ItemNo(n), place, after)


# -- marking checks -----------------------------------------------------------------------------------------------

Check = Callable[[Kit], None]
_C = TypeVar("_C", bound=Check)


def proves(*promises: str) -> Callable[[_C], _C]:
    """Mark a check with the promises that depend on it; there may be none."""

    def mark(check: _C) -> _C:
        check.promises = promises  # type: ignore[attr-defined]
        return check

    return mark


def needs(*capabilities: str) -> Callable[[_C], _C]:
    """Mark a check with the capabilities that a store needs for it, by the names in `Capabilities`."""

    def mark(check: _C) -> _C:
        check.capabilities = capabilities  # type: ignore[attr-defined]
        return check

    return mark
