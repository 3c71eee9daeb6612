"""Scans: a source in cursor order, partition by partition; the cursor, the count and the accumulator in one commit.

In the order of the data flow: `rows` (rows with their cursors, handlers, when to checkpoint), `isolation` (rows that
cannot be handled), `walk` (a partition from its checkpoint to its end), `partition` (the stage, and how a walk becomes
an outcome), `process` (a partition in a process of its own), `converge` (the result of all partitions), `plan` (what a
run would do); for a followed source `tick` (its report), `redrive` (a lease, a handler beside it, and redriven rows),
`follow` (one tick, and ticks in a row). `scan` has the public classes.
"""
