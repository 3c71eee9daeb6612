"""A report of the tests that prove the promises of docs/promises.toml, and the list of promises in docs/guarantees.md.

tools/guarantees.py                             write build/guarantees.md and .json from the last test run
tools/guarantees.py --docs                      write the table of promises in docs/guarantees.md
tools/guarantees.py --check                     every promise in force has a test, and that table is up to date
tools/guarantees.py --check --results FILE      ... and one of its tests passed, and none failed, in the run of FILE
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build"
FULL = "not soak and not quick"
"""The marks of the tests that `make test` runs."""
BEGIN = "<!-- Made by tools/guarantees.py from docs/promises.toml: `make docs` writes it again. -->"
END = "<!-- End of what tools/guarantees.py made. -->"

INTRO = """\
# Guarantees and their tests

Each promise of Holdfast, the tests that prove it, and how to repeat them. Every test carries the ids of its promises,
and the build fails if a promise in force has no passing test or a failing one. docs/guarantees.md explains the promises
and their limits.

No failure in n independent tries means a failure rate of at most 3/n, with 95 % confidence. A checker is trusted only
after it has failed on a broken version: see the mutants, and `tests/faults/sabotage.py`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    id: str
    says: str
    since: str | None
    partly: str
    """The part that is not implemented yet; empty if all of it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    name: str
    what: str
    tests: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Test:
    """One test with all of its parameters."""

    path: str
    name: str
    promises: set[str] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def id(self) -> str:
        return f"{self.path}::{self.name}"

    @property
    def words(self) -> str:
        return self.name.removeprefix("test_").replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of the tests: its date and place, and the outcome of each test."""

    facts: dict[str, Any]
    tests: dict[str, Test]


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Everything that the report is made from."""

    sections: dict[str, list[Promise]]
    layers: list[Layer]
    tests: list[Test]
    soak: dict[str, Any]

    @property
    def promises(self) -> Iterator[Promise]:
        return itertools.chain(*self.sections.values())

    def proofs(self, promise: Promise) -> list[Test]:
        return [test for test in self.tests if promise.id in test.promises]

    def layer_of(self, test: Test) -> Layer | None:
        """Return the layer that names the test's file, or else its folder."""
        found = [
            (len(start), layer) for layer in self.layers for start in layer.tests if is_inside(test.path, start)
        ]  # fmt: skip
        return max(found, key=lambda each: each[0])[1] if found else None


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.check:
        run = read_run(options.results) if options.results else None
        book = load(run.tests if run is not None else collect())
        problems = [*unproved(book, must_pass=run is not None), *homeless(book), *stale()]
        print("\n".join(problems) or f"guarantees: every promise in force is proved ({count_in_force(book.sections)})")
        return 1 if problems else 0
    if options.docs:
        page = DOCS / "guarantees.md"
        page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    last = BUILD / "promises.json"
    if not last.exists():
        print("guarantees: there is no test run to report: run make test")
        return 1
    report(read_run(last))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def report(run: Run) -> None:
    """Write build/guarantees.md for people and build/guarantees.json for programs."""
    (BUILD / "guarantees.md").write_text(render(load(run.tests), run.facts), encoding="utf-8")
    entries = {
        test.id: {"promises": sorted(test.promises), "ends": test.ends, "counts": test.counts}
        for test in run.tests.values()
    }
    text = json.dumps({"run": run.facts, "tests": entries}, indent=1, sort_keys=True)
    (BUILD / "guarantees.json").write_text(text + "\n", encoding="utf-8")
    print("guarantees: wrote build/guarantees.md and build/guarantees.json")


# --- gather: the promises, the layers, the tests ---------------------------------------------------------------------


def load(tests: dict[str, Test]) -> Book:
    soak = BUILD / "soak.json"
    return Book(
        sections=load_sections(),
        layers=[
            Layer(name=layer["name"], what=layer["what"], tests=tuple(layer["tests"]))
            for layer in tomllib.loads((DOCS / "layers.toml").read_text(encoding="utf-8"))["layer"]
        ],
        tests=[tests[name] for name in sorted(tests)],
        soak=json.loads(soak.read_text(encoding="utf-8")) if soak.exists() else {},
    )


def load_sections() -> dict[str, list[Promise]]:
    """Return the promises by section title, in the order of the file."""
    return {
        f"{letter}. {section['title']}": [
            Promise(id=name, says=entry["says"], since=entry.get("since"), partly=entry.get("partly", ""))
            for name, entry in section["promises"].items()
        ]
        for letter, section in tomllib.loads((DOCS / "promises.toml").read_text(encoding="utf-8")).items()
    }


def collect() -> dict[str, Test]:
    """Return the tests that pytest finds, without running any."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "collected.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", FULL, f"--promises={target}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"guarantees: pytest could not collect the tests.\n{done.stdout}{done.stderr}")
        return read_run(target).tests


def read_run(path: Path) -> Run:
    """Return a run as tests/promises.py wrote it, with the parameters of one test taken together."""
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    tests: dict[str, Test] = {}
    for nodeid, entry in stored["tests"].items():
        file, *names = nodeid.partition("[")[0].split("::")
        is_state_machine = names[-1] == "runTest"
        test = Test(path=file, name=spaced(names[0].removeprefix("Test")) if is_state_machine else names[-1])
        test = tests.setdefault(test.id, test)
        test.promises |= set(entry["promises"])
        test.ends[entry["outcome"]] += 1
        test.counts.update({what.replace("_", " "): count for what, count in entry.get("counts", {}).items()})
    return Run(facts=stored["run"], tests=tests)


def spaced(camel: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", camel).lower()


def is_inside(path: str, start: str) -> bool:
    return path == start or path.startswith(f"{start}/")


# --- decide: what is missing -----------------------------------------------------------------------------------------


def unproved(book: Book, *, must_pass: bool) -> Iterator[str]:
    for promise in book.promises:
        if promise.since is None:
            continue
        proofs = book.proofs(promise)
        ends = sum((test.ends for test in proofs), Counter[str]())
        if not proofs:
            yield f'{promise.id} has no test: mark one with @pytest.mark.promise("{promise.id}"). {promise.says}'
        elif must_pass and (not ends["passed"] or ends["failed"]):
            outcomes = ", ".join(f"{count} {end}" for end, count in ends.items())
            yield f"{promise.id} is not proved by this run: of its tests, {outcomes}. {promise.says}"


def homeless(book: Book) -> Iterator[str]:
    for path in sorted({test.path for test in book.tests if book.layer_of(test) is None}):
        yield f"{path} does not belong to a layer: name it, or its folder, in docs/layers.toml."


def stale() -> Iterator[str]:
    page = DOCS / "guarantees.md"
    text = page.read_text(encoding="utf-8")
    if text != with_table(text):
        yield "docs/guarantees.md is out of date: run make docs and commit it."


def count_in_force(sections: dict[str, list[Promise]]) -> str:
    promises = [*itertools.chain(*sections.values())]
    return f"{sum(promise.since is not None for promise in promises)} of {len(promises)}"


# --- write: the table in the documentation ---------------------------------------------------------------------------


def with_table(page: str) -> str:
    """Return the page with its table of promises up to date."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(load_sections())}\n{END}{rest.split(END)[1]}"


def table(sections: dict[str, list[Promise]]) -> str:
    """Return one table per section, a row for each promise in force, and a list of the planned ones."""
    lines = []
    for title, promises in sections.items():
        lines += [f"### {title}", "", "| id | promise |", "|---|---|"]
        lines += [f"| {each.id} | {in_full(each)} |" for each in promises if each.since is not None]
        planned = [f"- **{each.id}** {each.says}" for each in promises if each.since is None]
        lines += ["", "Planned, and not promised yet:", "", *planned] if planned else []
        lines.append("")
    return "\n".join(lines)


def in_full(promise: Promise) -> str:
    return f"{promise.says} *Not complete: {promise.partly}*" if promise.partly else promise.says


# --- write: the report -----------------------------------------------------------------------------------------------


def render(book: Book, facts: dict[str, Any]) -> str:
    lines = [INTRO, *summary(book, facts), *soaked(book.soak)]
    for title, promises in book.sections.items():
        lines += [f"## {title}", ""]
        for promise in promises:
            if promise.since is not None:
                lines += chapter(book, promise)
        planned = [f"- **{promise.id}** {promise.says}" for promise in promises if promise.since is None]
        lines += ["### Planned", "", "Not promised yet.", "", *planned, ""] if planned else []
    return "\n".join(lines)


def summary(book: Book, facts: dict[str, Any]) -> Iterator[str]:
    """Yield one row for each layer, with everything that was counted in it."""
    yield from ["## The layers", ""]
    yield f"In force: {count_in_force(book.sections)} promises. The others are planned."
    yield from ["", "| layer | what it does | tests | counted | repeat it |", "|---|---|---|---|---|"]
    for layer in book.layers:
        tests = [test for test in book.tests if book.layer_of(test) is layer]
        if tests:
            command = f"`.venv/bin/pytest {' '.join(layer.tests)}`"
            yield f"| {layer.name} | {layer.what} | {len(tests)} | {counted(tests)} | {command} |"
    yield from ["", *the_run(book, facts), ""]


def the_run(book: Book, facts: dict[str, Any]) -> Iterator[str]:
    ends = sum((test.ends for test in book.tests), Counter[str]())
    outcomes = ", ".join(f"{count:,} {end}" for end, count in sorted(ends.items()))
    yield f"The run: {facts['date']}, commit `{facts['commit']}`, {facts['minutes']:g} minutes on {facts['system']}."
    yield f"Outcomes of the tests that prove a promise, with each of their parameters: {outcomes}."
    yield "Repeat all of it: `make test`. One promise: `make prove PROMISE=C8`. For hours: `make soak HOURS=8`."


def soaked(soak: dict[str, Any]) -> Iterator[str]:
    yield from ["## The soak", ""]
    yield "The fault generators run for hours with new seeds: `make soak HOURS=8`. It prints the seed of each failure."
    yield ""
    if not soak:
        yield from ["No soak is recorded.", ""]
        return
    yield f"Recorded: **{soak['hours']:g} hours**, {soak['seeds']:,} seeds, **{soak['failures']} failures**;"
    yield f"{soak['date']}, commit `{soak['commit']}`, drawn from seed {soak['base']}."
    if soak.get("about"):
        yield soak["about"]
    yield from ["", "| what | how many |", "|---|---|"]
    yield from (f"| {what} | {count:,} |" for what, count in sorted(soak["totals"].items()))
    yield ""


def chapter(book: Book, promise: Promise) -> Iterator[str]:
    """Yield one promise: its sentence, what was counted, and its tests by layer."""
    proofs = book.proofs(promise)
    by_layer = {
        layer.name: found for layer in book.layers if (found := [t for t in proofs if book.layer_of(t) is layer])
    }
    yield from [f"### {promise.id}", "", promise.says, ""]
    if promise.partly:
        yield from [f"*Not complete: {promise.partly}*", ""]
    if how_much := counted(proofs):
        yield from [f"Counted: {how_much}.", ""]
    tests = f"{len(proofs)} test{'s' if len(proofs) != 1 else ''}"
    yield f"<details><summary>{tests}: {', '.join(by_layer)}</summary>"
    yield ""
    for name, found in by_layer.items():
        yield f"- **{name}**"
        for path, tests_there in itertools.groupby(found, key=lambda test: test.path):
            yield f"  - `{path}`: {'; '.join(test.words for test in tests_there)}"
    yield from ["", f"Repeat them: `make prove PROMISE={promise.id}`", "", "</details>", ""]


def counted(tests: Iterable[Test]) -> str:
    """Return what the tests counted, in words."""
    counts = sum((test.counts for test in tests), Counter[str]())
    return ", ".join(f"{count:,} {what}" for what, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
