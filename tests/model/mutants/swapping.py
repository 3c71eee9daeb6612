"""Broken compare-and-swap: documents that repeat, replies that are believed or not, leases that end too soon, come back
or never end, parts that are written in the wrong order."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

import msgspec

from holdfast.core import acts, lease
from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.model import Chunk, Commit, Lease, Receipt
from holdfast.stores.bucket import BucketStore, names
from holdfast.stores.bucket import chunks as bucket_chunks
from holdfast.stores.bucket import store as bucket
from holdfast.stores.bucket.batches import BatchDocuments
from holdfast.stores.bucket.cache import ChunkCache, SeenChunk
from holdfast.stores.bucket.cas import DocumentStore, HeldDocument, Raced
from holdfast.stores.bucket.documents import ChunkDocument, Document, Root, encode
from holdfast.stores.bucket.items import Chains, Items
from holdfast.stores.buckets.base import WriteLost, WriteUnknown
from holdfast.testing.simulator.bucket import WatchedBucket
from holdfast.testing.simulator.world import Died
from tests.model.mutants.register import Patch, answering, swapping, wrapped

replace = msgspec.structs.replace


# -- documents ----------------------------------------------------------------------------------------------------


@swapping
def a_document_has_no_revision_of_its_own() -> Patch:
    def constant(written: Any, documents: DocumentStore, document: Any, before: Any) -> Any:
        return replace(written(documents, document, before), revision=1)

    return wrapped(DocumentStore, "_written", constant)


@swapping
def a_write_has_the_id_of_the_one_before() -> Patch:
    def repeated(written: Any, documents: DocumentStore, document: Document, before: Document | None) -> Any:
        made = written(documents, document, before)
        return made if before is None else replace(made, write=before.write)

    return wrapped(DocumentStore, "_written", repeated)


@swapping
def a_bucket_does_not_compare_what_it_swaps() -> Patch:
    def blind(put: Any, bucket: WatchedBucket, name: str, data: bytes, mark: Any, who: str) -> Any:
        there = bucket.get(name)
        return put(bucket, name, data, mark if mark is None or there is None else there.mark, who)

    return wrapped(WatchedBucket, "put", blind)


@swapping
def a_stale_writer_swaps_what_is_there_now() -> Patch:
    def stubborn(swap: Any, documents: DocumentStore, held: HeldDocument[Any], document: Any, *landed: Any) -> Any:
        try:
            return swap(documents, held, document, *landed)
        except Raced:
            newest = documents.need(type(held.document), held.name)
            return swap(documents, newest, document, *landed)

    return wrapped(DocumentStore, "swap", stubborn)


@swapping
def a_name_is_given_to_two_batches() -> Patch:
    def merged(swap: Any, documents: DocumentStore, held: HeldDocument[Any], document: Any, *landed: Any) -> Any:
        try:
            return swap(documents, held, document, *landed)
        except Raced:
            if held.name != names.ROOT:
                raise
            newest = documents.need(Root, held.name)
            both = [*newest.document.names, document.names[-1]]
            return swap(documents, newest, replace(newest.document, names=both), *landed)

    return wrapped(DocumentStore, "swap", merged)


# -- replies ------------------------------------------------------------------------------------------------------


@swapping
def a_write_id_is_not_compared_after_a_conflict() -> Patch:
    def hasty(_swap: Any, documents: DocumentStore, held: HeldDocument[Any], document: Any, *_landed: Any) -> Any:
        made = documents._written(document, held.document)
        data = encode(made)
        try:
            return HeldDocument(held.name, made, documents.bucket.replace(held.name, data, held.mark))
        except (WriteLost, WriteUnknown):
            raise Raced from None

    return wrapped(DocumentStore, "swap", hasty)


@swapping
def a_lost_reply_from_the_bucket_is_taken_for_success() -> Patch:
    def trusting(_swap: Any, documents: DocumentStore, held: HeldDocument[Any], document: Any, *_landed: Any) -> Any:
        made = documents._written(document, held.document)
        try:
            mark = documents.bucket.replace(held.name, encode(made), held.mark)
        except WriteLost:
            raise Raced from None
        except WriteUnknown:
            mark = held.mark
        return HeldDocument(held.name, made, mark)

    return wrapped(DocumentStore, "swap", trusting)


@swapping
def a_lost_reply_from_the_bucket_is_taken_for_failure() -> Patch:
    def gloomy(_swap: Any, documents: DocumentStore, held: HeldDocument[Any], document: Any, *_landed: Any) -> Any:
        made = documents._written(document, held.document)
        try:
            return HeldDocument(held.name, made, documents.bucket.replace(held.name, encode(made), held.mark))
        except WriteLost:
            raise Raced from None
        except WriteUnknown as error:
            raise StoreUnavailable(str(error)) from None

    return wrapped(DocumentStore, "swap", gloomy)


@swapping
def a_document_is_created_though_its_name_is_taken() -> Patch:
    def greedy(create: Any, documents: DocumentStore, name: str, document: Any) -> Any:
        made = create(documents, name, document)
        there = documents.read(type(document), name) if made is None else None
        return made if there is None else HeldDocument(name, document, there.mark)

    return wrapped(DocumentStore, "create", greedy)


@swapping
def the_chain_is_not_asked_for_a_commit() -> Patch:
    return answering(Chains, "has", answer=False)


@swapping
def an_admission_does_not_look_for_what_came_before_it() -> Patch:
    def first_look(add: Any, store: Any, batch: Any, items: Any, *rest: Any, **named: Any) -> Any:
        known = store._items.known(store._batches.known(batch), items)
        with mock.patch.object(store._items, "known", return_value=known):
            return add(store, batch, items, *rest, **named)

    return wrapped(BucketStore, "_add_group", first_look)


# -- leases -------------------------------------------------------------------------------------------------------


@swapping
def a_conflict_is_taken_for_a_lost_lease() -> Patch:
    def nervous(_renew: Any, store: BucketStore, held: Lease, seconds: float) -> Lease | None:
        there = store._chunks.known(names.batch_of(held.chunk), names.number_of(held.chunk))
        assert there is not None
        if (there.document.chunk.fence, there.document.chunk.owner) != (held.fence, held.owner):
            return None
        try:
            after = bucket_chunks.renewed(there.document, store.now() + seconds, seconds)
            store._chunks.saw(store._documents.swap(there, after))
        except Raced:
            return None
        return held

    return wrapped(BucketStore, "_renew_one", nervous)


@swapping
def a_heartbeat_brings_a_lost_lease_back() -> Patch:
    def reviving(_renew: Any, store: BucketStore, held: Lease, seconds: float) -> Lease | None:
        there = store._chunks.fresh(names.batch_of(held.chunk), names.number_of(held.chunk))
        assert there is not None
        mine = replace(there.document, chunk=replace(there.document.chunk, owner=held.owner, fence=held.fence))
        try:
            store._chunks.saw(store._documents.swap(there, bucket_chunks.renewed(mine, store.now() + seconds, seconds)))
        except Raced:
            return None
        return held

    return wrapped(BucketStore, "_renew_one", reviving)


@swapping
def a_heartbeat_writes_nothing() -> Patch:
    return wrapped(BucketStore, "_renew_one", lambda _renew, _store, held, _seconds: held)


@swapping
def a_take_over_does_not_raise_the_fence() -> Patch:
    def flat(grant: Any, chunk: Chunk, *args: Any, **named: Any) -> Any:
        given = grant(chunk, *args, **named)
        return replace(given, chunk=replace(given.chunk, fence=max(1, chunk.fence))) if chunk.owner else given

    return wrapped(lease, "grant", flat)


@swapping
def a_fence_begins_again_after_a_release() -> Patch:
    def forgetful(committed: Any, document: ChunkDocument, commit: Commit, now: float) -> ChunkDocument:
        after: ChunkDocument = committed(document, commit, now)
        return replace(after, chunk=replace(after.chunk, fence=0)) if commit.release else after

    return wrapped(bucket_chunks, "committed", forgetful)


@swapping
def a_lease_ends_by_the_clock_on_the_wall() -> Patch:
    def by_the_wall(_may: Any, _store: Any, seen: SeenChunk, now: float, *, is_dead: bool = False) -> bool:
        return lease.may_claim(seen.chunk, now=now, owner_is_dead=is_dead)

    return wrapped(ChunkCache, "may_claim", by_the_wall)


@swapping
def a_lease_ends_after_half_its_time() -> Patch:
    return wrapped(ChunkCache, "remaining", lambda remaining, chunks, seen: remaining(chunks, seen) - seen.term / 2)


@swapping
def a_lease_never_ends_for_who_watches_it() -> Patch:
    return answering(ChunkCache, "remaining", answer=1.0)


@swapping
def a_heartbeat_is_not_noticed() -> Patch:
    def stubborn(saw: Any, chunks: ChunkCache, held: HeldDocument[ChunkDocument]) -> Any:
        chunk = held.document.chunk
        at = (chunk.batch, names.number_of(chunk.id))
        before = chunks._seen.get(at)
        answer = saw(chunks, held)
        if before is not None and before.chunk.owner == chunk.owner:
            chunks._seen[at] = replace(chunks._seen[at], since=before.since)
        return answer

    return wrapped(ChunkCache, "saw", stubborn)


@swapping
def a_grant_does_not_say_how_long_it_lasts() -> Patch:
    def endless(grant: Any, *args: Any, **named: Any) -> Any:
        cut = grant(*args, **named)
        return replace(cut, granted=replace(cut.granted, term=0.0))

    return wrapped(bucket_chunks, "grant", endless)


# -- commits and acts ---------------------------------------------------------------------------------------------


@swapping
def a_commit_of_a_stale_owner_is_accepted() -> Patch:
    return wrapped(bucket, "_is_guarded", lambda _is_guarded, held, _commit: held.document.chunk.owner is not None)


@swapping
def a_commit_is_not_held_to_its_version() -> Patch:
    def loose(_is_guarded: Any, held: HeldDocument[ChunkDocument], commit: Commit) -> bool:
        return held.document.chunk.fence == commit.fence and held.document.chunk.owner is not None

    return wrapped(bucket, "_is_guarded", loose)


@swapping
def an_entry_is_written_after_its_document() -> Patch:
    late: dict[int, list[Any]] = {}

    def kept(write: Any, chains: Chains, batch: Any, number: int, before: bytes, entry: Any) -> Any:
        if number == 0:
            return write(chains, batch, number, before, entry)
        late.setdefault(id(chains), []).append((batch, number, before, entry))
        return names.entry(entry.seq, before, entry.hash, b"")

    return wrapped(Chains, "write", kept)


@swapping
def what_is_cut_off_is_there_before_its_parent_says_so() -> Patch:
    def everything(sweep: Any, chunks: ChunkCache, held: Any, *_: Any) -> list[SeenChunk]:
        found = sweep(chunks, held)
        known = {int(seen.chunk.id) for seen in found}
        batch = held.document.batch.id
        listed = [names.number_in(each.name) for each in chunks._documents.names(names.chunks(batch))]
        extra = [chunks._one(batch, number) for number in listed if int(names.chunk_id(batch, number)) not in known]
        return sorted([*found, *extra], key=lambda seen: seen.chunk.lo)

    return wrapped(ChunkCache, "sweep", everything)


@swapping
def a_parent_does_not_name_what_was_cut_off() -> Patch:
    def silent(grant: Any, document: ChunkDocument, *args: Any, **named: Any) -> Any:
        cut = grant(document, *args, **named)
        return replace(cut, granted=replace(cut.granted, children=document.children))

    return wrapped(bucket_chunks, "grant", silent)


@swapping
def a_release_goes_without_its_commit() -> Patch:
    def bare(committed: Any, document: ChunkDocument, commit: Commit, now: float) -> ChunkDocument:
        after: ChunkDocument = committed(document, commit, now)
        return replace(document, chunk=replace(document.chunk, owner=None), term=0.0) if commit.release else after

    return wrapped(bucket_chunks, "committed", bare)


@swapping
def a_commit_is_answered_before_it_is_written() -> Patch:
    def hasty(commit: Any, store: BucketStore, commits: Sequence[Commit]) -> list[Receipt]:
        world: Any = store._bucket._world  # type: ignore[attr-defined]

        def write() -> None:
            with suppress(Died, StoreError):
                commit(store, commits)

        world.begin(write, world.chance() * 10)
        return [Receipt(landed=True)] * len(commits)

    return wrapped(BucketStore, "commit", hasty)


@swapping
def a_document_keeps_a_cursor_without_its_accumulator() -> Patch:
    def torn(reached: Any, checkpoints: Any, now: float, ref: int) -> Any:
        return reached([replace(at, acc=b"0" if at.acc is not None else None) for at in checkpoints], now, ref)

    return wrapped(bucket_chunks, "_reached", torn)


@swapping
def a_child_forgets_the_checkpoints_of_its_items() -> Patch:
    def forgetful(part: Any, document: ChunkDocument, chunk: Chunk) -> ChunkDocument:
        made: ChunkDocument = part(document, chunk)
        return replace(made, checkpoints={}) if chunk.id != document.chunk.id else made

    return wrapped(bucket_chunks, "_part", forgetful)


@swapping
def a_reset_keeps_the_fence_of_the_old_owner() -> Patch:
    def gentle(acted: Any, document: ChunkDocument, effect: Any, now: float) -> ChunkDocument:
        after: ChunkDocument = acted(document, effect, now)
        if not effect.seized:
            return after
        was = document.chunk
        kept = replace(after.chunk, fence=was.fence, version=was.version, owner=was.owner, expires=was.expires)
        return replace(after, chunk=kept, term=document.term)

    return wrapped(bucket_chunks, "acted", gentle)


@swapping
def an_act_does_not_see_that_it_was_done() -> Patch:
    return wrapped(acts, "_holds", lambda holds, change, place: holds(change, place) or change.place == place)


@swapping
def a_commit_does_not_look_for_a_seal() -> Patch:
    return answering(BatchDocuments, "is_sealed", answer=False)


@swapping
def the_keys_of_later_groups_are_not_read() -> Patch:
    def lazy(index: Any, items: Items, document: Any) -> Any:
        known = items._indexes.get(document.batch.id)
        return known if known is not None and known.groups else index(items, document)

    return wrapped(Items, "index", lazy)
