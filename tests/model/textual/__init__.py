"""Holdfast as a careless edit would leave it: a few words of one function replaced, and the test that notices.

The patches of `tests.model.mutants` are caught by simulated worlds. These are caught one by one, each by a test that
stands in the table beside it: so a decision that a refactoring loses has a test that fails for it. One subject a file;
an entry names the function, not its lines, and survives most moves. Where a function moves to another module, the
constant of that module at the head of the file changes, or the entry.

A trial costs a fork: see `trial`. To write a mutant, add an entry with the test that should notice it, and run
`pytest tests/simulation/test_textual.py -k name_of_the_mutant`.
"""

from tests.model.textual import (
    desks,
    dispatch,
    figures,
    following,
    holds,
    ingestion,
    lifecycle,
    messages,
    recording,
    verification,
)
from tests.model.textual.mutant import TextualMutant

__all__ = ["CHAPTERS", "MUTANTS", "TextualMutant"]

CHAPTERS = (holds, desks, dispatch, verification, messages, following, ingestion, figures, lifecycle, recording)
MUTANTS: dict[str, TextualMutant] = {mutant.name: mutant for chapter in CHAPTERS for mutant in chapter.MUTANTS}
