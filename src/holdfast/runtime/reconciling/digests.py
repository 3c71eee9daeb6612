"""The digests of outputs that the journal has for the items of a chunk."""

from collections.abc import Sequence

from holdfast.core import canonical, journal
from holdfast.core.model import Chunk
from holdfast.stores.base import Store, each_entry, lineage

Digests = dict[tuple[int, int], bytes]
"""(item, stage) -> over salt and output."""


def recorded_digests(store: Store, chunks: Sequence[Chunk], chunk: Chunk) -> Digests:
    """The newest digest of every output, be it made by a stage or given by a person; the chains of the chunks that this
    one was cut from speak of its items, too."""
    found: Digests = {}
    size = canonical.DIGEST_BYTES
    for each in lineage(chunks, chunk.lo):
        for entry in each_entry(store, each.id):
            body = journal.decode_body(entry.body)
            if isinstance(body, journal.Checkpointed):
                for group in body.advanced:
                    for index, n in enumerate(group.items):
                        if chunk.lo <= n < chunk.hi:
                            found[n, group.stage] = group.digests[index * size : index * size + size]
            elif isinstance(body, journal.Acted):
                given = [moved for moved in body.items if moved.output_digest]
                found |= {(moved.n, moved.stage_after - 1): moved.output_digest for moved in given}
    return found
