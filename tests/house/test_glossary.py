"""One word for each thing: names in the code use the glossary, not the words other tools use for the same."""

import ast
import re
from collections.abc import Iterator

from tests.house.source import modules

INSTEAD = {
    "ack": "commit",
    "acks": "commits",
    "backend": "store (or executor, sink, source)",
    "backends": "stores (or executors, sinks, sources)",
    "broker": "store",
    "dlq": "dead letter",
    "job": "batch, chunk or item",
    "jobs": "batches, chunks or items",
    "lock": "lease (ownership) or fence (its number); a thread's mutex is a private name that ends in lock",
    "record": "entry, item or row (as a verb it is fine)",
    "records": "entries, items or rows",
    "step": "stage",
    "steps": "stages",
    "task": "chunk or item",
    "tasks": "chunks or items",
    "token": "fence (the tokens of a language model are plural)",
}

# Names that other libraries give us, or that mean something else: the name, and why it may stay.
ALLOWED = {
    "create_task": "asyncio",
    "current_task": "asyncio",
}


def test_names_use_the_glossary() -> None:
    wrong = [
        f"{module.place}:{line}: {name}: not {word!r} but {INSTEAD[word]}"
        for module in modules()
        for line, name, word in offences(module.tree)
    ]
    assert not wrong, "\n  ".join(["Say it with the word of docs/glossary.md:", *wrong])


def offences(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for line, name, is_class in names_given(tree):
        if name in ALLOWED or is_mutex(name):
            continue
        for word in words(name):
            if word in INSTEAD and not (word == "record" and not is_class):
                yield line, name, word


def names_given(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Every name the code itself introduces: (line, name, is a class)."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                yield node.lineno, node.name, True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name, False
            case ast.arg():
                yield node.lineno, node.arg, False
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id, False
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr, False


def words(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def is_mutex(name: str) -> bool:
    return name == "lock" or (name.startswith("_") and name.endswith("lock"))
