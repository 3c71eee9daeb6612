"""Evidence of a batch in one archive, for a third party: the journal, the seal, the items, the definition.

Checking it needs neither Holdfast nor the store: `check.py` in the archive is plain Python. The archive contains
neither payloads and outputs nor the salts of their digests: it shows that each is accounted for, but reveals nothing of
their content. A redacted archive also leaves out what the register of data (`core.register`) calls text: keys, paths of
files that are named after them, reasons, and all words of the journal. It can be checked like any other.
"""

import hashlib
import json
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.core import canonical, commitments, record
from holdfast.core.course import stage_names
from holdfast.core.model import Batch, Chunk, Entry, Output, StoredItem, chain_of_batch
from holdfast.core.plain import Plain
from holdfast.runtime import lookup
from holdfast.runtime.operate.evidence import check, entries
from holdfast.runtime.operate.target import whole_or_absent
from holdfast.runtime.sinks.base import Evidence as FileEvidence
from holdfast.stores.base import Store, each_entry, each_item, each_output

SUFFIX = ".zip"
README = """\
Evidence of a batch, made by Holdfast.

    python check.py THIS_FILE.zip     checks it; needs nothing but Python

MANIFEST.json        facts about this archive, and the SHA-256 of every file in it
journal.jsonl        every entry of the batch's chain and of the chains of its chunks, as stored and readable, with the
                     words that belong to it; null for words that were removed or are withheld
chunks.jsonl         where each chain ends, and which items its chunk has
items.jsonl          the state of every item, with digests of its payload and outputs
definition.json      the stages: schemas and sinks, and the fingerprint of their code
reconciliation.json  the reconciliation: expected, recorded and observed; not in a redacted archive
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
    is_redacted: bool = False
    """It has no keys, reasons or other words."""


def write(
    store: Store, batch: Batch, path: Path, reconciliation: dict[str, Any], *, made_by: str = "holdfast",
    redact: bool = False,
) -> EvidenceSummary:  # fmt: skip
    """Write the archive, whole or not at all; of a running batch, with the items that it had at the start. With
    `redact`, without any text."""
    chunks = [chunk for chunk in store.chunks(batch.id) if chunk.lo < batch.admitted]
    with whole_or_absent(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        bundle, told = _Bundle(archive), _ToldWords(redact)
        bundle.add_text("README.txt", README)
        bundle.add_text("check.py", script())
        count = bundle.add_lines("journal.jsonl", _entries(store, batch, chunks), told.line)
        numbers = {int(chunk.id): chunk.number for chunk in chunks}
        bundle.add_lines("chunks.jsonl", chunks, lambda chunk: _chunk(chunk, numbers))
        lines = _ItemLines(batch, told, redact=redact)
        items = bundle.add_lines("items.jsonl", _items(store, batch), lambda pair: lines.line(*pair))
        bundle.add_json("definition.json", canonical.decode(batch.definition))
        if not redact:
            bundle.add_json("reconciliation.json", reconciliation)
        if told.seal is not None:
            bundle.add_json("seal.json", told.seal)
        is_quiet = [(c.id, c.seq) for c in store.chunks(batch.id)] == [(c.id, c.seq) for c in chunks]
        head = bundle.close(batch, made_by, is_quiet=is_quiet, redacted=redact)
    return EvidenceSummary(path=str(path), batch=batch.name, items=items, entries=count,
                           is_sealed=told.seal is not None, is_quiet=is_quiet, head=head,
                           is_redacted=redact)  # fmt: skip


def script() -> str:
    """Return the check of an archive as one file that needs nothing but Python: `check.py`, with `entries.py` in place
    of the statement that imports it."""
    folder = resources.files(__package__)
    whole, part = (folder.joinpath(name).read_text("utf-8") for name in ("check.py", "entries.py"))
    before, _, rest = whole.partition(f"from {entries.__name__} import (\n")
    _, _, after = rest.partition("\n)\n")
    _, _, part = part.partition("from __future__ import annotations\n")
    return f"{before}{part.lstrip()}{after}"


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

    def close(self, batch: Batch, made_by: str, *, is_quiet: bool, redacted: bool) -> str:
        """Write the manifest; return the head of the archive."""
        facts = {
            "format": check.FORMAT, "made_by": made_by, "made_at": datetime.now(UTC).isoformat(),
            "quiet": is_quiet, "redacted": redacted, "files": self._digests,
            "batch": {
                "id": batch.id, "uid": batch.uid.hex(), "name": batch.name, "pipeline": batch.pipeline,
                "admitted": batch.admitted, "opened_at": _time(batch.opened_at), "seq": batch.seq,
                "head": batch.head.hex(), "sealed_at": None if batch.sealed_at is None else _time(batch.sealed_at),
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


class _ToldWords:
    """The lines of the journal, and what follows from them: the seal in force, and the format in which payloads and
    outputs were recorded."""

    def __init__(self, redact: bool) -> None:
        self._redact = redact
        self.seal: dict[str, Any] | None = None
        self._first = 0
        """Items before this one were admitted in format 1."""
        self._later: dict[int, bytearray] = {}
        """Stage -> for each of these items, 1 if its output was recorded in format 2."""

    def line(self, stored: tuple[int, Entry]) -> dict[str, Any]:
        """Return an entry as it is stored, for the checks, and in readable form, for people."""
        number, entry = stored
        header = entries.header_of(entry.head)
        texts = [] if header["format"] == 1 else self._texts(entry)
        body = entries.body_of(header, entry.body, entries.frames_of(texts))
        line = {"chain": number, "seq": entry.seq, "head": _base64(entry.head), "body": _base64(entry.body),
                "hash": entry.hash.hex(), "texts": texts}  # fmt: skip
        bare, has_words = entries.without_words(body) if header["format"] == 1 and self._redact else (body, False)
        if has_words:
            line |= {"body": None, "bare": _base64(msgspec.msgpack.encode(bare))}
        self._follow(number, header, bare)
        return check.shown(line, header, bare)

    def _texts(self, entry: Entry) -> list[dict[str, Any]]:
        return [
            {
                "n": each.n,
                "boundary": each.boundary,
                "frame": None if each.frame is None or self._redact else _base64(each.frame),
            }
            for each in entry.texts
        ]

    def _follow(self, number: int, header: dict[str, Any], body: dict[str, Any]) -> None:
        what, form = body.get("type"), header["format"]
        if number == 0 and what in ("sealed", "reopened"):
            self.seal = body if what == "sealed" else None
        elif number == 0 and what == "ingested" and form == 1:
            self._first = max(self._first, body.get("hi", 0))
        elif what == "checkpoint" and form != 1:
            for group in body.get("advanced", ()):
                self._recorded(group["stage"], check.numbers(group["items"]) if self._first else ())
        elif what == "acted" and form != 1:
            for moved in body.get("items", ()):
                self._recorded(moved["stage_after"] - 1, [moved["n"]] if moved.get("output_digest") else ())

    def _recorded(self, stage: int, ns: Iterable[int]) -> None:
        for n in ns:
            if n < self._first:
                self._later.setdefault(stage, bytearray(self._first))[n] = 1

    def form_of_payload(self, item: StoredItem) -> int:
        """Return the format in which the newest payload of an item was recorded: every revision was in format 2."""
        return 1 if item.n < self._first and not item.revision else 2

    def form_of_output(self, output: Output) -> int:
        """Return the format in which an output was recorded."""
        if output.n >= self._first:
            return 2
        return 2 if output.stage in self._later and self._later[output.stage][output.n] else 1


def _entries(store: Store, batch: Batch, chunks: list[Chunk]) -> Iterator[tuple[int, Entry]]:
    """Yield the batch's chain, then those of its chunks, parents before children, each up to the given end: entries
    with the number of their chain within the batch."""
    ends = sorted((chunk.number, int(chunk.id), chunk.seq) for chunk in chunks)
    for number, chain, last in [(0, chain_of_batch(batch.id), batch.seq), *ends]:
        for entry in each_entry(store, chain, upto=last):
            yield number, entry


def _items(store: Store, batch: Batch) -> Iterator[tuple[StoredItem, list[Output]]]:
    """Yield items with their outputs; both are read side by side."""
    outputs = iter(each_output(store, batch.id))
    waiting = next(outputs, None)
    for item in each_item(store, batch.id, hi=batch.admitted):
        made = []
        while waiting is not None and waiting.n <= item.n:
            made += [waiting] if waiting.n == item.n else []
            waiting = next(outputs, None)
        yield item, made


class _ItemLines:
    """The lines about items, with digests by the formula of the format in which each was recorded."""

    def __init__(self, batch: Batch, told: _ToldWords, *, redact: bool) -> None:
        self._uid, self._told, self._redact = batch.uid, told, redact
        self._names = stage_names(batch)

    def line(self, item: StoredItem, outputs: list[Output]) -> dict[str, Any]:
        place = item.place
        return {
            "n": item.n, "key": None if self._redact else item.key, "state": place.state.value,
            "stage": lookup.stage_title(self._names, place.stage), "epoch": place.epoch, "code": place.code,
            "reason": None if self._redact else place.reason, "revision": item.revision, "parent": item.parent,
            "digest": self._payload(item).hex(), "outputs": [self._output(each) for each in outputs],
        }  # fmt: skip

    def _payload(self, item: StoredItem) -> bytes:
        if self._told.form_of_payload(item) == 1:
            return commitments.first_format_item(item.salt, canonical.key_text(item.key), item.payload)
        return commitments.payload(self._uid, item.key, item.revision, item.salt, item.payload)

    def _output(self, output: Output) -> dict[str, Any]:
        file = None if output.file is None or self._redact else FileEvidence.decode(output.file)
        digest = self._digest(output)
        return {
            "stage": lookup.stage_title(self._names, output.stage), "epoch": output.epoch,
            "digest": None if digest is None else digest.hex(), "file": None if file is None else file.final,
            "file_sha256": None if file is None else file.digest.hex(),
        }  # fmt: skip

    def _digest(self, output: Output) -> bytes | None:
        """Return the digest of an output. In format 1 that of a file is over its content, which is not read here."""
        if self._told.form_of_output(output) != 1:
            return record.of_output(self._uid, output)
        return None if output.data is None else commitments.first_format(output.salt, output.data)


def _chunk(chunk: Chunk, numbers: Mapping[int, int]) -> dict[str, Any]:
    return {
        "number": chunk.number, "id": chunk.id, "lo": chunk.lo, "hi": chunk.hi,
        "parent": None if chunk.parent is None else numbers.get(chunk.parent), "seq": chunk.seq,
        "head": chunk.head.hex(),
    }  # fmt: skip


def _json(value: Any, indent: int | None = None) -> str:
    separators = None if indent else (",", ":")
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=separators, indent=indent, default=entries.plain
    )


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
