"""Commitments: digests by which the journal proves content that is stored elsewhere.

A commitment is SHA-256 over a label, a fresh random salt, a place and the content. The label separates the kinds of
content, the place binds it to its batch and item, and the salt keeps it from being guessed: to show one piece of
content to an auditor, hand over its salt, and all other commitments reveal as little as before. Salt and content are
stored together as one frame, so that both are removed together.

Places are independent of the store. They name the batch by its uid and items by their numbers; a payload, whose item
has no number yet when it is built, is bound to its key instead.

Format 1, which older entries have, used one salt for everything of an item, and no labels or places.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final

from holdfast.core.canonical import key_text
from holdfast.core.model import NewItem, Output

SALT_BYTES: Final = 16
DIGEST_BYTES: Final = 32
UID_BYTES: Final = 16
GRANT_BYTES: Final = 8
INDEX_KEY_BYTES: Final = 32

Draw = Callable[[int], bytes]
"""Returns that many random bytes: `os.urandom`, or a seeded generator in a simulation."""

Mark = Callable[[str, bytes], bytes]
"""Returns a keyed mark by which the same content is recognised: `KeyIndex.mark`."""

_sha256 = hashlib.sha256
_pack_key = Struct(">IH").pack
_pack_output = Struct(">QHI").pack
_pack_rows = Struct(">QQ").pack
_pack_text = Struct(">qh").pack
_pack_section = Struct(">QhB").pack


def payload(uid: bytes, key: object, revision: int, salt: bytes, data: bytes) -> bytes:
    """Return the commitment to a payload: it also reveals a changed or exchanged key."""
    name = _key_bytes(key)
    place = _pack_key(revision, len(name))
    return _sha256(b"holdfast/payload\0%b%b%b%b%b" % (salt, uid, place, name, data)).digest()


def raw(uid: bytes, key: object, revision: int, salt: bytes, data: bytes) -> bytes:
    """Return the commitment to an item as its source gave it, before it was validated."""
    name = _key_bytes(key)
    place = _pack_key(revision, len(name))
    return _sha256(b"holdfast/raw\0%b%b%b%b%b" % (salt, uid, place, name, data)).digest()


def _key_bytes(key: object) -> bytes:
    """Return a key with its type: 7 and "7" are one key, but not the same content."""
    return (b"i" if isinstance(key, int) else b"s") + key_text(key).encode("utf-8", "surrogatepass")


def output(uid: bytes, n: int, stage: int, epoch: int, salt: bytes, data: bytes) -> bytes:
    """Return the commitment to an output that the store keeps."""
    return _sha256(b"holdfast/output\0%b%b%b%b" % (salt, uid, _pack_output(n, stage, epoch), data)).digest()


def file(uid: bytes, n: int, stage: int, epoch: int, salt: bytes, evidence: bytes) -> bytes:
    """Return the commitment to an output in a file: to the evidence of the file, which has the digest of its bytes."""
    return _sha256(b"holdfast/file\0%b%b%b%b" % (salt, uid, _pack_output(n, stage, epoch), evidence)).digest()


def outputs(uid: bytes, made: Sequence[Output], salts: Sequence[bytes]) -> list[bytes]:
    """Return the commitments to many outputs: the same as one by one, but quicker."""
    found, stage, epoch, rest = list[bytes](), -1, -1, b""
    for o, salt in zip(made, salts, strict=True):
        if o.stage != stage or o.epoch != epoch:
            stage, epoch = o.stage, o.epoch
            rest = _pack_output(0, stage, epoch)[8:]
        data = o.data
        if o.file is not None or data is None:
            found.append(file(uid, o.n, stage, epoch, salt, o.file or b""))
        else:
            place = o.n.to_bytes(8, "big")
            found.append(_sha256(b"holdfast/output\0%b%b%b%b%b" % (salt, uid, place, rest, data)).digest())
    return found


def payloads(uid: bytes, items: Sequence[NewItem], salts: Sequence[bytes]) -> list[bytes]:
    """Return the commitments to the payloads of many new items: the same as one by one, but quicker."""
    found, uid = list[bytes](), uid + bytes(4)  # revision 0
    for item, salt in zip(items, salts, strict=True):
        key = item.key
        name = b"s" + key.encode() if type(key) is str and key.isascii() else _key_bytes(key)
        size = len(name).to_bytes(2, "big")
        found.append(_sha256(b"holdfast/payload\0%b%b%b%b%b" % (salt, uid, size, name, item.payload)).digest())
    return found


def accumulator(uid: bytes, n: int, rows: int, salt: bytes, acc: bytes) -> bytes:
    """Return the commitment to the accumulator of a partition after so many rows."""
    return _sha256(b"holdfast/accumulator\0%b%b%b%b" % (salt, uid, _pack_rows(n, rows), acc)).digest()


def text(uid: bytes, n: int, boundary: int, salt: bytes, words: bytes) -> bytes:
    """Return the commitment to the words of an item, or of an entry as a whole (`n` is -1)."""
    return _sha256(b"holdfast/text\0%b%b%b%b" % (salt, uid, _pack_text(n, boundary), words)).digest()


def section(uid: bytes, chain: int, boundary: int, commit_id: bytes, salt: bytes, content: bytes) -> bytes:
    """Return the commitment to one section of the body of an entry."""
    place = _pack_section(chain, boundary, len(commit_id))
    return _sha256(b"holdfast/section\0%b%b%b%b%b" % (salt, uid, place, commit_id, content)).digest()


def state(uid: bytes, chain: int, facts: bytes) -> bytes:
    """Return the digest of the state of a chunk: it holds digests and structure only, so it has no salt."""
    return _sha256(b"holdfast/state\0%b%b%b" % (uid, chain.to_bytes(8, "big"), facts)).digest()


def first_format(salt: bytes, data: bytes) -> bytes:
    """Return the digest of an output or accumulator in entries of format 1."""
    return _sha256(salt + data).digest()


def first_format_item(salt: bytes, key: str, data: bytes) -> bytes:
    """Return the digest of an admitted item in entries of format 1."""
    name = key.encode("utf-8", "surrogatepass")
    return _sha256(b"%b%b%b%b" % (salt, len(name).to_bytes(2, "big"), name, data)).digest()


def salts(draw: Draw, count: int) -> list[bytes]:
    """Return that many fresh salts, drawn together."""
    random = draw(SALT_BYTES * count)
    return [random[at : at + SALT_BYTES] for at in range(0, SALT_BYTES * count, SALT_BYTES)]


def unframe(frame: bytes) -> tuple[bytes, bytes]:
    """Return the salt and the content of a frame. A frame that is too short for a salt was damaged: it has the content
    that is there, and no commitment fits it."""
    return frame[:SALT_BYTES], frame[SALT_BYTES:]


TAIL_BITS = 31
"""Of the number of a key: those that tell apart keys with the same head."""


class KeyIndex:
    """The numbers under which a store finds keys: a keyed hash, so that a key cannot be guessed from its number.

    The number has 63 bits: 32 of a keyed hash of the key without its last three bytes (its head), and 31 of a keyed
    hash of the whole key. So keys that come in order ("page-0041", "page-0042") are indexed beside each other, because
    an index that is filled in order stays fast, and a number says nothing about its key but which others have the same
    head. Different keys may have the same number: they are compared in full. That is slow, so it must be rare, also in
    a group of many thousand new keys. The hash is BLAKE2b with a key, a MAC that takes a quarter of the time of an
    HMAC.
    """

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=16)
        self._of_keys = self._keyed.copy()
        self._of_keys.update(b"key\0")

    def numbers(self, keys: Iterable[object]) -> "array[int]":
        """Return the numbers of some keys. Keys that come in order share their head, which is hashed once."""
        found, last, base, hasher = array("q"), None, 0, self._of_keys.copy
        for key in keys:
            name = key_text(key).encode("utf-8", "surrogatepass")
            head = name[:-3]
            if head != last:
                last, base = head, int.from_bytes(self._hash(b"head\0" + head)[:4], "big") << TAIL_BITS
            (hashed := hasher()).update(name)
            found.append(base | int.from_bytes(hashed.digest()[:4], "big") >> 1)
        return found

    def number(self, key: object) -> int:
        """Return the number of one key."""
        return self.numbers([key])[0]

    def _hash(self, content: bytes) -> bytes:
        found = self._keyed.copy()
        found.update(content)
        return found.digest()

    def probe(self, key: str, turn: int) -> int:
        """Return the number for a key whose number is taken by another key: `turn` is 1 for the first retry, and so
        on."""
        name = key.encode("utf-8", "surrogatepass")
        return int.from_bytes(self._hash(b"probe %d\0%b" % (turn, name))[:8], "big") >> 1

    def mark(self, label: str, content: bytes) -> bytes:
        """Return a mark by which the same content is recognised, and nothing else: two payloads, or two notes."""
        return self._hash(b"%b\0%b" % (label.encode(), content))
