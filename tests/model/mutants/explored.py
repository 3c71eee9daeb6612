"""Broken workers of small worlds: they do not wait, do not read back, or forget that they were told."""

import contextlib
from typing import Any

import msgspec

from holdfast.core.model import Commit
from tests.model.exhaustive import documents, swapper, swaps
from tests.model.exhaustive import hand as hands
from tests.model.exhaustive.hand import Hand, Phase
from tests.model.exhaustive.swapper import Swapper
from tests.model.mutants.register import Patch, answering, exploring, wrapped

replace = msgspec.structs.replace


@exploring
def a_small_worker_goes_on_before_its_commit_is_durable() -> Patch:
    def hasty(sent: Any, hand: Hand, letter: int, scope: Any) -> tuple[Hand, Commit]:
        waiting, commit = sent(hand, letter, scope)
        return hands.answered(waiting, landed=True), commit

    return wrapped(hands, "sent", hasty)


@exploring
def a_small_worker_takes_silence_for_success() -> Patch:
    return wrapped(hands, "read_back", lambda _read_back, hand, _landed: hands.answered(hand, landed=True))


@exploring
def a_small_worker_reads_the_version_back_and_commits_again() -> Patch:
    def stubborn(_read_back: Any, hand: Hand, landed: bool) -> Hand:
        return replace(hand, phase=Phase.HOLDING, version=hand.version + landed, letter=-1, commit=None, onward=())

    return wrapped(hands, "read_back", stubborn)


@exploring
def a_small_worker_drops_nothing_when_it_is_refused() -> Patch:
    return wrapped(hands, "answered", lambda answered, hand, landed: answered(hand, landed=True))


# -- workers on compare-and-swap documents --------------------------------------------------------------------------


@exploring
def a_small_bucket_does_not_compare_what_it_swaps() -> Patch:
    return answering(swaps, "compares", answer=False)


@exploring
def a_small_swapper_takes_silence_for_success() -> Patch:
    return wrapped(swapper, "silence", lambda _silence, worker, documents: swapper.succeeds(worker, documents))


@exploring
def a_small_swapper_takes_silence_for_failure() -> Patch:
    def hasty(_silence: Any, worker: Swapper, _documents: Any) -> Swapper:
        return swapper.IDLE if worker.op == "claim" else replace(worker, phase=swapper.Phase.HOLDING, op="", request=-1)

    return wrapped(swapper, "silence", hasty)


@exploring
def a_small_swapper_compares_no_write_id_and_asks_no_chain() -> Patch:
    both = contextlib.ExitStack()
    both.enter_context(answering(swapper, "is_own_write", answer=False))
    both.enter_context(answering(swapper, "is_in_chain", answer=False))
    return both


@exploring
def a_small_swapper_takes_every_write_for_its_own() -> Patch:
    return answering(swapper, "is_own_write", answer=True)


@exploring
def a_small_lease_never_ends() -> Patch:
    return answering(documents, "may_end", answer=False)
