"""The benchmark tells the truth about itself: missed goals, missing peers, and what an earlier run measured."""

import sys
from pathlib import Path

import pytest

from bench import environment, page
from bench.__main__ import main
from bench.against import chosen, told
from bench.case import Case, Goal, Probe, Reading, Size
from bench.cases import CASES
from bench.machine import Machine
from bench.measure import Measured, measure
from bench.summary import Summary, summarise

MACHINE = Machine(
    cores=2, cpu="made up", memory_gb=8, system="Linux", file_system="ext4", python="3.11", apsw="3", sqlite="3",
    python_sqlite="3", sync_ms=0.2,
)  # fmt: skip


def summary(case: str = "throughput", *, fast: float = 50.0, failure: str | None = None) -> Summary:
    """Holdfast makes 100 items in 10 seconds, its peer 100 in `fast`; the goal is to be twice as fast."""
    asked = Case(
        name=case,
        asks="How fast?",
        metric="rate",
        proved=True,
        against="holdfast",
        probes=(probe("holdfast"), probe("peer")),
        goals=(Goal(says="Holdfast ÷ peer", of="holdfast", over="peer", metric="rate", at_least=2),),
    )
    readings = {"holdfast": [Reading(items=100, seconds=10)], "peer": [Reading(items=100, seconds=fast)]}
    found = Measured(readings=readings)
    if failure:
        readings["peer"].clear()
        found.failures["peer"] = failure
    return summarise(asked, 1, found, MACHINE, f"--only {case}")


def probe(name: str, **fields: object) -> Probe:
    return Probe(name=name, label=name.title(), run=summary, items=100, **fields)  # type: ignore[arg-type]


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
    return main()


@pytest.mark.parametrize(
    ("found", "code"),
    [(summary(fast=50), 0), (summary(fast=15), 1), (summary(failure="peer could not be installed"), 1)],
    ids=["met", "missed", "not measured"],
)
def test_check_fails_unless_every_goal_is_met(
    found: Summary, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.save(tmp_path / "found.json", [found])
    assert bench(monkeypatch, "--load", tmp_path / "found.json", "--check") == code
    assert bench(monkeypatch, "--load", tmp_path / "found.json") == 0


def test_a_peer_that_is_missing_is_named_with_the_reason(tmp_path: Path) -> None:
    page.write(tmp_path, [summary(failure="peer could not be installed: no network")])
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "**Not measured:** Peer: peer could not be installed: no network." in text
    assert "| Holdfast ÷ peer | - | ≥ 2 | **?** not measured |" in text
    assert "Not measured: Peer" in (tmp_path / "images" / "benchmark.svg").read_text(encoding="utf-8")


def test_an_environment_that_cannot_be_made_stops_only_its_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "requirements.txt").write_text("nobody==1\n", encoding="utf-8")
    monkeypatch.setattr(environment, "PEERS", tmp_path)
    monkeypatch.setattr(environment, "HOMES", tmp_path / "homes")
    monkeypatch.setattr(environment, "trouble", lambda command: "no network")
    said: list[str] = []
    asked = Case(name="x", asks="", metric="rate", probes=(probe("missing", peer="nobody"),))
    found = measure(asked, 2, said.append)
    assert found.failures["missing"] == "nobody could not be installed: no network; no network"
    assert any("NOT MEASURED" in line for line in said)


def test_a_run_of_some_cases_leaves_the_figures_of_the_others(tmp_path: Path) -> None:
    page.write(tmp_path, [summary("throughput", fast=50), summary("growth", fast=40)])
    page.write(tmp_path, [summary("growth", fast=30)])
    by_case = {found.case: found for found in page.load(tmp_path / "benchmarks.json")}
    ratios = {case: found.verdicts[0].figure.median for case, found in by_case.items() if found.verdicts[0].figure}
    assert ratios == {"throughput": 5, "growth": 3}
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| 5.00 | ≥ 2 | ✓ met |" in text
    assert text.count("\n## ") == 3, "the goals and two cases"


def test_quick_figures_are_never_written(tmp_path: Path) -> None:
    found = summary()
    quick = type(found)(**{name: getattr(found, name) for name in found.__struct_fields__} | {"arguments": "--quick"})
    with pytest.raises(SystemExit, match="not how fast"):
        page.write(tmp_path, [quick])


def test_what_cannot_be_written_stops_the_run_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmarks.json").write_text('[{"case": "of another version"}]', encoding="utf-8")
    with pytest.raises(SystemExit, match="remove it, and measure everything"):
        bench(monkeypatch, "--write", "--docs", tmp_path)


def test_every_peer_is_pinned() -> None:
    for path in environment.PEERS.glob("*/requirements.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "==" in line, f"{path.parent.name}: pin {line}"


def test_every_case_can_be_repeated_by_its_name() -> None:
    assert all(make(Size()).name == name for name, make in CASES.items())


def test_ratios_are_told_by_their_median_and_without_the_lowest_and_the_highest() -> None:
    assert told([9.0, 1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0, 0.1]) == "1.000 (0.800 to 1.200)"
    assert told([2.0, 1.0]) == "1.500 (1.000 to 2.000)"


def test_a_tree_is_held_against_an_earlier_one_by_the_probes_of_holdfast_alone() -> None:
    probes = [probe for _, probe in chosen(list(CASES), Size(quick=True))]
    by_hand = ("bench.floor", "bench.script")
    assert {probe.label for probe in probes} >= {"Holdfast", "chunks of 10", "holdfast status"}
    assert not [probe.label for probe in probes if probe.peer or probe.traced or probe.run.__module__ in by_hand]
    assert not [probe.label for probe in probes if "by hand" in probe.label or probe.label.startswith("bare")]
