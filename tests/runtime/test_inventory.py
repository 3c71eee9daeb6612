"""The example with five ranges: killed with a real kill -9 and resumed, its totals are exact."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.stores.base import each_checkpoint
from holdfast.stores.open import open_store

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "inventory"


@pytest.mark.promise("B1", "B10")
def test_the_inventory_example_is_exact_after_it_was_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("HOLDFAST_STORE", None)

    def start(*argv: object, **more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, *map(str, argv)]
        return subprocess.Popen(command, cwd=tmp_path, env={**environment, **more}, stdout=subprocess.PIPE, text=True)

    start(EXAMPLE / "make_inventory.py", 20_000).communicate(timeout=60)
    killed = start(EXAMPLE / "app.py", "inventory.csv", HOLDFAST_DEMO_PACE="0.05")
    wait_for_a_checkpoint(tmp_path, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    second = start(EXAMPLE / "app.py", "inventory.csv")
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 0, out
    for house, amount in expected(tmp_path / "inventory.csv").items():
        assert f"{house:<14}{amount:>20,.2f}" in out


@pytest.mark.slow
def test_the_totals_that_the_readme_shows_are_those_of_the_file(tmp_path: Path) -> None:
    made = tmp_path / "inventory.csv"
    subprocess.run([sys.executable, EXAMPLE / "make_inventory.py", "1000000"], cwd=tmp_path, check=True)
    found, shown = expected(made), (EXAMPLE / "README.md").read_text()
    for house, amount in {**found, f"{1_000_000:,}": sum(found.values(), Decimal(0))}.items():
        assert f"{house:<14}{amount:>20,.2f}" in shown


def expected(path: Path) -> dict[str, Decimal]:
    found: dict[str, Decimal] = defaultdict(Decimal)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["warehouse"]] += int(row["quantity"]) * Decimal(row["price"])
    return found


def wait_for_a_checkpoint(folder: Path, process: "subprocess.Popen[str]") -> None:
    limit = time.monotonic() + 60
    while not has_checkpoints(folder / ".holdfast" / "state.db"):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.02)


def has_checkpoints(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with closing(open_store(str(path))) as store:
            return any(at.rows for batch in store.batches() for at in each_checkpoint(store, batch.id))
    except hf.HoldfastError:
        return False  # it is just being made
