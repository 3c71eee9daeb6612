"""Orphans on every store: found and shown together, resolved with one entry each, harmless twice, owners fenced."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import canonical, journal
from holdfast.core.acts import OrphanKind, Strategy
from holdfast.core.course import to_steer
from holdfast.core.errors import UsageError
from holdfast.core.limits import DEAD_AGE, FOUND_EACH, ORPHAN_GRACE, REQUEUES
from holdfast.core.model import BatchMode, ClaimRequest, ItemNo, State, chain_of_batch
from holdfast.runtime.acts import MEANWHILE, Actor, Acts
from holdfast.runtime.operate import operations, resolution
from holdfast.runtime.operate import resolution as discovery
from holdfast.runtime.operate.audit import verify
from holdfast.runtime.operate.doctor import check_leases
from holdfast.runtime.report import orphans, status
from holdfast.runtime.report.orphans import Orphan
from holdfast.runtime.report.reconcile import reconcile
from holdfast.runtime.report.why import ACTS, StoryEvent, tell
from holdfast.stores.base import Idle, each_entry
from tests.operations.world import Clock, World, deferred, done, failed, make_store

BY = Actor(name="ada", reason="the host was rebooted")
OTHER = "host-b/boot/ns/5/6/cafe"


def nobody_dead(owner: str) -> bool:
    return False


def found(world: World) -> dict[str, Orphan]:
    return {str(orphan.key): orphan for orphan in orphans.find(world.store, world.batch, is_dead=nobody_dead)}


def kinds(world: World) -> dict[str, str]:
    return {key: orphan.kind.value for key, orphan in found(world).items()}


def acts(world: World, key: str) -> list[StoryEvent]:
    return [event for event in tell(world.store, world.batch, key).events if event.what in ACTS]


def told(world: World) -> list[tuple[str, str | None]]:
    """(kind, key) of everything in the outbox but openings."""
    facts = [(event.kind, canonical.decode(event.body)) for event in world.store.events(limit=100_000)]
    return [(kind, body.get("key")) for kind, body in facts if kind != "batch.opened"]


@pytest.mark.promise("A9")
def test_an_item_that_nobody_began_is_an_orphan_past_the_grace_period_and_not_at_it(world: World) -> None:
    world.add("first")
    world.clock.advance(ORPHAN_GRACE)
    assert found(world) == {}
    assert status.snapshot(world.store, world.batch).counts.ready == 1
    world.clock.advance(0.001)
    assert kinds(world) == {"first": "stuck"}
    assert found(world)["first"].owner == ""
    assert status.snapshot(world.store, world.batch).counts.orphaned == 1


@pytest.mark.promise("A9")
def test_the_grace_period_is_the_batch_s_own(world: World) -> None:
    made = World(world.store, world.clock, batch="brief", orphan_after=60.0, dead_after=120.0)
    made.add("a", "b")
    made.work(lambda item: failed(item, transient=False) if item.key == "b" else None)
    made.clock.advance(60.0)
    assert kinds(made) == {}
    made.clock.advance(1.0)
    assert kinds(made) == {"a": "stuck"}
    assert status.snapshot(made.store, made.batch).counts.orphaned == 1
    made.clock.advance(60.0)
    assert kinds(made) == {"a": "stuck", "b": "unanswered"}


@pytest.mark.promise("A10")
def test_all_three_kinds_are_found_by_one_look(world: World) -> None:
    world.add("stuck", "dead")
    world.work(lambda item: failed(item, transient=False, code="no_page") if item.key == "dead" else None)
    cancelled = World(world.store, world.clock, batch="cancelled")
    cancelled.add("in-flight", "left")
    cancelled.claim(1)
    world.store.amend(cancelled.id, to_steer(BatchMode.CANCELLED, reason="not needed"), actor="ada")
    world.clock.advance(DEAD_AGE)
    assert kinds(world) == {"stuck": "stuck"}
    world.clock.advance(1.0)
    assert kinds(world) == {"stuck": "stuck", "dead": "unanswered"}
    assert kinds(cancelled) == {"in-flight": "stranded", "left": "stranded"}
    letter = found(world)["dead"]
    assert letter.error == "no_page: overloaded"
    assert world.clock() - letter.since == DEAD_AGE + 1.0


@pytest.mark.promise("A10")
def test_the_age_of_a_dead_letter_is_its_own_not_that_of_its_chunk(world: World) -> None:
    """Others of its chunk go on, and one of them dies later; cuts and redrives do not make it younger."""
    world.add_invalid("refused")
    world.add(*"abcd")
    world.work(lambda item: failed(item, transient=False) if item.key == "a" else done(item))
    for _ in range(4):
        world.clock.advance(DEAD_AGE / 4)
        world.work(lambda item: deferred(item, 0.0), limit=1)
    world.clock.advance(1.0)
    world.work(lambda item: failed(item, transient=False), limit=1)
    unanswered = {key for key, kind in kinds(world).items() if kind == "unanswered"}
    assert unanswered == {"refused", "a"}
    operations.redrive(world.store, world.batch, BY, ["a"])
    world.finish()
    assert set(kinds(world)) == {"refused"}


@pytest.mark.promise("A9")
def test_a_hung_owner_under_a_long_lease_is_found_and_a_fresh_one_is_not(world: World) -> None:
    world.add("page")
    world.clock.advance(2 * ORPHAN_GRACE)
    world.claim(seconds=86_400.0)
    assert found(world) == {}
    assert status.snapshot(world.store, world.batch, is_dead=nobody_dead).counts.running == 1
    world.clock.advance(ORPHAN_GRACE)
    assert found(world) == {}
    world.clock.advance(1.0)
    orphan = found(world)["page"]
    assert (orphan.kind, orphan.is_held, orphan.owner) == (OrphanKind.STUCK, True, "host-a pid 4711")
    assert status.snapshot(world.store, world.batch, is_dead=nobody_dead).counts.orphaned == 1


@pytest.mark.promise("A9")
def test_an_item_that_waits_for_its_retry_is_no_orphan(world: World) -> None:
    world.add("page")
    world.work(lambda item: deferred(item, 3 * ORPHAN_GRACE))
    world.clock.advance(2 * ORPHAN_GRACE)
    assert found(world) == {}
    world.clock.advance(2 * ORPHAN_GRACE + 1.0)
    assert kinds(world) == {"page": "stuck"}


@pytest.mark.promise("A11", "A13")
def test_a_requeue_resumes_at_the_checkpoint_fences_a_living_owner_and_is_one_entry(world: World) -> None:
    world.add("page")
    world.work(done)
    slow = world.claim(seconds=86_400.0)
    before = world.items(slow)[0]
    world.clock.advance(ORPHAN_GRACE + 1.0)
    result = resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE)
    assert (result.changed, result.left_alone) == (1, ())
    (act,) = acts(world, "page")
    assert (act.facts["actor"], act.facts["reason"]) == (BY.name, BY.reason)
    assert (act.facts["before"], act.facts["after"], act.facts["seized"]) == ("pending", "pending", True)
    assert act.facts["context"]["owner"] == "host-a pid 4711"
    fresh = world.claim(owner=OTHER)
    assert fresh.lease.fence > slow.lease.fence
    again = world.items(fresh)[0]
    assert (again.place.stage, again.place.epoch, again.input) == (1, before.place.epoch, before.input)
    assert world.commit(fresh, [done(again)]).landed
    assert not world.commit(slow, [done(before)]).landed
    assert status.snapshot(world.store, world.batch).counts.done == 1
    assert len(acts(world, "page")) == 1
    assert told(world) == [("orphan.resolved", "page")]
    assert verify(world.store, world.batch).holds


@pytest.mark.promise("A11", "A13")
@pytest.mark.parametrize("strategy", Strategy)
def test_resolving_twice_or_at_once_does_it_once(world: World, strategy: Strategy) -> None:
    world.add("a", "b")
    world.claim()
    world.clock.advance(ORPHAN_GRACE + 1.0)
    first = list(orphans.find(world.store, world.batch))
    stale = [(orphan, resolution._decide(world.batch, orphan, strategy, "x")) for orphan in first]
    assert resolution.resolve_orphans(world.store, world.batch, BY, strategy).changed == 2
    events, entries = len(world.store.events()), [chunk.seq for chunk in world.store.chunks(world.id)]
    same = Actor(name="eve", reason="x")
    assert resolution.resolve_orphans(world.store, world.batch, same, strategy).changed == 0
    assert resolution.resolve_orphans(world.store, world.batch, same, strategy, ["a", "b"]).changed == 0
    late = Acts(world.store, world.batch, BY)
    assert [resolution._write(late, BY, strategy, [each]) for each in stale] == [0, 0]
    assert late.left == {MEANWHILE: 2}
    assert len(world.store.events()) == events
    assert [chunk.seq for chunk in world.store.chunks(world.id)] == entries
    assert [len(acts(world, key)) for key in "ab"] == [1, 1]


@pytest.mark.promise("A15")
def test_an_orphan_is_requeued_three_times_at_most_and_then_buried(world: World) -> None:
    world.add("page", "other")
    for _ in range(REQUEUES):
        world.clock.advance(ORPHAN_GRACE + 1.0)
        assert resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE, ["page"]).changed == 1
        world.claim(seconds=10.0)
    world.clock.advance(ORPHAN_GRACE + 1.0)
    shown = resolution.preview_resolution(world.store, world.batch, Strategy.REQUEUE)
    assert (shown["requeued"], shown["buried"]) == (1, 1)
    assert resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE).changed == 2
    letter = world.store.items(world.id, state=State.DEAD)[0]
    assert (letter.key, letter.place.code, letter.place.requeues) == ("page", "requeued_too_often", REQUEUES)
    assert [event.what for event in acts(world, "page")] == ["requeued"] * REQUEUES + ["buried"]
    assert told(world)[-3:] == [("orphan.resolved", "page"), ("item.dead", "page"), ("warning", "page")]
    assert verify(world.store, world.batch).holds


@pytest.mark.promise("A15")
def test_progress_begins_the_count_again(world: World) -> None:
    world.add("page")
    while world.store.items(world.id, state=State.PENDING):
        world.claim(seconds=1.0)
        world.clock.advance(ORPHAN_GRACE + 1.0)
        resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE)
        place = world.store.items(world.id)[0].place
        if (place.stage, place.requeues) == (0, 2):
            world.work(done)
    place = world.store.items(world.id)[0].place
    assert (place.state, place.stage, place.requeues) == (State.DEAD, 1, REQUEUES)


@pytest.mark.promise("A15")
def test_a_redrive_begins_the_count_again(world: World) -> None:
    world.add("page")
    for _ in range(REQUEUES + 1):
        world.clock.advance(ORPHAN_GRACE + 1.0)
        resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE)
    assert world.store.items(world.id)[0].place.code == "requeued_too_often"
    assert operations.redrive(world.store, world.batch, BY).changed == 1
    for count in range(1, REQUEUES + 1):
        world.clock.advance(ORPHAN_GRACE + 1.0)
        resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE)
        place = world.store.items(world.id)[0].place
        assert (place.state, place.requeues) == (State.PENDING, count)
    assert verify(world.store, world.batch).holds


@pytest.mark.promise("A12", "A13")
@pytest.mark.parametrize(("strategy", "code"), [(Strategy.FAIL, "orphaned"), (Strategy.REVIEW, "review")])
def test_failing_and_reviewing_keep_position_and_context_and_warn(world: World, strategy: Strategy, code: str) -> None:
    world.add("page")
    world.work(done)
    world.work(failed)
    world.clock.advance(30.0)
    world.claim(seconds=10.0)
    world.clock.advance(ORPHAN_GRACE + 1.0)
    before = world.store.items(world.id)[0].place
    assert resolution.resolve_orphans(world.store, world.batch, BY, strategy).changed == 1
    after = world.store.items(world.id)[0].place
    assert (after.state, after.code, after.reason) == (State.DEAD, code, BY.reason)
    assert (after.stage, after.epoch, after.attempt, after.due) == (1, before.epoch, before.attempt, 0.0)
    (act,) = acts(world, "page")
    context = act.facts["context"]
    assert (context["stage"], context["attempts"], context["owner"]) == ("correct", 1, "host-a pid 4711")
    assert (context["last_code"], context["last_error"]) == ("http_503", "overloaded")
    ended = ("batch.finished", None)  # it was the last item that was left
    assert told(world) == [("orphan.resolved", "page"), ("item.dead", "page"), ("warning", "page"), ended]
    warning = canonical.decode(world.store.events()[-2].body)
    assert warning["code"] == code
    assert warning["context"]["last_error"] == "overloaded"
    assert verify(world.store, world.batch).holds


def test_what_is_no_orphan_is_left_alone_with_the_reason(world: World) -> None:
    world.add("fine", "dead", "fresh")
    turns = {"fine": done, "dead": lambda item: failed(item, transient=False)}
    world.work(lambda item: turns[item.key](item) if item.key in turns else None)
    result = resolution.resolve_orphans(world.store, world.batch, BY, Strategy.FAIL, ["fine", "dead", "fresh"])
    assert result.changed == 0
    assert sum(count for _, count in result.left_alone) == 3
    assert any("dead letter" in why for why, _ in result.left_alone)
    assert world.store.events()[-1].kind == "item.dead"


def test_an_old_dead_letter_is_shown_and_not_resolved(world: World) -> None:
    world.add("dead")
    world.work(lambda item: failed(item, transient=False))
    world.clock.advance(DEAD_AGE + 1.0)
    for strategy in Strategy:
        assert resolution.resolve_orphans(world.store, world.batch, BY, strategy).changed == 0
    assert kinds(world) == {"dead": "unanswered"}


def test_in_a_cancelled_batch_nothing_is_requeued(world: World) -> None:
    world.add("page")
    world.store.amend(world.id, to_steer(BatchMode.CANCELLED, reason="not needed"), actor="ada")
    result = resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE)
    assert result.changed == 0
    assert "was cancelled" in result.left_alone[0][0]
    assert resolution.resolve_orphans(world.store, world.batch, BY, Strategy.FAIL).changed == 1


def test_an_unknown_strategy_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match="requeue, fail, review"):
        resolution.check_strategy("retry")


def test_failing_one_item_does_not_hide_those_beside_it(world: World) -> None:
    world.add("a", "b")
    world.clock.advance(ORPHAN_GRACE + 1.0)
    resolution.resolve_orphans(world.store, world.batch, BY, Strategy.FAIL, ["a"])
    assert kinds(world) == {"b": "stuck"}


# -- a healthy queue ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "bucket"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[World]:
    """Six items in two chunks, and a grace period of a minute."""
    store = make_store(request.param, tmp_path, clock)
    world = World(store, clock, orphan_after=60.0)
    world.add("a", "b", "c", ended=False)
    world.add("d", "e", "f")
    yield world
    store.close()


def pass_time(world: World, times: int = 1) -> None:
    """Somebody works on the first item that can be had, every half minute."""
    for _ in range(times):
        world.clock.advance(30.0)
        world.work(lambda item: deferred(item, 0.0), limit=1, owner=OTHER)


def counted(world: World) -> dict[str, int]:
    counts = status.snapshot(world.store, world.batch, is_dead=nobody_dead).counts.as_dict()
    return {name: counts[name] for name in ("ready", "running", "waiting", "orphaned") if counts[name]}


@pytest.mark.promise("A9")
def test_an_item_whose_turn_has_not_come_is_not_an_orphan_while_anybody_works_on_its_batch(queue: World) -> None:
    pass_time(queue, 5)
    assert kinds(queue) == {}
    assert counted(queue) == {"ready": 6}
    assert not announce(queue)
    assert resolution.preview_resolution(queue.store, queue.batch, Strategy.FAIL).items == 0
    assert resolution.resolve_orphans(queue.store, queue.batch, BY, Strategy.FAIL).changed == 0
    assert resolution.resolve_orphans(queue.store, queue.batch, BY, Strategy.FAIL, ["f"]).changed == 0
    recorded = reconcile(queue.store, queue.batch).recorded
    assert (recorded.ready, recorded.orphaned) == (6, 0)
    assert "without progress" not in check_leases(queue.store, queue.store.chunks(queue.id), queue.clock()).message
    assert now_of(queue, "f").startswith("ready at 'ocr'")


@pytest.mark.promise("A9")
def test_an_item_that_was_begun_and_dropped_is_an_orphan_though_its_batch_lives(queue: World) -> None:
    queue.claim(2, seconds=10.0)
    for _ in range(3):  # whoever works on the batch meanwhile has the last chunk in its hands
        queue.clock.advance(20.0)
        act_on_last(queue)
    assert kinds(queue) == {}
    queue.clock.advance(1.0)
    assert kinds(queue) == {"a": "stuck", "b": "stuck"}
    assert counted(queue) == {"orphaned": 2, "ready": 4}
    rest = next(chunk for chunk in queue.store.chunks(queue.id) if (chunk.lo, chunk.hi) == (2, 3))
    assert (rest.fence, rest.seq, rest.parent is not None) == (0, 0, True)
    shown = resolution.preview_resolution(queue.store, queue.batch, Strategy.FAIL)
    assert (shown.items, shown["never_begun"]) == (2, 0)
    resolution.resolve_orphans(queue.store, queue.batch, BY, Strategy.FAIL, ["a"])
    assert kinds(queue) == {"b": "stuck"}  # taken from its owner, and still dropped
    assert announce(queue) is True


def act_on_last(world: World) -> None:
    """Progress in the last chunk, which leaves the first to whoever had it."""
    store, last = world.store, world.store.chunks(world.id)[-1]
    claim = store.claim(ClaimRequest(batch=world.id, owner=OTHER, limit=3, seconds=30.0, only=ItemNo(last.lo)))
    assert not isinstance(claim, Idle)
    assert world.commit(claim, [deferred(item, 0.0) for item in world.items(claim)]).landed


@pytest.mark.promise("A9")
def test_a_part_that_was_cut_off_a_claimed_one_has_its_fence_and_was_not_begun(queue: World) -> None:
    for _ in range(2):
        queue.claim(2, seconds=1.0)
        queue.clock.advance(2.0)
    queue.claim(1, seconds=1.0)
    queue.clock.advance(61.0)
    act_on_last(queue)
    found_now = found(queue)
    assert set(found_now) <= {"a", "b"}
    assert {key for key, orphan in found_now.items() if not orphan.was_begun} == set()


@pytest.mark.promise("A9")
def test_of_a_batch_that_nobody_works_on_everything_is_an_orphan_and_the_preview_tells_what_was_never_begun(
    queue: World,
) -> None:
    queue.claim(2, seconds=10.0)
    queue.clock.advance(60.0)
    assert kinds(queue) == {}
    queue.clock.advance(0.5)
    assert set(kinds(queue)) == set("abcdef")
    shown = resolution.preview_resolution(queue.store, queue.batch, Strategy.FAIL)
    assert (shown.items, shown["never_begun"]) == (6, 4)
    assert resolution.preview_resolution(queue.store, queue.batch, Strategy.FAIL, ["f"])["never_begun"] == 1


@pytest.mark.promise("A9")
def test_a_claim_alone_is_a_sign_of_life_for_those_in_line(queue: World) -> None:
    queue.clock.advance(600.0)
    assert len(kinds(queue)) == 6
    queue.claim(2, seconds=10_000.0)
    assert kinds(queue) == {}
    queue.clock.advance(60.0)
    assert kinds(queue) == {}
    queue.clock.advance(0.5)
    assert len(kinds(queue)) == 6


@pytest.mark.promise("A9", "A10")
def test_in_a_cancelled_batch_every_look_counts_what_is_pending_as_orphaned(queue: World) -> None:
    queue.claim(2)
    queue.store.amend(queue.id, to_steer(BatchMode.CANCELLED, reason="not needed"), actor="ada")
    assert set(kinds(queue).values()) == {"stranded"}
    assert counted(queue) == {"orphaned": 6}


# -- announcing -----------------------------------------------------------------------------------------------------


def announce(world: World) -> bool:
    return discovery.announce(
        world.store, world.batch, discovery.look_for_orphans(world.store, world.batch, limit=5), actor="ada"
    )


@pytest.mark.promise("A10")
def test_an_orphan_is_announced_once_each_time_it_gets_stuck(world: World) -> None:
    world.add("a", "b")
    assert not announce(world)
    world.clock.advance(ORPHAN_GRACE + 1.0)
    assert announce(world)
    assert told(world) == [("orphan.found", "a"), ("orphan.found", "b")]
    for _ in range(2):
        assert not announce(world)
        world.clock.advance(1.0)
    resolution.resolve_orphans(world.store, world.batch, BY, Strategy.FAIL, ["a"])
    assert not announce(world)
    resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE)
    assert not announce(world)
    world.clock.advance(ORPHAN_GRACE + 1.0)
    assert announce(world)
    assert [kind for kind, key in told(world) if key == "b"].count("orphan.found") == 2
    assert [kind for kind, key in told(world) if key == "a"].count("orphan.found") == 1
    assert verify(world.store, world.batch).holds


def test_many_orphans_are_announced_together(world: World) -> None:
    world.add(*range(50))
    world.clock.advance(ORPHAN_GRACE + 1.0)
    seen = discovery.look_for_orphans(world.store, world.batch, limit=3)
    assert (seen.total, len(seen.first)) == (50, 3)
    assert discovery.announce(world.store, world.batch, seen, actor="ada")
    assert not discovery.announce(world.store, world.batch, seen, actor="eve")
    found = [canonical.decode(event.body) for event in world.store.events() if event.kind == "orphan.found"]
    assert len(found) == FOUND_EACH + 1
    assert found[-1]["items"] == 50 - FOUND_EACH
    notes = [journal.decode_header(entry.head).kind for entry in each_entry(world.store, chain_of_batch(world.id))]
    assert notes.count(discovery.KIND) == 1


# -- why ------------------------------------------------------------------------------------------------------------


def now_of(world: World, key: str = "page") -> str:
    return tell(world.store, world.batch, key).now


def test_why_begins_with_the_reason_an_item_is_where_it_is(world: World) -> None:
    world.add("page")
    world.clock.advance(ORPHAN_GRACE + 1.0)
    assert now_of(world).startswith(
        "an orphan at 'ocr': no progress since 2023-11-14 22:13:20Z, 2 h 00 min ago; it was never claimed"
    )
    resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REQUEUE)
    assert now_of(world).startswith("ready at 'ocr'. Last act: requeued by ada (to continue at 'ocr')")
    world.store.amend(world.id, to_steer(BatchMode.PAUSED, reason="lunch"), actor="ada")
    assert "; its batch is paused." in now_of(world)
    assert "paused" in tell(world.store, world.batch, "page").next
    world.store.amend(world.id, to_steer(BatchMode.OPEN, reason="on with it"), actor="ada")
    world.claim()
    assert "held by host-a pid 4711 under fence 1 since 2023-11-15 00:13:21Z" in now_of(world)
    world.clock.advance(ORPHAN_GRACE + 31.0)
    assert "host-a pid 4711 had it last; requeued 1 of 3 times" in now_of(world)
    world.store.amend(world.id, to_steer(BatchMode.CANCELLED, reason="enough"), actor="ada")
    assert now_of(world).startswith("stranded at 'ocr': its batch was cancelled")
    resolution.resolve_orphans(world.store, world.batch, BY, Strategy.REVIEW)
    tale = tell(world.store, world.batch, "page")
    assert tale.now.startswith("waits for a review at 'ocr': review: the host was rebooted.")
    assert "sent to review by ada" in tale.now
    assert str(tale).index("Now:") < str(tale).index("admitted")


def test_the_commands_of_an_orphan_resolve_it(world: World) -> None:
    world.add("page")
    world.clock.advance(ORPHAN_GRACE + 1.0)
    commands = tell(world.store, world.batch, "page").commands
    assert [command.split("--resolve ")[1].split()[0] for command in commands] == list(Strategy)


def test_a_look_streams(world: World) -> None:
    """The first orphans are there before the last item was read."""
    world.add(*range(3000))
    world.clock.advance(ORPHAN_GRACE + 1.0)
    assert len(list(itertools.islice(orphans.find(world.store, world.batch), 5))) == 5
