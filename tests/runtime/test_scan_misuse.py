"""What is wrong with a scan as it is written or installed refuses the run: nothing is buried, every range stays."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import EXTRAS
from holdfast.testing.rows import Rows
from tests.runtime.support import App, walk_of


class Broken(Rows):
    """A source that finds out while it is read, after some pages, that it was called wrongly."""

    ok = 0

    def read(self, after: Any, until: Any) -> Iterator[Any]:
        for number, page in enumerate(super().read(after, until)):
            if number == self.ok:
                raise hf.UsageError("the source has no column 'price'")
            yield page


class AtOnce(Rows):
    """One that says so before its first page."""

    def read(self, after: Any, until: Any) -> Iterator[Any]:
        raise hf.UsageError("the cursor is of another source")


def total(rows: Sequence[int], acc: int) -> int:
    return acc + sum(rows)


def each(part: Any) -> Iterator[int]:
    yield from part


def scan_over(source: Rows, handler: Any = total, **options: Any) -> hf.Scan:
    scan = walk_of("totals", source, store="state.db", every=4, **options)
    scan.handler(handler)
    return scan


def odd(part: Any) -> Iterator[int]:
    yield sum(part)
    return object()


def test_a_result_that_cannot_be_kept_refuses_the_run_and_buries_nothing(folder: Path) -> None:
    scan = scan_over(Rows(range(20)), odd)
    with pytest.raises(hf.UsageError, match="handler 'odd': the result"):
        scan.run(progress=False)
    assert (scan.report().counts.dead, scan.report().counts.pending) == (0, 1)


@pytest.mark.parametrize("handler", [total, each])
@pytest.mark.parametrize("ok", [0, 2])
def test_a_source_called_wrongly_refuses_the_run_and_buries_nothing(folder: Path, ok: int, handler: Any) -> None:
    source = Broken(range(20), page=4)
    source.ok = ok
    scan = scan_over(source, handler)
    with pytest.raises(hf.UsageError, match="no column 'price'"):
        scan.run(progress=False)
    report = scan.report()
    assert (report.counts.dead, report.counts.pending, list(report.dead)) == (0, 1, [])
    source.ok = -1  # put right: the next run goes on, and nobody has to redrive anything
    assert scan.run(progress=False).exit_code == 0


def test_so_does_one_that_says_it_before_its_first_page(folder: Path) -> None:
    with pytest.raises(hf.UsageError, match="of another source"):
        scan_over(AtOnce(range(20))).run(progress=False)
    assert scan_over(Rows(range(20), page=4)).run(progress=False).result == sum(range(20))


def test_the_other_ranges_keep_what_they_have_reached(folder: Path) -> None:
    def forgets(rows: Sequence[int], acc: int) -> Any:
        return None if 17 in rows else acc + sum(rows)

    with pytest.raises(hf.UsageError, match="returned None"):
        scan_over(Rows(range(20), page=4), forgets, partitions=2).run(progress=False, workers=1)
    seen: list[int] = []

    def noted(rows: Sequence[int], acc: int) -> int:
        seen.extend(rows)
        return acc + sum(rows)

    report = scan_over(Rows(range(20), page=4), noted, partitions=2).run(progress=False)
    assert sum(report.parts) == sum(range(20))
    assert (seen, report.counts.dead) == ([*range(14, 20)], 0)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("follow", [False, True])
def test_a_fold_that_returns_none_is_refused_with_what_to_write(folder: Path, isolate: bool, follow: bool) -> None:
    def forgets(rows: Sequence[int], acc: int) -> Any:
        return None

    scan = scan_over(Rows(range(20), page=4), forgets, isolate=isolate, follow=follow)
    with pytest.raises(hf.UsageError, match="end it with `return acc`"):
        scan.tick() if follow else scan.run(progress=False)
    again = scan_over(Rows(range(20), page=4), total, isolate=isolate, follow=follow)
    assert (again.tick() if follow else again.run(progress=False)).exit_code == 0
    assert again.report().result == sum(range(20))


def test_what_a_handler_raises_of_its_own_is_no_misuse_of_the_scan(folder: Path) -> None:
    def asks_wrongly(rows: Sequence[int], acc: int) -> int:
        raise hf.UsageError("hf.Csv(1): a path is needed")

    report = scan_over(Rows(range(20), page=4), asks_wrongly).run(progress=False)
    assert (report.exit_code, [letter.code for letter in report.dead]) == (1, ["UsageError"])


@pytest.mark.parametrize("follow", [False, True])
def test_a_generator_that_shall_be_isolated_is_refused_where_it_is_defined(follow: bool) -> None:
    scan = (hf.Follow if follow else hf.Scan)("totals", Rows([1]), store="memory:", isolate=True)
    with pytest.raises(hf.UsageError, match="generator"):
        scan.handler(each)


@pytest.mark.parametrize(
    ("library", "make"),
    [
        ("obstore", lambda: hf.Objects("s3://orders/2026")),
        ("httpx", lambda: hf.Pages("https://example.org/orders", next="next")),
        ("sqlalchemy", lambda: hf.Table("sqlite:///orders.db", "orders", cursor="id", key="id")),
    ],
)
def test_a_missing_extra_is_missed_at_definition(monkeypatch: pytest.MonkeyPatch, library: str, make: Any) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(hf.UsageError, match=r'not installed here: pip install "\.\[[a-z]+\]" in the clone'):
        make()


def test_hints_name_extras_that_there_are() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for library, extra in EXTRAS.items():
        (needed,) = project["optional-dependencies"][extra]
        assert needed.startswith(library.lower())


PROGRAM = """
    import os, sys
    import holdfast as hf
    from holdfast.testing.rows import Rows

    kind = hf.Follow if os.path.exists("follow") else hf.Scan
    scan = kind("orders", Rows(range(20), page=4), store="state.db", every=5)

    @scan.handler(executor="processes")
    def keep(rows, acc: int):
        return None if os.path.exists("bad") else acc + len(rows)

    if __name__ == "__main__":
        try:
            told = scan.tick() if scan.follows else scan.run(progress=False)
        except hf.UsageError as error:
            sys.exit(f"refused: {error}")
        print(told.exit_code, scan.report().rows)
"""


@pytest.mark.slow
@pytest.mark.parametrize("follow", [False, True])
def test_a_process_that_finds_it_refuses_the_run_too(folder: Path, follow: bool) -> None:
    app = App(folder, PROGRAM)
    if follow:
        (folder / "follow").touch()
    (folder / "bad").touch()
    refused = app.run()
    assert "refused: handler 'keep' returned None" in refused.stderr, refused.stderr
    (folder / "bad").unlink()
    assert app.run().stdout.split() == ["0", "20"]
