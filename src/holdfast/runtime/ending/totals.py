"""How many items a batch is to have, and that no new ones come: for batches that messages feed, which have no source
whose end could be read."""

import logging
from collections.abc import Mapping

from holdfast.core import canonical, events, journal
from holdfast.core.errors import UsageError
from holdfast.core.limits import ITEMS
from holdfast.core.model import Batch
from holdfast.core.reconcile import Reconciliation
from holdfast.runtime.ending.finish import NO_SINKS, look
from holdfast.runtime.sinks.base import Sink
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.ending")

TURNED_AWAY = "turned_away"


def check_total(expected: int) -> int:
    """Refuse what is not a number of items."""
    if type(expected) is not int or not 0 <= expected <= ITEMS:
        raise UsageError(f"expect {expected!r}: a batch has between 0 and {ITEMS:,} items; nothing was changed")
    return expected


def expect(
    store: Store, batch: Batch, expected: int, *, actor: str, reason: str = "", sinks: Mapping[int, Sink] = NO_SINKS
) -> tuple[Batch, Reconciliation | None]:
    """Put on record how many items a batch has in all, counted by their keys. The same number again does nothing,
    another one needs a reason. Return the batch, and how it was reconciled if that was its end."""
    known = store.steer(batch.id, None, actor=actor, reason=reason, expected=check_total(expected))
    return known, look(store, known, actor=actor, sinks=sinks)


def close(
    store: Store, batch: Batch, *, actor: str, reason: str = "", sinks: Mapping[int, Sink] = NO_SINKS
) -> tuple[Batch, Reconciliation | None]:
    """Take no new items from now on; those that are there may come again. Closing twice does no harm."""
    known = store.steer(batch.id, None, actor=actor, reason=reason, close=True)
    return known, look(store, known, actor=actor, sinks=sinks)


def note_turned_away(store: Store, batch: Batch, *, actor: str) -> None:
    """Tell that new items came after the batch was closed: the log each time, others once."""
    text = "new items came after the batch was closed, and are refused: the queue keeps them"
    log.warning("batch %s: %s", batch.name, text)
    body = journal.Acted(reason=text, note=canonical.encode({"closed_at": batch.closed_at}))
    warning = events.warning("came_after_close", f"{batch.name}: {text}")
    store.note(batch.id, TURNED_AWAY, journal.encode_body(body), actor=actor, once=True, events=[warning])
