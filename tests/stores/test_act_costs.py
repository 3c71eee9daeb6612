"""What an act costs: statements by the chunk, not by the item, so that redriving 100,000 dead letters is a matter of
seconds."""

from pathlib import Path

import pytest

from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import operations
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.file import SqliteFile
from tests.operations.world import Clock, World, failed


def statements(monkeypatch: pytest.MonkeyPatch, world: World) -> int:
    """How many statements redriving every dead letter of the batch executes."""
    counted: list[str] = []
    execute = SqliteFile.execute

    def count(self: SqliteFile, statement: str, *rest: object) -> object:
        counted.append(statement)
        return execute(self, statement, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteFile, "execute", count)
        operations.redrive(world.store, world.batch, Actor(name="ada", reason="again"))
    return len(counted)


def test_an_act_on_many_items_of_a_chunk_takes_no_more_statements_than_one_on_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, taken = Clock(), []
    for size in (5, 900):
        world = World(SqliteStore(tmp_path / f"{size}.db", clock=clock), clock)
        world.add(*range(size))
        world.work(lambda item: failed(item, transient=False))
        taken.append(statements(monkeypatch, world))
        assert all(item.place.state == "pending" for item in world.store.items(world.id))
    assert taken[0] == taken[1]
