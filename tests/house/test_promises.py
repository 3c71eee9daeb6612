"""A mark that no promise answers to would prove nothing, unnoticed."""

import tomllib

import pytest

from tests.house.source import ROOT


def test_every_mark_names_a_known_promise(request: pytest.FixtureRequest) -> None:
    sections = tomllib.loads((ROOT / "docs" / "promises.toml").read_text(encoding="utf-8")).values()
    known = {promise for section in sections for promise in section["promises"]}
    wrong = [
        f"{item.nodeid}: {sorted(unknown)}"
        for item in request.session.items
        if (unknown := {promise for mark in item.iter_markers("promise") for promise in mark.args} - known)
    ]
    assert not wrong, "\n  ".join(["Marked with an id that docs/promises.toml does not have:", *wrong])
