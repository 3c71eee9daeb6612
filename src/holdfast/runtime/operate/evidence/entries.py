"""The entries of the journal, read in plain Python: headers, sections, words and commitments of both formats.

Holdfast itself reads them with `core.journal` and `core.sections`. This file needs nothing but Python 3.8, because an
archive of evidence contains it as a part of its `check.py`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

SALT = 16


class Wrong(Exception):
    """A discrepancy in the bundle."""


# -- MessagePack ------------------------------------------------------------------------------------------------------


def unpack(data: bytes) -> Any:
    """Return the value of MessagePack bytes, the format of the journal."""
    value, end = read(data, 0)
    if end != len(data):
        raise Wrong("there are bytes after the end of an entry")
    return value


def pack(value: Any) -> bytes:
    """Return a value as MessagePack, in the only form that Holdfast writes."""
    if value is None or value is True or value is False:
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return pack_int(value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, bytes):
        return pack_size(len(value), 0, 0, (0xC4, 0xC5, 0xC6)) + value
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return pack_size(len(text), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + text
    if isinstance(value, dict):
        pairs = b"".join(pack(name) + pack(each) for name, each in value.items())
        return pack_size(len(value), 0x80, 16, (0, 0xDE, 0xDF)) + pairs
    return pack_size(len(value), 0x90, 16, (0, 0xDC, 0xDD)) + b"".join(map(pack, value))


def pack_size(size: int, short: int, below: int, marks: tuple[int, int, int]) -> bytes:
    """Return the mark and the length of a text, a list or a dictionary."""
    if size < below:
        return bytes([short + size])
    if size < 1 << 8 and marks[0]:
        return struct.pack(">BB", marks[0], size)
    return struct.pack(">BH", marks[1], size) if size < 1 << 16 else struct.pack(">BI", marks[2], size)


def pack_int(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack(">b", value)
    kinds = ((0xCC, ">BB", 0, 8), (0xCD, ">BH", 0, 16), (0xCE, ">BI", 0, 32), (0xCF, ">BQ", 0, 64))
    signed = ((0xD0, ">Bb", 7, 7), (0xD1, ">Bh", 15, 15), (0xD2, ">Bi", 31, 31), (0xD3, ">Bq", 63, 63))
    for mark, form, low, high in kinds if value >= 0 else signed:
        if (-(1 << low) if low else 0) <= value < 1 << high:
            return struct.pack(form, mark, value)
    raise Wrong("an entry holds a number that Holdfast never writes")


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
    """Return one value, and the position of the next."""
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
        raise Wrong("an entry holds a value that Holdfast never writes")
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


# -- entries ----------------------------------------------------------------------------------------------------------

FIRST = ("chain", "batch", "seq", "kind", "at", "actor", "fence", "commit_id")
SECOND = ("format", "uid", "chain", "seq", "kind", "at", "actor", "fence", "grant", "commit_id", "sections")
TEXTS = {
    "attempt": ("message", "trace"), "spend": ("usage", "metrics"), "position": ("cursor",), "refusal": ("reason",),
    "acted": ("reason", "note"), "steered": ("reason",), "sealed": ("reconciliation", "reason"),
    "reopened": ("reason",),
}  # fmt: skip
"""The fields of a record that are words, in the order in which they are stored."""


def header_of(top: bytes) -> dict[str, Any]:
    """Return a header of either format."""
    values = unpack(top)
    if isinstance(values, list) and len(values) == len(FIRST) + 1:
        found = dict(zip(FIRST, values))  # noqa: B905 - Python 3.8 has no `strict`
        return {"format": 1, "uid": b"", "grant": b"", "sections": [[0, values[-1]]], **found}
    if not isinstance(values, list) or len(values) != len(SECOND) or values[0] != 2:
        raise Wrong("an entry has a format that this script does not know")
    return {**dict(zip(SECOND, values)), "batch": 0}  # noqa: B905


def commit_section(header: dict[str, Any], boundary: int, frame: bytes) -> bytes:
    """Return the commitment to one section of a body: over its salt, its place and its content."""
    place = struct.pack(">QhB", header["chain"], boundary, len(header["commit_id"])) + header["commit_id"]
    whole = b"holdfast/section\0" + frame[:SALT] + header["uid"] + place + frame[SALT:]
    return hashlib.sha256(whole).digest()


def commit_text(header: dict[str, Any], n: int, boundary: int, frame: bytes) -> bytes:
    """Return the commitment to some words: over their salt, their item and the words."""
    whole = b"holdfast/text\0" + frame[:SALT] + header["uid"] + struct.pack(">qh", n, boundary) + frame[SALT:]
    return hashlib.sha256(whole).digest()


def state_of(uid: bytes, chain: int, items: list[dict[str, Any]], counts: list[int]) -> bytes:
    """Return the digest of what a chain leaves to its successor; cursors are left out."""
    bare = [dict(item) for item in items]
    for item in bare:
        if item.get("position") is not None:
            item["position"] = {k: v for k, v in item["position"].items() if k not in ("cursor", "said", "mark")}
    return hashlib.sha256(b"holdfast/state\0" + uid + struct.pack(">Q", chain) + pack([counts, bare])).digest()


def frames_of(texts: list[dict[str, Any]]) -> list[tuple[int, int, bytes | None]]:
    """Return the words beside an entry: (item, boundary, salt and words; None if they are withheld)."""
    return [(each["n"], each["boundary"], None if each["frame"] is None else b64decode(each["frame"]))
            for each in texts]  # fmt: skip


def check_texts(
    header: dict[str, Any], body: bytes, texts: list[tuple[int, int, bytes | None]]
) -> tuple[str, int, int]:
    """Compare words with the commitments in the sections: return which ones are wrong, or "", how many are shown, and
    how many there are in all."""
    wanted = [(record.get("n", -1), boundary, record["said"])
              for boundary, part in parts_of(body) for _, record in with_words(part) if record.get("said")]  # fmt: skip
    if len(texts) > len(wanted):
        return "words that nothing refers to", 0, len(wanted)
    shown_here = 0
    for (n, boundary, said), (n_here, boundary_here, frame) in zip(wanted, texts):  # noqa: B905
        if frame is None:
            continue
        shown_here += 1
        if (n_here, boundary_here, commit_text(header, n, boundary, frame)) != (n, boundary, said):
            return ("words of the entry" if n < 0 else f"words of item {n}"), 0, len(wanted)
    return "", shown_here, len(wanted)


def parts_of(body: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Return the sections of a body of format 2, without words."""
    return [(boundary, unpack(frame[SALT:])) for boundary, frame in unpack(body)]


def with_words(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every record of a body that may have words, with its kind, in the order in which words are stored."""
    kind = part.get("type", "")
    if kind in TEXTS:
        yield kind, part
    for attempt in part.get("attempts", ()):
        yield "attempt", attempt
    for _, spend in part.get("spends", ()):
        yield "spend", spend
    for position in part.get("positions", ()):
        yield "position", position
    for refusal in part.get("refusals", ()):
        yield "refusal", refusal
    for item in part.get("items", ()) if kind in ("acted", "continued") else ():
        if item.get("position") is not None:
            yield "position", item["position"]


def body_of(header: dict[str, Any], body: bytes, texts: list[tuple[int, int, bytes | None]]) -> dict[str, Any]:
    """Return the whole body of an entry, with its words as far as they are there. A record whose words are withheld
    still has its commitment in `said`."""
    if header["format"] == 1:
        found = meaning(body)
        return found if isinstance(found, dict) else {}
    rest = iter(texts)
    found = [part for _, part in parts_of(body)]
    for part in found:
        for kind, record in with_words(part):
            frame = next(rest, (0, 0, None))[2] if record.get("said") else None
            if frame is not None:
                del record["said"]
                record.update(zip(TEXTS[kind], unpack(frame[SALT:])))  # noqa: B905
    return merge(found)


def merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a whole body from its sections: lists are joined."""
    whole = dict(parts[0])
    for part in parts[1:]:
        for name, value in part.items():
            if isinstance(value, list):
                whole[name] = whole.get(name, []) + value
    return whole


def without_words(body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a body without its words, and whether it had any. A record that had some says so in `said`. A note that
    is not a record is all words."""
    if "type" not in body:
        return {}, bool(body)
    bare: dict[str, Any] = unpack(pack(body))
    had = False
    for kind, record in with_words(bare):
        words = [record.pop(name) for name in TEXTS[kind] if record.get(name)]
        if words:
            record["said"], had = b"withheld", True
    return bare, had


def meaning(body: bytes) -> Any:
    """Return a decoded body of format 1: MessagePack, or JSON for a note; None if it is neither."""
    for read_body in (unpack, json.loads):
        try:
            return read_body(body)
        except (Wrong, ValueError, IndexError, struct.error):
            continue
    return None


def readable(value: Any) -> Any:
    """Return a value as it is in the JSON of the bundle."""
    return json.loads(json.dumps(value, default=plain))


def plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 64 else f"{value[:32].hex()}… ({len(value):,} bytes)"
    return str(value)
