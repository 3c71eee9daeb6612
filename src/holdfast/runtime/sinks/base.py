"""The Sink contract: outputs outside the store, and the evidence that they exist and are unchanged.

The order is always the same. `stage` writes an output under an internal name; `sync_folders` makes a whole group
durable; the store commits the evidence; `publish` gives the outputs the user's names. A crash before the commit leaves
a staged output that `find` adopts; a crash after it leaves one that `check` publishes.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from holdfast.core.errors import Damaged, HoldfastError
from holdfast.core.model import Key

Identity = tuple[int, int, int]
"""Identifies a file without reading it: its size, its time and its inode."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of an output, by which it is adopted."""

    pipeline: str = ""
    batch: str
    stage: str
    n: int
    epoch: int
    fence: int
    input_digest: bytes
    key: Key
    replaces: Identity | None = None
    """The older file of the item, for a worker process, which has no records to ask."""


class Evidence(msgspec.Struct, frozen=True, array_like=True):
    """The record of an output in a file, which the store keeps as opaque bytes."""

    final: str
    """The user's path, as written in the template."""
    staged: str
    """The internal path, which the output has until it is published."""
    size: int
    mtime_ns: int
    """When it was written; a rename keeps it."""
    inode: int
    """Identifies the file; a rename keeps it as well, and it differs for two files written in the same tick of the
    clock."""
    digest: bytes
    """SHA-256 of the bytes in the file."""
    is_text: bool
    """The file holds a JSON string as plain text."""
    replaces: Identity | None = None
    """The older file of the same item that it may replace; set only if that file could be mistaken for another
    batch's."""

    def encode(self) -> bytes:
        """Return the bytes that the store keeps."""
        return _encoder.encode(self)

    @staticmethod
    def decode(data: bytes) -> "Evidence":
        """Return the evidence in bytes that the store kept."""
        try:
            return _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise Damaged(f"the store holds {len(data)} bytes as evidence of a file that cannot be read ({error}): "
                          "run `holdfast doctor`, or restore the store") from error  # fmt: skip


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Evidence)


class Obstructed(str):
    """Why the state of an output is unknown, and making it again would not help: something is in its way."""

    __slots__ = ()


class TakenOver(str):
    """Why an output no longer has its name, and is never made again: a newer batch has taken the name."""

    __slots__ = ()


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the sink that a crash, or a refused commit, left behind."""

    path: str
    kind: Literal["temp", "staged"]
    """`temp` files were never complete; a `staged` one may be adopted or published by the next run."""
    size: int
    mtime_ns: int


@runtime_checkable
class Sink(Protocol):
    """A place for outputs. Safe to call from several threads; disk errors are raised as OSError."""

    def describe(self) -> dict[str, Any]:
        """Return what is stored about the sink with its batch."""
        ...

    def stage(self, place: Provenance, output: bytes, note: bytes = b"") -> Evidence:
        """Write the JSON bytes of an output under a name that carries its provenance, with a short note in it.

        Guard: none; the name is new, or belongs to the same bytes.
        Guarantee: the content is durable under that name once `sync_folders` has returned; no final name changes.
        Raises: Permanent("sink_name") if the key does not fit the template, OSError.
        """
        ...

    def sync_folders(self, evidence: Sequence[Evidence]) -> None:
        """Make the names of staged outputs durable: one sync for a whole group, before its commit.

        Guard: none.
        Guarantee: staged outputs survive power loss; the commit may refer to them.
        Raises: OSError; then none of the group may be committed.
        """
        ...

    def publish(self, evidence: Sequence[Evidence], *, sync: bool = True) -> None:
        """Give staged outputs their final names, after the commit that recorded them.

        Guard: the output is staged, or is published already.
        Guarantee: every reader sees the old file or the new one, whole. All are tried before the first error is raised.
        Raises: OSError, with the files in its arguments.
        """
        ...

    def check(self, evidence: Evidence, *, full: bool, publish: bool = True) -> str | None:
        """Return why the output no longer counts, or None; an unpublished output is published, unless `publish` is
        False.

        Guard: none. An answer of the kind `Obstructed` means that the state is unknown until a person corrects it.
        Guarantee: changes no file except a name that still belongs to the output. `full` reads every byte.
        Raises: OSError if the disk gave no answer: then the state of the output is unknown.
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
        """Return an output that was staged for this place, under any fence, by a run that could not record it.

        Guard: batch, stage, item, epoch and input are the same, and the content matches the digest in its name.
        Guarantee: whole and unchanged. A key that cannot be a name is refused here, before it costs anything.
        Raises: Permanent("sink_name"), OSError.
        """
        ...

    def observe(self, place: Provenance, *, is_text: bool = False) -> Evidence | None:
        """Return evidence of the file under the final name of this place, whatever wrote it; None if there is none.

        Guard: none. Guarantee: nothing is changed. Raises: SinkError if it is not a file that can be read.
        """
        ...

    def leftovers(self) -> Sequence[Leftover]:
        """Return every output that has no final name, by its path; some may belong to a run that is still working.

        Guard: none.
        Guarantee: recorded and unpublished outputs are among them.
        Raises: OSError.
        """
        ...

    def note(self, evidence: Evidence) -> bytes:
        """Return the note an output was staged with; empty if it had none, or if the note was too long."""
        ...

    def look_again(self) -> None:
        """Forget the leftovers that `find` knows: another worker died, and may have left some."""
        ...


class SinkTrouble(HoldfastError):
    """A disk error of a sink: nothing is wrong with the item, and no further item should be paid for."""
