"""DBOS on SQLite: one workflow with a step per item, or a queue with a workflow per item."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench.case import Reading, Stopwatch
from bench.items import items, result

worked: list[str] = []  # DBOS calls module-level functions only


@DBOS.step()
def one_step(item: dict[str, Any]) -> dict[str, Any]:
    return counted(item)


@DBOS.workflow()
def all_steps(seed: int, count: int) -> int:
    return sum(one_step(item)["ok"] for item in items(count, seed))


@DBOS.workflow()
def one_workflow(item: dict[str, Any]) -> dict[str, Any]:
    return counted(item)


def counted(item: dict[str, Any]) -> dict[str, Any]:
    worked.append(item["id"])
    return result(item)


def steps(place: Path, seed: int, count: int, *, wal: bool) -> Reading:
    with launched(place, wal=wal), SetWorkflowID("bench"), Stopwatch() as watch:
        done = all_steps(seed, count)
    assert done == count
    return Reading(items=count, seconds=watch.seconds, worked=len(worked))


def queue(place: Path, seed: int, count: int, *, wal: bool, **limits: Any) -> Reading:
    with launched(place, wal=wal):
        DBOS.register_queue("bench", **limits)
        with Stopwatch() as watch:
            handles = [enqueued(item) for item in items(count, seed)]
            done = sum(handle.get_result(polling_interval_sec=0.05)["ok"] for handle in handles)
    assert done == count
    return Reading(items=count, seconds=watch.seconds, worked=len(worked))


def enqueued(item: dict[str, Any]) -> Any:
    with SetWorkflowID(item["id"]):
        return DBOS.enqueue_workflow("bench", one_workflow, item)


@contextmanager
def launched(place: Path, *, wal: bool) -> Iterator[None]:
    """Launch DBOS with a given journal mode: it keeps the mode it finds, and a database remembers WAL, so switch
    before."""
    path = place / "dbos.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode={'wal' if wal else 'delete'}")
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{path}",
            "application_version": "1",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()
