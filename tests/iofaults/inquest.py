"""What must be true of a life (see `life.py`), whatever the disk did in the middle of it.

`look_at_files` holds at every moment; `hold` after a process has come to the end.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.core import journal, sections
from holdfast.core.model import Batch, State, chain_of_batch
from holdfast.runtime.operate import audit
from holdfast.runtime.report import lifecycle
from holdfast.runtime.sinks.names import FOLDER
from holdfast.stores.base import each_entry, each_item, each_output, find_batch
from holdfast.stores.sqlite import SqliteStore
from tests.iofaults import life


def look_at_files(folder: Path) -> list[str]:
    """A file that has its final name is whole, and what was said to be published is there."""
    out = folder / life.OUT
    files = {path.name: path for path in out.glob("*") if path.name != FOLDER} if out.exists() else {}
    whole = {f"{key}.json": life.output_of(key, 1) + b"\n" for key in life.KEYS}
    found = [
        f"{name} is a half-written file, or nobody's" for name in files if files[name].read_bytes() != whole.get(name)
    ]
    for said in acks(folder, "published"):
        found += [f"{name} was published and is gone" for name in said["files"] if not (folder / name).exists()]
    return found


def hold(folder: Path, runs: int) -> list[str]:
    """Every complaint about a life that came to its end in so many runs."""
    store = SqliteStore(folder / life.STORE)
    try:
        batch = find_batch(store, "life")
        if batch is None:
            return ["the batch is gone"]
        complaints = [f"audit: {each.where}: {each.message}" for each in audit.verify(store, batch, full=True).findings]
        entries = [entry for chunk in store.chunks(batch.id) for entry in each_entry(store, chunk.id)]
        complaints += look_at_items(store, batch.id) + look_at_effects(folder, entries, runs)
        complaints += look_at_acks(folder, entries)
        notes = [e for e in each_entry(store, chain_of_batch(batch.id)) if kind_of(e) == lifecycle.STAGE_COMPLETED]
        if len(notes) != 1:
            complaints.append(f"the completion is noted {len(notes)} times")
        return complaints + look_at_end(store, batch) + look_at_files(folder)
    finally:
        store.close()


def look_at_end(store: SqliteStore, batch: Batch) -> list[str]:
    """It is sealed, once, and others heard of what happened, and of nothing else."""
    seals = [entry for entry in each_entry(store, chain_of_batch(batch.id)) if kind_of(entry) == "sealed"]
    found = [] if batch.sealed_at is not None and len(seals) == 1 else [f"it is sealed {len(seals)} times"]
    told = store.events()
    if tuple(event.kind for event in told) != life.TOLD:
        found.append(f"the outbox tells {[event.kind for event in told]}")
    at = store.delivered(life.RECEIVER)
    return found if at == told[-1].id else [*found, f"the receiver is at {at}, the last event is {told[-1].id}"]


def look_at_items(store: SqliteStore, batch: Any) -> list[str]:
    """Every item is there once and done, with both outputs; totals are what the items cost."""
    items = list(each_item(store, batch))
    found = [f"item {item.key!r} is {item.place.state} ({item.place.reason})" for item in items
             if item.place.state is not State.DONE or item.place.epoch]  # fmt: skip
    if sorted(int(item.key) for item in items) != sorted(life.KEYS):
        found.append(f"the items are {[item.key for item in items]}")
    outputs = {(output.n, output.stage): output for output in each_output(store, batch)}
    for item in items:
        read = outputs.get((item.n, 0))
        if read is None or read.data != life.output_of(int(item.key), 0):
            found.append(f"item {item.key!r} has lost its first output")
    chunks = store.chunks(batch)
    done, spent = sum(c.counts.done for c in chunks), sum(c.counts.spent for c in chunks)
    paid = life.COST * (len(life.KEYS) * len(life.STAGES) + 1)
    if (done, spent) != (len(life.KEYS), paid):
        found.append(f"the totals say {done} done for {spent}, it were {len(life.KEYS)} for {paid}")
    found += [f"chunk {c.id} is still held" for c in chunks if c.owner is not None]
    return found


def look_at_effects(folder: Path, entries: list[Any], runs: int) -> list[str]:
    """Each stage of an item is passed once; its handler was called for it, and at most once more for each crash."""
    bodies = [sections.decode(entry) for entry in entries]
    passed: Counter[tuple[int, int]] = Counter()
    buried: Counter[tuple[int, int]] = Counter()
    for body in bodies:
        if isinstance(body, journal.Checkpointed):
            for group in body.advanced:
                passed.update((life.KEYS[n], group.stage) for n in group.items)
            buried.update((life.KEYS[each.n], each.stage) for each in body.attempts)
    found = [f"item {key} passed {life.STAGES[stage]!r} {passed[key, stage]} times"
             for key in life.KEYS for stage in (0, 1) if passed[key, stage] != 1]  # fmt: skip
    if buried != Counter({(life.MORTAL, 0): 1}):
        found.append(f"attempts that failed are recorded as {dict(buried)}")
    acted = [body for body in bodies if isinstance(body, journal.Acted)]
    if len(acted) != 1:
        found.append(f"it was redriven {len(acted)} times")
    calls = Counter((int(line["key"]), line["stage"]) for line in lines(folder / life.EFFECTS))
    for what, times in (passed + buried).items():
        if not times <= calls[what] <= times + runs - 1:
            found.append(f"item {what[0]}, {life.STAGES[what[1]]!r}: called {calls[what]} times, recorded {times}")
    return found


def look_at_acks(folder: Path, entries: list[Any]) -> list[str]:
    """Whatever a verb has answered is in the journal."""
    headers = [journal.decode_header(entry.head) for entry in entries]
    commits = Counter(header.commit_id.decode() for header in headers if header.kind == "checkpoint")
    fences = [header.fence for header in headers if header.kind == "claimed"]
    found = [f"commit {said['commit']} was acknowledged and is lost" for said in acks(folder, "landed")
             if commits[said["commit"]] == 0]  # fmt: skip
    found += [f"commit {name} landed {times} times" for name, times in commits.items() if times > 1]
    found += [f"fence {said['fence']} was granted and is forgotten" for said in acks(folder, "granted")
              if said["fence"] not in fences]  # fmt: skip
    return found


def left_to(folder: Path, pid: int) -> list[str]:
    """What a process found to do: nothing, where another had come to the end."""
    called = [line for line in lines(folder / life.EFFECTS) if line["pid"] == pid]
    landed = [said for said in acks(folder, "landed") + acks(folder, "granted") if said["pid"] == pid]
    redriven = [said for said in acks(folder, "redriven") if said["pid"] == pid and said["count"]]
    return [f"the next run had {len(called + landed + redriven)} things to do"] if called + landed + redriven else []


def acks(folder: Path, word: str) -> list[dict[str, Any]]:
    return [said for said in lines(folder / life.ACKS) if said["word"] == word]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kind_of(entry: Any) -> str:
    return journal.decode_header(entry.head).kind
