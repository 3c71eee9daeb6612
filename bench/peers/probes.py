"""The measured peers and their settings. They are slower, so they get fewer items: rates are compared."""

from typing import Any

from bench.case import Probe, Size
from bench.environment import version_of

QUEUE: dict[str, Any] = {"worker_concurrency": 8, "polling_interval_sec": 0.05}
WIDE_QUEUE: dict[str, Any] = {**QUEUE, "worker_concurrency": 100}
ROLLBACK = "as it opens SQLite: rollback journal, FULL"
SWITCHED = "the file switched to WAL before, FULL"


def probes(size: Size) -> tuple[Probe, ...]:
    dbos, diskcache, huey = version_of("dbos"), version_of("diskcache"), version_of("huey")
    langgraph, joblib = version_of("langgraph"), version_of("joblib")
    return (
        peer(
            "dbos-steps", f"DBOS {dbos}, steps", "dbos:steps", size.scaled(600),
            f"one workflow, a step per item; {ROLLBACK}", wal=False,
        ),
        peer(
            "dbos-steps-wal", f"DBOS {dbos}, steps, WAL", "dbos:steps", size.scaled(600),
            f"one workflow, a step per item; {SWITCHED}", wal=True,
        ),
        peer(
            "dbos-queue", f"DBOS {dbos}, queue", "dbos:queue", size.scaled(200),
            f"a workflow per item, 8 at once, polled every 0.05 s; {ROLLBACK}", wal=False, **QUEUE,
        ),
        peer(
            "dbos-queue-wal", f"DBOS {dbos}, queue, WAL", "dbos:queue", size.scaled(200),
            f"a workflow per item, 8 at once, polled every 0.05 s; {SWITCHED}", wal=True, **QUEUE,
        ),
        peer(
            "dbos-queue-100", f"DBOS {dbos}, queue, WAL, 100 at once", "dbos:queue", size.scaled(200),
            f"a workflow per item, 100 at once, polled every 0.05 s; {SWITCHED}", wal=True, **WIDE_QUEUE,
        ),
        peer(
            "langgraph", f"LangGraph {langgraph}", "langgraph:fresh", size.scaled(600),
            "SqliteSaver (WAL, FULL), one node, a thread per item, saved on exit: its default syncs 5 times an item",
            save="exit",
        ),
        peer(
            "huey", f"Huey {huey}", "huey:fresh", size.scaled(2_000),
            "WAL, FULL (fsync=True), one worker; an item leaves the queue before it runs, a kill loses it", workers=1,
        ),
        peer(
            "diskcache-full", f"diskcache {diskcache}, FULL", "diskcache:fresh", size.scaled(5_000),
            "WAL, sqlite_synchronous=2; a result under each key, nothing else", synchronous=2,
        ),
        peer(
            "diskcache", f"diskcache {diskcache}", "diskcache:fresh", size.scaled(10_000),
            "its defaults: WAL, NORMAL; a result under each key, nothing else", survives=False, synchronous=1,
        ),
        peer(
            "joblib", f"joblib.Memory {joblib}", "joblib:fresh", size.scaled(2_000),
            "its defaults: files that are never synced", survives=False,
        ),
    )  # fmt: skip


def peer(
    name: str, label: str, job: str, items: int, durability: str, *, survives: bool = True, **params: Any
) -> Probe:
    folder, _, function = job.partition(":")
    run = f"bench.peers.{folder}.job:{function}"
    return Probe(
        name=name,
        label=label,
        run=run,
        again=run,
        items=items,
        params=params,
        durability=durability,
        survives=survives,
        peer=folder,
    )
