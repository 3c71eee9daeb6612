"""Imported by the server that forks trials, once: all that they need is there when they begin."""

from tests.model.textual import MUTANTS
from tests.model.textual.trial import collect

collect(sorted({mutant.file for mutant in MUTANTS.values()}))
