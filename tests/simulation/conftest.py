"""Where seeds come from: half of them always the same, half from the commit, so that every commit tries others."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def seeds_of_this_commit() -> int:
    """Where the seeds of this commit begin; where there is no commit, at a number of their own."""
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return (int(found.stdout[:8], 16) << 20 if found.returncode == 0 else 0) + (1 << 30)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: worlds are about decisions, not about disks."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
