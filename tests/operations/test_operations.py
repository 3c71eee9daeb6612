"""What operators do: guarded, journalled, harmless when repeated, never at the cost of work by accident."""

from collections.abc import Callable

import pytest

from holdfast.core import canonical, journal, sections
from holdfast.core.errors import UsageError
from holdfast.core.journal import Spend
from holdfast.core.limits import PAYLOAD_BYTES
from holdfast.core.model import ItemNo, ItemState, State, StoredItem
from holdfast.runtime import lookup
from holdfast.runtime.acts import Actor, ActResult
from holdfast.runtime.operate import operations
from holdfast.runtime.report import status
from holdfast.stores.base import each_entry, find_item
from tests.operations.world import World, deferred, done, failed

BY = Actor(name="ada", reason="the provider was down")


def place(world: World, key: str) -> ItemState:
    return lookup.item_named(world.store, world.batch, key).place


def counts(world: World) -> dict[str, int]:
    seen = status.snapshot(world.store, world.batch).counts.as_dict()
    return {name: seen[name] for name in ("done", "skipped", "dead", "cancelled", "pending") if seen[name]}


def acts(world: World) -> list[tuple[journal.Header, journal.Acted]]:
    found = []
    for chunk in world.store.chunks(world.id):
        for entry in each_entry(world.store, chunk.id):
            body = sections.decode(entry)
            if isinstance(body, journal.Acted):
                found.append((journal.decode_header(entry.head), body))
    return found


@pytest.fixture
def buried(world: World) -> World:
    """Three items at the second stage: one done, two dead after three attempts."""
    world.add("fine", "bad", "worse")
    world.work(done)
    world.work(
        lambda item: (
            done(item) if item.key == "fine" else failed(item, code="http_503" if item.key == "bad" else "http_500")
        )
    )
    for _ in range(2):
        world.clock.advance(60.0)
        world.work(lambda item: failed(item, code="http_503" if item.key == "bad" else "http_500"))
    assert counts(world) == {"done": 1, "dead": 2}
    return world


def test_redriving_tries_again_where_it_stopped_with_a_fresh_budget(buried: World) -> None:
    before = place(buried, "bad")
    result = operations.redrive(buried.store, buried.batch, BY, ["bad"])
    after = place(buried, "bad")
    assert (result.changed, after.state, after.stage, after.attempt) == (1, State.PENDING, before.stage, 0)
    assert after.epoch == before.epoch
    assert counts(buried) == {"done": 1, "dead": 1, "pending": 1}
    buried.finish()
    assert counts(buried) == {"done": 2, "dead": 1}


def test_redriving_can_take_all_or_those_of_one_code(buried: World) -> None:
    assert operations.redrive(buried.store, buried.batch, BY, code="http_500").changed == 1
    assert place(buried, "worse").state is State.PENDING
    assert operations.redrive(buried.store, buried.batch, BY).changed == 1
    assert counts(buried) == {"done": 1, "pending": 2}


@pytest.mark.parametrize("act", [operations.redrive, operations.discard])
def test_doing_it_twice_is_harmless(buried: World, act: Callable[..., ActResult]) -> None:
    assert act(buried.store, buried.batch, BY, ["bad"]).changed == 1
    before, entries = counts(buried), len(acts(buried))
    again = act(buried.store, buried.batch, BY, ["bad"])
    assert again.changed == 0
    assert again.left_alone[0][0].endswith("not dead")
    assert (counts(buried), len(acts(buried))) == (before, entries)


@pytest.mark.promise("E12")
def test_every_act_is_one_chained_entry_with_actor_and_reason(buried: World) -> None:
    operations.redrive(buried.store, buried.batch, BY, ["bad", "worse"])
    ((header, body),) = acts(buried)
    assert (header.kind, header.actor, body.reason) == ("redriven", "ada", "the provider was down")
    assert [(moved.before, moved.after) for moved in body.items] == [("dead", "pending")] * 2


def test_discarding_counts_as_cancelled(buried: World) -> None:
    operations.discard(buried.store, buried.batch, BY)
    assert counts(buried) == {"done": 1, "cancelled": 2}


def test_resolving_without_an_output_counts_as_skipped(buried: World) -> None:
    operations.resolve(buried.store, buried.batch, BY, "bad")
    assert place(buried, "bad").state is State.SKIPPED
    assert operations.resolve(buried.store, buried.batch, BY, "bad").changed == 0


def test_resolving_with_an_output_is_done_with_that_output(buried: World) -> None:
    operations.resolve(buried.store, buried.batch, BY, "bad", output=b'{"text":  "by hand"}')
    n = find_item(buried.store, buried.id, "bad")
    assert n is not None
    (output,) = buried.store.outputs(buried.id, lo=n, hi=n + 1, stage=1)
    assert output.data == b'{"text":"by hand"}'
    assert counts(buried) == {"done": 2, "dead": 1}


def test_an_output_that_is_not_json_is_refused(buried: World) -> None:
    with pytest.raises(UsageError, match="not JSON"):
        operations.resolve(buried.store, buried.batch, BY, "bad", output=b"{text}")
    assert counts(buried) == {"done": 1, "dead": 2}


@pytest.mark.parametrize("reason", ["", "   "])
def test_an_act_without_a_reason_is_refused(reason: str) -> None:
    with pytest.raises(UsageError, match='pass reason="…"'):
        Actor(name="ada", reason=reason)


@pytest.mark.promise("C3")
def test_a_reset_opens_a_new_epoch_with_no_attempts_used(buried: World) -> None:
    before = place(buried, "bad")
    assert operations.reset(buried.store, buried.batch, BY, "bad").changed == 1
    after = place(buried, "bad")
    assert (after.state, after.stage, after.epoch, after.attempt) == (State.PENDING, 0, before.epoch + 1, 0)


def test_a_reset_twice_is_harmless(buried: World) -> None:
    operations.reset(buried.store, buried.batch, BY)
    epochs = [place(buried, key).epoch for key in ("fine", "bad", "worse")]
    assert epochs == [1, 1, 1]
    again = operations.reset(buried.store, buried.batch, BY)
    assert (again.changed, again.left_alone) == (0, (("already there", 3),))
    assert [place(buried, key).epoch for key in ("fine", "bad", "worse")] == epochs


def test_a_reset_to_a_stage_goes_on_from_the_output_before_it(buried: World) -> None:
    operations.reset(buried.store, buried.batch, BY, "fine", to_stage="correct")
    claim = buried.claim()
    (item,) = buried.items(claim)
    assert (item.key, item.place.stage, item.input) == ("fine", 1, b'{"text":"fine@0"}')


@pytest.mark.promise("C3", "C8")
def test_a_reset_of_an_item_in_flight_raises_the_fence_and_its_owner_cannot_commit(world: World) -> None:
    world.add("a", "b")
    claim = world.claim()
    items = world.items(claim)
    shown = operations.preview_reset(world.store, world.batch, "a")
    assert (shown.in_flight, shown.owners) == (1, ("host-a pid 4711",))
    operations.reset(world.store, world.batch, BY, "a")
    receipt = world.commit(claim, [done(item) for item in items])
    assert (receipt.landed, receipt.reason) == (False, "lost")
    again = world.claim()
    assert again.lease.fence == claim.lease.fence + 2
    assert place(world, "a").epoch == 1
    assert place(world, "b").epoch == 0


def test_an_act_on_a_settled_item_costs_nobody_its_work(world: World) -> None:
    world.add("bad", "b", "c")
    world.work(lambda item: failed(item, transient=False) if item.key == "bad" else None)
    claim = world.claim()
    items = world.items(claim)
    operations.redrive(world.store, world.batch, BY, ["bad"])
    assert world.commit(claim, [done(item) for item in items]).landed
    world.finish()
    assert counts(world) == {"done": 3}


def test_a_batch_reset_leaves_items_alone_that_have_not_begun(world: World) -> None:
    world.add(*(f"k{n}" for n in range(10)))
    world.work(done, limit=3)
    assert operations.reset(world.store, world.batch, BY).changed == 3
    assert [place(world, f"k{n}").epoch for n in range(10)] == [1] * 3 + [0] * 7


def test_a_batch_reset_to_a_later_stage_leaves_earlier_items_alone(world: World) -> None:
    world.add("a", "b")
    world.work(lambda item: done(item) if item.key == "a" else deferred(item))
    result = operations.reset(world.store, world.batch, BY, to_stage=1)
    assert (result.changed, dict(result.left_alone)) == (0, {"already there": 1, "not yet at that stage": 1})


def test_a_batch_reset_works_in_groups(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.acts.ACT_ITEMS", 7)
    world.add(*range(50))
    world.finish()
    assert operations.reset(world.store, world.batch, BY).changed == 50
    assert counts(world) == {"pending": 50}
    assert max(len(body.items) for _, body in acts(world)) == 7
    world.finish()
    assert counts(world) == {"done": 50}


def test_a_reset_leads_back_only(world: World) -> None:
    world.add("a")
    with pytest.raises(UsageError, match="goes back"):
        operations.reset(world.store, world.batch, BY, "a", to_stage="correct")


def test_an_item_resolved_by_hand_cannot_go_back_to_where_it_has_no_input(world: World) -> None:
    world.add("a")
    world.work(lambda item: failed(item, transient=False))
    operations.resolve(world.store, world.batch, BY, "a", output=b"1")
    result = operations.reset(world.store, world.batch, BY, "a", to_stage=1)
    assert result.changed == 0
    assert "resolved by hand" in result.left_alone[0][0]
    assert operations.reset(world.store, world.batch, BY, "a").changed == 1


def test_a_dead_letter_whose_payload_was_cut_is_not_run(world: World) -> None:
    world.add("big", payload=lambda _: "x" * PAYLOAD_BYTES)
    for result in (
        operations.redrive(world.store, world.batch, BY, ["big"]),
        operations.reset(world.store, world.batch, BY, "big"),
    ):
        assert (result.changed, result.left_alone) == (0, (("its payload was too large to store", 1),))
    assert operations.discard(world.store, world.batch, BY, ["big"]).changed == 1


def test_input_that_was_not_valid_can_be_redriven_once_the_schema_is_mended(world: World) -> None:
    world.add_invalid("odd")
    assert operations.redrive(world.store, world.batch, BY, ["odd"]).changed == 1
    assert place(world, "odd").state is State.PENDING


def test_the_preview_tells_what_would_be_thrown_away(buried: World) -> None:
    buried.add("paid")
    buried.work(lambda item: done(item, seconds=3.0, spend=Spend(item.n, usd=canonical.to_units("0.25"))))
    shown = operations.preview_reset(buried.store, buried.batch, "paid")
    assert (shown.items, shown["pending"], shown.usd, shown.seconds) == (
        1,
        1,
        canonical.to_usd(canonical.to_units("0.25")),
        3.0,
    )
    whole = operations.preview_reset(buried.store, buried.batch)
    assert (whole["done"], whole["dead"], whole["pending"]) == (1, 2, 1)
    assert str(whole.usd) == "0.25"
    later = operations.preview_reset(buried.store, buried.batch, to_stage="correct")
    assert (str(later.usd), later["to_stage"]) == ("0.00", "correct")
    assert later.seconds == pytest.approx(whole.seconds - 3.0 - 3 * 0.5)


def test_unknown_names_are_answered_with_what_there_is(buried: World) -> None:
    with pytest.raises(UsageError, match="did you mean 'moby-dick'"):
        lookup.batch_named(buried.store, "moby-dik")
    with pytest.raises(UsageError, match="did you mean 'worse'"):
        lookup.item_named(buried.store, buried.batch, "wurse")
    with pytest.raises(UsageError, match="there is 'ocr', 'correct'"):
        operations.reset(buried.store, buried.batch, BY, to_stage="7")


def test_an_item_can_be_named_by_its_number(buried: World) -> None:
    found: StoredItem = lookup.item_named(buried.store, buried.batch, "#1")
    assert (found.n, found.key) == (ItemNo(1), "bad")


def test_a_reset_of_all_reaches_what_was_cut_off_another_chunk(world: World) -> None:
    world.add("c", "d", "e", "f")
    world.work(done)
    world.claim(2)
    assert len(world.store.chunks(world.id)) > 1
    result = operations.reset(world.store, world.batch, BY)
    assert result.changed == 4
