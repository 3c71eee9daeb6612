"""Evidence of a batch in one archive, for a third party: the journal, the seal, the items, the definition.

Checking it needs neither Holdfast nor the store: `check.py` in the archive is plain Python. The archive contains
neither payloads and outputs nor the salts of their digests: it shows that each is accounted for, but reveals nothing of
their content.
"""

import hashlib
import json
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import IO, Any

from holdfast.core import canonical, journal
from holdfast.core.course import stage_names
from holdfast.core.model import Batch, Chunk, Entry, StoredItem, chain_of_batch
from holdfast.core.plain import Plain
from holdfast.runtime import lookup
from holdfast.runtime.operate.evidence import check
from holdfast.runtime.operate.target import whole_or_absent
from holdfast.runtime.sinks.base import Evidence as FileEvidence
from holdfast.stores.base import Store, each_entry, each_item, each_output

SUFFIX = ".zip"
README = """\
Evidence of a batch, made by Holdfast.

    python check.py THIS_FILE.zip     checks it; needs nothing but Python

MANIFEST.json        facts about this archive, and the SHA-256 of every file in it
journal.jsonl        every entry of the batch's chain and of the chains of its chunks, as stored and readable
chunks.jsonl         where each chain ends
items.jsonl          the state of every item, with digests of its payload and outputs
definition.json      the stages: schemas and sinks, and the fingerprint of their code
reconciliation.json  the reconciliation: expected, recorded and observed
seal.json            the seal, if the batch is sealed
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceSummary(Plain):
    """The archive that was written."""

    path: str
    batch: str
    items: int
    entries: int
    is_sealed: bool
    is_quiet: bool
    """No worker committed to the batch while it was written."""
    head: str
    """One digest over the whole content of the archive, as `check.py` prints it: keep it in another place."""


def write(
    store: Store, batch: Batch, path: Path, reconciliation: dict[str, Any], *, made_by: str = "holdfast"
) -> EvidenceSummary:
    """Write the archive, whole or not at all; of a running batch, with the items that it had at the start."""
    chunks = [chunk for chunk in store.chunks(batch.id) if chunk.lo < batch.admitted]
    with whole_or_absent(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        bundle = _Bundle(archive)
        bundle.add_text("README.txt", README)
        bundle.add_text("check.py", resources.files(__package__).joinpath("check.py").read_text("utf-8"))
        seal = _SealInForce()
        entries = bundle.add_lines("journal.jsonl", map(seal.watch, _entries(store, batch, chunks)), _entry)
        bundle.add_lines("chunks.jsonl", chunks, _chunk)
        items = bundle.add_lines("items.jsonl", _items(store, batch), lambda found: found)
        bundle.add_json("definition.json", canonical.decode(batch.definition))
        bundle.add_json("reconciliation.json", reconciliation)
        if seal.body is not None:
            bundle.add_json("seal.json", seal.body)
        is_quiet = [(c.id, c.seq) for c in store.chunks(batch.id)] == [(c.id, c.seq) for c in chunks]
        head = bundle.close(batch, made_by, is_quiet=is_quiet)
    return EvidenceSummary(path=str(path), batch=batch.name, items=items, entries=entries,
                           is_sealed=seal.body is not None, is_quiet=is_quiet, head=head)  # fmt: skip


class _Bundle:
    """An archive that is being written, with the digest of every file in it."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._digests: dict[str, str] = {}

    def add_text(self, name: str, text: str) -> None:
        with self._file(name) as put:
            put(text.encode())

    def add_json(self, name: str, value: Any) -> None:
        self.add_text(name, _json(value, indent=2) + "\n")

    def add_lines(self, name: str, values: Iterable[Any], form: Callable[[Any], dict[str, Any]]) -> int:
        count = 0
        with self._file(name) as put:
            for value in values:
                put(_json(form(value)).encode() + b"\n")
                count += 1
        return count

    def close(self, batch: Batch, made_by: str, *, is_quiet: bool) -> str:
        """Write the manifest; return the head of the archive."""
        facts = {
            "format": check.FORMAT, "made_by": made_by, "made_at": datetime.now(UTC).isoformat(),
            "quiet": is_quiet, "files": self._digests,
            "batch": {
                "id": batch.id, "name": batch.name, "pipeline": batch.pipeline, "admitted": batch.admitted,
                "opened_at": _time(batch.opened_at), "seq": batch.seq, "head": batch.head.hex(),
                "sealed_at": None if batch.sealed_at is None else _time(batch.sealed_at),
            },
        }  # fmt: skip
        self._archive.writestr("MANIFEST.json", _json(facts, indent=2) + "\n")
        return check.head(facts)

    def _file(self, name: str) -> "_ArchiveFile":
        return _ArchiveFile(self._archive, name, self._digests)


class _ArchiveFile:
    """One file of the archive, open for writing."""

    def __init__(self, archive: zipfile.ZipFile, name: str, digests: dict[str, str]) -> None:
        info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
        self._stream: IO[bytes] = archive.open(info, "w", force_zip64=True)
        self._name, self._digests, self._found = name, digests, hashlib.sha256()

    def __enter__(self) -> Callable[[bytes], None]:
        return self._put

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._digests[self._name] = self._found.hexdigest()

    def _put(self, data: bytes) -> None:
        self._found.update(data)
        self._stream.write(data)


class _SealInForce:
    """The seal that is in force after the entries seen so far."""

    body: dict[str, Any] | None = None

    def watch(self, entry: Entry) -> Entry:
        kind = journal.decode_header(entry.head).kind if entry.chain < 0 else ""
        if kind in ("sealed", "reopened"):
            self.body = check.meaning(entry.body) if kind == "sealed" else None
        return entry


def _entries(store: Store, batch: Batch, chunks: list[Chunk]) -> Iterator[Entry]:
    """Yield the batch's chain, then those of its chunks, parents before children, each up to the given end."""
    ends = [(chain_of_batch(batch.id), batch.seq), *sorted((int(chunk.id), chunk.seq) for chunk in chunks)]
    for chain, last in ends:
        yield from each_entry(store, chain, upto=last)


def _items(store: Store, batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield items with the digests of their payloads and outputs; both are read side by side."""
    names = stage_names(batch)
    outputs = iter(each_output(store, batch.id))
    waiting = next(outputs, None)
    for item in each_item(store, batch.id, hi=batch.admitted):
        made = []
        while waiting is not None and waiting.n <= item.n:
            if waiting.n == item.n:
                file = None if waiting.file is None else FileEvidence.decode(waiting.file)
                made.append({
                    "stage": lookup.stage_title(names, waiting.stage), "epoch": waiting.epoch,
                    "digest": None if waiting.data is None else canonical.digest(item.salt, waiting.data).hex(),
                    "file": None if file is None else file.final,
                    "file_sha256": None if file is None else file.digest.hex(),
                })  # fmt: skip
            waiting = next(outputs, None)
        yield _item(item, names, made)


def _item(item: StoredItem, names: list[str], outputs: list[dict[str, Any]]) -> dict[str, Any]:
    place = item.place
    return {
        "n": item.n, "key": item.key, "state": place.state.value, "stage": lookup.stage_title(names, place.stage),
        "epoch": place.epoch, "code": place.code, "reason": place.reason,
        "digest": canonical.item_digest(item.salt, canonical.key_text(item.key), item.payload).hex(),
        "outputs": outputs,
    }  # fmt: skip


def _entry(entry: Entry) -> dict[str, Any]:
    """Return an entry as it is stored, for the checks, and in readable form, for people."""
    header = journal.decode_header(entry.head)
    return {
        "chain": entry.chain, "seq": entry.seq, "head": _base64(entry.head), "body": _base64(entry.body),
        "hash": entry.hash.hex(), "kind": header.kind, "at": header.at, "actor": header.actor,
        "fence": header.fence, "says": check.meaning(entry.body),
    }  # fmt: skip


def _chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "id": chunk.id, "lo": chunk.lo, "hi": chunk.hi, "parent": chunk.parent, "seq": chunk.seq,
        "head": chunk.head.hex(),
    }  # fmt: skip


def _json(value: Any, indent: int | None = None) -> str:
    separators = None if indent else (",", ":")
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=separators, indent=indent, default=check.plain
    )


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
