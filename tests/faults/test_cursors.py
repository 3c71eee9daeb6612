"""Cursors of every type, each of them the one that a killed process leaves and the next one goes on from."""

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import canonical, cursor
from holdfast.stores.open import open_store
from tests.faults.typed_app import BATCH, HANDLED, VALUES, cursor_of, index_of, same
from tests.forkserver import ForkServer

APP = "tests.faults.typed_app"


def kept(store: str) -> tuple[cursor.Cursor, Any]:
    """Cursor and accumulator of the checkpoint that stands."""
    with closing(open_store(store)) as there:
        (batch,) = there.batches(BATCH)
        (at,) = there.checkpoints(batch.id)
        assert at.acc is not None
        return cursor.decode(at.cursor), canonical.decode_typed(at.acc)


@pytest.mark.promise("B9", "B10")
@pytest.mark.parametrize("kind", ["sqlite", "bucket"])
def test_a_cursor_of_every_type_survives_a_kill_and_is_gone_on_from(
    kind: str, tmp_path: Path, forkserver: ForkServer
) -> None:
    """Every process is killed when its first checkpoint is durable: the next begins after a cursor of the next type.
    The source knows a cursor only by its exact value and type."""
    store = str(tmp_path / "state.db") if kind == "sqlite" else f"file://{tmp_path}/state"
    for number in range(len(VALUES) - 1):
        process = forkserver.start(APP, [store], cwd=tmp_path, fault="commit.after:1:kill")
        assert process.wait() == -signal.SIGKILL, process.err
        at, acc = kept(store)
        assert same(at.value, cursor_of(number).value), at
        assert same(at.tiebreaker, cursor_of(number).tiebreaker), at
        assert same(acc, VALUES[: number + 1])
    process = forkserver.start(APP, [store], cwd=tmp_path)
    assert process.wait() == 0, process.err
    assert process.report == {"rows": len(VALUES), "same": True}
    assert (tmp_path / HANDLED).read_text().split() == [str(n) for n in range(len(VALUES))]


def test_what_comes_back_as_another_type_is_noticed() -> None:
    for number, value in enumerate(VALUES):
        assert index_of(cursor_of(number)) == number
        for other in (1, 1.0, "0", [1, "a", (None,)], None):
            assert same(value, other) == (type(value) is type(other) and repr(value) == repr(other))
