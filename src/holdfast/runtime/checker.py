"""Verified resume: what is recorded as done is looked at before it is believed.

Quick looks at files only: present, of the recorded size, of the recorded time. Full reads everything: digests against
the journal, schemas, verifiers. An output that fails sends its item, and no other, back to the stage that makes it,
in a new epoch, with the reason in the journal. Outputs themselves are never edited or deleted.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.core import canonical, journal
from holdfast.core.errors import SinkError, UsageError
from holdfast.core.limits import REWINDS
from holdfast.core.model import Act, Batch, BatchId, Change, Chunk, Output, State, StoredItem
from holdfast.core.states import Transition, go_back
from holdfast.runtime.schema import Invalid
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.stage import Stage, Verifier
from holdfast.stores.base import Store, each_entry, each_output, lineage

Level = Literal["none", "quick", "full"]
GROUP = 500


def check_level(level: str) -> None:
    """Refuse words we do not know."""
    if level not in ("none", "quick", "full"):
        raise UsageError(f'verify={level!r}: say "none", "quick" or "full"')


def recheck(
    store: Store, batch: Batch, stages: Sequence[Stage], level: Level, actor: str, *, stopping: Callable[[], bool]
) -> int:
    """Look at what is recorded and rewind what does not hold; returns how many items went back."""
    with_files = any(stage.sink is not None for stage in stages)
    if level == "none" or (level == "quick" and not with_files) or not batch.admitted:
        return 0
    rewound = 0
    chunks = store.chunks(batch.id)
    for chunk in chunks:
        digests = digests_of(store, chunks, chunk) if level == "full" else {}
        for item, outputs in _recorded(store, batch.id, chunk):
            if stopping():
                return rewound
            bad = first_bad(item, outputs, stages, digests, full=level == "full")
            if bad is not None:
                rewound += rewind(store, batch.id, item, *bad, stages=len(stages), actor=actor)
    return rewound


def publish_leftovers(store: Store, batch: Batch, stages: Sequence[Stage]) -> None:
    """Give their final names to outputs that are recorded and have none: whoever recorded them died before it could."""
    for index, stage in enumerate(stages):
        left = stage.sink.leftovers() if stage.sink is not None else ()
        staged = {each.path for each in left if each.kind == "staged"}
        for output in each_output(store, batch.id, stage=index) if staged else ():
            evidence = Evidence.decode(output.file) if output.file is not None else None
            if evidence is not None and evidence.staged in staged and stage.sink is not None:
                stage.sink.publish([evidence])


def _recorded(store: Store, batch: BatchId, chunk: Chunk) -> Iterator[tuple[StoredItem, list[Output]]]:
    """Items that have outputs to look at, with their outputs."""
    lo = int(chunk.lo)
    while lo < chunk.hi:
        hi = min(lo + GROUP, chunk.hi)
        outputs: dict[int, list[Output]] = {}
        for output in store.outputs(batch, lo=lo, hi=hi, limit=GROUP * 64):
            outputs.setdefault(output.n, []).append(output)
        if outputs:
            for item in store.items(batch, lo=lo, hi=hi, limit=GROUP):
                if item.place.state in (State.DONE, State.PENDING) and item.n in outputs:
                    yield item, [o for o in outputs[item.n] if o.stage < item.place.stage]
        lo = hi


def first_bad(
    item: StoredItem,
    outputs: list[Output],
    stages: Sequence[Stage],
    digests: dict[tuple[int, int], bytes],
    *,
    full: bool,
    publish: bool = True,
) -> tuple[int, str] | None:
    """The first stage whose output does not hold, and why; with `publish`, what lacks its final name gets it."""
    for output in outputs:
        stage = stages[output.stage]
        reason = _file_reason(stage, output, full, publish) if output.file is not None else None
        if reason is None and full:
            reason = _content_reason(item, stage, output, digests)
        if reason is not None:
            return output.stage, f"the output of stage {stage.name!r}: {reason}"
    return None


def _file_reason(stage: Stage, output: Output, full: bool, publish: bool) -> str | None:
    if stage.sink is None or output.file is None:
        return None
    return stage.sink.check(Evidence.decode(output.file), full=full, publish=publish)


def _content_reason(
    item: StoredItem, stage: Stage, output: Output, digests: dict[tuple[int, int], bytes]
) -> str | None:
    try:
        data = (
            output.data
            if output.file is None
            else stage.sink.read(Evidence.decode(output.file))
            if stage.sink
            else None
        )
        if data is None:
            return "it is gone"
        expected = digests.get((item.n, output.stage))
        if expected is not None and canonical.digest(item.salt, data) != expected:
            return "it is not what the journal recorded"
        value = stage.output.decode(data)
    except (Invalid, SinkError, OSError) as error:
        return str(error)
    return None if stage.verifier is None or stage.verifier.wants_item else _verdict(stage.verifier, value)


def _verdict(verifier: Verifier, value: Any) -> str | None:
    try:
        return None if verifier.holds(value, None, None) else "its verifier does not accept it"
    except Exception as error:  # noqa: BLE001 - the user's; an output that cannot be verified does not count
        return f"its verifier raised {type(error).__name__}: {error}"


def digests_of(store: Store, chunks: Sequence[Chunk], chunk: Chunk) -> dict[tuple[int, int], bytes]:
    """(item, stage) -> the newest digest in the journal, for the items of a chunk."""
    found: dict[tuple[int, int], bytes] = {}
    size = canonical.DIGEST_BYTES
    for ancestor in lineage(chunks, chunk.lo):
        for entry in each_entry(store, ancestor.id):
            body = journal.decode_body(entry.body)
            if not isinstance(body, journal.Checkpointed):
                continue
            for group in body.advanced:
                for index, n in enumerate(group.items):
                    if chunk.lo <= n < chunk.hi:
                        found[n, group.stage] = group.digests[index * size : index * size + size]
    return found


def rewind(store: Store, batch: BatchId, item: StoredItem, stage: int, reason: str, *, stages: int, actor: str) -> int:
    """Send an item back to the stage whose output does not hold; too often, and it is buried. Says whether it went."""
    place = item.place
    after = go_back(place, Transition.REWIND, stage, stages, reason=reason)
    if place.rewinds >= REWINDS:
        why = f"{reason} (rewound {place.rewinds} times)"
        after = replace(after, state=State.DEAD, code="rewound_too_often", reason=why, rewinds=place.rewinds)
    act = Act(
        id=os.urandom(16), batch=batch, kind="rewound", actor=actor, reason=reason,
        at_items=(Change(n=item.n, state=place.state, epoch=place.epoch, place=after),),
    )  # fmt: skip
    return len(store.act(act))
