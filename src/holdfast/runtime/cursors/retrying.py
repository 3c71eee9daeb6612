"""`holdfast reset` of a scan: by default a partition resumes at its checkpoint, with a fresh budget of attempts.

It begins again at its first row only if that is said, and a person may settle it by hand instead.
"""

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Shift, Standing
from holdfast.core.errors import Refused, UsageError
from holdfast.core.limits import OUTPUT_BYTES
from holdfast.core.model import Batch, Change, Chunk, Output, State, StoredItem
from holdfast.core.states import ItemFacts, Transition, move
from holdfast.runtime import lookup
from holdfast.runtime.acts import MEANWHILE, Acts, By, Result
from holdfast.runtime.cursors.acts import RESET, Plan, Turn, owner_of, to_beginning
from holdfast.runtime.cursors.standing import borders, chunk_of, standings
from holdfast.runtime.lifecycle import end
from holdfast.runtime.operate import reconcile
from holdfast.runtime.operate.operations import RESOLVED
from holdfast.runtime.text import command
from holdfast.stores.base import Store

BY_HAND = "by_hand"
"""The code of a partition that a person is about to settle."""
DONE = "done: --from-start does it again"
FRESH = "it resumes at its checkpoint anyway"


def plan_retry(store: Store, batch: Batch, partition: str | None = None, *, from_start: bool = False) -> Plan:
    """What a reset would do: resume where each stands, or from its first row."""
    if from_start:
        return to_beginning(store, batch, partition)
    end.check_goes_on(store, batch)
    chunks, now = store.chunks(batch.id), store.now()
    turns = []
    for at in standings(store, batch, partition):
        chunk = chunk_of(chunks, at.n)
        decided = _decide(at, chunk, "…", named=partition is not None)
        turns.append(Turn(at=at, to=None, shift=Shift(), owner=owner_of(chunk, now), fence=chunk.fence,
                          left=decided if isinstance(decided, str) else ""))  # fmt: skip
    return Plan(kind=RESET, batch=batch.name, parts=tuple(turns), origin={"to": "its checkpoint"})


def retry(store: Store, batch: Batch, plan: Plan, by: By, *, named: bool) -> Result:
    """Let partitions resume at their checkpoints: attempts at 0, the result cleared, an owner at work fenced off. One
    that is done is left alone unless it is named."""
    end.check_goes_on(store, batch)
    chunks = store.chunks(batch.id)
    decided = (_decide(turn.at, chunk_of(chunks, turn.at.n), by.reason, named=named) for turn in plan.parts)
    return (
        Acts(store, batch, by).carry_out(RESET, decided, seize=True, body=canonical.encode(plan.origin)).result(RESET)
    )


def _decide(at: Standing, chunk: Chunk, reason: str, *, named: bool) -> Change | str:
    if at.place.state is State.DONE and not named:
        return DONE
    is_held = chunk.owner is not None and at.place.state is State.PENDING
    decided = cursor.go_on_from(at, None, 1, reason=reason, even_so=is_held)
    return FRESH if isinstance(decided, str) else decided


def settle(store: Store, batch: Batch, by: By, partition: str, result: bytes | None) -> Result:
    """Settle a partition by hand: done with the result that a person gives, or without one skipped. It counts as it is
    given: no further row of the partition is read."""
    end.check_open(store, batch)
    item = lookup.item_named(store, batch, partition)
    if borders(item) is None:
        raise UsageError(f"item {item.key!r} of {batch.name!r} is a row: use `holdfast dead resolve`")
    if item.place.state not in (State.DEAD, State.PENDING):
        return Result(kind=RESOLVED, batch=batch.name, changed=0, left_alone=((f"{item.place.state} already", 1),))
    if item.place.state is State.PENDING:
        item = _taken_out(store, batch, by, item)
        if item.place.state is not State.DEAD:
            return Result(kind=RESOLVED, batch=batch.name, changed=0, left_alone=((MEANWHILE, 1),))
    facts: ItemFacts = {"code": RESOLVED, "reason": by.reason}
    if result is None:
        place = move(item.place, Transition.RESOLVE, to=State.SKIPPED, stages=1, **facts)
        change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=place)
    else:
        place = move(item.place, Transition.RESOLVE, to=State.DONE, stage=1, stages=1, **facts)
        change = Change(
            n=item.n, state=item.place.state, epoch=item.place.epoch, place=place,
            output=Output(item.n, 0, place.epoch, result), output_digest=canonical.digest(item.salt, result),
        )  # fmt: skip
    acts = Acts(store, batch, by)
    acts.write(RESOLVED, [change], seize=True)
    reconcile.look_for_end(store, batch, actor=by.actor)
    return acts.result(RESOLVED)


def check_unsettled(batch: Batch, state: State, partition: str) -> None:
    """Refuse to settle by hand what is settled."""
    if state not in (State.DEAD, State.PENDING):
        raise Refused(
            f"partition {partition} of {batch.name!r} is {state} already: if that is not to stay, first "
            f"`{command('reset', batch.name, partition)}`; nothing was changed"
        )


def _taken_out(store: Store, batch: Batch, by: By, item: StoredItem) -> StoredItem:
    """A partition that would run again is buried first, and taken from whoever holds it: only what is dead is settled
    by hand. A crash after that leaves a dead letter, and the same command again settles it."""
    place = move(item.place, Transition.BURY, stages=1, code=BY_HAND, reason=by.reason)
    change = Change(n=item.n, state=item.place.state, epoch=item.place.epoch, place=place)
    Acts(store, batch, by).write("buried", [change], seize=True)
    found = lookup.item_of(store, batch, item.n)
    assert found is not None
    return found


def check_result(data: bytes, what: str) -> bytes:
    """The canonical bytes of a result that a person wrote as JSON."""
    if len(data) > OUTPUT_BYTES:
        raise UsageError(f"{what}: a result has at most {OUTPUT_BYTES:,} bytes, this one has {len(data):,}")
    try:
        return canonical.encode_typed(canonical.decode_typed(data, what), what)
    except UsageError as error:
        raise UsageError(f"{error}: a result is one JSON value; nothing was changed") from None


def unlike(at: Standing, result: bytes) -> str:
    """Why a result may not be what `converge` expects, from what the partition accumulated; empty where it may be."""
    if at.acc is None:
        return ""
    mine, theirs = (type(canonical.decode_typed(each)).__name__ for each in (result, at.acc))
    return "" if mine == theirs else f"what it has accumulated is a {theirs}, this is a {mine}: can converge take it?"
