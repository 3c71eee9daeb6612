"""The Sink contract: outputs that stand outside the store, and the evidence that they are there and unchanged.

The order is always the same. `stage` writes an output under a name of our own; `sync_folders` makes a whole group
durable; the store commits the evidence; `publish` gives the outputs the user's names. A crash before the commit leaves
a staged output that `find` adopts; a crash after it leaves one that `check` publishes.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from holdfast.core.errors import Damaged, HoldfastError
from holdfast.core.model import Key

Identity = tuple[int, int, int]
"""Which file one is, without a look into it: its size, its time and its number."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where an output comes from: what it is adopted by."""

    pipeline: str = ""
    batch: str
    stage: str
    n: int
    epoch: int
    fence: int
    input_digest: bytes
    key: Key
    replaces: Identity | None = None
    """The older file of the item, where a worker process was told of it: it has no record to ask."""


class Evidence(msgspec.Struct, frozen=True, array_like=True):
    """What the store keeps about an output in a file, as opaque bytes."""

    final: str
    """The user's path, as written in the template."""
    staged: str
    """Our own path, which the output has until it is published."""
    size: int
    mtime_ns: int
    """When it was written; a rename keeps it."""
    inode: int
    """Which file it is; a rename keeps that too, and two files written in the same tick of the clock differ in it."""
    digest: bytes
    """SHA-256 of the bytes in the file."""
    is_text: bool
    """The file holds a JSON string as plain text."""
    replaces: Identity | None = None
    """The older file of the same item that it may replace; told only where the file may seem another batch's."""

    def encode(self) -> bytes:
        """Return the bytes that the store keeps."""
        return _encoder.encode(self)

    @staticmethod
    def decode(data: bytes) -> "Evidence":
        """Return the evidence in bytes that the store kept."""
        try:
            return _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise Damaged(f"the store holds {len(data)} bytes as evidence of a file that say nothing ({error}): "
                          "run `holdfast doctor`, or restore the store") from error  # fmt: skip


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Evidence)


class Obstructed(str):
    """Why nothing can be said about an output, and making it again would not help: something is in its way."""

    __slots__ = ()


class TakenOver(str):
    """Why an output is not under its name any more, and is never made again: a newer batch has taken the name."""

    __slots__ = ()


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A file of ours that a crash, or a commit that was refused, left behind."""

    path: str
    kind: Literal["temp", "staged"]
    """`temp` files were never complete; a `staged` one may be adopted, or published, by the next run."""
    size: int
    mtime_ns: int


@runtime_checkable
class Sink(Protocol):
    """A place for outputs. Safe to call from several threads; trouble with the disk surfaces as OSError."""

    def describe(self) -> dict[str, Any]:
        """Return what is remembered of the sink with its batch."""
        ...

    def stage(self, place: Provenance, output: bytes, note: bytes = b"") -> Evidence:
        """Write the JSON bytes of an output under a name that carries its provenance, and a short note beside them.

        Guard: none; the name is new, or stands for the same bytes.
        Guarantee: the content is durable under that name once `sync_folders` has returned; no final name changes.
        Raises: Permanent("sink_name") if the key does not fit the name that was asked for, OSError.
        """
        ...

    def sync_folders(self, evidence: Sequence[Evidence]) -> None:
        """Make the names of staged outputs durable: one sync for a whole group, before its commit.

        Guard: none.
        Guarantee: what was staged survives power loss; the commit may refer to it.
        Raises: OSError; then none of the group may be committed.
        """
        ...

    def publish(self, evidence: Sequence[Evidence], *, sync: bool = True) -> None:
        """Give staged outputs their final names, after the commit that recorded them.

        Guard: the output is staged, or is there already.
        Guarantee: every reader sees the old file or the new one, whole. All are tried before the first error is raised.
        Raises: OSError, with the files in its arguments.
        """
        ...

    def check(self, evidence: Evidence, *, full: bool, publish: bool = True) -> str | None:
        """Return why the output no longer counts, or None; one that was never published is published, unless told not
        to.

        Guard: none. An answer of the kind `Obstructed` says that nothing is known before a person puts it right.
        Guarantee: changes no file but a name that is still ours. `full` reads every byte.
        Raises: OSError if the disk gave no answer: then nothing is known about the output.
        """
        ...

    def read(self, evidence: Evidence) -> bytes:
        """Return the JSON bytes of the output, exactly as they were staged.

        Guard: the digest.
        Guarantee: the bytes are those that were recorded.
        Raises: SinkError if the output is missing or different, OSError.
        """
        ...

    def find(self, place: Provenance) -> Evidence | None:
        """Return an output that was staged for this place, under whatever fence, by a run that could not record it.

        Guard: batch, stage, item, epoch and input are the same, and the content matches the digest in its name.
        Guarantee: whole, unchanged and ours. A key that cannot be a name is found out here, before it costs anything.
        Raises: Permanent("sink_name"), OSError.
        """
        ...

    def observe(self, place: Provenance, *, is_text: bool = False) -> Evidence | None:
        """Evidence of the file that stands under the final name of this place, whoever wrote it; None without one.

        Guard: none. Guarantee: nothing is changed. Raises: SinkError if what stands there is no file that can be read.
        """
        ...

    def leftovers(self) -> Sequence[Leftover]:
        """Return every output of ours that has no final name, by where it stands; some may belong to a run that is at
        work.

        Guard: none.
        Guarantee: what was recorded and not published is among them.
        Raises: OSError.
        """
        ...

    def note(self, evidence: Evidence) -> bytes:
        """Return the note an output was staged with; empty where it had none, or too long a one."""
        ...

    def look_again(self) -> None:
        """Forget what `find` knows of leftovers: another worker died, and may have left some."""
        ...


class SinkTrouble(HoldfastError):
    """The place for outputs is in trouble: nothing is wrong with the item, and no further one should be paid for."""
