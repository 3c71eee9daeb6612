"""What is known about one batch after the fact, from three sides: the store, its journal, and the effects that the
handlers wrote down themselves.
"""

import json
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core import journal, sections
from holdfast.core.model import Batch, Chunk
from holdfast.stores.base import each_entry, each_item, each_output, find_batch
from holdfast.stores.sqlite import SqliteStore
from tests.faults import app

PASSED = frozenset({"advance", "adopt"})
CALLED = frozenset({"advance", "retry", "defer", "skip", "bury"})
"""What is written down only after a handler was called."""
CUT = "cut"
"""A run that ended at once left a handler behind. It may have paid before the entry was written, after, or never."""
KILLED = "killed_process"
"""The code of an item that was alone in processes that died. A handler did not run for that entry."""


class Effect(NamedTuple):
    """One call of a handler, as it told itself."""

    key: int
    stage: str
    pid: int
    cents: int
    at: float
    attempt: int
    fence: int


class Step(NamedTuple):
    """One thing that the journal says about one item at one stage."""

    at: float
    fence: int
    epoch: int
    attempt: int
    word: str
    """advance, adopt, retry, defer, cut, skip, bury, killed, rewind; or moved, by an act"""


class Grant(NamedTuple):
    """One claim, as the journal tells it."""

    at: float
    fence: int
    lo: int
    hi: int
    owner: str
    taken_from: str
    taken_to: int
    """Where the grant before it ended: what was cut off was in its hands, too."""
    snapshots: dict[int, tuple[int, int]]
    """Item -> (stage, attempts before)."""


@dataclass
class World:
    """What is known about one batch, from three sides."""

    folder: Path
    items: int
    crashed: frozenset[int]
    """Pids of processes that were killed, stopped, or ended by an error: only their chunks may be taken over."""
    batch: Batch
    chunks: list[Chunk]
    records: dict[int, Any]
    outputs: dict[tuple[int, int], Any]
    effects: list[Effect]
    steps: dict[tuple[int, int], list[Step]] = field(default_factory=lambda: defaultdict(list))
    spends: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(item, stage, fence, units)"""
    grants: list[Grant] = field(default_factory=list)
    commit_ids: Counter[bytes] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.number_of = {record.key: n for n, record in self.records.items()}

    def expect(self, holds: bool, message: str) -> None:
        if not holds:
            self.complaints.append(message)


def gather(store: SqliteStore, folder: Path, items: int, crashed: frozenset[int]) -> World:
    batch = find_batch(store, app.BATCH)
    assert batch is not None, "there is no batch"
    world = World(
        folder=folder, items=items, crashed=crashed, batch=batch, chunks=store.chunks(batch.id),
        records={record.n: record for record in each_item(store, batch.id)},
        outputs={(output.n, output.stage): output for output in each_output(store, batch.id)},
        effects=read_effects(folder / app.EFFECTS),
    )  # fmt: skip
    floors: dict[int, int] = {}
    for chunk in sorted(world.chunks, key=lambda chunk: chunk.id):
        last = floors.get(chunk.number, 0)
        for entry in each_entry(store, chunk.id):
            header, body = journal.decode_header(entry.head), sections.decode(entry)
            if isinstance(body, journal.Claimed):
                world.expect(
                    header.fence > last, f"chunk {chunk.id}: grant {entry.seq} has fence {header.fence} after {last}"
                )
                if body.child is not None:
                    floors[body.child[0]] = last
                last = header.fence
                take_grant(world, header, body)
            elif isinstance(body, journal.Checkpointed):
                world.expect(
                    header.fence == last,
                    f"chunk {chunk.id}: entry {entry.seq} has fence {header.fence}, granted was {last}",
                )
                world.commit_ids[header.commit_id] += 1
                take_steps(world, header, body)
            elif isinstance(body, journal.Acted):
                last = header.fence if body.seized else last
                for moved in body.items:
                    world.steps[moved.n, moved.stage_before].append(
                        Step(header.at, header.fence, moved.epoch, 0, "moved")
                    )
    return world


def read_effects(path: Path) -> list[Effect]:
    if not path.exists():
        return []
    lines = [whole(line) for line in path.read_text().splitlines()]
    return [Effect(**{"attempt": 0, "fence": 0} | line) for line in lines if line is not None]


def whole(line: str) -> dict[str, Any] | None:
    """What a line says. A kill can cut a write where a page of the file ends, and the next line then stands behind the
    torn one: the handler that wrote that never came back, so its effect counts for nobody."""
    for at in (at for at, character in enumerate(line) if character == "{"):
        with suppress(json.JSONDecodeError):
            found: dict[str, Any] = json.loads(line[at:])
            return found
    return None


def take_grant(world: World, header: journal.Header, body: journal.Claimed) -> None:
    snapshots = {each.n: (each.stage, each.attempt) for each in body.snapshots}
    taken_to = body.child[2] if body.child is not None else body.hi
    world.grants.append(
        Grant(header.at, header.fence, body.lo, body.hi, header.actor, body.taken_from, taken_to, snapshots)
    )


def take_steps(world: World, header: journal.Header, body: journal.Checkpointed) -> None:
    at, fence = header.at, header.fence
    for group in body.advanced:
        attempts = memoryview(group.attempts).cast("H").tolist() if group.attempts else [1] * len(group.items)
        epochs = memoryview(group.epochs).cast("H").tolist() if group.epochs else [0] * len(group.items)
        for n, attempt, epoch in zip(group.items, attempts, epochs, strict=True):
            world.steps[n, group.stage].append(Step(at, fence, epoch, attempt, "adopt" if group.adopted else "advance"))
    for each in body.attempts:
        world.steps[each.n, each.stage].append(Step(at, fence, each.epoch, each.attempt, word_of(each)))
    world.spends += [(said.n, stage, fence, said.usd) for stage, said in body.spends]


def word_of(attempt: journal.Attempted) -> str:
    if attempt.code == KILLED:
        return "killed"
    return CUT if attempt.outcome == "defer" and attempt.message.startswith("cut off: ") else attempt.outcome
