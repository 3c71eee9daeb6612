"""What a file was when a scan of it began: its size, and digests of a few places. So a file that was rewritten or
shortened under a half-done scan is noticed before another row is read, at the price of a few small reads."""

import hashlib
from pathlib import Path
from typing import IO, Any

SAMPLES = 5
SAMPLE_BYTES = 4096


def identity_of(path: Path) -> dict[str, Any]:
    """The size, and from where to where it was looked at, with a digest."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        most = max(0, size - SAMPLE_BYTES)
        starts = sorted({most * part // (SAMPLES - 1) for part in range(SAMPLES)})
        return {"size": size, "samples": [[at, *_digest(stream, at, min(SAMPLE_BYTES, size - at))] for at in starts]}


def difference(path: Path, before: dict[str, Any]) -> str | None:
    """What is another than before, in words; None if nothing is, or if bytes were only appended."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        if size < before["size"]:
            return f"it has {size:,} bytes, and had {before['size']:,}: it was shortened"
        for at, count, digest in before["samples"]:
            if _digest(stream, at, count) != [count, digest]:
                return f"the bytes {at:,} to {at + count:,} of it are not what they were: it was rewritten"
    return None


def _digest(stream: IO[bytes], at: int, count: int) -> list[Any]:
    stream.seek(at)
    data = stream.read(count)
    return [len(data), hashlib.sha256(data).hexdigest()[:32]]
