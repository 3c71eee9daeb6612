"""How one process works through what it has claimed: the loop, lanes, pools, commits, heartbeats."""
