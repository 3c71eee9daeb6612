"""Scans: a source in cursor order, range by range, with the cursor, the count and what was accumulated in one commit.

Read it in the order data flows: `stage` (what a range is), `feed` (rows with their cursors), `handler` (what the user
wrote), `interval` (when to checkpoint), `walk` (a range from its checkpoint to its end), `runner` (how a walk becomes
an outcome), `convergence` (what is made of all ranges), `report` (what is told). Then what may be around it:
`isolation` and `burial` (rows nobody can handle, or that kill their process), `misuse` (scans nobody can run),
`elsewhere` (ranges in processes of their own), and for a source that is followed `followed` (a walk to the end of what
is there), `handling` (a lease, and a handler beside it), `redriving` (rows that come again), `follower` (one tick),
`following` (ticks in a row), `tick` and `lag` (what is told).
"""
