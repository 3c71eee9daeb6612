"""Plain English: words and turns that readers stumble over are not used, in code, messages and pages."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import ROOT, modules

INSTEAD = {
    r"anew": "again",
    r"mend(?:s|ed)?": "fix, repair",
    r"whoever": "the one who; name the process or the person",
    r"whosoever|whatsoever": "any",
    r"(?<!is )go(?:es|ing)? on(?! the\b)|went on": "continue, resume",
    r"stands?(?! (?:for|in|still)\b|-)|stood": "is, are, was",
    r"stands? for": "means, replaces",
    r"stands? in": "is in",
    r"(?<!here )(?:is|are|was|were) no (?!longer|more\b|such|other)": "is not a",
    r"be it (?:that|of|a|an|the)": "even if, whether",
    r"till": "until",
    r"shall": "must, is to",
}
"""A turn, and what to write instead; without regard to case."""
RELATIVE = re.compile(r"[.;] (?:What|Who|Whom)\b(?![^.;]*\?)")
"""A sentence that begins with a relative clause, and is not a question."""
TURNS = {
    re.compile(rf"\b(?:{turn})\b" if turn[-1].isalpha() else rf"\b(?:{turn})", re.IGNORECASE): word
    for turn, word in INSTEAD.items()
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def test_the_code_is_written_in_plain_english() -> None:
    wrong = [found for module in modules() for found in offences(module.place, texts(module.text))]
    assert not wrong, "\n  ".join(["Write it in plain English:", *wrong])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_is_written_in_plain_english(page: Path) -> None:
    wrong = list(offences(page.name, prose(page.read_text(encoding="utf-8"))))
    assert not wrong, "\n  ".join(["Write it in plain English:", *wrong])


def offences(place: str, parts: Iterator[tuple[int, str]]) -> Iterator[str]:
    for line, text in parts:
        flat = re.sub(r"\{[^{}]*\}", "{}", " ".join(text.split()))
        for turn, word in TURNS.items():
            if (found := turn.search(flat)) is not None:
                yield f"{place}:{line}: {_around(flat, found)}: rather {word}"
        if (found := RELATIVE.search(flat)) is not None:
            yield f"{place}:{line}: {_around(flat, found)}: begin with the subject"


def _around(text: str, found: "re.Match[str]") -> str:
    return f"…{text[max(0, found.start() - 30) : found.end() + 30]}…"


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings and comments of a module; a comment of several lines is one text."""
    comment: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment.append(token.string.lstrip("# "))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            if comment:
                yield token.start[0], " ".join(comment)
                comment = []
            if token.type == tokenize.STRING:
                yield token.start[0], token.string.strip("rbfRBF").strip("\"'")


def prose(page: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, rows and items of a page, without its code."""
    bare = re.sub(
        r"^ *```.*?^ *```|<!--.*?-->", lambda code: "\n" * code[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE
    )
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=[|#>-]|\d+\. ))", bare):
        if part.strip():
            yield line, re.sub(r"`[^`]*`", "`…`", part).strip("-#|> \n")
        line += part.count("\n")


def test_the_rule_sees_what_it_has_to_see() -> None:
    wrong = [
        "It stands there.",
        "It is no orphan.",
        "Whoever comes",
        "It goes on.",
        "Done. What was done is safe.",
        "Read anew",
    ]
    fine = ["There is no orphan.", "It is no longer there.", "What is it?", "It continues.", "A stand-in."]
    for text in wrong:
        assert list(offences("here", iter([(1, text)]))), text
    for text in fine:
        assert not list(offences("here", iter([(1, text)]))), text
