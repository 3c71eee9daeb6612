"""Nothing in the repository names the place it was made: no package host, no path of a machine."""

import re
from pathlib import Path

import pytest

from tests.house.source import ROOT, committed_files

PLACES = {
    "a package registry": r"\b(?:pypi\.(?:org|python)|(?:files\.)?pythonhosted\.|registry\.(?:npmjs|yarnpkg)\.)"
    r"|\b(?:deb|security|ftp)\.debian\.",
    "a path of one machine": r"(?<![\w.~-])/(?:root|work|home/\w+|Users/\w+|opt/(?:pypi|wheels))(?:/|\b(?=[\s\"'`]))",
    "a folder outside the repository": r"\.\./(?:\.\./)*(?:shared|seeds)\b",
}


@pytest.mark.parametrize("what", PLACES)
def test_no_file_names(what: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in committed_files()
        if (text := read(path)) is not None
        for number, line in enumerate(text.splitlines(), 1)
        if (match := re.search(PLACES[what], line))
    ]
    assert not wrong, "\n  ".join([f"Take out {what}; read it at run time or write a relative path:", *wrong])


def test_no_lock_file_records_hosts() -> None:
    wrong = [str(path.relative_to(ROOT)) for path in committed_files() if path.name in {"uv.lock", "pylock.toml"}]
    assert not wrong, f"These record download hosts; requirements.lock is the lock: {wrong}"


def read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
