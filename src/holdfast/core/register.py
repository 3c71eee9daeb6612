"""The register of data: what every column, document field and journal field holds.

Each is one of three. *Structure* says what happened: numbers, states, times, codes, names that a program chose, and
commitments. *Text* is content of an item or words about it: payloads, outputs, keys, messages, reasons, cursors. An
*index* is computed from text so that it can be found again. The journal keeps text in frames of its own (`sections`), a
redacted evidence pack leaves text out, and whatever encrypts or erases content later reads the same table. A field that
is missing here fails the build.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache


class Data(StrEnum):
    """The class of a field."""

    STRUCTURE = "structure"
    TEXT = "text"
    INDEX = "index"


_JOURNAL: Mapping[str, Mapping[Data, str]] = {
    "journal.Header": {
        Data.STRUCTURE: "format uid chain seq kind at actor fence grant commit_id sections batch",
    },
    "journal.Numbers": {Data.STRUCTURE: "lo hi picks"},
    "journal.Spend": {Data.STRUCTURE: "n usd tokens model said", Data.TEXT: "usage metrics"},
    "journal.Advanced": {
        Data.STRUCTURE: "stage items digests queued seconds attempts epochs finished adopted",
    },
    "journal.Attempted": {
        Data.STRUCTURE: "n stage attempt epoch outcome code due deadline queued seconds to_stage deferred used excused "
        "wait said",
        Data.TEXT: "message trace",
    },
    "journal.Position": {Data.STRUCTURE: "n rows digest seconds said", Data.TEXT: "cursor", Data.INDEX: "mark"},
    "journal.Checkpointed": {Data.STRUCTURE: "advanced attempts spends positions released due made_by"},
    "journal.Snapshot": {Data.STRUCTURE: "n stage epoch attempt code since used"},
    "journal.Claimed": {Data.STRUCTURE: "lo hi expires blame child taken_from snapshots"},
    "journal.Tried": {Data.STRUCTURE: "snapshots"},
    "journal.Carried": {Data.STRUCTURE: "n state stage epoch payload revision outputs position"},
    "journal.Ended": {Data.STRUCTURE: "successor state"},
    "journal.Continued": {Data.STRUCTURE: "predecessor seq head state lo hi counts seconds items"},
    "journal.Opened": {Data.STRUCTURE: "name pipeline definition"},
    "journal.Refusal": {Data.STRUCTURE: "n said", Data.TEXT: "reason"},
    "journal.Ingested": {
        Data.STRUCTURE: "lo hi digests invalid chunk ended cursor kind leg first end source schema raw_items raws "
        "parents refusals",
    },
    "journal.Moved": {
        Data.STRUCTURE: "n before after stage_before stage_after epoch digest output_digest position revision "
        "raw_digest",
    },
    "journal.Acted": {Data.STRUCTURE: "items seized said", Data.TEXT: "reason note"},
    "journal.Steered": {Data.STRUCTURE: "course ends_at expected closed said", Data.TEXT: "reason"},
    "journal.Sealed": {
        Data.STRUCTURE: "chunks heads expected done skipped dead cancelled said",
        Data.TEXT: "reconciliation reason",
    },
    "journal.Reopened": {Data.STRUCTURE: "said", Data.TEXT: "reason"},
    "journal.Formatted": {Data.STRUCTURE: "batch chunks"},
}


_TABLES: Mapping[str, Mapping[Data, str]] = {
    "meta": {Data.STRUCTURE: "name value"},
    "batches": {
        Data.STRUCTURE: "id uid name pipeline definition stages opened_at admitted ingested_at sealed_at seq head "
        "course ends_at expected closed_at",
    },
    "chunks": {
        Data.STRUCTURE: "id batch number lo hi parent fence grant_id version owner expires due blame progressed "
        "reserved done skipped dead cancelled attempts spent tokens seconds seq head touched_at kind leg first end "
        "origin",
    },
    "items": {Data.STRUCTURE: "id parent", Data.TEXT: "key payload raw"},
    "revisions": {Data.STRUCTURE: "id revision", Data.TEXT: "payload raw"},
    "keys": {Data.STRUCTURE: "batch n", Data.INDEX: "number"},
    "places": {
        Data.STRUCTURE: "id stage state epoch attempt due used wait spent rewinds requeues deferred code",
        Data.TEXT: "reason",
    },
    "outputs": {Data.STRUCTURE: "id epoch", Data.TEXT: "data file"},
    "checkpoints": {Data.STRUCTURE: "id row_count at", Data.TEXT: "cursor acc"},
    "journal": {Data.STRUCTURE: "chain seq head body hash"},
    "texts": {Data.STRUCTURE: "chain seq at n boundary", Data.TEXT: "frame"},
    "noted": {Data.STRUCTURE: "batch", Data.INDEX: "mark"},
    "events": {Data.STRUCTURE: "id batch at kind n", Data.TEXT: "body"},
    "receivers": {Data.STRUCTURE: "name up_to"},
}
"""The tables of a SQLite store."""

_DOCUMENTS: Mapping[str, Mapping[Data, str]] = {
    "documents.Document": {Data.STRUCTURE: "holdfast format revision write epoch"},
    "documents.Root": {Data.STRUCTURE: "url next names index_key"},
    "documents.ItemGroup": {Data.STRUCTURE: "lo hi chunk name"},
    "documents.BatchDocument": {Data.STRUCTURE: "batch groups seal renewed", Data.INDEX: "noted"},
    "documents.PlaceRow": {
        Data.STRUCTURE: "stage state epoch attempt due since spent rewinds requeues deferred code used wait",
        Data.TEXT: "reason",
    },
    "documents.Renewal": {Data.STRUCTURE: "ref number", Data.INDEX: "digest"},
    "documents.StoredReach": {Data.STRUCTURE: "rows at ref name", Data.TEXT: "cursor acc"},
    "documents.ChunkDocument": {
        Data.STRUCTURE: "chunk term beat children seal places outputs renewed checkpoints",
    },
    "documents.Keys": {Data.STRUCTURE: "sizes parents", Data.TEXT: "keys salts raws", Data.INDEX: "digests"},
    "documents.Data": {Data.STRUCTURE: "is_framed", Data.TEXT: "outputs accs renewed"},
}
"""The documents and objects of a bucket store. The values in them are those of `core.model`: their fields are columns
of the tables above."""

_TIME = "a time that reports show and nothing is decided by"
_LEASE = (
    "part of a lease, which ends or is renewed soon: a change can delay one grant, and no commit depends on it"
)
_OUTBOX = "events are copies of facts in the journal, for receivers; deliveries are not part of the record"
UNPROVED: Mapping[str, str] = {
    "batches.opened_at": _TIME,
    "batches.ingested_at": f"{_TIME}; that the source was read to its end is proved",
    "checkpoints.at": _TIME,
    "chunks.touched_at": f"{_TIME}, except how long an item has been stuck",
    "chunks.expires": _LEASE,
    "chunks.reserved": _LEASE,
    "chunks.blame": "how many owners died in a row, which decides how carefully the next grant is made; the journal "
    "has every grant",
    "chunks.progressed": "whether the current owner has committed anything: see chunks.blame",
    "chunks.id": "the number in this store, of a chunk that was never granted: nothing refers to it; if the chunk has "
    "entries, the change is found",
    "chunks.fence": "of a chunk that was never granted: its first grant is above it; a granted fence is proved",
    "chunks.grant_id": "of a chunk that nobody holds: the next grant replaces it; the id of a grant in force is proved",
    "items.raw": "the salt of a commitment to bytes that are not stored: a person who has the bytes can compare them",
    "revisions.raw": "the salt of a commitment to bytes that are not stored: see items.raw",
    "places.rewinds": "how often an item went back, which an act may have reset; the rewinds are in the journal",
    "noted.batch": "a mark that keeps a note from being written twice: without it the note is written again",
    "noted.mark": "a mark that keeps a note from being written twice: see noted.batch",
    "meta.name": "facts about the file: an epoch that is too low is found by the note beside the file",
    "meta.value": "facts about the file: see meta.name; another index key makes keys unfindable, which is found",
    "events.id": _OUTBOX,
    "events.batch": _OUTBOX,
    "events.at": _OUTBOX,
    "events.kind": _OUTBOX,
    "events.body": _OUTBOX,
    "events.n": _OUTBOX,
    "receivers.name": _OUTBOX,
    "receivers.up_to": _OUTBOX,
}
"""Columns that can be changed without a finding of the audit, with the reason. `docs/evidence.md` lists them."""

UNPROVED_ROWS: Mapping[str, str] = {
    "meta": "facts about the file, which are made again; without the index key the file does not open",
    "noted": "marks that keep notes from being written twice",
    "events": _OUTBOX,
    "receivers": _OUTBOX,
}
"""Tables from which a row can be deleted without a finding, with the reason."""


@cache
def register() -> Mapping[str, Data]:
    """Return the class of every field, by its name, such as `journal.Attempted.message` or `items.payload`."""
    return {
        f"{record}.{field}": data
        for table in (_JOURNAL, _TABLES, _DOCUMENTS)
        for record, classes in table.items()
        for data, fields in classes.items()
        for field in fields.split()
    }


def text_fields(record: str) -> tuple[str, ...]:
    """Return the fields of a record that hold text, in the order of the register."""
    return tuple(_JOURNAL[record].get(Data.TEXT, "").split())
