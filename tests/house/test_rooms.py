"""The architecture names every room: whoever comes new finds each file, and what it is for."""

from pathlib import Path

from tests.house.source import PACKAGE, ROOT, modules

LAYERS = ("core", "stores", "runtime")


def test_every_file_is_named_among_the_rooms() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = set(page[page.index("\n## Every room\n") : page.index("\n    tests/\n")].split())
    missing = [
        module.place
        for module in modules()
        if module.layer in LAYERS and module.path.name != "__init__.py" and not names(module.path) & rooms
    ]
    assert not missing, f'Name in docs/architecture.md, under "Every room": {missing}'


def names(path: Path) -> set[str]:
    """A file is named by itself, or by the folder it is in."""
    folders = path.relative_to(PACKAGE).parts[1:-1]
    return {path.name, *(f"{folder}/" for folder in folders)}
