"""What may become of a range of a scan, and what each choice delivers again."""

import re
from dataclasses import replace
from shlex import quote

from holdfast.core.cursors import Standing
from holdfast.core.model import Batch, Course, State
from holdfast.runtime.commands import command
from holdfast.runtime.reports.outlook import Outlook
from holdfast.runtime.words import many


def of_a_range(batch: Batch, at: Standing, outlook: Outlook) -> Outlook:
    """The same answers, with the checkpoint in them: commands that would begin at the start say so."""
    found = _of_a_range(batch, at, outlook)
    if at.checkpoint is None:
        return replace(found, commands=aligned(found.commands))
    past = f"{command('cursor show', batch.name, at.key, options='--history')}   every checkpoint it had"
    return replace(found, commands=aligned((*found.commands, past)))


def aligned(commands: tuple[str, ...]) -> tuple[str, ...]:
    """Commands with what each does, in two columns."""
    pairs = [re.split(r" {2,}", each, maxsplit=1) for each in commands]
    wide = max((len(pair[0]) for pair in pairs), default=0)
    return tuple("   ".join([pair[0].ljust(wide), *pair[1:]]).rstrip() for pair in pairs)


def _of_a_range(batch: Batch, at: Standing, outlook: Outlook) -> Outlook:
    if batch.course is Course.CANCELLED or batch.sealed_at is not None:
        return outlook
    who = f"{quote(batch.name)} {quote(str(at.key))}"
    again = many(at.rows, "row")
    once_more = f": {again} handled once more" if at.rows else ""
    start = f"holdfast reset {who} --from-start --reason …   begin again{once_more}"
    if at.place.state is State.DEAD:
        show, *rest = outlook.commands
        commands = (
            show,
            f"holdfast dead redrive {who} --reason …   {_again(at)}",
            f"holdfast reset {who} --reason …          the same, in a new epoch",
            start,
            f"holdfast reset {who} --complete-with FILE --reason …   done by hand, with this result",
            *(each for each in rest if "discard" in each),
        )
        return replace(outlook, commands=commands)
    if at.place.state is State.DONE:
        return replace(outlook, commands=(start,))
    if not at.rows:
        return replace(outlook, commands=(start,))
    kept = tuple(each for each in outlook.commands if not each.startswith("holdfast reset "))
    resumes = f"holdfast reset {who} --reason …        resume {_where(at)} with no attempts used"
    return replace(outlook, commands=(*kept, resumes, start))


def _again(at: Standing) -> str:
    if at.cursor is None:
        return "try it again from its first row"
    return f"resume {_where(at)}: no row is handled again"


def _where(at: Standing) -> str:
    return "from its start" if at.cursor is None else f"after {at.cursor}"
