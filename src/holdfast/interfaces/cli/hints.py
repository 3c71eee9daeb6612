"""The one place that makes suggested commands fit to be pasted: they name the store that this one was told of.

Suggestions stand in reports, stories and errors, which are written where nobody knows how the command was called. So
the store is put in where they are shown.
"""

import re
from shlex import quote

GROUPS = {
    "dead": ("list", "show", "redrive", "resolve", "discard"),
    "cursor": ("show", "reset", "clone", "export", "import", "break-lease", "audit"),
    "audit": ("verify",),
}
SINGLE = (
    "run", "plan", "status", "show", "why", "orphans", "events", "reset", "reconcile", "reopen", "pause", "cancel",
    "expect", "close", "export", "import", "doctor",
)  # fmt: skip
_verbs = [*(f"{group} {verb}" for group, verbs in GROUPS.items() for verb in verbs), *SINGLE]
_COMMAND = re.compile(rf"(?<![\w./-])holdfast (?:{'|'.join(_verbs)})(?![\w-])(?! --store)")


class _Told:
    store: str | None = None


def remember(store: str | None) -> str | None:
    """Note the store that a command was told of; None where it goes by the default."""
    _Told.store = store
    return store


def pasteable(text: str) -> str:
    """A text in which every suggested command names that store."""
    store = _Told.store
    if store is None or "holdfast " not in text:
        return text
    return _COMMAND.sub(lambda found: f"{found.group()} --store {quote(store)}", text)
