"""Public names are loaded when they are first used, and are to a reader, to `dir` and to mypy what they always were."""

import ast
import pickle

import pytest

import holdfast
from tests.house.source import PACKAGE, read


def test_what_a_type_checker_sees_is_what_is_loaded() -> None:
    tree = read(PACKAGE / "__init__.py").tree
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: f"holdfast.{home}" for home, names in holdfast._HOMES.items() for name in names}
    assert seen == {name: homes.get(name, "holdfast.core.errors") for name in holdfast.__all__}


def test_every_public_name_is_there_and_listed() -> None:
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert all(getattr(holdfast, name) is getattr(holdfast, name) for name in holdfast.__all__)
    everything: dict[str, object] = {}
    exec("from holdfast import *", everything)
    assert set(holdfast.__all__) <= everything.keys()


def test_a_name_that_is_not_there_is_missed_as_usual() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Pipelin'"):
        _ = holdfast.Pipelin  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Pipelin'"):
        exec("from holdfast import Pipelin")


def test_public_values_are_pickled() -> None:
    retry = holdfast.Retry(attempts=2)
    assert pickle.loads(pickle.dumps(retry)) == retry
    assert pickle.loads(pickle.dumps(holdfast.Pipeline)) is holdfast.Pipeline
