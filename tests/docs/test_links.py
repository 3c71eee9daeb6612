"""Links between pages lead somewhere: to a file that is there, and to a heading of it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md"))),
]
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    wrong = [f"{page.relative_to(ROOT)}: {link}" for page in PAGES for link in links(page) if not leads(page, link)]
    assert not wrong, "\n  ".join(["These links lead nowhere:", *wrong])


def links(page: Path) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in link]


def leads(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    heads = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head) for head in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def prose(page: Path) -> str:
    return CODE.sub("", page.read_text(encoding="utf-8"))
