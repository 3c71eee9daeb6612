"""A row that kills its process is buried, and the process is killed again before its checkpoint moves past that."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore
from tests.faults.deadly_app import DEADLY, STORE
from tests.forkserver import ForkServer

APP = "tests.faults.deadly_app"


@pytest.mark.promise("B7", "A15")
@pytest.mark.parametrize("how", ["bounded", "follow"])
@pytest.mark.parametrize("again", [0, 3])
def test_after_a_crash_between_a_burial_and_its_checkpoint_the_next_row_is_not_buried_for_it(
    forkserver: ForkServer, tmp_path: Path, how: str, again: int
) -> None:
    """Whoever comes next is told that the first row it meets is to blame: that one has been buried, the next is
    innocent. So however often it dies there again."""

    def run(fault: str = "") -> tuple[int, str]:
        process = forkserver.start(APP, [how], cwd=tmp_path, fault=fault)
        return process.wait(), process.out + process.err

    assert run()[0] == -signal.SIGKILL  # from now on the batch is there, and only burials add items
    with closing(SqliteStore(tmp_path / STORE)) as store:
        deaths = 0
        while store.batches()[0].admitted == 1:
            assert run("add_items.after:1:kill")[0] == -signal.SIGKILL
            deaths += 1
            assert deaths < 20
        for _ in range(again):
            assert run(f"commit.before:{2 if how == 'follow' else 1}:kill")[0] == -signal.SIGKILL
        (at,) = store.checkpoints(1)
        assert at.rows == DEADLY, "the row was buried, and the checkpoint stands before it"
        status, told = run()
        assert status == 0, told
        left = [n for n in range(12) if n != DEADLY]
        assert f'{{"result": {left}, "rows": ' in told
        letters = [(item.key, item.place.code) for item in store.items(1, lo=1)]
        assert letters == [(f"row {DEADLY + 1}", "killed_process")]
