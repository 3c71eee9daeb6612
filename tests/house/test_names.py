"""A class name means one thing: it exists once in the source. Those that exist more often may only become fewer."""

import ast
from collections import defaultdict

from tests.house.source import modules

TODAY = {
    "Audit": 2, "Lease": 2, "Ledger": 2, "Pages": 2, "Passed": 2, "Place": 2, "Plan": 2,
    "Result": 2, "Shape": 2,
    "Tolerance": 2, "_Process": 2,
}  # fmt: skip
"""Names that more than one class has, and how many: never add to it, and take out what is gone."""


def test_every_class_name_exists_once() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{module.place}:{node.lineno}")
    twice = {name: places for name, places in found.items() if len(places) > 1}
    more = {name: places for name, places in twice.items() if len(places) > TODAY.get(name, 1)}
    assert not more, f"name the newer of these by what it is: {more}"
    fewer = {name: len(found[name]) for name, count in TODAY.items() if len(found[name]) < count}
    assert not fewer, f"there are fewer of these now, so lower them in TODAY or take them out: {fewer}"
