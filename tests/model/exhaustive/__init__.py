"""Everything that can happen in a small world, without exception.

`explore(Scope(items=2))` starts with two workers and a store, does everything that could happen next, and goes on from
every state that this leads to, until there is no new one. Workers claim, read, run, commit, hear the reply or do not,
and read back; they crash at any moment, and do nothing for as long as anybody likes. A lease expires at any moment.
Commits are lost, come late, come again. Operators decide and act later. In every state that is reached

- the journal verifies, and retold from its first entry it gives the items, totals and outputs that the store has;
- no fence is used twice or lowered, no checkpoint goes back within its epoch, no entry is changed;
- no commit is taken from an owner that was overtaken, none is written twice, and none that was told to have landed is
  missing; what a worker goes on from is durable;
- without further trouble, every item can still come to its end.

The decisions are those of the core, and the store is the memory store itself: each of its states is worked on once, and
what follows is remembered. What cannot make a difference is left out, so that the number of states is finite: there is
no time but before and after the end of a lease, fences are current or outdated, and workers have no names.

A violation is told as `Counterexample`, with the shortest way to it.
`python -m tests.model.exhaustive --items 2 --letters 1` explores a world from the command line.

`explore_swaps(workers=3)` does the same for leases and commits on the documents of a bucket, where a write lands only
if nobody else has written since (see `swaps`); `python -m tests.model.exhaustive --swaps --workers 3`.
"""

from tests.model.exhaustive.breadth import Counterexample, Explored
from tests.model.exhaustive.scope import Scope
from tests.model.exhaustive.search import explore
from tests.model.exhaustive.swaps import explore_swaps

__all__ = ["Counterexample", "Explored", "Scope", "explore", "explore_swaps"]
