"""The keys of a source that have come before, in an unnamed file that disappears with its process: memory stays
flat."""

from array import array
from collections.abc import Sequence
from typing import Literal

import apsw

from holdfast.core.canonical import digest, key_text
from holdfast.core.model import NewItem

KeySight = Literal["new", "same", "other"]
"""The first item of its key; one that came before with the same payload; one that came with a different payload."""


class SeenKeys:
    """The items of a source, identified by 63 bits of a digest of their keys, and of keys and payloads."""

    def __init__(self) -> None:
        self._db = apsw.Connection("")
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "PRAGMA cache_size = -16000",
            "CREATE TABLE keys (number INTEGER PRIMARY KEY) STRICT",
            "CREATE TABLE wholes (number INTEGER PRIMARY KEY) STRICT",
        ):
            self._db.execute(statement).fetchall()

    def look(self, items: Sequence[NewItem]) -> list[KeySight]:
        """Return one result for each item, and remember the items."""
        if not items:
            return []
        keys = [_number(b"key", item, b"") for item in items]
        wholes = [_number(b"whole", item, item.payload) for item in items]
        with self._db:
            known_keys, known_wholes = self._known("keys", keys), self._known("wholes", wholes)
            self._add("keys", keys)
            self._add("wholes", wholes)
        sights: list[KeySight] = []
        for key, whole in zip(keys, wholes, strict=True):
            sights.append("new" if key not in known_keys else "same" if whole in known_wholes else "other")
            known_keys.add(key)
            known_wholes.add(whole)
        return sights

    def close(self) -> None:
        self._db.close()

    def _known(self, table: str, numbers: list[int]) -> set[int]:
        asked = f"SELECT number FROM {table} WHERE number IN (SELECT value FROM carray(?))"  # noqa: S608 - our own names
        return {number for (number,) in self._db.execute(asked, (apsw.carray(array("q", numbers)),))}

    def _add(self, table: str, numbers: list[int]) -> None:
        given = (apsw.carray(array("q", numbers)),)
        self._db.execute(f"INSERT OR IGNORE INTO {table} SELECT value FROM carray(?) ORDER BY value", given).fetchall()  # noqa: S608 - see above


def _number(what: bytes, item: NewItem, payload: bytes) -> int:
    key = key_text(item.key).encode("utf-8", "surrogatepass")
    return int.from_bytes(digest(b"%b%d:%b%b" % (what, len(key), key, payload))[:8], "big") >> 1
