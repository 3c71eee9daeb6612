"""The commands that would put a reconciled batch right, in the order in which they work when they are typed."""

from collections.abc import Iterator
from shlex import quote

from holdfast.core.course import count_or_share
from holdfast.core.limits import UNDO_SHARE
from holdfast.core.model import Batch, Course
from holdfast.core.reconcile import REPAIRABLE, Finding, Reconciliation, What
from holdfast.core.verify import is_too_much
from holdfast.runtime.commands import command

OF_NUMBER = frozenset({What.NEVER_CREATED, What.UNEXPECTED})
MUCH = (
    "--undo 100% since so much would go back: first see that the disk is there, and that this is the folder that the "
    "batch ran in"
)
"""Said beside a repair that is refused without it."""


def commands(found: Reconciliation, batch: Batch, *, source: str | None = None) -> list[str]:
    """Return the commands, each once."""
    kinds = {what for what, count in found.found.items() if count}
    audit = [command("audit verify", batch.name)] if What.MISCOUNTED in kinds else []
    changes = list(dict.fromkeys(_changes(found, batch, kinds, source)))
    if batch.course is Course.CANCELLED:
        return audit
    if batch.sealed_at is not None and changes:
        return [*audit, command("reopen", batch.name, options="--reason …"), *changes]
    if found.recorded.pending and "holdfast run …" not in changes:
        changes.append(f"{command('status', batch.name)}, then holdfast run …")
    return [*audit, *changes]


def _changes(found: Reconciliation, batch: Batch, kinds: set[What], source: str | None) -> Iterator[str]:
    if kinds & REPAIRABLE:
        yield _repair(found, batch, source)
    if What.NEVER_CREATED in kinds and any(map(_is_named, found.findings)):
        yield "holdfast run …"
    if kinds & OF_NUMBER and any(map(_is_number, found.findings)):
        yield command("expect", batch.name, found.expected.admitted, "--reason …")
    if found.nothing:
        yield "holdfast run … --allow-empty"
    elif not found.expected.read and not found.recorded.pending:
        yield "holdfast run …" if found.expected.scanned else f"holdfast run …, or {command('close', batch.name)}"


def _repair(found: Reconciliation, batch: Batch, source: str | None) -> str:
    """Return the repair that sees what was seen here, and is not refused."""
    options = ["--repair", *(["--full"] if found.observed.how == "full" else [])]
    options += [] if source is None else ["--source", quote(source)]
    options += ["--undo 100%"] if is_much(found) else []
    return command("reconcile", batch.name, options=" ".join(options))


def is_much(found: Reconciliation) -> bool:
    """Return whether a repair would send back more than it does without being told so."""
    count = sum(found.found.get(what, 0) for what in REPAIRABLE)
    listed = [finding for finding in found.findings if finding.what in REPAIRABLE]
    items = len({finding.n for finding in listed}) if len(listed) == count else count
    return is_too_much(items, found.recorded.done, count_or_share(UNDO_SHARE, "undo"))


def _is_named(finding: Finding) -> bool:
    return finding.what is What.NEVER_CREATED and finding.key is not None


def _is_number(finding: Finding) -> bool:
    return finding.what in OF_NUMBER and finding.key is None
