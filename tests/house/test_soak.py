"""The soak by itself: seeds that replay, failures that are told, an end at any time, a record of the longest."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests import soak


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(soak, "RECORD", tmp_path / "soak.json")
    monkeypatch.setattr(soak.Generators, "simulation", lambda _self, seed: Counter(worlds=1))
    return tmp_path / "soak.json"


def test_the_same_base_draws_the_same_seeds_for_the_same_generators() -> None:
    assert [*islice(soak.drawn(7, ""), 40)] == [*islice(soak.drawn(7, ""), 40)]
    assert {name for name, _ in islice(soak.drawn(7, ""), 40)} == set(soak.ROUND)
    assert all(callable(getattr(soak.Generators, name)) for name in soak.ROUND)


def test_a_failure_is_told_with_its_seed_and_it_goes_on(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_self: soak.Generators, seed: int) -> Counter[str]:
        raise soak.Failed("a page is missing")

    monkeypatch.setattr(soak.Generators, "damage", fail)
    one = soak.Soak(1.0, base=7)
    assert one.run(iter([("damage", 4711), ("simulation", 1)])) == 1
    out = capsys.readouterr().out
    assert "FAILED: damage, seed 4711: Failed: a page is missing" in out
    assert "tests/soak.py --only damage --seed 4711" in out
    assert "1 failures in 0.00 h, 2 seeds: 1 worlds" in out


def test_ctrl_c_ends_it_with_its_totals(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_self: soak.Generators, seed: int) -> Counter[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(soak.Generators, "story", interrupt)
    one = soak.Soak(1.0, base=7)
    assert one.run(iter([("simulation", 1), ("story", 2), ("simulation", 3)])) == 0
    assert "interrupted\n0 failures in 0.00 h, 2 seeds: 1 worlds" in capsys.readouterr().out


def test_the_longest_is_kept(record: Path) -> None:
    one = soak.Soak(1.0, base=7)
    one.run(iter([("simulation", 1)]))
    one.record()
    assert not record.exists(), "too short to be worth it"
    one.began -= 3600 * soak.WORTH_KEEPING
    one.record()
    kept = json.loads(record.read_text())
    assert (kept["base"], kept["seeds"], kept["failures"], kept["totals"]) == (7, 1, 0, {"worlds": 1})
    record.write_text(json.dumps({**kept, "hours": 99.0}))
    soak.Soak(1.0, base=8).record()
    assert json.loads(record.read_text())["hours"] == 99.0
