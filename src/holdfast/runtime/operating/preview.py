"""What an act would do, before it is done: how many items, who holds them, what was paid for what would go."""

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from holdfast.core import money
from holdfast.core.columns import FLOAT32, unpack
from holdfast.core.model import Batch, Chunk, State, StoredItem
from holdfast.runtime import lookup
from holdfast.runtime.ending import sealing
from holdfast.runtime.operating import operations
from holdfast.runtime.reports import status
from holdfast.runtime.reports.attempts import Reader
from holdfast.stores import owners
from holdfast.stores.base import Store, lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPreview:
    """What a reset would begin again, and what it would throw away."""

    batch: str
    item: str | None
    to_stage: str
    done: int
    skipped: int
    dead: int
    cancelled: int
    pending: int
    """Items that have begun or are in somebody's hands."""
    in_flight: int
    owners: tuple[str, ...]
    """Whose work would not be committed."""
    usd: Decimal
    """What was paid, at that stage and later, for the work that would be done again."""
    seconds: float
    """What it took."""
    warning: str
    """What would keep the items from going on: the end of their batch has come."""

    @property
    def items(self) -> int:
        return self.done + self.skipped + self.dead + self.cancelled + self.pending

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"usd": format(self.usd, "f"), "owners": list(self.owners), "items": self.items}


def preview_reset(store: Store, batch: Batch, item: str | None = None, *, to_stage: str | int = 0) -> ResetPreview:
    """What `operations.reset` would do now. Nothing is changed."""
    target = lookup.stage_numbered(batch, to_stage)
    name = lookup.stage_names(batch)[target]
    chunks = store.chunks(batch.id)
    if item is None:
        return _of_batch(store, batch, name, target, [chunk for chunk in chunks if operations.may_have_begun(chunk)])
    found = lookup.item_named(store, batch, item)
    return _of_item(store, batch, found, lineage(chunks, found.n), name=name, target=target)


def _of_batch(store: Store, batch: Batch, name: str, target: int, chunks: list[Chunk]) -> ResetPreview:
    now = store.now()
    held = [chunk for chunk in chunks if chunk.pending and status.is_live(chunk, now)]
    if target == 0:
        spent = sum(chunk.counts.spent for chunk in chunks)
        seconds = sum(chunk.counts.seconds for chunk in chunks)
    else:
        spent, seconds = _cost(Reader(store, chunks), target)
    return ResetPreview(
        batch=batch.name,
        item=None,
        to_stage=name,
        done=sum(chunk.counts.done for chunk in chunks),
        skipped=sum(chunk.counts.skipped for chunk in chunks),
        dead=sum(chunk.counts.dead for chunk in chunks),
        cancelled=sum(chunk.counts.cancelled for chunk in chunks),
        pending=sum(chunk.pending for chunk in chunks),
        in_flight=sum(chunk.pending for chunk in held),
        owners=_owners(held),
        usd=money.to_usd(spent),
        seconds=seconds,
        warning=sealing.end_in_the_way(store, batch),
    )


def _of_item(
    store: Store, batch: Batch, item: StoredItem, line: list[Chunk], *, name: str, target: int
) -> ResetPreview:
    now, state = store.now(), item.place.state
    held = [chunk for chunk in line[-1:] if state is State.PENDING and status.is_live(chunk, now)]
    spent, seconds = _cost(Reader(store, line), target, item.n)
    return ResetPreview(
        batch=batch.name,
        item=str(item.key),
        to_stage=name,
        **{each.value: int(state is each) for each in State},
        in_flight=len(held),
        owners=_owners(held),
        usd=money.to_usd(spent),
        seconds=seconds,
        warning=sealing.end_in_the_way(store, batch),
    )


def _owners(chunks: list[Chunk]) -> tuple[str, ...]:
    return tuple(sorted({owners.short(chunk.owner) for chunk in chunks if chunk.owner is not None}))


def _cost(reader: Reader, target: int, n: int | None = None) -> tuple[int, float]:
    """Money and seconds that the journal has for a stage and those after it; of one item where `n` is given."""
    spent, seconds = 0, 0.0
    for body in reader.checkpoints():
        spent += sum(said.usd for stage, said in body.spends if stage >= target and n in (None, said.n))
        seconds += sum(a.seconds for a in body.attempts if a.stage >= target and n in (None, a.n))
        for group in body.advanced:
            if group.stage >= target and not group.adopted and (n is None or n in group.items):
                took = zip(group.items, unpack(FLOAT32, group.seconds), strict=True)
                seconds += sum(part for number, part in took if n in (None, number))
    return spent, seconds
