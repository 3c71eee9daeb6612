"""Batches are opened, items are admitted."""

from array import array
from collections.abc import Iterable
from unittest import mock

import pytest

from holdfast.core import canonical, commitments, ingest
from holdfast.core.commitments import SALT_BYTES, UID_BYTES
from holdfast.core.course import to_note
from holdfast.core.errors import DefinitionChanged, UsageError
from holdfast.core.journal import Acted, Ingested, Opened
from holdfast.core.limits import PAYLOAD_BYTES
from holdfast.core.model import BatchId, State
from holdfast.stores.base import find_batch, find_item
from holdfast.testing.conformance.kit import DEFINITION, ONE_STAGE, Kit, answer, new_item, proves

TWINS = ("a", "\0a", "\0\0a")
"""Three keys that get the same number in the index of keys, by `one_number`."""


def one_number(_index: commitments.KeyIndex, keys: Iterable[object]) -> "array[int]":
    """Return the same number for all keys, in place of `KeyIndex.numbers`: a store that uses it must tell them
    apart."""
    return array("q", [7 for _ in keys])


@proves("C1")
def two_who_open_the_same_batch_get_the_same_one(kit: Kit) -> None:
    first = kit.store.open_batch("news", "pages", DEFINITION, actor="ann")
    second = kit.store.open_batch("news", "pages", DEFINITION, actor="bob")
    assert first == second
    assert [batch.name for batch in kit.store.batches()] == ["book", "news"]
    assert kit.kinds(-first.id) == ["opened"]


@proves()
def a_batch_is_found_by_its_name(kit: Kit) -> None:
    (found,) = kit.store.batches("book")
    assert (found.id, found.pipeline, found.definition, found.admitted) == (kit.batch, "pages", DEFINITION, 0)
    assert find_batch(kit.store, "nobody's") is None


@proves()
def the_batch_of_another_pipeline_is_refused(kit: Kit) -> None:
    before = kit.everything()
    with pytest.raises(UsageError, match="belongs to pipeline 'pages'"):
        kit.store.open_batch("book", "letters", DEFINITION, actor="ann")
    assert kit.everything() == before


@proves("E12")
def a_new_definition_is_journalled_once(kit: Kit) -> None:
    changed = canonical.encode({"stages": [{"name": "read", "attempts": 5}, {"name": "write"}]})
    for _ in range(2):
        assert kit.store.open_batch("book", "pages", changed, actor="ann").definition == changed
    assert kit.kinds() == ["opened", "opened"]
    assert kit.last() == Opened(name="book", pipeline="pages", definition=changed)
    kit.check()


@proves()
def another_number_of_stages_is_refused_once_there_are_items(kit: Kit) -> None:
    kit.store.open_batch("book", "pages", ONE_STAGE, actor="ann")
    kit.store.open_batch("book", "pages", DEFINITION, actor="ann")
    kit.admit("a")
    before = kit.everything()
    with pytest.raises(DefinitionChanged, match="2 stages"):
        kit.store.open_batch("book", "pages", ONE_STAGE, actor="ann")
    assert kit.everything() == before


@proves("P3")
def admitted_items_get_numbers_in_order_and_one_chunk(kit: Kit) -> None:
    assert kit.admit("a", "b", "c") == answer(added=3, lo=0)
    assert kit.admit("d") == answer(added=1, lo=3)
    assert [(row.n, row.key) for row in kit.store.items(kit.batch)] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert [(chunk.lo, chunk.hi) for chunk in kit.store.chunks(kit.batch)] == [(0, 3), (3, 4)]
    assert [batch.admitted for batch in kit.store.batches()] == [4]
    kit.check()


@proves("E5")
def a_payload_comes_back_byte_for_byte_with_the_salt_of_its_commitment(kit: Kit) -> None:
    item = ingest.admit("a", b'{"x": "\\u0000 \xf0\x9f\x8d\xb0"}')
    kit.store.add_items(kit.batch, [item])
    (row,) = kit.store.items(kit.batch)
    assert (row.payload, len(row.salt), row.raw_salt) == (item.payload, SALT_BYTES, b"")
    body = kit.last()
    assert isinstance(body, Ingested)
    uid = kit.store.batches()[0].uid
    assert len(uid) == UID_BYTES
    assert body.digests == commitments.payload(uid, "a", 0, row.salt, row.payload)


@proves("E4", "P8")
def a_key_is_admitted_once_within_a_group_and_across_groups(kit: Kit) -> None:
    assert kit.admit("a", "b", "a") == answer(added=2, lo=0, known=1)
    assert kit.admit("b", "c", "c", "a") == answer(added=1, lo=2, known=3)
    before = kit.everything()
    assert kit.admit("c", "b", "a") == answer(added=0, lo=3, known=3)
    assert kit.everything() == before
    kit.check()


@proves("E4")
def a_number_and_its_text_are_one_key(kit: Kit) -> None:
    assert kit.admit(7, payload=b"1") == answer(added=1, lo=0)
    assert kit.admit("7", payload=b"1") == answer(added=0, lo=1, known=1)
    (row,) = kit.store.items(kit.batch)
    assert row.key == 7
    assert find_item(kit.store, kit.batch, "7") == 0


@proves("E5")
def a_known_key_with_another_payload_changes_nothing_and_is_reported(kit: Kit) -> None:
    kit.admit("a", payload=b"1")
    items = [new_item("b", b"1"), new_item("a", b"2"), new_item("b", b"2"), new_item("a", b"1")]
    assert kit.store.add_items(kit.batch, items) == answer(added=1, lo=1, known=3, changed=((1, 0), (2, 1)))
    assert [row.payload for row in kit.store.items(kit.batch)] == [b"1", b"1"]


@proves("E4")
def keys_whose_numbers_collide_are_told_apart(kit: Kit) -> None:
    with mock.patch.object(commitments.KeyIndex, "numbers", one_number):
        assert kit.admit(TWINS[0]) == answer(added=1, lo=0)
        assert kit.admit(TWINS[2], TWINS[0], TWINS[1]) == answer(added=2, lo=1, known=1)
        assert kit.admit(*TWINS) == answer(added=0, lo=3, known=3)
        assert [find_item(kit.store, kit.batch, key) for key in TWINS] == [0, 2, 1]
        assert kit.admit(TWINS[1], payload=b"other") == answer(added=0, lo=3, known=1, changed=((0, 2),))


@proves("E4")
def keys_that_collide_in_one_group_are_told_apart(kit: Kit) -> None:
    with mock.patch.object(commitments.KeyIndex, "numbers", one_number):
        assert kit.admit(*TWINS, *TWINS) == answer(added=3, lo=0, known=3)
        assert [find_item(kit.store, kit.batch, key) for key in TWINS] == [0, 1, 2]


@proves()
def keys_of_other_batches_do_not_matter(kit: Kit) -> None:
    kit.admit("a")
    other = kit.store.open_batch("news", "pages", DEFINITION, actor="ann").id
    assert kit.store.add_items(other, [new_item("a")]) == answer(added=1, lo=0)
    assert find_item(kit.store, other, "a") == 0
    assert find_item(kit.store, other, "b") is None


@proves("E1")
def what_cannot_be_admitted_is_a_dead_letter_from_the_first_moment(kit: Kit) -> None:
    kit.store.add_items(kit.batch, [new_item("a"), ingest.refuse("b", b"{", "invalid", "not JSON"), new_item(None)])
    assert kit.states() == [State.PENDING, State.DEAD, State.DEAD]
    assert (kit.place(1).code, kit.place(1).reason, kit.place(1).stage) == ("invalid", "not JSON", 0)
    body = kit.last()
    assert isinstance(body, Ingested)
    assert body.invalid == [(1, "invalid"), (2, "invalid")]
    claim = kit.claim()
    assert claim.pending == 1
    assert [item.key for item in kit.load(claim)] == ["a"]
    kit.check()


@proves("E1")
def a_chunk_of_dead_letters_is_never_claimed(kit: Kit) -> None:
    kit.store.add_items(kit.batch, [new_item(""), new_item(True)])
    assert kit.idle().pending == 0
    kit.check()


@proves("E1")
def awkward_keys_and_payloads_are_kept_or_refused_never_lost(kit: Kit) -> None:
    keys = ["k" * 4096, "\N{SHORTCAKE}" * 128, "a\0b", "x" * 512, -(1 << 63), 1 << 70, "caf\udce9.txt", " ", "'; --"]
    big = b'"' + b"x" * PAYLOAD_BYTES + b'"'
    items = [*map(new_item, keys), new_item("big", big)]
    assert kit.store.add_items(kit.batch, items).added == len(items)
    assert kit.store.add_items(kit.batch, items) == answer(added=0, lo=len(items), known=len(items))
    rows = kit.store.items(kit.batch)
    assert [row.n for row in rows if row.place.state is State.DEAD] == [0, 6, 9]
    assert [rows[n].key for n in (1, 2, 4, 5, 7, 8)] == [keys[1], keys[2], keys[4], str(keys[5]), keys[7], keys[8]]
    assert len(rows[9].payload) < 4096
    kit.check()


@proves("E12")
def the_end_of_the_source_is_recorded_once(kit: Kit) -> None:
    kit.admit("a")
    assert [batch.ingested_at for batch in kit.store.batches()] == [None]
    kit.clock.advance(5)
    assert kit.admit("a", ended=True) == answer(added=0, lo=1, known=1)
    ended = kit.clock()
    kit.clock.advance(5)
    assert kit.admit("a", ended=True) == answer(added=0, lo=1, known=1)
    assert kit.admit(ended=True) == answer(added=0, lo=1)
    assert [batch.ingested_at for batch in kit.store.batches()] == [ended]
    assert kit.kinds() == ["opened", "ingested", "ingested"]
    assert kit.last() == Ingested(lo=1, hi=1, ended=True)
    kit.check()


@proves()
def an_empty_source_may_end(kit: Kit) -> None:
    kit.admit(ended=True)
    assert kit.store.chunks(kit.batch) == []
    assert kit.idle().pending == 0


@proves()
def an_unknown_batch_takes_no_items(kit: Kit) -> None:
    with pytest.raises(UsageError):
        kit.store.add_items(BatchId(99), [new_item("a")])


@proves()
def a_note_goes_to_the_chain_of_the_batch_once_if_asked(kit: Kit) -> None:
    body = Acted(reason="so")
    assert kit.store.amend(kit.batch, to_note("paused", body), actor="ann").written
    assert kit.store.amend(kit.batch, to_note("paused", body), actor="ann").written
    assert not kit.store.amend(kit.batch, to_note("paused", body, once=True), actor="bob").written
    assert kit.store.amend(kit.batch, to_note("resumed", body, once=True), actor="ann").written
    assert kit.store.amend(kit.batch, to_note("paused", Acted(reason="hm"), once=True), actor="ann").written
    assert kit.kinds() == ["opened", "paused", "paused", "resumed", "paused"]
    with pytest.raises(UsageError):
        kit.store.amend(BatchId(99), to_note("paused", body), actor="ann")
