"""Generated work: items of about 180 bytes of JSON, results of about 90, with different values for every seed.

Only the standard library is imported: this module also runs in the environments of the peers.
"""

import random
import string
from collections.abc import Iterator
from typing import Any

MASK = (1 << 64) - 1
TEXT_LENGTH = 1 << 16


def items(count: int, seed: int, *, start: int = 0, keys: str = "ordered") -> Iterator[dict[str, Any]]:
    """Yield items, never a list: the reader's memory is its own."""
    text = letters(seed)
    key_of = {"ordered": ordered_key, "random": random_key}[keys]
    for number in range(start, start + count):
        at = number * 31 % (TEXT_LENGTH - 128)
        yield {
            "id": key_of(number, seed),
            "number": number,
            "title": text[at + 80 : at + 102],
            "score": (number & 1023) / 1024,
            "tags": ["page", "made-up"],
            "body": text[at : at + 72],
        }


def result(item: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the zero-cost handler, for callers that use plain dictionaries."""
    return {"id": item["id"], "number": item["number"], "text": item["body"][:32], "ok": True}


def ordered_key(number: int, seed: int) -> str:
    return f"{seed & 0xFFFF:04x}-{number:011d}"


def random_key(number: int, seed: int) -> str:
    """Return sixteen hexadecimal digits in no order, never the same twice: each operation here is reversible."""
    mixed = (number * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03) & MASK
    mixed = ((mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9) & MASK
    return f"{mixed ^ (mixed >> 29):016x}"


def letters(seed: int) -> str:
    source = random.Random(seed)
    return "".join(source.choices(string.ascii_lowercase + "     ", k=TEXT_LENGTH))
