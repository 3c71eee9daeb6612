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
    "journal.Position": {Data.STRUCTURE: "n rows digest seconds said", Data.TEXT: "cursor"},
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
        "reserved done skipped dead cancelled attempts spent tokens seconds seq head touched_at kind leg first end origin",
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

UNPROVED: Mapping[str, str] = {}
"""Columns that can be changed without a finding of the audit, with the reason. `docs/evidence.md` lists them."""


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
