"""Whether a scan still reads the source it was begun with: another one is refused, with the difference in words."""

from shlex import quote
from typing import Any

from holdfast.core import canonical
from holdfast.core.errors import FingerprintChanged
from holdfast.core.model import Batch

ACCEPTED = "source_accepted"
"""The kind of the entry that says why another source is fine."""


def source_of(definition: bytes) -> dict[str, Any] | None:
    """The source that a definition names; None where it names none."""
    stages = canonical.decode(definition)["stages"]
    found: dict[str, Any] | None = stages[0].get("source") if stages else None
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two descriptions of a source, in words."""
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return [f"{name}: {_shown(before.get(name))} became {_shown(after.get(name))}" for name in names]


def changes(batch: Batch, now: dict[str, Any]) -> list[str]:
    """What changed of the source since the batch was begun."""
    before = source_of(batch.definition)
    return differences(before, canonical.decode(canonical.encode(now))) if before is not None and batch.admitted else []


def check(batch: Batch, now: dict[str, Any], accepted: str | None, *, resets: bool = False) -> list[str]:
    """Return what changed of the source of a batch. Raises FingerprintChanged, unless somebody tells why that is fine.
    `resets`: a reset would do, too; ranges whose borders are rows of the old source cannot begin again in another."""
    changed = changes(batch, now)
    if changed and not accepted:
        reset = f"reset it with `holdfast cursor reset {quote(batch.name)} --to-beginning`, " if resets else ""
        raise FingerprintChanged(
            f"batch {batch.name!r} was begun with another source: {'; '.join(changed)}. Its cursor may mean nothing "
            'there: continue all the same with accept_source="why that is fine", '
            f'{reset}or read the new source under another batch name (batch="NAME"); nothing was run'
        )
    return changed


def check_still(ours: dict[str, Any], now: Batch) -> None:
    """Refuse to resume where a process that follows a source finds that another one was accepted since it began."""
    theirs = source_of(now.definition)
    changed = differences(canonical.decode(canonical.encode(ours)), theirs) if theirs is not None else []
    if changed:
        raise FingerprintChanged(
            f"batch {now.name!r} follows another source since this process began ({'; '.join(changed)}): a cursor "
            "there may mean nothing here, and nothing was handled. End this process, or start it with the new source"
        )


def _shown(value: Any) -> str:
    text = "nothing" if value is None else canonical.encode(value).decode()
    return text if len(text) <= 200 else text[:199] + "…"
