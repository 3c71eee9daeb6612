"""What the tests of the store do in another process: `main` does one deed and tells, as JSON, what came of it."""

import json
import multiprocessing
import os
import resource
import sys
import threading
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from holdfast.core import canonical, ingest
from holdfast.core.model import NewItem
from holdfast.stores import owners
from holdfast.stores.sqlite import SqliteStore

DEFINITION = canonical.encode({"stages": [{"name": "read"}]})
NOBODY = 65_534
RACERS = 3
ROUNDS = 15


def main(argv: list[str]) -> int:
    deed, path = argv
    told = DEEDS[deed](Path(path))
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def open_it(path: Path) -> str:
    SqliteStore(path)
    return "opened"


def open_as_nobody(path: Path) -> str:
    """As another user, where this one may become another user."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return tried(lambda: SqliteStore(path))


def use_after_fork(path: Path) -> dict[str, Any]:
    """In the child of a process that has the store open."""
    store = SqliteStore(path)
    in_child = told_by_child(lambda: [tried(store.batches), tried(store.close), tried(store.batches)])
    return {"child": in_child, "parent": tried(store.batches)}


def use_after_fork_from_a_busy_process(path: Path) -> dict[str, Any]:
    """In a child that was forked while a thread of its parent was reading: the thread is not in the child."""
    store = SqliteStore(path)
    inside, enough = threading.Event(), threading.Event()

    def read() -> None:
        with store._file.reading():
            inside.set()
            enough.wait()

    reader = threading.Thread(target=read)
    reader.start()
    inside.wait()
    in_child = told_by_child(lambda: [tried(store.batches), tried(store.close)])
    enough.set()
    reader.join()
    return {"child": in_child, "parent": tried(store.batches)}


def fill_the_disk(path: Path) -> dict[str, Any]:
    """Write more than the system allows this process to write, then go on where there is room again."""
    store = SqliteStore(path)
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann").id
    store.add_items(batch, [new_item(n) for n in range(100)])
    room = path.with_name(f"{path.name}-wal").stat().st_size + 20_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    failed = tried(lambda: store.add_items(batch, [new_item(n) for n in range(100, 3000)]))
    then = tried(lambda: store.items(batch))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    again = SqliteStore(path)
    kept = len(again.items(batch, limit=5000))
    added = again.add_items(batch, [new_item(n) for n in range(3000)]).added
    return {"failed": failed, "then": then, "kept": kept, "added": added}


def race(folder: Path) -> list[int | None]:
    """Several processes open one fresh file after the other, each at the same moment as the others."""
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(RACERS)
    racers = [fork.Process(target=open_each, args=(folder, barrier, number)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    return [racer.exitcode for racer in racers]


def open_each(folder: Path, barrier: Barrier, number: int) -> None:
    for turn in range(ROUNDS):
        barrier.wait()
        store = SqliteStore(folder / f"{turn}.db")
        batch = store.open_batch("book", "pages", DEFINITION, actor=f"racer-{number}")
        store.add_items(batch.id, [new_item(f"{number}"), new_item("shared")])
        store.close()


def new_item(key: object) -> NewItem:
    return ingest.admit(key, canonical.encode({"page": key}))


def name_itself(_path: Path) -> str:
    return owners.new_owner()


def tried(call: Callable[[], object]) -> str:
    """What a call said when it failed."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - told to the test
        return f"{type(error).__name__}: {error}"
    return "done"


def told_by_child(call: Callable[[], Any]) -> Any:
    """What a forked child has to say; a signal ends it, should it hang."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, json.dumps(call()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told)


DEEDS: dict[str, Callable[[Path], Any]] = {
    deed.__name__: deed
    for deed in (
        open_it, open_as_nobody, use_after_fork, use_after_fork_from_a_busy_process, fill_the_disk, race, name_itself,
    )
}  # fmt: skip
