"""No row is skipped: rows that commit late, behind others that were delivered, are found; each is counted once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast as hf
from tests.databases.race import LONGEST, Race, Reader, make_table, run

SETTLE = {"sqlite": LONGEST + 0.6, "postgresql": 0.3, "mysql": 0.3}
"""PostgreSQL and MariaDB tell which transactions are not finished: there the window is shorter than these last."""


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(url)
    make_table(made)
    yield made
    made.dispose()


@pytest.mark.slow
@pytest.mark.promise("C17")
def test_with_four_writers_nothing_is_lost_or_doubled_and_the_naive_cursor_loses_rows(
    engine: sa.Engine, url: str, folder: Path
) -> None:
    settle = SETTLE[engine.dialect.name]
    careful = Reader.of("careful", hf.Table(url, "orders", cursor="updated_at", key="id", lateness=settle), folder)
    naive = Reader.of("naive", hf.Table(url, "orders", cursor="updated_at", key="id", unsafe_cursor=True), folder)
    race = Race(engine, seconds=3.0, seed=11)
    run(race, [careful, naive], patience=20.0)
    assert race.late > 5, "the race was none"
    assert careful.verdict(race) == (0, 0)
    assert careful.scan.tick().total == len(race.committed)
    lost, _ = naive.verdict(race)
    assert lost > 0, "the oracle sees nothing: the naive cursor loses rows"
