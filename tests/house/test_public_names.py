"""Public names are loaded when they are first used, and are to a reader, to `dir` and to mypy what they always were."""

import ast
import copy
import inspect
import pickle

import pytest

import holdfast
from tests.house.source import PACKAGE, read


def is_error(name: str) -> bool:
    kind = getattr(holdfast, name)
    return inspect.isclass(kind) and issubclass(kind, BaseException)


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
    assert seen == {name: homes.get(name, "holdfast.core.errors") for name in holdfast.NAMES}


def test_every_public_name_is_there_and_listed() -> None:
    assert set(holdfast.NAMES) <= set(dir(holdfast))
    assert all(getattr(holdfast, name) is getattr(holdfast, name) for name in holdfast.NAMES)
    everything: dict[str, object] = {}
    exec("from holdfast import *", everything)
    assert set(holdfast.__all__) <= everything.keys()
    assert "open" not in everything, "Python's own stays what it is"


def test_public_names_live_where_they_are_imported_from() -> None:
    assert {getattr(holdfast, name).__module__ for name in holdfast.NAMES} == {"holdfast"}


def test_public_values_tell_what_they_are() -> None:
    classes = [getattr(holdfast, name) for name in holdfast.NAMES if inspect.isclass(getattr(holdfast, name))]
    bare = [each.__name__ for each in classes if each.__repr__ is object.__repr__ and not is_protocol(each)]
    assert not bare, f"give these a __repr__: {bare}"


def is_protocol(kind: type) -> bool:
    return getattr(kind, "_is_protocol", False)


@pytest.mark.parametrize("name", sorted(filter(is_error, holdfast.NAMES)))
def test_every_error_can_be_pickled_and_copied(name: str) -> None:
    kind = getattr(holdfast, name)
    for args in ((), ("why",), ("why", "more"), (3,)):
        try:
            error = kind(*args)
        except TypeError:
            continue  # it is not called with so many
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert (type(again), again.args, str(again)) == (kind, error.args, str(error))
            assert again.__dict__ == error.__dict__


def test_a_name_that_is_not_there_is_missed_as_usual() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Pipelin'"):
        _ = holdfast.Pipelin  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Pipelin'"):
        exec("from holdfast import Pipelin")


def test_public_values_are_pickled() -> None:
    retry = holdfast.Retry(attempts=2)
    assert pickle.loads(pickle.dumps(retry)) == retry
    assert pickle.loads(pickle.dumps(holdfast.Pipeline)) is holdfast.Pipeline
