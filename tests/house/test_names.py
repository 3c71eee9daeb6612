"""A class name means one thing: it exists once in the source."""

import ast
from collections import defaultdict

from tests.house.source import modules


def test_every_class_name_exists_once() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{module.place}:{node.lineno}")
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert not twice, f"name the newer of these by what it is: {twice}"
