"""The envelope of an item: what is known about how it came, recorded when it was admitted and never changed.

A correction adds a revision with an envelope of its own; the earlier ones stay in the journal.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.core.commitments import DIGEST_BYTES
from holdfast.core.journal import Header, Ingested, Moved
from holdfast.core.plain import Plain

VALID = "valid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope(Plain):
    """How an item came: fixed when it was admitted, and handed to handlers as a copy."""

    ingested_at: datetime
    """When it was admitted, in UTC."""
    boundary: str
    """The boundary it crossed: `ingestion`."""
    source: str
    """The source it came from, in words; empty if an older version admitted it."""
    producer: str
    """The process that admitted it, or the operator who corrected it."""
    schema: str
    """The fingerprint of the schema that validated it; empty if an older version admitted it."""
    raw_digest: str
    """The commitment to the item as its source gave it; the same as `mapped_digest` if validation changed nothing."""
    mapped_digest: str
    """The commitment to its validated payload: the journal has the same."""
    compliance: str
    """`valid`, or the code with which it was refused."""
    revision: int = 0
    """How often its payload was corrected before."""


def of_admission(header: Header, body: Ingested, n: int) -> Envelope:
    """Return the first envelope of an item, from the entry that admitted it."""
    mapped, at = _column(body.digests, n - body.lo), None
    if body.raw_items is not None:
        at = body.raw_items.index(n)
    raw = b"" if at is None else _column(body.raws, at)
    return Envelope(
        ingested_at=datetime.fromtimestamp(header.at, UTC), boundary="ingestion", source=body.source,
        producer=header.actor, schema=body.schema, raw_digest=(raw or mapped).hex(), mapped_digest=mapped.hex(),
        compliance=dict(body.invalid).get(n, VALID),
    )  # fmt: skip


def of_revision(header: Header, moved: Moved) -> Envelope:
    """Return the envelope of a later revision, from the entry that added it. In format 1 it replaced the payload, and
    has no number."""
    return Envelope(
        ingested_at=datetime.fromtimestamp(header.at, UTC), boundary="ingestion", source=moved.source,
        producer=header.actor, schema=moved.schema, raw_digest=(moved.raw_digest or moved.digest).hex(),
        mapped_digest=moved.digest.hex(), compliance=moved.refused or VALID, revision=moved.revision,
    )  # fmt: skip


def _column(digests: bytes, index: int) -> bytes:
    return digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
