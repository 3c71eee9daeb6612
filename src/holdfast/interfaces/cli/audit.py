"""`holdfast audit`: does the journal still hold, and does the store say what the journal says?"""

from typing import Annotated

import typer

from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import JsonOption, StoreOption, opened
from holdfast.runtime import lookup
from holdfast.runtime.records import audit as auditing

app = typer.Typer(help="The journal: verify it.", no_args_is_help=True)

SHOWN = 20


@app.command("verify")
def verify(
    batch: Annotated[str | None, typer.Argument(metavar="BATCH", help="One batch; without it, all of them.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Read outputs that stand in files, too.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every chain, and the store against it; whatever was changed is named. Ends with 1 if something was."""
    with opened(store) as there:
        batches = there.batches() if batch is None else [lookup.batch_named(there, batch)]
        found = [auditing.verify(there, each, full=full) for each in batches]
        flaws = auditing.flaws(there)
    holds = all(each.holds for each in found) and not flaws
    if as_json:
        lost = [{"where": each.where, "message": each.message} for each in flaws]
        render.document({"holds": holds, "batches": [each.as_dict() for each in found], "flaws": lost})
    else:
        for each in found:
            _show(each)
        for flaw in flaws:
            render.say(f"{flaw.where}: {flaw.message}", render.BAD)
        if not found and not flaws:
            render.say("There is no batch to verify.")
    if not holds:
        raise typer.Exit(1)


def _show(found: auditing.Audit) -> None:
    seen = ", ".join([render.many(found.chains, "chain"), render.many(found.entries, "entry", "entries"),
                      render.many(found.items, "item"), render.many(found.outputs, "output")])  # fmt: skip
    if found.holds:
        render.show(render.heading(f"{found.batch}: it holds.", seen, render.GOOD))
    else:
        more = "more than " if found.more_findings else ""
        render.show(
            render.heading(f"{found.batch}: {more}{render.many(len(found.findings), 'finding')}.", seen, render.BAD)
        )
        for finding in found.findings[:SHOWN]:
            render.say(f"  {finding.where}: {finding.message}")
        if len(found.findings) > SHOWN:
            render.say(f"  … and {len(found.findings) - SHOWN:,} more; --json has them", render.FAINT)
    if found.files_unread:
        render.say(f"  {render.many(found.files_unread, 'output')} in files; --full reads those, too.", render.FAINT)
    if found.superseded:
        render.say(f"  {render.many(found.superseded, 'output')} superseded by files of a newer batch.", render.FAINT)
    if found.set_back:
        render.say(f"  {found.set_back}.", render.CARE)
    if found.busy:
        render.say(f"  {found.busy:,} groups changed all the time; audit again when less is going on.", render.CARE)
