"""What may become of a range of a scan, and what each choice delivers again."""

from dataclasses import replace
from shlex import quote

from holdfast.core.cursors import Standing
from holdfast.core.model import Batch, Course, State
from holdfast.runtime.outlook import Outlook
from holdfast.runtime.words import many


def of_a_range(batch: Batch, at: Standing, outlook: Outlook) -> Outlook:
    """The same answers, with the checkpoint in them: commands that would begin at the start say so."""
    if batch.course is Course.CANCELLED or batch.sealed_at is not None:
        return outlook
    who = f"{batch.name} {quote(str(at.key))}"
    again = many(at.rows, "row")
    start = f"holdfast reset {who} --from-start --reason …   begin again: {again} handled once more"
    if at.place.state is State.DEAD:
        show, *rest = outlook.commands
        commands = (
            show,
            f"holdfast dead redrive {who} --reason …   go on {_where(at)}: no row is handled again",
            f"holdfast reset {who} --reason …          the same, in a new epoch",
            start,
            f"holdfast reset {who} --complete-with FILE --reason …   done by hand, with this result",
            *(each for each in rest if "discard" in each),
        )
        return replace(outlook, commands=commands)
    if at.place.state is State.DONE:
        return replace(outlook, commands=(start,))
    kept = tuple(each for each in outlook.commands if not each.startswith("holdfast reset "))
    goes_on = f"holdfast reset {who} --reason …        go on {_where(at)} with no attempts used"
    return replace(outlook, commands=(*kept, goes_on, start))


def _where(at: Standing) -> str:
    return "from its start" if at.cursor is None else f"after {at.cursor}"
