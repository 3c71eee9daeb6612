"""Files are short chapters, functions short paragraphs."""

import ast

from tests.house.source import modules

LINES_PER_FILE = 600
LINES_PER_BODY = 60


def test_files_are_short_chapters() -> None:
    wrong = [
        f"{module.place}: {lines} lines"
        for module in modules()
        if (lines := len(module.text.splitlines())) > LINES_PER_FILE
    ]
    assert not wrong, "\n  ".join([f"At most {LINES_PER_FILE} lines a file. Move its second purpose out:", *wrong])


def test_function_bodies_are_short() -> None:
    wrong = [
        f"{module.place}:{node.lineno}: {node.name} has {lines} lines"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (lines := body_lines(node)) > LINES_PER_BODY
    ]
    assert not wrong, "\n  ".join([f"At most {LINES_PER_BODY} lines a body. Name its parts and call them:", *wrong])


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of the body; a docstring is free."""
    body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1
