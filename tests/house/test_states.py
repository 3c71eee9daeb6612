"""The table of transitions is the only place that knows them: the docs show it, and no other code writes a state."""

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.model import State
from holdfast.core.states import TABLE
from tests.house.source import ROOT, modules, tool

DECODING = "src/holdfast/stores/"
"""Where a place that was stored is read back."""


@pytest.fixture(scope="module", name="tool")
def _tool() -> Any:
    """tools/states.py."""
    return tool("states")


def test_the_docs_show_the_table(tool: Any) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert tool.page(text) == text, "run `make docs`: core/states.py has changed"


def test_the_drawing_has_every_transition_between_its_states(tool: Any) -> None:
    drawn = set()
    for line in tool.drawing().splitlines():
        before, words, after = (part.strip(" ─▶") for part in line.replace("▶", "──").split("──", 2))
        drawn |= {(before, word, after) for word in words.split(", ")}
    names = {frozenset(): "new", frozenset(State): "any", frozenset({State.PENDING}): "pending"}
    wanted = {(names.get(rule.from_), rule.transition.value, rule.to.value) for rule in TABLE}
    assert {each for each in wanted if each[0]} <= drawn
    assert len(drawn) == len(TABLE)


def test_only_the_table_writes_a_state() -> None:
    wrong = [
        f"{module.place}:{line}"
        for module in modules()
        if module.place != "src/holdfast/core/states.py" and not module.place.startswith(DECODING)
        for line in writes(module.tree)
    ]
    assert not wrong, f"a state is written outside of core/states.py; add a row to its table, and use move(): {wrong}"


@pytest.mark.parametrize(
    "text",
    [
        "ItemState(stage=1, state=State.DEAD)",
        "model.ItemState(state=there)",
        "ItemState(**facts)",
        "msgspec.structs.replace(place, state=State.DONE)",
        "replace(self.place, epoch=1, state=state)",
        "copy.replace(place, **{'state': State.DEAD})",
    ],
)
def test_a_state_that_is_written_is_seen(text: str) -> None:
    assert list(writes(ast.parse(text))) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "ItemState(stage=1)",
        "replace(report, state='ended')",
        "replace(run, state=BatchState.OPEN)",
        "replace(place, code='x')",
    ],
)
def test_what_writes_no_state_is_left_alone(text: str) -> None:
    assert not list(writes(ast.parse(text)))


def writes(tree: ast.Module) -> Iterator[int]:
    """The lines that give a place a state. A state in quotes is that of something else, such as of a report."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        spread = None in given and (name == "ItemState" or "state" in _keys(given[None]))
        if name in ("ItemState", "replace") and (spread or not _is_of_a_batch(given.get("state", QUOTED))):
            yield node.lineno


def _is_of_a_batch(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) or ast.unparse(value).startswith("BatchState.")


QUOTED = ast.Constant("")


def _keys(node: ast.expr | None) -> set[object]:
    if not isinstance(node, ast.Dict):
        return set()
    return {key.value for key in node.keys if isinstance(key, ast.Constant)}
