"""Disks that are really full: a tiny one where this user may mount it, and a limit on the size of files for everybody.

Every size fills up at another moment of the run. Afterwards there is space again, and a plain second run finishes.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.forkserver import ForkServer
from tests.iofaults.besieged import Besieged
from tests.iofaults.pipeline import DISK

SIZES = (40, 88, 136, 184, 240, 320, 400)
"""KiB. The smallest holds an empty store at best, the largest nearly the whole run."""


@contextmanager
def tiny_disk(at: Path, kib: int) -> Iterator[Callable[[], None]]:
    """A file system in memory of so many KiB; calling what is given makes it large."""
    at.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(at)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(
            f"this user may not mount a small disk ({made.stderr.decode().strip()}); the limit on files stands in"
        )

    def enlarge() -> None:
        subprocess.run(["mount", "-o", "remount,size=64m", str(at)], check=True)

    try:
        yield enlarge
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@pytest.mark.promise("B7", "C9", "P6")
def test_a_disk_of_any_size_that_is_too_small_loses_nothing(
    forkserver: ForkServer, place: Path, tally: Callable[..., None]
) -> None:
    ends = []
    for kib in SIZES:
        with tiny_disk(place / str(kib) / DISK, kib) as enlarge:
            scene = Besieged(forkserver, place / str(kib))
            status, complaints = scene.fail("full")
            ends.append(status)
            enlarge()
            scene.finish()
            complaints += scene.complaints(spared=1)
            forkserver.clear()
        assert not complaints, "\n".join([f"{kib} KiB", *complaints[:10]])
    assert sum(end != 0 for end in ends) >= len(SIZES) // 2, f"these disks are not small: {ends}"
    tally(full_disks=sum(end != 0 for end in ends))


@pytest.mark.promise("B7", "C9", "P6")
def test_files_that_may_not_grow_lose_nothing(forkserver: ForkServer, place: Path, tally: Callable[..., None]) -> None:
    ends = []
    for kib in SIZES[::2]:
        scene = Besieged(forkserver, place / str(kib))
        status, complaints = scene.fail("full", limit=kib * 1024)
        ends.append(status)
        scene.finish()
        complaints += scene.complaints(spared=1)
        assert not complaints, "\n".join([f"{kib} KiB", *complaints[:10]])
    assert ends[0] != 0, "nothing was too large"
    tally(file_size_limits=sum(end != 0 for end in ends))
