"""Work that is not kept because somebody replaced the payload of its item meanwhile, in words for a person."""

from collections.abc import Sequence

from holdfast.core import canonical
from holdfast.core.limits import LISTED_NAMES
from holdfast.core.model import BatchId, Item
from holdfast.core.outcome import Lost, Outcome
from holdfast.runtime.text import many
from holdfast.stores.base import Store


def told(store: Store, batch: BatchId, name: str, finished: Sequence[Outcome], running: Sequence[Item]) -> str | None:
    """Return what became of work that cannot be recorded; None unless a payload of these items was replaced."""
    items = {item.n: item for item in (*running, *(outcome.item for outcome in finished))}
    if not items:
        return None
    stored = {item.n: item.salt for item in store.items(batch, lo=min(items), hi=max(items) + 1)}
    gone = [item for item in items.values() if stored.get(item.n, item.salt) != item.salt]
    if not gone:
        return None
    others = [item for item in items.values() if item not in gone]
    return f"batch {name!r}: {_of_replaced(gone)}{_of_others(others)}{_cost(finished)}"


def _of_replaced(gone: Sequence[Item]) -> str:
    if len(gone) == 1:
        return (
            f"the payload of item {_keys(gone)} was replaced while it was handled: its result is not kept and its cost "
            "is not on record; it is handled again with the new payload"
        )
    return (
        f"the payloads of {len(gone):,} items ({_keys(gone)}) were replaced while they were handled: their results are "
        "not kept and their cost is not on record; they are handled again with the new payloads"
    )


def _of_others(others: Sequence[Item]) -> str:
    """Items that were claimed together are taken away together."""
    if not others:
        return ""
    return f". Nor is the work on {many(len(others), 'item')} kept that came with it ({_keys(others)})"


def _keys(items: Sequence[Item]) -> str:
    names = [canonical.key_text(item.key) for item in items[:LISTED_NAMES]]
    return ", ".join(names) + (", …" if len(items) > LISTED_NAMES else "")


def _cost(finished: Sequence[Outcome]) -> str:
    """As far as it is known: what runs has not told its cost."""
    spends = [each.spend for each in finished if not isinstance(each, Lost)]
    units = sum(spend.usd for spend in spends if spend is not None)
    return f" (${canonical.to_usd(units)} so far)" if units else ""
