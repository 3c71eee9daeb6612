"""The peers: other ways to do the same job on one machine without a server, one folder each.

A folder has `requirements.txt` (every version pinned) and `job.py`, whose functions are called like all probes,
`(place, seed, count, **params)`, and do the job again when they are called again in the same place: finished items must
not be done twice, and `Reading.worked` is how often the handler ran. A job imports only its peer, the standard library,
and the modules of bench that need neither Holdfast nor its driver: see `environment.py`. Starting the peer is not
timed. None of the peers validates its items, which is to their advantage.
"""
