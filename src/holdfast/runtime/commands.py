"""Commands that messages suggest, fit to be pasted: names are quoted, and the store is named."""

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


def command(verb: str, batch: str, key: object = None, options: str = "") -> str:
    """Return a command that can be pasted, whatever the batch and the item are called: a key such as `--all` follows
    the options, where it is taken for a key."""
    names = [quote(batch), *([] if key is None else [quote(str(key))])]
    if any(name.lstrip("'").startswith("-") for name in names):
        return " ".join(["holdfast", verb, *([options] if options else []), "--", *names])
    return " ".join(["holdfast", verb, *names, *([options] if options else [])])


def naming_store(text: str, store: str) -> str:
    """Return a text in which every suggested command names that store."""
    if "holdfast " not in text:
        return text
    return _COMMAND.sub(lambda found: f"{found.group()} --store {quote(store)}", text)
