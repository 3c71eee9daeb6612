"""Scans: a source in cursor order, partition by partition; the cursor, the count and the accumulator in one commit.

Read it in the order data flows: `rows` (rows with their cursors, handlers, when to checkpoint), `isolation` (rows that
nobody can handle), `walk` (a partition from its checkpoint to its end), `partition` (the stage, and how a walk becomes
an outcome), `process` (a partition in a process of its own), `converge` (what is made of all partitions), `plan`
(what a run would do); for a source that is followed `tick` (what is told), `redrive` (a lease, a handler beside it, and
rows that come again), `follow` (one tick, and ticks in a row). `scan` is what you call.
"""
