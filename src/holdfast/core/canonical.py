"""Canonical bytes, digests, fingerprints and keys.

Digests cover the bytes that are stored, never a second serialisation of them.
"""

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(order="sorted", decimal_format="string", uuid_format="canonical")
_decoder = msgspec.json.Decoder()

SALT_BYTES = 16
DIGEST_BYTES = 32

encode: Callable[[Any], bytes] = _encoder.encode
"""The canonical JSON bytes of a plain value: sorted keys, no blanks."""

decode: Callable[[bytes], Any] = _decoder.decode
"""The plain value of JSON bytes."""


def digest(salt: bytes, data: bytes) -> bytes:
    """The digest of stored bytes. The salt stands beside the payload and dies with it."""
    return hashlib.sha256(salt + data).digest()


def item_digest(salt: bytes, key: str, payload: bytes) -> bytes:
    """The digest of an admitted item: who changes or exchanges keys is found out as well."""
    name = key.encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%b%b%b%b" % (salt, len(name).to_bytes(2, "big"), name, payload)).digest()


def digest_of_acc(salt: bytes, acc: bytes | None) -> bytes:
    """The digest of what was accumulated; empty where nothing is."""
    return b"" if acc is None else digest(salt, acc)


def fingerprint(value: Any) -> str:
    """A short, stable name for a plain value: the same value, the same text."""
    return hashlib.sha256(encode(value)).hexdigest()[:32]


def key_text(key: object) -> str:
    """The text that identifies an item: 7 and "7" are one key."""
    return key if isinstance(key, str) else str(key)


def storable(text: str) -> str:
    """The text without what no store can hold: half a surrogate pair, as in names of files, is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def key_hash(text: str) -> int:
    """A 56-bit number for the index of keys.

    Neighbours ("page-0041", "page-0042") get neighbouring numbers, because an index that is filled in order stays
    fast: the head of the key is hashed, its last three bytes are kept. Collisions are legal and are compared.
    """
    raw = text.encode("utf-8", "surrogatepass")
    return zlib.crc32(raw[:-3]) << 24 | int.from_bytes(raw[-3:], "big")


def probe(text: str, turn: int) -> int:
    """Where a key goes whose number is taken by another key, the first time, the second, and so on. It depends on the
    whole key, so that keys which were made to collide part company here."""
    name = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(b"%d:%b" % (turn, name)).digest()[:7], "big")
