"""An option means the same in every command that has it: the same kind of value, and the same words."""

from collections import defaultdict
from typing import Any

import typer.main

from holdfast.interfaces.cli.app import COMMANDS, GROUPS, PANELS, app
from holdfast.runtime import text

ALIKE = {
    "--batch": "the batch of the run, started or continued; or made by an import",
    "--code": "dead letters with this error code: listed, or acted on",
    "--json": "one document; an export prints lines",
    "--limit": "the most to list: of each batch, or in all",
    "--store": "the store; that of the demo is a file",
}
"""Options whose words differ, because what they name differs, and that mean the same."""


def every_option() -> dict[str, list[tuple[str, Any]]]:
    """All options by their names, with the commands that have them."""
    found, root = defaultdict[str, list[tuple[str, Any]]](list), typer.main.get_command(app)
    for name in COMMANDS:
        command = root.get_command(None, name)  # type: ignore[attr-defined]
        several = command.commands.items() if name in GROUPS else [("", command)]
        for verb, each in several:
            for option in each.params:
                if option.param_type_name == "option" and not option.hidden:
                    for spelled in (*option.opts, *option.secondary_opts):
                        found[spelled].append((f"{name} {verb}".strip(), option))
    return found


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    for spelled, uses in every_option().items():
        kinds = {(option.is_flag, option.multiple) for _, option in uses}
        assert len(kinds) == 1, (spelled, [name for name, _ in uses])


def test_an_option_has_the_same_words_in_every_command() -> None:
    wrong = {
        spelled: {option.help: name for name, option in uses}
        for spelled, uses in every_option().items()
        if spelled not in ALIKE and len({option.help for _, option in uses}) > 1
    }
    assert not wrong, f"Give it another name where it means something else, or the same words: {wrong}"


def test_every_option_and_argument_has_a_help_text() -> None:
    bare = [(name, spelled) for spelled, uses in every_option().items() for name, option in uses if not option.help]
    assert not bare


def test_commands_are_named_once() -> None:
    """`runtime/text.py` has the commands that texts suggest, with the commands of groups; the help has all of them."""
    assert tuple(text.GROUPS) == GROUPS
    assert {*text.SINGLE, *text.GROUPS} == {*COMMANDS} - {"demo", "faults"}
    root = typer.main.get_command(app)
    for name, verbs in text.GROUPS.items():
        assert {*root.get_command(None, name).commands} == {*verbs}  # type: ignore[attr-defined]


def test_every_line_of_the_help_fits_a_narrow_screen_and_is_a_phrase() -> None:
    for entries in PANELS.values():
        for name, entry in entries.items():
            assert len(entry.line) <= 64, name
            assert entry.line[0].isupper(), name
            assert not entry.line.endswith("."), name


def test_old_names_are_still_taken_and_not_shown() -> None:
    shown = every_option()
    assert [name for name, _ in shown["--resolve"]] == ["orphans"]
    assert "cursor reset" not in [name for name, _ in shown["--key"]]
    assert [name for name, _ in shown["--source"]] == ["reconcile"]
