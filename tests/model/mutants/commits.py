"""Broken commits: guards that do not guard, entries that are not written, workers that do not wait."""

from collections.abc import Generator
from typing import Any

import msgspec

from holdfast.core import journal
from holdfast.core.model import Commit, Entry, Receipt
from holdfast.runtime.engine.leases import Sending
from holdfast.stores.base import has_landed
from holdfast.stores.memory import MemoryStore
from holdfast.testing.simulator.worker import SimulatedWorker
from tests.model.mutants.register import Patch, answering, committing, conformance, simulation, wrapped

replace = msgspec.structs.replace
Writing = Generator[float, None, list[Receipt]]


@simulation
def a_commit_is_taken_whatever_its_fence() -> Patch:
    def careless(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        now = store._chunks[commit.chunk]
        mine = replace(commit, fence=now.fence, grant=now.grant)
        return commit_one(store, commit if has_landed(store, commit) else mine)

    return committing(careless)


@simulation
def a_commit_is_taken_whatever_its_version() -> Patch:
    def careless(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        return commit_one(store, replace(commit, version=store._chunks[commit.chunk].version))

    return committing(careless)


@simulation
def a_commit_that_landed_is_not_remembered() -> Patch:
    return answering(MemoryStore, "_has_landed", answer=False)


@simulation
def a_release_has_no_entry() -> Patch:
    def silent(append: Any, store: MemoryStore, entry: Entry) -> None:
        if journal.decode_header(entry.head).kind != "released":
            append(store, entry)

    return wrapped(MemoryStore, "_append", silent)


@simulation
def outputs_are_written_but_places_are_not() -> Patch:
    def half(write: Any, store: MemoryStore, batch: Any, outputs: Any, _moves: Any, reached: Any) -> None:
        write(store, batch, outputs, (), reached)

    return wrapped(MemoryStore, "_store", half)


@simulation
def the_worker_goes_on_before_its_commit_is_written() -> Patch:
    def hasty(_write: Any, process: SimulatedWorker, commits: list[Commit]) -> Writing:
        process.world.begin(lambda: process.world.store.commit(commits), process.world.chance() * 10)
        yield 0.001
        return [Receipt(landed=True)] * len(commits)

    return wrapped(SimulatedWorker, "_write", hasty)


@simulation
def a_lost_reply_is_taken_for_success() -> Patch:
    return wrapped(
        Sending, "unheard", lambda _, sending, _landed: sending.heard([Receipt(landed=True)] * len(sending.left))
    )


@simulation
def a_lost_reply_is_answered_by_committing_again_under_another_id() -> Patch:
    def stubborn(_write: Any, process: SimulatedWorker, commits: list[Commit]) -> Writing:
        world = process.world
        receipts = yield from process.connection.send(process.name, commits)
        if receipts is not None:
            return receipts
        process.shaken = True
        versions = {chunk.id: chunk.version for chunk in world.store.chunks(world.batch.id)}
        return world.store.commit([replace(c, id=world.new_id(), version=versions[c.chunk]) for c in commits])

    return wrapped(SimulatedWorker, "_write", stubborn)


@conformance
def a_commit_is_no_heartbeat() -> Patch:
    def mute(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        return commit_one(store, replace(commit, extend=0.0))

    return committing(mute)


@conformance
def a_chunk_is_released_without_its_due_time() -> Patch:
    def at_once(commit_one: Any, store: MemoryStore, commit: Commit) -> Any:
        return commit_one(store, replace(commit, due=0.0))

    return committing(at_once)
