"""Commands and options that messages suggest, fit to be pasted: names are quoted, and the store is named.

A message is written once, with arguments as Python spells them; where the command shows it, `as_options` spells them as
its options. What to do about something is one of `_REMEDY`, wherever it stands; an argument that is refused begins the
message. Nothing else is touched: a message may quote what a handler said.
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


_REMEDY = re.compile(
    r'(?<![\w.-])(?<!\w\()(?:(?P<choice>changed|code|verify)="(?P<chosen>keep|rerun|refuse|none|quick|full)"'
    r'|(?P<name>tolerate|undo|accept_source|batch|patience|reason)="(?P<value>[^"]*)"'
    r"|(?P<flag>allow_empty|seal)=True|(?P<open>until|tolerate|patience)=…)"
)
_REFUSED = re.compile(
    r"(?P<name>accept_source|budget|deadline|events|lease|patience|poll|stop-beyond|tolerate|undo|until|workers)="
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s;]*?)(?=:? |$)"
)
_BUILT = re.compile(r"(?:Budget|Tolerance)\((?P<name>usd|share|count|window)=(?P<value>[^),]*)\)")
_AMOUNT = re.compile(r"(?P<name>usd)=(?P<value>'[^']*')")
_OPTION = {"usd": "budget", "share": "stop-beyond", "count": "stop-beyond"}


def as_options(text: str) -> str:
    """Return a text in which arguments of `run` are called as options of the command."""
    begins = next((found for each in (_REFUSED, _BUILT, _AMOUNT) if (found := each.match(text))), None)
    head, rest = ("", text) if begins is None else (_option(begins["name"], begins["value"]), text[begins.end() :])
    return head + _REMEDY.sub(_spelled, rest)


def _spelled(found: re.Match[str]) -> str:
    if found["flag"]:
        return _option(found["flag"], "")
    if found["open"]:
        return _option(found["open"], "…")
    return _option(found["choice"] or found["name"], found["chosen"] or found["value"])


def _option(name: str, value: str) -> str:
    name = _OPTION.get(name, name).replace("_", "-")
    plain = value.strip("'\"")
    safe = plain if plain == "…" or re.fullmatch(r"[\w.%:+-]*", plain) else quote(plain)
    return f"--{name} {safe}" if safe else f"--{name}"


def command(verb: str, batch: str, key: object = None, options: str = "") -> str:
    """Return a command that can be pasted, whatever the batch and the item are called: a key such as `--all` follows
    the options, where it is taken for a key."""
    names = [quote(batch), *([] if key is None else [quote(str(key))])]
    if any(name.lstrip("'").startswith("-") for name in names):
        return " ".join(["holdfast", verb, *([options] if options else []), "--", *names])
    return " ".join(["holdfast", verb, *names, *([options] if options else [])])


def unpause(batch: str) -> str:
    """Return the command that lets a paused batch continue."""
    return command("pause", batch, options="--off --reason …")


def reopen(batch: str) -> str:
    """Return the command that lifts the seal of a batch."""
    return command("reopen", batch, options="--reason …")


def naming_store(text: str, store: str) -> str:
    """Return a text in which every suggested command names that store."""
    if "holdfast " not in text:
        return text
    return _COMMAND.sub(lambda found: f"{found.group()} --store {quote(store)}", text)
