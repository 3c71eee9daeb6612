"""The example with the orders, its state in a container: killed in mid-tick, it loses no order and books none twice."""

import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.buckets import servers
from tests.buckets.test_servers import LEAST
from tests.forkserver import shared

ORDERS = servers.ROOT / "examples" / "orders"


@pytest.mark.slow
@pytest.mark.promise("B1", "B10", "C10", "C11", "C19")
def test_a_poller_with_its_state_in_a_container_is_killed_and_goes_on(azurite: str, tmp_path: Path) -> None:
    """As an ordinary deployment has it: a URL, and credentials of the environment for one container only."""
    servers.make_container(azurite, "orders")
    for name in ("poller.py", "make_orders.py"):
        shutil.copy(ORDERS / name, tmp_path)
    settings = {
        "ORDERS_STATE": "az://orders/state", "AZURE_STORAGE_ENDPOINT": azurite, "AZURE_ALLOW_HTTP": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": servers.ACCOUNT,
        "AZURE_STORAGE_SAS_TOKEN": servers.sas_options(azurite, "orders", LEAST)["sas_key"],
    }  # fmt: skip

    def call(*command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return shared().program(*command, cwd=tmp_path, env={**os.environ, **settings, **more}).completed()

    assert call("make_orders.py", "450").returncode == 0
    killed = call("poller.py", ORDERS_KILL="250")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = call("poller.py")
    assert done.returncode == 0, done.stderr
    assert "caught up: 250 rows, 450 in all" in done.stdout
    assert "nothing new: 0 rows, 450 in all" in call("poller.py").stdout
    ledger = sqlite3.connect(tmp_path / "ledger.db")
    booked = [n for (n,) in ledger.execute("SELECT id FROM entries ORDER BY id")]
    ledger.close()
    assert booked == list(range(1, 451))
