"""Broken returns: outputs that are believed though they are gone, found though nobody made them, items that go back or
are sent on their way again without limit."""

import contextlib
from typing import Any
from unittest import mock

import msgspec

from holdfast.core import acts, settle, verify
from holdfast.core.model import Act, BatchMode, Change, Chunk, ItemState, State
from holdfast.core.outcome import Done, Lost
from holdfast.testing.simulator import operators
from holdfast.testing.simulator.pool import HandlerPool
from holdfast.testing.simulator.world import Effect, MadeOutputs, World
from tests.model.mutants.register import Patch, answering, conformance, simulation, wrapped

replace = msgspec.structs.replace


# -- verification -------------------------------------------------------------------------------------------------


@simulation
def what_does_not_hold_is_believed() -> Patch:
    return answering(operators, "rewind", answer=None)


@simulation
def only_what_is_finished_is_looked_at() -> Patch:
    def partly(does_not_hold: Any, outside: MadeOutputs, item: Any) -> Any:
        return does_not_hold(outside, item) if item.place.state is not State.DONE else None

    return wrapped(MadeOutputs, "does_not_hold", partly)


@simulation
def a_rewind_stays_in_its_epoch() -> Patch:
    def lazy(rewound: Any, place: ItemState, *to: Any, **why: Any) -> Any:
        return replace(rewound(place, *to, **why), epoch=place.epoch)

    both = contextlib.ExitStack()
    both.enter_context(wrapped(verify, "rewound", lazy))
    both.enter_context(answering(acts, "_holds", answer=True))
    return both


@simulation
def rewinds_are_not_limited() -> Patch:
    return mock.patch.object(verify, "REWINDS", 10**9)


@simulation
def rewinds_are_not_counted() -> Patch:
    return wrapped(verify, "rewound", lambda rewound, *back, **why: replace(rewound(*back, **why), rewinds=0))


@simulation
def a_worker_does_not_look_at_its_input() -> Patch:
    def trusting(look: Any, pool: HandlerPool, item: Any) -> Any:
        found = look(pool, item)
        return None if isinstance(found, Lost) else found

    return wrapped(HandlerPool, "look", trusting)


# -- adoption -----------------------------------------------------------------------------------------------------


@simulation
def adopting_costs_an_attempt() -> Patch:
    def costly(advance: Any, ledger: Any, stage: int, adopted: bool, group: list[Done]) -> None:
        advance(ledger, stage, adopted, group)
        ledger.tally["attempts"] += adopted * len(group)

    return wrapped(settle._Ledger, "advance", costly)


@simulation
def what_another_epoch_made_is_adopted() -> Patch:
    def loose(_has: Any, outside: MadeOutputs, effect: Effect) -> bool:
        outside.made.setdefault(effect, None)
        return any(made[:2] == effect[:2] for made in outside.made if made != effect)

    return wrapped(MadeOutputs, "has", loose)


@simulation
def what_another_stage_made_is_adopted() -> Patch:
    def loose(_has: Any, outside: MadeOutputs, effect: Effect) -> bool:
        found = any((made[0], made[2]) == (effect[0], effect[2]) for made in outside.made)
        outside.made.setdefault(effect, None)
        return found

    return wrapped(MadeOutputs, "has", loose)


@simulation
def what_was_adopted_costs_nothing() -> Patch:
    def free(look: Any, pool: HandlerPool, item: Any) -> Any:
        found = look(pool, item)
        return replace(found, spend=None) if isinstance(found, Done) else found

    return wrapped(HandlerPool, "look", free)


# -- re-enqueueing ------------------------------------------------------------------------------------------------


@simulation
def an_item_is_sent_on_its_way_without_fencing_its_owner() -> Patch:
    def gentle(apply: Any, act: Act, chunk: Chunk, *args: Any) -> Any:
        effect = apply(act, chunk, *args)
        return replace(effect, seized=False, fence=chunk.fence) if act.kind.startswith("requeue") else effect

    return wrapped(acts, "apply", gentle)


@simulation
def an_item_in_flight_is_not_sent_on_its_way() -> Patch:
    def shy(act: Any, world: World, who: str, kind: str, *args: Any, **named: Any) -> Any:
        return act(world, who, kind, *args, **named | ({"seize": False} if kind == "requeued" else {}))

    return wrapped(World, "act", shy)


@simulation
def sending_an_item_on_its_way_twice_counts_twice() -> Patch:
    def loose(holds: Any, change: Change, place: ItemState) -> bool:
        again = change.place.state is State.PENDING is place.state and change.place.epoch == place.epoch
        if again and (place.epoch, place.stage) == (change.epoch, change.place.stage):
            return True
        return bool(holds(change, place))

    return wrapped(acts, "_holds", loose)


@conformance
def an_act_that_is_sent_again_is_done_again_where_its_item_came_round() -> Patch:
    return answering(acts, "may_come_again", False)


@simulation
def items_are_sent_on_their_way_without_limit() -> Patch:
    return mock.patch.object(acts, "REQUEUES", 10**9)


@simulation
def that_an_item_was_sent_on_its_way_is_not_counted() -> Patch:
    return wrapped(acts, "requeued", lambda requeued, *place, **why: replace(requeued(*place, **why), requeues=0))


@simulation
def an_item_of_a_cancelled_batch_is_sent_on_its_way() -> Patch:
    def hopeful(resolve: Any, *place: Any, **facts: Any) -> Any:
        return resolve(*place, **facts | {"course": BatchMode.OPEN})

    return wrapped(acts, "resolve_orphan", hopeful)
