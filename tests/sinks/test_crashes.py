"""Killed at every call that touches the disk: what was recorded is there, what was not is whole or not adopted."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.sinks import Evidence, Files, names
from tests.house.source import ROOT
from tests.sinks.crasher import KEYS
from tests.sinks.making import ours, output, place


@pytest.mark.promise("A8", "P6")
def test_a_kill_at_any_moment_leaves_the_old_state_or_the_new_one(here: Path, tally: Callable[..., None]) -> None:
    homes = crash(here)
    seen = Counter[str]()
    for home in homes:
        os.chdir(home)
        seen += resume(Files("out/{key}.json"))
    assert seen["lies"] == 0
    assert min(seen["recorded"], seen["adopted"], seen["made again"], seen["swept"]) > 0, seen
    assert len(homes) > 50
    tally(kills=len(homes) - 1, adopted=seen["adopted"])


def test_the_oracle_notices_a_sink_that_trusts_names(here: Path) -> None:
    seen = Counter[str]()
    for home in crash(here, "careless"):
        os.chdir(home)
        seen += resume(Trusting("out/{key}.json"))
    assert seen["lies"] > 0


def test_the_digest_alone_protects_even_where_names_lie(here: Path) -> None:
    for home in crash(here, "careless"):
        os.chdir(home)
        assert resume(Files("out/{key}.json"))["lies"] == 0


class Trusting(Files):
    """Adopts whatever has the right name."""

    def _adoptable(self, left: names.StagedName, final: str) -> Evidence | None:
        size = (self._folder / left.name).stat().st_size
        return Evidence(final, f"{self._folder_written}/{left.name}", size, 0, 0, b"", is_text=False)


def crash(root: Path, *how: str) -> list[Path]:
    command = [sys.executable, str(ROOT / "tests" / "sinks" / "crasher.py"), str(root), *how]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return sorted(path for path in root.iterdir() if path.is_dir())


def resume(sink: Files) -> Counter[str]:
    """What the next run does, and whether anything it takes for valid is not."""
    if Path("ledger").exists():
        made = [Evidence.decode(bytes.fromhex(text)) for text in json.loads(Path("ledger").read_text())]
        seen = Counter({"recorded": sum(sink.check(each, full=True) is None for each in made)})
        assert seen["recorded"] == len(KEYS), "an acknowledged output is lost"
    else:
        assert Path("out/1.json").read_text() == "yesterday", "the old file stands until the commit"
        made, seen = adopt_or_make(sink)
        sink.sync_folders(made)
        sink.publish(made)
    seen["lies"] = sum(Path(f"out/{key}.json").read_bytes() != output(key) + b"\n" for key in KEYS)
    seen["swept"] = len(sink.sweep(older_than=0, now=1e12))
    if type(sink) is Files and not seen["lies"]:
        assert [name for name in ours(Path.cwd()) if "tmp-" in name] == []
    return seen


def adopt_or_make(sink: Files) -> tuple[list[Evidence], Counter[str]]:
    made, seen = [], Counter[str]()
    for key in KEYS:
        found = sink.find(place(key, n=key, fence=4))
        seen["adopted" if found is not None else "made again"] += 1
        made.append(found if found is not None else sink.stage(place(key, n=key, fence=4), output(key)))
    return made, seen
