"""Many states of one recorded story, each judged once."""

import random
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from tests.powerloss.crash_states import State, Window, drawn, systematic
from tests.powerloss.judge import Judge

GO_ON = 50
"""One state in so many is worked on to its end."""
MANY = 2
"""Windows with more writes than that have states worth drawing."""


class Survey(msgspec.Struct):
    """How many different states were judged, how many of them were worked on, and what was wrong with how many."""

    states: int = 0
    continued: int = 0
    complaints: dict[str, int] = {}
    first: str = ""
    """The first complaint, with the moment of the cut."""


def survey(judge: Judge, states: Iterable[tuple[Window, State]], *, limit: int) -> Survey:
    """Judge different states until there were enough of them."""
    result, seen = Survey(), set[tuple[int, int]]()
    for window, state in states:
        if (hash(state), window.acknowledged) in seen:
            continue
        seen.add((hash(state), window.acknowledged))
        thorough = result.states % GO_ON == 0
        complaint = judge.complain(state, window, thorough=thorough)
        result.states += 1
        result.continued += thorough
        if complaint is not None:
            word = complaint.partition(":")[0]
            result.complaints[word] = result.complaints.get(word, 0) + 1
            result.first = result.first or f"cut before operation {window.at}: {complaint}"
        if result.states == limit:
            break
    return result


def all_simple(windows: Iterable[Window]) -> Iterator[tuple[Window, State]]:
    return ((window, state) for window in windows for state in systematic(window))


def by_chance(windows: Iterable[Window], seed: int) -> Iterator[tuple[Window, State]]:
    """States without end, from one busy moment after the other."""
    busy = [(window, random.Random(f"{seed} {window.at}")) for window in windows if is_busy(window)]
    assert busy, "no moment is busy: there is nothing to draw"
    while True:
        yield from ((window, drawn(window, rng)) for window, rng in busy)


def is_busy(window: Window) -> bool:
    return len(window.pending(window.latest)) > MANY


def some_of_all(windows: Iterable[Window], seed: int, count: int) -> Iterator[tuple[Window, State]]:
    """The simple states of moments with little going on, and so many by chance of the others."""
    found = list(windows)
    yield from all_simple(window for window in found if not is_busy(window))
    if any(is_busy(window) for window in found):
        yield from islice(by_chance(found, seed), count)
