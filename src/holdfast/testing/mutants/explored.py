"""Broken workers of small worlds: they do not wait, do not read back, or forget that they were told."""

from typing import Any

import msgspec

from holdfast.core.model import Commit
from holdfast.testing.exhaustive import hand as hands
from holdfast.testing.exhaustive.hand import Hand, Phase
from holdfast.testing.mutants.register import Patch, exploring, wrapped

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
