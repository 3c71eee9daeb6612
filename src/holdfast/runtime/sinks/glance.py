"""A quick look at many files: one `stat` each, and no more of the evidence decoded than that needs."""

import os
from collections.abc import Sequence

import msgspec

from holdfast.core.errors import NotOurs


class Glance(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The beginning of the evidence of a file: see `Evidence`, whose fields these are."""

    final: str
    staged: msgspec.Raw
    size: int
    mtime_ns: int
    inode: int


_decode = msgspec.msgpack.Decoder(Glance).decode


def changed(base: str, prefix: str, evidence: Sequence[bytes]) -> list[int]:
    """The positions of files that are not, at a glance, the ones that were recorded, or that do not stand below the
    prefix; all others are there, and have the recorded size, time and inode."""
    stat, at, found = os.stat, "" if prefix.startswith("/") else f"{base}/", []
    try:
        for position, data in enumerate(evidence):
            seen = _decode(data)
            try:
                info = stat(at + seen.final)
            except OSError:
                found.append(position)
                continue
            if (
                info.st_mtime_ns != seen.mtime_ns
                or info.st_ino != seen.inode
                or info.st_size != seen.size
                or not seen.final.startswith(prefix)
            ):
                found.append(position)
    except msgspec.MsgspecError as error:
        raise NotOurs(f"the store holds evidence of a file that says nothing ({error}): run `holdfast doctor`, or "
                      "restore the store") from error  # fmt: skip
    return found


def final_of(evidence: bytes) -> str:
    """The final name that the evidence of a file has."""
    return _decode(evidence).final
