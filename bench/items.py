"""Made-up work: items of about 180 bytes of JSON, results of about 90, other values for every seed.

Only the standard library is imported: this module also runs in the environments of the peers.
"""

import random
import string
from collections.abc import Iterator
from typing import Any

MASK = (1 << 64) - 1
TEXT_LENGTH = 1 << 16


def items(count: int, seed: int, *, start: int = 0, keys: str = "ordered") -> Iterator[dict[str, Any]]:
    """A stream, never a list: the memory of whoever reads it is its own."""
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
    """What the zero-cost handler answers, for those who take and give plain dictionaries."""
    return {"id": item["id"], "number": item["number"], "text": item["body"][:32], "ok": True}


def ordered_key(number: int, seed: int) -> str:
    return f"{seed & 0xFFFF:04x}-{number:011d}"


def random_key(number: int, seed: int) -> str:
    """Sixteen hexadecimal digits without any order, never the same twice: each operation here can be undone."""
    mixed = (number * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03) & MASK
    mixed = ((mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9) & MASK
    return f"{mixed ^ (mixed >> 29):016x}"


def letters(seed: int) -> str:
    source = random.Random(seed)
    return "".join(source.choices(string.ascii_lowercase + "     ", k=TEXT_LENGTH))
