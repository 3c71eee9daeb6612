"""Broken scans: checkpoints that say more or less than was handled, walks that begin elsewhere or do not end where they
should, accumulators that do not go with their cursor."""

from collections.abc import Generator
from typing import Any

import msgspec

from holdfast.core import journal, sections, settle
from holdfast.core.model import Checkpoint, Commit, Item, Output
from holdfast.runtime.engine.desk import Desk
from holdfast.runtime.engine.exchange import CheckpointReached, Effect, Reply
from holdfast.runtime.engine.hold import Hold
from holdfast.stores.base import has_landed
from holdfast.stores.memory import MemoryStore
from holdfast.testing.simulator import handlers
from holdfast.testing.simulator.handlers import RangeWalk
from tests.model.mutants.register import Patch, answering, committing, simulation, wrapped

replace = msgspec.structs.replace


def _storing(change: Any) -> Patch:
    """The memory store, with `change(store, batch, checkpoint)` in the place of every checkpoint that it is given."""

    def other(write: Any, store: MemoryStore, batch: Any, outputs: Any, moves: Any, reached: Any) -> None:
        write(store, batch, outputs, moves, [at for each in reached if (at := change(store, batch, each)) is not None])

    return wrapped(MemoryStore, "_store", other)


def _accepting(blind: Any) -> Patch:
    """Commits with checkpoints, changed by `blind(chunk, commit)` before they are looked at."""

    def careless(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        if commit.checkpoints and not has_landed(store, commit):
            commit = blind(store._chunks[commit.chunk], commit)
        return commit_one(store, commit)

    return committing(careless)


@simulation
def a_checkpoint_moves_without_its_accumulator() -> Patch:
    def torn(store: MemoryStore, batch: Any, at: Checkpoint) -> Checkpoint:
        before = store._checkpoints.get((batch, at.n))
        return replace(at, acc=None if before is None else before.acc)

    return _storing(torn)


@simulation
def an_accumulator_is_kept_without_its_checkpoint() -> Patch:
    def torn(store: MemoryStore, batch: Any, at: Checkpoint) -> Checkpoint:
        before = store._checkpoints.get((batch, at.n))
        return at if before is None else replace(before, acc=at.acc)

    return _storing(torn)


@simulation
def a_checkpoint_is_written_before_its_rows_are_handled() -> Patch:
    late: dict[RangeWalk, list[int]] = {}

    def one_behind(go_on: Any, walk: RangeWalk) -> list[int]:
        before = walk._acc = handlers.fold(walk._acc, late.pop(walk, []))
        rows: list[int] = go_on(walk)
        if not walk.at_end:
            walk._acc, late[walk] = before, rows
        return rows

    return wrapped(RangeWalk, "go_on", one_behind)


@simulation
def a_walk_does_not_end_where_its_range_does() -> Patch:
    original = RangeWalk.__init__

    def long(walk: RangeWalk, item: Item, at: Checkpoint | None, length: int, every: int) -> None:
        original(walk, item, at, length + 1, every)

    return wrapped(RangeWalk, "__init__", lambda _init, *args: long(*args))


@simulation
def a_walk_goes_on_before_its_checkpoint_is_durable() -> Patch:
    def hasty(_save: Any, _desk: Desk, event: CheckpointReached) -> Generator[Effect, Any, None]:
        yield Reply([event.saving], landed=True)

    return wrapped(Desk, "_save", hasty)


@simulation
def a_walk_begins_where_it_stood_when_its_chunk_was_claimed() -> Patch:
    def forgetful(came_further: Any, hold: Hold) -> Any:
        claimed = dict(hold.checkpoints)
        rows = came_further(hold)
        hold.checkpoints = claimed
        return rows

    return wrapped(Hold, "_came_further", forgetful)


@simulation
def a_walk_always_begins_at_its_start() -> Patch:
    original = RangeWalk.__init__
    return wrapped(
        RangeWalk, "__init__", lambda _init, walk, item, _at, length, every: original(walk, item, None, length, every)
    )


@simulation
def a_reset_leaves_the_checkpoint_as_it_was() -> Patch:
    def deaf(act: Any, store: MemoryStore, given: Any) -> Any:
        before = dict(store._checkpoints)
        changed = act(store, given)
        store._checkpoints = before
        return changed

    return wrapped(MemoryStore, "act", deaf)


@simulation
def a_reset_takes_the_old_accumulator_along() -> Patch:
    def mixed(act: Any, store: MemoryStore, given: Any) -> Any:
        before = dict(store._checkpoints)
        changed = act(store, given)
        for at, after in store._checkpoints.items():
            if at in before and after is not before[at]:
                store._checkpoints[at] = replace(after, acc=before[at].acc)
        return changed

    return wrapped(MemoryStore, "act", mixed)


@simulation
def a_checkpoint_of_a_stale_owner_is_accepted() -> Patch:
    return _accepting(
        lambda chunk, commit: replace(commit, fence=chunk.fence, grant=chunk.grant, version=chunk.version)
    )


@simulation
def a_checkpoint_leaves_no_trace_in_the_journal() -> Patch:
    def silent(encode: Any, body: Any, *place: Any) -> Any:
        return encode(replace(body, positions=[]) if isinstance(body, journal.Checkpointed) else body, *place)

    return wrapped(sections, "encode", silent)


@simulation
def a_checkpoint_leaves_failed_attempts_where_they_were() -> Patch:
    return answering(settle, "_behind", answer=[])


@simulation
def a_checkpoint_is_kept_as_the_result() -> Patch:
    def mixed(write: Any, store: MemoryStore, batch: Any, outputs: Any, moves: Any, reached: Any) -> None:
        write(store, batch, [*outputs, *(Output(at.n, 0, 0, at.acc or b"") for at in reached)], moves, reached)

    return wrapped(MemoryStore, "_store", mixed)


@simulation
def the_end_of_a_range_is_no_checkpoint() -> Patch:
    def dropped(commit: Any, hold: Hold, *args: Any, **named: Any) -> Any:
        hold.reached.clear()
        return commit(hold, *args, **named)

    return wrapped(Hold, "commit", dropped)
