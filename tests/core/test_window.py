"""How many of the items that were settled last are dead."""

import pytest

from holdfast.core import journal
from holdfast.core.journal import Acted, Advanced, Attempted, Checkpointed, Moved
from holdfast.core.window import Tally, fates, is_exceeded, tally


def finished(*ns: int, last: bool = True) -> Checkpointed:
    group = Advanced(stage=1, items=journal.numbers(ns), digests=b"", queued=b"", seconds=b"", finished=last)
    return Checkpointed(advanced=[group])


def ended(n: int, outcome: str = "bury") -> Checkpointed:
    return Checkpointed(attempts=[Attempted(n=n, stage=0, attempt=1, epoch=0, outcome=outcome)])


def redriven(*ns: int) -> Acted:
    return Acted(reason="again", items=[Moved(n, "dead", "pending", 0, 0, 0) for n in ns])


def seen(*bodies: journal.Body, window: int = 100) -> Tally:
    """Bodies in the order in which they were written, a second apart."""
    return tally(fates([(float(at), body) for at, body in reversed(list(enumerate(bodies)))]), window)


def test_done_skipped_and_buried_count_and_nothing_else_does() -> None:
    assert seen(finished(1, 2), ended(3, "skip"), ended(4), ended(5, "retry"), finished(6, last=False)) == (1, 4)


def test_only_the_last_ones_count() -> None:
    assert seen(ended(1), ended(2), finished(3, 4, 5), window=3) == (0, 3)
    assert seen(finished(3, 4, 5), ended(1), ended(2), window=3) == (2, 3)


def test_what_a_person_has_dealt_with_does_not_count_any_more() -> None:
    assert seen(finished(1), ended(2), ended(3), redriven(2, 3)) == (0, 1)
    assert seen(ended(2), redriven(2), finished(2)) == (0, 1)
    assert seen(ended(2), redriven(2), ended(2)) == (1, 1)


@pytest.mark.promise("A15")
@pytest.mark.parametrize(("dead", "of", "too_many"), [(2, 10, False), (3, 10, True), (9, 9, False), (0, 10, False)])
def test_the_share_is_judged_once_the_window_is_full(dead: int, of: int, too_many: bool) -> None:
    assert is_exceeded(Tally(dead, of), 0.2, 10) is too_many
