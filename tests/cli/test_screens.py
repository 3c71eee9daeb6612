"""Every screen is as it was looked at, on 80 and 200 columns, readable on light and dark and without color."""

import re

import pytest
from rich.style import Style

from holdfast.interfaces.cli.status import WORDS
from holdfast.runtime import text
from tests.cli import screens
from tests.cli.conftest import Command
from tests.house.source import modules
from tests.operations.world import World


@pytest.mark.parametrize("columns", screens.WIDTHS)
def test_the_screens_are_as_they_were_looked_at(columns: int) -> None:
    seen = screens.shoot(columns)
    wanted = (screens.HERE / f"{columns}.txt").read_text(encoding="utf-8")
    assert seen == wanted, "A screen changed. Look at it; if it is better: python -m tests.cli.screens, and commit."


@pytest.mark.parametrize("columns", screens.WIDTHS)
def test_no_line_is_wider_than_the_screen_but_for_commands_to_paste(columns: int) -> None:
    lines = (screens.HERE / f"{columns}.txt").read_text(encoding="utf-8").splitlines()
    wide = [line for line in lines if len(line) > columns and not line.strip().startswith(("holdfast ", "$ holdfast"))]
    assert not wide


BACKGROUNDS = {
    "white": (255, 255, 255),
    "light": (253, 246, 227),
    "black": (0, 0, 0),
    "dark": (30, 30, 30),
    "dark blue": (0, 43, 54),
}


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("style", [text.GOOD, text.BAD, text.CARE])
def test_every_color_is_readable_on_light_and_dark(style: str, background: str) -> None:
    color = Style.parse(style).color
    assert color is not None
    found = color.get_truecolor()
    assert contrast((found.red, found.green, found.blue), BACKGROUNDS[background]) >= 3


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The contrast of two colors, as the guidelines for web content count it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: tuple[int, ...]) -> float:
    parts = [each / 255 for each in color]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_styles_have_names_and_no_color_is_named_elsewhere() -> None:
    named = re.compile(
        r"[\"'](?:bold |dim )?(?:bright_)?(?:red|green|yellow|blue|magenta|cyan|white|color\(\d+\))[\"']"
    )
    wrong = [module.place for module in modules() if module.path.name != "text.py" and named.search(module.text)]
    assert not wrong, f"Use GOOD, BAD, CARE, FAINT or HEAD of runtime/text.py: {wrong}"
    assert {*WORDS.values()} <= {text.GOOD, text.BAD, text.CARE, text.FAINT}


@pytest.mark.parametrize("how", ["variable", "option"])
def test_without_color_nothing_is_colored(
    world: World, holdfast: Command, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[38;5" in holdfast("status").out or "\x1b[1" in holdfast("status").out
    if how == "variable":
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.setenv("NO_COLOR", "")
    out = holdfast(*([] if how == "variable" else ["--no-color"]), "status").out
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", out)
