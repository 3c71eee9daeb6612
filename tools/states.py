"""The generator of the drawing and the table of item states in docs/architecture.md, from `core.states.TABLE`."""

from itertools import groupby
from pathlib import Path

from holdfast.core.model import State
from holdfast.core.states import FRESH, NEVER_BACK, NOT_THERE, TABLE, UNSPENT, ItemFacts, TransitionRule

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
BEGIN = "<!-- Made by tools/states.py from core/states.py: `make docs` writes it again. -->"
END = "<!-- End of what tools/states.py made. -->"
NAMED = ((NEVER_BACK, "everything"), (FRESH, "all but rewinds"), (UNSPENT, "all but rewinds, spent"))


def drawing() -> str:
    """Return one line for each pair of states, with all transitions between them."""
    order = {rule.from_: at for at, rule in reversed(list(enumerate(TABLE)))}
    rules = sorted(TABLE, key=lambda rule: (order[rule.from_], list(State).index(rule.to)))
    pairs = [
        (_before(from_), ", ".join(rule.transition for rule in some), str(to))
        for (from_, to), some in groupby(rules, key=lambda rule: (rule.from_, rule.to))
    ]
    left, middle = (max(len(pair[at]) for pair in pairs) for at in (0, 1))
    return "\n".join(
        f"    {before:{left}} ──{words}──{'─' * (middle - len(words))}▶ {to}" for before, words, to in pairs
    )


def table() -> str:
    """Return one row for each rule."""
    head = "| transition | from | to | stage | epoch | resets | given | when |\n" + "|---" * 8 + "|"
    return "\n".join([head, *(_row(rule) for rule in TABLE)])


def section() -> str:
    """Return everything between the two marks, marks included."""
    return f"{BEGIN}\n\n{drawing()}\n\n{table()}\n\n{END}"


def page(text: str) -> str:
    """Return a page with its section updated."""
    before, rest = text.split(BEGIN)
    return before + section() + rest.split(END)[1]


def _row(rule: TransitionRule) -> str:
    counted = f"; {rule.counts} + 1" if rule.counts else ""
    cells = (
        f"`{rule.transition}`", _before(rule.from_), str(rule.to), str(rule.stage), str(rule.epoch),
        (_names(rule.resets) + counted).removeprefix("; "), ", ".join(sorted(rule.takes)), rule.when,
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _before(states: frozenset[State]) -> str:
    if states == NOT_THERE:
        return "new"
    left = [state for state in State if state not in states]
    if len(left) > len(states):
        return ", ".join(state for state in State if state in states)
    return "any" + (f" but {', '.join(left)}" if left else "")


def _names(resets: ItemFacts) -> str:
    return next((name for facts, name in NAMED if facts == resets), ", ".join(resets))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
