"""Events as others receive them: CloudEvents 1.0, with the names of batch, pipeline and stage added to the facts.

The id of an event is the same at every delivery, so a receiver can tell what it has already: it is made of the first
entry of the batch's journal, the number of the event and its moment. So an event of a restored copy, which may have the
number of another one that was delivered before, is not taken for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.core import canonical
from holdfast.core.model import Batch, BatchId, StoredEvent, chain_of_batch
from holdfast.runtime import lookup
from holdfast.stores.base import Store

Envelope = dict[str, Any]
"""One event, as JSON gives it."""
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
PREFIX = "dev.holdfast."


@dataclass(frozen=True, slots=True)
class Origin:
    """What is said about a batch in each of its events."""

    batch: Batch
    stages: tuple[str, ...]
    identity: str


class Envelopes:
    """Makes envelopes of stored events; remembers the batches they come from."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._origins: dict[BatchId, Origin] = {}

    def pipeline_of(self, event: StoredEvent) -> str:
        return self._origin(event).batch.pipeline

    def make(self, event: StoredEvent) -> Envelope:
        """The event as a CloudEvent."""
        origin, facts = self._origin(event), canonical.decode(event.body)
        if isinstance(facts.get("stage"), int):
            facts["stage_number"] = facts["stage"]
            facts["stage"] = lookup.stage_title(origin.stages, facts["stage"])
        if event.n is not None:
            facts["number"] = event.n
        name = origin.batch.name
        subject = f"{name}/{facts['key']}" if event.n is not None and "key" in facts else name
        return {
            "specversion": "1.0",
            "id": f"{origin.identity}-{event.id}-{round(event.at * 1e6)}",
            "source": f"urn:holdfast:{origin.identity}",
            "type": PREFIX + event.kind,
            "time": datetime.fromtimestamp(event.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "subject": subject,
            "datacontenttype": "application/json",
            "data": {**facts, "batch": name, "pipeline": origin.batch.pipeline},
        }

    def _origin(self, event: StoredEvent) -> Origin:
        if event.batch not in self._origins:
            for batch in self._store.batches():
                if batch.id == event.batch:
                    first = self._store.entries(chain_of_batch(batch.id), limit=1)[0]
                    stages = tuple(lookup.stage_names(batch))
                    self._origins[batch.id] = Origin(batch, stages, first.hash.hex()[:16])
        return self._origins[event.batch]


encode: Callable[[Any], bytes] = canonical.encode
"""An envelope as bytes."""
