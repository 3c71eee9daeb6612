"""A file in which somebody corrected rows that no handler has had yet: the scan continues in it, with a reason.

The cursors of a file are bytes, so a correction may move what follows it. In the last partition that does no harm: only
its end moves. In any other one the correction has to take as many bytes as what it replaces, because the borders of
the partitions behind it, and what they have handled, are bytes of the old file.
"""

import msgspec

from holdfast.core import canonical, cursor
from holdfast.core.cursor import Cursor, Standing, go_on_from
from holdfast.core.errors import SourceChanged
from holdfast.core.ingest import admit
from holdfast.core.model import Batch, Change, State
from holdfast.runtime.acts import Acts, By
from holdfast.runtime.cursors.standing import identity_of, standings
from holdfast.runtime.sources.base import Readable
from holdfast.runtime.sources.text_file import LineFile
from holdfast.runtime.text import many
from holdfast.stores.base import Store


def accept_corrected(source: Readable, store: Store, batch: Batch, reason: str, actor: str) -> None:
    """Let partitions that are not read to their end continue in the file as it is now; the journal keeps why. Dead
    letters are left alone: redrive them before."""
    if not isinstance(source, LineFile) or not source.can_be_sought:
        return
    parts = [at for at in standings(store, batch) if isinstance(identity_of(at), dict)]
    waiting = [at for at in parts if at.place.state is State.PENDING and source.changed(identity_of(at)) is not None]
    if not waiting:
        return
    known, now = identity_of(parts[-1]), source.identity()
    more = now["size"] - known["size"]
    if more and waiting != parts[-1:]:
        raise SourceChanged(_moved(source, batch, waiting, more))
    if (beside := source.changed_beside(known, [_left(source, at) for at in waiting])) is not None:
        raise SourceChanged(
            f"batch {batch.name!r}: {source!r} is not what it was when the scan began: {beside}, and the rows there "
            "were handled already. Put the old file back, or scan the new one under a batch name of its own "
            '(batch="NAME")'
        )
    changes = [_renewed(at, now, more, reason) for at in waiting]
    Acts(store, batch, By(actor=actor, reason=reason)).write("renewed", changes, seize=True)


def _left(source: LineFile, at: Standing) -> tuple[int, int | None]:
    """From which byte to which a partition is left to read."""
    begin = source.byte_after(at.cursor if at.cursor is not None else at.after)
    return begin, at.until.value if at.until is not None and at.until.kind == "byte" else None


def _renewed(at: Standing, now: dict[str, object], more: int, reason: str) -> Change:
    """A partition that resumes at its checkpoint, in the file as it is now."""
    plain = canonical.decode(at.payload)
    until = at.until
    if until is not None and until.kind == "byte" and more:
        until = Cursor("byte", until.value + more, until.tiebreaker)
    plain |= {"identity": now, "until": None if until is None else cursor.to_plain(until)}
    change = go_on_from(at, None, 1, reason=reason, even_so=True)
    assert isinstance(change, Change)
    return msgspec.structs.replace(change, renewed=admit(at.key, canonical.encode(plain), at.salt))


def _moved(source: LineFile, batch: Batch, waiting: list[Standing], more: int) -> str:
    keys = ", ".join(canonical.key_text(at.key) for at in waiting)
    return (
        f"batch {batch.name!r}: {source!r} has {many(abs(more), 'byte')} {'more' if more > 0 else 'less'} than when "
        f"the scan began, and partition {keys} is followed by others, whose borders are bytes of the old file: correct "
        "the row so that it takes as many bytes as before (spaces fill it up), put the old file back, or scan the new "
        'one under a batch name of its own (batch="NAME")'
    )
