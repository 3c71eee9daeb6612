"""What a file was when a scan of it began: its size, and digests of some places. So a file that was rewritten or
shortened under a scan is noticed before another row is read, at the price of some small reads. Of a file of up to one
mebibyte every byte counts."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

SAMPLES = 5
SAMPLE_BYTES = 4096
PLACES = 256
"""Places, evenly over the file, that share one digest."""
HEADS, SMALL_BYTES = 16, 1 << 20
"""Beginnings of a small file of which each has a digest, and what is small: so it is seen in which part it changed."""


def identity_of(path: Path) -> dict[str, Any]:
    """The size, and from where to where it was looked at, with a digest."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        samples = [[at, *_digest(stream, at, min(SAMPLE_BYTES, size - at))] for at in _starts(size, SAMPLES)]
        return {"size": size, "samples": samples, "places": _overall(stream, size), "heads": _heads(stream, size)}


def difference(path: Path, before: dict[str, Any]) -> str | None:
    """What is another than before, in words; None if nothing is, or if bytes were only appended."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        if size < before["size"]:
            return f"it has {size:,} bytes, and had {before['size']:,}: it was shortened"
        for at, count, digest in before["samples"]:
            if _digest(stream, at, count) != [count, digest]:
                return f"the bytes {at:,} to {at + count:,} of it are not what they were: it was rewritten"
        if "places" in before and _overall(stream, before["size"]) != before["places"]:
            return f"somewhere in its first {before['size']:,} bytes it is not what it was: it was rewritten"
    return None


def difference_beside(path: Path, before: dict[str, Any], open_bytes: Sequence[tuple[int, int | None]]) -> str | None:
    """What is another than before outside of some stretches of bytes, in words: samples tell that lie wholly outside,
    and of a small file what is before the first of them."""
    least = min(lo for lo, _ in open_bytes)
    with path.open("rb") as stream:
        for upto, digest in before.get("heads", ()):
            if upto <= least and _digest(stream, 0, upto) != [upto, digest]:
                return f"its first {upto:,} bytes are not what they were"
        for at, count, digest in before["samples"]:
            beside = all(at + count <= lo or (hi is not None and hi <= at) for lo, hi in open_bytes)
            if beside and _digest(stream, at, count) != [count, digest]:
                return f"the bytes {at:,} to {at + count:,} of it are not what they were"
    return None


def _starts(size: int, count: int) -> list[int]:
    """So many places, evenly over the file, or as many as it has."""
    most = max(0, size - SAMPLE_BYTES)
    count = min(count, max(2, -(-size // SAMPLE_BYTES)))
    return sorted({most * part // (count - 1) for part in range(count)})


def _heads(stream: IO[bytes], size: int) -> list[list[Any]]:
    """Digests of beginnings of a small file, of different lengths; nothing of a large one."""
    lengths = sorted({size * part // HEADS for part in range(1, HEADS)} - {0}) if size <= SMALL_BYTES else []
    return [_digest(stream, 0, length) for length in lengths]


def _overall(stream: IO[bytes], size: int) -> str:
    """One digest over many places of the first so many bytes."""
    found = hashlib.sha256()
    for at in _starts(size, PLACES):
        stream.seek(at)
        found.update(stream.read(min(SAMPLE_BYTES, size - at)))
    return found.hexdigest()[:32]


def _digest(stream: IO[bytes], at: int, count: int) -> list[Any]:
    stream.seek(at)
    data = stream.read(count)
    return [len(data), hashlib.sha256(data).hexdigest()[:32]]
