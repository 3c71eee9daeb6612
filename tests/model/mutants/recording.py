"""Broken records: grants without ids, salts that repeat, sections and words in the wrong place, revisions and windows
that are forgotten, chains that end with less than they had."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec

from holdfast.core import commitments, lease, record, sections, settle
from holdfast.core.commitments import Draw
from holdfast.core.model import Chunk, Claim, Commit, Item, Lease
from holdfast.stores.memory import MemoryStore
from tests.model.mutants.register import Patch, conformance, simulation, wrapped

replace = msgspec.structs.replace
EARLY = 6
"""Entries after which a chain ends in the worlds of `chains_end_early`."""


def chains_end_early() -> Patch:
    """No mutant: the chains of all chunks end after a few entries, so that worlds come to it."""
    return wrapped(lease, "must_end", lambda _must_end, chunk: chunk.seq >= EARLY)


def early_and(mutant: Patch) -> Patch:
    stack = ExitStack()
    stack.enter_context(chains_end_early())
    stack.enter_context(mutant)
    return stack


# -- grants -------------------------------------------------------------------------------------------------------


@conformance
def a_commit_is_taken_whatever_its_grant() -> Patch:
    def by_fence(_is_of: Any, guard: settle.Guard, commit: Commit) -> bool:
        return guard.owner is not None and guard.fence == commit.fence

    return wrapped(settle.Guard, "_is_of", by_fence)


@conformance
def a_lease_is_renewed_whatever_its_grant() -> Patch:
    def by_fence(_is_held: Any, chunk: Chunk, held: Lease) -> bool:
        return (chunk.fence, chunk.owner) == (held.fence, held.owner)

    return wrapped(lease, "is_held_by", by_fence)


@simulation
def every_grant_has_the_same_id() -> Patch:
    def constant(grant: Any, chunk: Chunk, want: Any, _id: bytes, **named: Any) -> Any:
        return grant(chunk, want, bytes(commitments.GRANT_BYTES), **named)

    return wrapped(lease, "grant", constant)


@conformance
def two_chunks_are_granted_under_one_id() -> Patch:
    def by_fence(grant: Any, chunk: Chunk, want: Any, _id: bytes, **named: Any) -> Any:
        return grant(chunk, want, (chunk.fence + 1).to_bytes(commitments.GRANT_BYTES, "big"), **named)

    return wrapped(lease, "grant", by_fence)


@simulation
def an_entry_does_not_name_its_grant() -> Patch:
    def silent(link: Any, *args: Any, **named: Any) -> Any:
        return link(*args, **{**named, "grant": b""})

    return wrapped(record, "link_chunk", silent)


# -- salts and commitments ----------------------------------------------------------------------------------------


@contextmanager
def _one_salt(first_only: bool) -> Iterator[None]:
    """One salt for all that is drawn together; `first_only`: only for what is drawn first."""
    salts, calls = commitments.salts, list[int]()

    def repeated(draw: Draw, count: int) -> list[bytes]:
        calls.append(count)
        return salts(draw, count) if first_only and len(calls) > 1 else salts(draw, 1) * count

    with mock.patch.object(commitments, "salts", repeated):
        yield


@conformance
def all_outputs_of_a_commit_have_one_salt() -> Patch:
    def of_commit(original: Any, *args: Any) -> Any:
        with _one_salt(first_only=True):
            return original(*args)

    return wrapped(record, "of_commit", of_commit)


@conformance
def all_sections_of_an_entry_have_one_salt() -> Patch:
    def encode(original: Any, *args: Any) -> Any:
        with _one_salt(first_only=False):
            return original(*args)

    return wrapped(sections, "encode", encode)


@conformance
def all_payloads_of_a_group_have_one_salt() -> Patch:
    def of_items(original: Any, *args: Any, **named: Any) -> Any:
        with _one_salt(first_only=True):
            return original(*args, **named)

    return wrapped(record, "of_items", of_items)


@simulation
def an_output_is_not_committed_to() -> Patch:
    return wrapped(commitments, "outputs", lambda _outputs, _uid, made, _salts: [bytes(32) for _ in made])


@simulation
def an_accumulator_is_not_committed_to() -> Patch:
    return wrapped(record, "_committed", lambda _committed, position, *_: position)


@conformance
def an_item_as_it_was_given_is_not_committed_to() -> Patch:
    def of_items(original: Any, batch: Any, fresh: Sequence[Any], **named: Any) -> Any:
        return original(batch, [msgspec.structs.replace(item, raw=None) for item in fresh], **named)

    return wrapped(record, "of_items", of_items)


# -- sections and words -------------------------------------------------------------------------------------------


@conformance
def a_body_is_one_section() -> Patch:
    return wrapped(sections, "split", lambda split, body: [(split(body)[0][0], body)])


@conformance
def buried_items_are_told_with_their_stage() -> Patch:
    return mock.patch.object(sections, "BURIED", "")


@conformance
def words_stay_in_the_body() -> Patch:
    def kept(take_out: Any, part: Any, *place: Any) -> Any:
        said = list[bytes]()

        def note(record: Any) -> Any:
            said.append(record.said)
            return record

        sections._each_record(take_out(part, *place), note)
        told = iter(said)
        return sections._each_record(part, lambda record: replace(record, said=next(told)))

    return wrapped(sections, "_take_out", kept)


@simulation
def words_are_not_kept() -> Patch:
    return wrapped(sections, "encode", lambda encode, *args: encode(*args)._replace(texts=()))


@simulation
def words_are_stored_in_another_order() -> Patch:
    def reversed_(encode: Any, *args: Any) -> Any:
        found = encode(*args)
        return found._replace(texts=found.texts[::-1])

    return wrapped(sections, "encode", reversed_)


@conformance
def words_are_not_compared_with_what_was_committed_to() -> Patch:
    def trusting(_check: Any, entry: Any, _header: Any) -> sections.TextCheck:
        shown = sum(text.frame is not None for text in entry.texts)
        return sections.TextCheck(shown=shown, removed=len(entry.texts) - shown)

    return wrapped(sections, "check_texts", trusting)


# -- revisions, windows, parents ----------------------------------------------------------------------------------


@conformance
def every_correction_is_the_first_revision() -> Patch:
    def first(revision: Any, change: Any, item: Any, _number: int, draw: Draw) -> Any:
        return revision(change, item, 1, draw)

    return wrapped(record, "_revision", first)


@conformance
def a_corrected_item_is_loaded_as_it_first_came() -> Patch:
    def oldest(load: Any, store: MemoryStore, claim: Claim, *rest: Any) -> list[Item]:
        return [
            replace(item, input=store._items[claim.batch, item.n][0].item.payload)
            if item.place.stage == claim.first
            else item
            for item in load(store, claim, *rest)
        ]

    return wrapped(MemoryStore, "load", oldest)


@conformance
def a_corrected_payload_is_not_stored() -> Patch:
    def forgetful(act: Any, store: MemoryStore, *args: Any) -> Any:
        before = {at: list(revisions) for at, revisions in store._items.items()}
        answer = act(store, *args)
        store._items = before
        return answer

    return wrapped(MemoryStore, "act", forgetful)


@conformance
def every_item_passes_through_all_stages() -> Patch:
    def whole(of_items: Any, *args: Any, origin: Any, **named: Any) -> Any:
        return of_items(*args, origin=replace(origin, first=0, end=None), **named)

    return wrapped(record, "of_items", whole)


@conformance
def an_item_is_done_only_at_the_end_of_its_batch() -> Patch:
    """Its chunk has a window, but who claims it is not told."""

    return wrapped(lease.Grant, "claim", lambda claim, *args: replace(claim(*args), end=2))


@conformance
def a_chunk_that_is_cut_off_has_no_window() -> Patch:
    return wrapped(lease, "_child", lambda child, *args: replace(child(*args), first=0, end=2))


@conformance
def a_child_forgets_its_parent() -> Patch:
    def orphaned(of_items: Any, batch: Any, fresh: Sequence[Any], **named: Any) -> Any:
        return of_items(batch, [replace(item, parent=None) for item in fresh], **named)

    return wrapped(record, "of_items", orphaned)


# -- chains that end ----------------------------------------------------------------------------------------------


def _rolled(change: Callable[[record.Rollover, Chunk], record.Rollover]) -> Patch:
    def roll_over(original: Any, uid: bytes, chunk: Chunk, *args: Any, **named: Any) -> record.Rollover:
        return change(original(uid, chunk, *args, **named), chunk)

    return wrapped(record, "roll_over", roll_over)


@conformance
def a_successor_does_not_take_the_checkpoint_over() -> Patch:
    return wrapped(record, "_position", lambda _position, *_: None)


@conformance
def a_successor_begins_again_with_its_fence() -> Patch:
    return _rolled(lambda rolled, _: rolled._replace(successor=replace(rolled.successor, fence=0)))


@simulation
def an_ended_chunk_keeps_its_totals() -> Patch:
    def kept(rolled: record.Rollover, chunk: Chunk) -> record.Rollover:
        totals = replace(chunk.counts, done=0, skipped=0, dead=0, cancelled=0)
        return rolled._replace(ended=replace(rolled.ended, counts=totals))

    return early_and(_rolled(kept))


@simulation
def a_successor_begins_with_no_totals() -> Patch:
    def lost(rolled: record.Rollover, chunk: Chunk) -> record.Rollover:
        totals = replace(chunk.counts, attempts=0, spent=0, tokens=0, seconds=0.0)
        return rolled._replace(successor=replace(rolled.successor, counts=totals))

    return early_and(_rolled(lost))


@conformance
def the_owner_of_an_ended_chunk_still_holds_it() -> Patch:
    def held(rolled: record.Rollover, chunk: Chunk) -> record.Rollover:
        return rolled._replace(ended=replace(rolled.ended, owner=chunk.owner, expires=chunk.expires))

    return _rolled(held)


@conformance
def a_chain_never_ends() -> Patch:
    return wrapped(lease, "must_end", lambda _must_end, _chunk: False)
