"""Check a bundle of evidence of a Holdfast batch. Needs nothing but Python 3.8 or newer:

    python check.py evidence.zip

It checks that no file of the bundle was changed since it was made; that every chain of the journal is whole, from the
first entry of the batch to the head of every chunk, and that no entry, header or body was changed, removed, added or
moved; that the seal, where there is one, covers exactly these chains; and that the items add up to what it says.
It cannot say whether the journal was written anew as a whole: for that, compare the head below with one you kept.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import zipfile
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any

GENESIS = bytes(32)


class Wrong(Exception):
    """Something does not hold."""


def check(path: str) -> dict[str, Any]:
    """What the bundle shows, as a dict; Wrong with the first thing that does not hold."""
    with zipfile.ZipFile(path) as bundle:
        manifest = json.loads(bundle.read("MANIFEST.json"))
        check_files(bundle, manifest)
        journal = Journal(lines(bundle, "chunks.jsonl"))
        for line in lines(bundle, "journal.jsonl"):
            journal.take(line)
        journal.end(manifest["batch"])
        counts: dict[str, int] = {}
        for item in lines(bundle, "items.jsonl"):
            counts[item["state"]] = counts.get(item["state"], 0) + 1
    if manifest["quiet"] and sum(counts.values()) != manifest["batch"]["admitted"]:
        raise Wrong("{} items are listed, {} were admitted".format(sum(counts.values()), manifest["batch"]["admitted"]))
    if journal.seal is not None:
        journal.check_seal(journal.seal, counts)
    return {
        "batch": manifest["batch"]["name"], "head": manifest["batch"]["head"], "entries": journal.entries,
        "chains": 1 + len(journal.chunks), "counts": counts, "sealed": journal.seal is not None,
    }  # fmt: skip


def check_files(bundle: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    """No file was added, removed or changed."""
    names = set(bundle.namelist()) - {"MANIFEST.json"}
    if names != set(manifest["files"]):
        raise Wrong("files were added or removed: {}".format(sorted(names ^ set(manifest["files"]))))
    for name, said in manifest["files"].items():
        found = hashlib.sha256()
        with bundle.open(name) as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                found.update(block)
        if found.hexdigest() != said:
            raise Wrong(f"{name} was changed after the bundle was made")


def lines(bundle: zipfile.ZipFile, name: str) -> Iterator[dict[str, Any]]:
    with bundle.open(name) as file:
        for line in file:
            yield json.loads(line)


class Journal:
    """The chains, followed entry by entry."""

    def __init__(self, chunks: Iterable[dict[str, Any]]) -> None:
        self.chunks = {chunk["id"]: chunk for chunk in chunks}
        self.starts: dict[int, bytes] = {}
        """Chunk -> what its first entry must link to."""
        self.at: dict[int, tuple[int, bytes]] = {}
        """Chain -> (number, hash) of its last entry so far."""
        self.entries = 0
        self.seal: dict[str, Any] | None = None

    def take(self, line: dict[str, Any]) -> None:
        """The next entry, checked."""
        chain, seq = line["chain"], line["seq"]
        where = "entry {} of {} {}".format(seq, "batch" if chain < 0 else "chunk", abs(chain))
        head, body, said = b64decode(line["head"]), b64decode(line["body"]), bytes.fromhex(line["hash"])
        start = GENESIS if chain < 0 else self.starts.get(chain)
        if start is None:
            raise Wrong(f"{where}: nothing tells where its chain begins")
        before, prev = self.at.get(chain, (0, start))
        if seq != before + 1:
            raise Wrong(f"{where}: it follows entry {before}")
        if hashlib.sha256(prev + head).digest() != said:
            raise Wrong(f"{where}: its hash does not follow from the entry before")
        header = unpack(head)
        if (header[0], header[2]) != (chain, seq):
            raise Wrong(f"{where}: its header says it is another entry")
        if hashlib.sha256(body).digest() != header[8]:
            raise Wrong(f"{where}: its body was changed")
        self.follow(header[3], unpack(body), prev, said)
        self.at[chain] = (seq, said)
        self.entries += 1

    def follow(self, kind: str, body: dict[str, Any], prev: bytes, said: bytes) -> None:
        """What an entry says about where other chains begin, and about the seal."""
        if kind == "ingested" and body.get("hi", 0) > body.get("lo", 0):
            self.starts[body["chunk"]] = said
        elif kind == "claimed" and body.get("child"):
            self.starts[body["child"][0]] = prev
        elif kind in ("sealed", "reopened"):
            self.seal = body if kind == "sealed" else None

    def end(self, batch: dict[str, Any]) -> None:
        """Every chain ends where the store said that it ends."""
        heads = [(-batch["id"], batch["seq"], batch["head"])]
        heads += [(chunk["id"], chunk["seq"], chunk["head"]) for chunk in self.chunks.values() if chunk["seq"]]
        for chain, seq, head in heads:
            if self.at.get(chain) != (seq, bytes.fromhex(head)):
                raise Wrong(f"chain {chain}: it does not end where the store says, at entry {seq}")
        unknown = set(self.at) - {chain for chain, _, _ in heads}
        if unknown:
            raise Wrong(f"chains {sorted(unknown)} belong to no chunk")

    def check_seal(self, seal: dict[str, Any], counts: dict[str, int]) -> None:
        """The seal covers these chains, and no others; the items add up to what it says."""
        found = hashlib.sha256()
        for number in sorted(self.chunks):
            chunk = self.chunks[number]
            found.update(struct.pack(">QQ", number, chunk["seq"]) + bytes.fromhex(chunk["head"]))
        if found.digest() != seal["heads"]:
            raise Wrong("the chains do not end where they ended when the batch was sealed")
        for state in ("done", "skipped", "dead", "cancelled"):
            if counts.get(state, 0) != seal[state]:
                raise Wrong(f"{counts.get(state, 0)} items are {state}, the seal says {seal[state]}")


def unpack(data: bytes) -> Any:
    """What MessagePack bytes say: the journal's own format."""
    value, end = read(data, 0)
    if end != len(data):
        raise Wrong("there are bytes behind the end of an entry")
    return value


SIZES = {
    0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H",
    0xDF: ">I",
}  # fmt: skip
NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def read(data: bytes, at: int) -> tuple[Any, int]:
    """One value, and where the next begins."""
    mark = data[at]
    at += 1
    if mark < 0x80:
        return mark, at
    if mark >= 0xE0:
        return mark - 256, at
    if mark in PLAIN:
        return PLAIN[mark], at
    if mark in NUMBERS:
        return struct.unpack_from(NUMBERS[mark], data, at)[0], at + struct.calcsize(NUMBERS[mark])
    if mark in SIZES:
        size, at = struct.unpack_from(SIZES[mark], data, at)[0], at + struct.calcsize(SIZES[mark])
    elif mark < 0xC0:
        size = mark & (0x1F if mark >= 0xA0 else 0x0F)
    else:
        raise Wrong("an entry holds what no journal has")
    if mark in (0xC4, 0xC5, 0xC6):
        return data[at : at + size], at + size
    if 0xA0 <= mark <= 0xBF or mark in (0xD9, 0xDA, 0xDB):
        return data[at : at + size].decode("utf-8", "surrogatepass"), at + size
    if 0x90 <= mark <= 0x9F or mark in (0xDC, 0xDD):
        values = []
        for _ in range(size):
            value, at = read(data, at)
            values.append(value)
        return values, at
    pairs = {}
    for _ in range(size):
        name, at = read(data, at)
        pairs[name], at = read(data, at)
    return pairs, at


def main(arguments: list[str]) -> int:
    """Check the bundle that is named, and say what was found."""
    say = sys.stdout.write
    if len(arguments) != 1:
        say(__doc__ or "")
        return 2
    try:
        found = check(arguments[0])
    except (Wrong, KeyError, ValueError, OSError, IndexError, struct.error, zipfile.BadZipFile) as error:
        say(f"IT DOES NOT HOLD: {error}\n")
        return 1
    counts = ", ".join(f"{count} {state}" for state, count in sorted(found["counts"].items()))
    say(f"It holds. Batch {found['batch']!r}: {found['chains']} chains, {found['entries']} entries; {counts}.\n")
    say("Sealed.\n" if found["sealed"] else "Not sealed: work on it may have gone on.\n")
    say(f"Head of its journal: {found['head']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
