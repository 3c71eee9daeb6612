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


class DataClass(StrEnum):
    """The class of a field."""

    STRUCTURE = "structure"
    TEXT = "text"
    INDEX = "index"


_S, _T, _I = DataClass
_JOURNAL: Mapping[str, Mapping[DataClass, str]] = {
    "journal.Header": {
        _S: "format uid chain seq kind at actor fence grant commit_id sections batch",
    },
    "journal.Numbers": {_S: "lo hi picks"},
    "journal.Spend": {_S: "n usd tokens model said", _T: "usage metrics"},
    "journal.Advanced": {
        _S: "stage items digests queued seconds attempts epochs finished adopted",
    },
    "journal.Attempted": {
        _S: "n stage attempt epoch outcome code due deadline queued seconds to_stage deferred used excused wait said",
        _T: "message trace",
    },
    "journal.Position": {
        _S: "n rows digest seconds said",
        _T: "cursor",
        _I: "mark",
    },
    "journal.Checkpointed": {_S: "advanced attempts spends positions released due made_by"},
    "journal.Snapshot": {_S: "n stage epoch attempt code since used"},
    "journal.Claimed": {_S: "lo hi expires blame child taken_from snapshots"},
    "journal.TriedItems": {_S: "snapshots"},
    "journal.Carried": {_S: "n state stage epoch payload revision outputs position"},
    "journal.ChainEnded": {_S: "successor state"},
    "journal.Continued": {_S: "predecessor seq head state lo hi counts seconds items"},
    "journal.Opened": {_S: "name pipeline definition"},
    "journal.RefusalReason": {_S: "n said", _T: "reason"},
    "journal.Ingested": {
        _S: "lo hi digests invalid chunk ended cursor kind leg first end source schema raw_items raws parents refusals",
    },
    "journal.Moved": {
        _S: "n before after stage_before stage_after epoch digest output_digest position revision raw_digest source "
        "schema refused",
    },
    "journal.Acted": {_S: "items seized said", _T: "reason note"},
    "journal.Steered": {_S: "course ends_at expected closed said", _T: "reason"},
    "journal.Sealed": {
        _S: "chunks heads expected done skipped dead cancelled said",
        _T: "reconciliation reason",
    },
    "journal.Reopened": {_S: "said", _T: "reason"},
    "journal.Formatted": {_S: "batch chunks"},
}


_TABLES: Mapping[str, Mapping[DataClass, str]] = {
    "meta": {_S: "name value"},
    "batches": {
        _S: "id uid name pipeline definition stages opened_at admitted ingested_at sealed_at seq head "
        "course ends_at expected closed_at",
    },
    "chunks": {
        _S: "id batch number lo hi parent fence grant_id version owner expires due blame progressed "
        "reserved done skipped dead cancelled attempts spent tokens seconds seq head touched_at kind leg first end "
        "origin",
    },
    "items": {_S: "id parent", _T: "key payload raw"},
    "revisions": {_S: "id revision", _T: "payload raw"},
    "keys": {_S: "batch n", _I: "number"},
    "places": {
        _S: "id stage state epoch attempt due used wait spent rewinds requeues deferred code",
        _T: "reason",
    },
    "outputs": {_S: "id epoch", _T: "data file"},
    "checkpoints": {_S: "id row_count at", _T: "cursor acc"},
    "journal": {_S: "chain seq head body hash"},
    "texts": {_S: "chain seq at n boundary", _T: "frame"},
    "noted": {_S: "batch", _I: "mark"},
    "events": {_S: "id batch at kind n", _T: "body"},
    "receivers": {_S: "name up_to"},
}
"""The tables of a SQLite store."""

_DOCUMENTS: Mapping[str, Mapping[DataClass, str]] = {
    "documents.Document": {_S: "holdfast format revision write epoch"},
    "documents.Root": {_S: "url next names index_key"},
    "documents.ItemGroup": {_S: "lo hi chunk name"},
    "documents.BatchDocument": {_S: "batch groups seal renewed", _I: "noted"},
    "documents.PlaceRow": {
        _S: "stage state epoch attempt due since spent rewinds requeues deferred code used wait",
        _T: "reason",
    },
    "documents.Renewal": {_S: "ref number", _I: "digest"},
    "documents.StoredReach": {_S: "rows at ref name", _T: "cursor acc"},
    "documents.ChunkDocument": {
        _S: "chunk term beat children seal places outputs renewed checkpoints",
    },
    "documents.Keys": {
        _S: "sizes parents",
        _T: "keys salts raws",
        _I: "digests",
    },
    "documents.Data": {_S: "is_framed", _T: "outputs accs renewed"},
}
"""The documents and objects of a bucket store. The values in them are those of `core.model`: their fields are columns
of the tables above."""

_TIME = "a time that reports show and nothing is decided by"
_LEASE = "part of a lease, which ends or is renewed soon: a change can delay one grant, and no commit depends on it"
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
def register() -> Mapping[str, DataClass]:
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
    return tuple(_JOURNAL[record].get(_T, "").split())
