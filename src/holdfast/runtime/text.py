"""Text for people: numbers, durations, moments, and commands that can be pasted."""

import re
import time
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from shlex import quote

from holdfast.core.errors import UsageError

WIDE = Context(prec=60)
"""Used instead of the context of the calling program, which may round at six digits."""

GOOD, BAD, CARE, FAINT, HEAD = "color(28)", "bold color(196)", "color(130)", "dim", "bold"
"""Styles of text: fine, wrong, needs attention, of less interest, a heading. The colors are readable on light and dark
backgrounds, and the words beside them mean the same without color."""


def many(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 item`, `2 items`; pass an irregular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural if plural else f'{noun}s'}"


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped, except line ends and tabs, so that text from outside cannot
    control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def one_line(text: str, limit: int = 100) -> str:
    """Return the text on one line, cut to the limit."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def usd(value: Decimal | None) -> str:
    """Return money in cents, with more digits if it has a few more, or if it is below ten cents."""
    if value is None:
        return "-"
    if value == value.quantize(Decimal("0.0001"), context=WIDE) != value.quantize(Decimal("0.01"), context=WIDE):
        return f"${value:,.4f}".rstrip("0")
    return f"${value:,.2f}" if value == 0 or value >= Decimal("0.10") else f"${value:,.6f}".rstrip("0")


Duration = str | float | int | timedelta
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def seconds(value: Duration, what: str = "duration") -> float:
    """Return the seconds in `"1h30m"`, `"250ms"`, 90 or a timedelta."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    elif isinstance(value, str) and _PART.sub("", value).strip() == "" and value.strip():
        found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise UsageError(f"{what}={value!r}: write a time such as '30s', '15m' or '1h30m', or a number of seconds")
    if not 0 <= found < 1e10:
        raise UsageError(f"{what}={value!r}: it must be finite and not negative")
    return found


def moment(value: Duration | datetime, what: str = "deadline") -> float:
    """Return when a deadline ends, on the monotonic clock: after a duration, or at a time with a time zone."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"{what}={value.isoformat()} has no time zone: add one, as in 2026-12-01T06:00+00:00")
        left = (value - datetime.now(UTC)).total_seconds()
    else:
        left = seconds(value, what)
    return time.monotonic() + max(0.0, left)


def in_words(value: float) -> str:
    """Return a duration for people: `1 h 05 min`, `3.2 s`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def brief(value: float) -> str:
    """Return the same, with milliseconds below a second: `35 ms`."""
    return in_words(value) if value >= 1 else f"{value * 1000:.0f} ms"


def when(at: float) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def to_the_millisecond(at: float) -> str:
    """Return the time of an event, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


GROUPS = {
    "dead": ("list", "show", "redrive", "resolve", "discard"),
    "cursor": ("show", "reset", "clone", "export", "import", "break-lease", "audit"),
    "audit": ("verify",),
}
SINGLE = (
    "run", "plan", "status", "show", "why", "orphans", "events", "reset", "reconcile", "reopen", "pause", "unpause",
    "cancel", "expect", "close", "export", "import", "doctor",
)  # fmt: skip
_verbs = [*(f"{group} {verb}" for group, verbs in GROUPS.items() for verb in verbs), *SINGLE]
_COMMAND = re.compile(rf"(?<![\w./-])holdfast (?:{'|'.join(_verbs)})(?![\w-])(?! --store)")


_REMEDY = re.compile(
    r'(?<![\w.-])(?<!\w\()(?:(?P<choice>changed|on_code_change|verify)="(?P<chosen>keep|rerun|refuse|none|quick|full)"'
    r'|(?P<name>tolerate|undo|accept_source|batch|patience|reason)="(?P<value>[^"]*)"'
    r"|(?P<flag>allow_empty|seal)=True|(?P<open>until|tolerate|patience)=…)"
)
_REFUSED = re.compile(
    r"(?P<name>accept_source|budget|deadline|events|lease|patience|poll|stop_beyond|tolerate|undo|until|workers)="
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s;]*?)(?=:? |$)"
)
_BUILT = re.compile(r"Budget\((?P<name>usd)=(?P<value>[^),]*)\)")
_AMOUNT = re.compile(r"(?P<name>usd)=(?P<value>'[^']*')")
_OPTION = {"usd": "budget"}


def as_options(text: str) -> str:
    """Return a text with arguments of `run` spelled as options of the command."""
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
    """Return a command that can be pasted, for any name of a batch or item: a key such as `--all` is put after `--`."""
    names = [quote(batch), *([] if key is None else [quote(str(key))])]
    if any(name.lstrip("'").startswith("-") for name in names):
        return " ".join(["holdfast", verb, *([options] if options else []), "--", *names])
    return " ".join(["holdfast", verb, *names, *([options] if options else [])])


def unpause_command(batch: str) -> str:
    """Return the command that lets a paused batch continue."""
    return command("unpause", batch, options="--reason …")


def reopen(batch: str) -> str:
    """Return the command that lifts the seal of a batch."""
    return command("reopen", batch, options="--reason …")


def naming_store(text: str, store: str) -> str:
    """Return a text with that store added to every suggested command."""
    if "holdfast " not in text:
        return text
    return _COMMAND.sub(lambda found: f"{found.group()} --store {quote(store)}", text)


def in_utc(at: float) -> str:
    """Return a time for people and for the journal."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds" if at % 1 else "seconds")
