"""With a few words of one function replaced, the test that stands beside it in the table fails."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forkserver import ForkServer
from tests.model.textual import CHAPTERS, MUTANTS
from tests.model.textual.trial import NOTICED, UNNOTICED

TRIAL = "tests.model.textual.trial"


@pytest.fixture(scope="module")
def warm() -> Iterator[ForkServer]:
    """A process that has imported all tests of the table, and forks one child per trial."""
    with ForkServer("tests.model.textual.warm") as server:
        yield server


@pytest.mark.parametrize("name", MUTANTS)
def test_a_careless_edit_is_noticed(name: str, warm: ForkServer, tmp_path: Path, tally: Callable[..., None]) -> None:
    mutant = MUTANTS[name]
    trial = warm.start(TRIAL, [name], cwd=tmp_path)
    status = trial.wait()
    assert status != UNNOTICED, f"{name.replace('_', ' ')} ({mutant.notice}), and {mutant.test} passes"
    assert status == NOTICED, f"{name} was not tried:\n{trial.err}\n{trial.out}"
    tally(mutants=1)


def test_what_is_whole_is_not_noticed(warm: ForkServer, tmp_path: Path) -> None:
    """A test that fails without any mutant would catch them all."""
    name = next(iter(MUTANTS))
    assert warm.start(TRIAL, [name, "whole"], cwd=tmp_path).wait() == UNNOTICED


def test_every_entry_of_the_table_has_a_name_of_its_own() -> None:
    names = Counter(mutant.name for chapter in CHAPTERS for mutant in chapter.MUTANTS)
    assert not [name for name, count in names.items() if count > 1]
    assert min(len(chapter.MUTANTS) for chapter in CHAPTERS) >= 6
