"""`holdfast cursor`: how far the partitions of a scan have come, and what a person decides about that."""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.core import canonical, cursor
from holdfast.core import cursor as cursors
from holdfast.core.cursor import in_words
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, ItemNo
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    JsonOption,
    Manner,
    StoreOption,
    agreed,
    goes_on,
    opened,
    read_file,
    say_result,
    with_manner,
)
from holdfast.runtime import lookup
from holdfast.runtime.acts import MEANWHILE
from holdfast.runtime.operate import cursor_audit as audit
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.operate import state_document
from holdfast.runtime.partitions import IMPORTED, Past, cost_words, history, remarks, standings
from holdfast.runtime.report import overview as glance
from holdfast.runtime.text import command, when
from holdfast.stores import owners
from holdfast.stores.base import Store, find_batch
from holdfast.stores.open import is_there

app = typer.Typer(
    help="Cursors of a scan: show, reset, clone, export, import, break-lease, audit.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The batch of the scan.")]
PartitionArgument = Annotated[
    str | None, typer.Argument(metavar="PARTITION", help="One partition; without it, all of them.")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A state that `cursor export` wrote.")]
PARTS_SHOWN = 20


@app.command("show")
def show(
    name: NameArgument,
    partition: PartitionArgument = None,
    past: Annotated[bool, typer.Option("--history", help="Every checkpoint there ever was, from the journal.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the whole state: cursor, rows, accumulator and lease of every partition."""
    with opened(store) as there:
        found = lookup.batch_named(there, name)
        if past:
            _tell_history(there, found, partition, as_json)
            return
        plain, notes = state_document.document(there, found, partition), remarks(there, found, partition)
    if as_json:
        render.document(plain)
        return
    _tell_state(plain, {str(each.key): str(each) for each in notes})


def _tell_state(plain: dict[str, Any], notes: dict[str, str]) -> None:
    render.show(render.heading(plain["name"], f"version {plain['version']} · {plain['source_fingerprint']}"))
    render.show(render.facts([("source", json.dumps(plain["source"], ensure_ascii=False))]))
    for part in plain["partitions"]:
        render.say()
        render.show(render.heading(f"partition {part['key']}", part["state"]))
        render.show(render.facts(_facts(part)))
        if note := notes.get(str(part["key"])):
            render.show(render.facts([("note", Text(render.clean(note), style=render.CARE))]))


def _facts(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    at, lease = part["checkpoint"], part["lease"]
    if at is None or at["cursor"] is None:
        yield "cursor", "not begun"
    else:
        plain = at["cursor"]
        yield "cursor", f"{plain['kind']} · value {_spoken(plain['value'])} · tiebreaker {_spoken(plain['tiebreaker'])}"
    if at is not None:
        of = "" if part["expected_rows"] is None else f" of {part['expected_rows']:,}"
        yield "rows", f"{at['rows']:,}{of}"
        yield "accumulated", _spoken(at["acc"])
        yield "updated", str(at["updated_at"])
        rows = f", {render.many(at['last_commit_rows'], 'row')}" if at["last_commit_kind"] == "checkpoint" else ""
        yield "last commit", f"{at['last_commit_id']} ({at['last_commit_kind']}{rows})"
    yield "fence", str(lease["fence"])
    if lease["owner"] is None:
        yield "owner", "nobody"
        return
    word = "" if lease["is_live"] else " (gone or overdue: the next run takes it over)"
    yield "owner", f"{owners.short(lease['owner'])}{word}"
    yield "acquired", str(lease["acquired_at"])
    yield "heartbeat", str(lease["heartbeat_at"])
    judged = ", as its owner's clock tells" if lease["by_its_clock"] else ""
    yield "expires", f"{lease['expires_at']}{judged}"


def _spoken(plain: Any) -> str:
    """A stored value as people read it: a Decimal as a number, a moment as a moment; --json has their types."""
    return render.one_line(in_words(canonical.from_plain(plain)), 200)


def _tell_history(there: Store, found: Batch, partition: str | None, as_json: bool) -> None:
    """Every checkpoint, as it is read: a long past takes no memory."""
    n = None if partition is None else next(standings(there, found, partition)).n
    keys = {at.n: at.key for at in standings(there, found, partition)}
    seen = ((past, keys.get(ItemNo(past.n), f"#{past.n}")) for past in history(there, found, n))
    if as_json:
        _stream(found.name, (past.as_dict(key) for past, key in seen))
        return
    count = 0
    for past, key in seen:
        render.report(_line(past, key))
        count += 1
    render.say(f"\n{render.many(count, 'checkpoint')} of {found.name}.", render.FAINT)


def _line(past: Past, key: Any) -> str:
    at = "at its beginning" if not past.cursor else f"after {cursors.decode(past.cursor)}"
    why = f": {past.reason}" if past.reason else ""
    who = owners.short(past.actor)
    rows = render.many(past.rows, "row")
    cost = "" if past.spend is None else cost_words(past.spend)
    rows += f"  {cost}" if cost else ""
    return f"{when(past.at)}  partition {key}  {rows}  {at}  {past.kind} by {who}, fence {past.fence}{why}"


def _stream(name: str, entries: Iterator[dict[str, Any]]) -> None:
    """One JSON document, written while it is read."""
    out = sys.stdout
    out.write(f'{{"name": {json.dumps(name)}, "history": [')
    for number, entry in enumerate(entries):
        out.write(("" if number == 0 else ",") + "\n  " + json.dumps(entry, ensure_ascii=False))
    out.write("\n]}\n")
    out.flush()


@app.command("export")
def export(
    name: NameArgument,
    store: StoreOption = None,
    as_json: JsonOption = True,  # noqa: ARG001 - it is a JSON document in any case
) -> None:
    """Write the whole state to standard output, to be kept, or imported elsewhere."""
    with opened(store) as there:
        render.document(state_document.document(there, lookup.batch_named(there, name)))


# -- acts -----------------------------------------------------------------------------------------------------------


@app.command("reset")
@with_manner()
def reset(
    name: NameArgument,
    partition: PartitionArgument = None,
    to_beginning: Annotated[
        bool, typer.Option("--to-beginning", help="Resume before the first row: everything is delivered again.")
    ] = False,
    to_cursor: Annotated[
        str | None,
        typer.Option(
            "--to-cursor",
            metavar="VALUE",
            help="Resume after the row with this value, and with the key that --key says.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="PK", help="The key of that row; for a key of several columns, each as NAME=PK."),
    ] = None,
    type_name: Annotated[
        str | None,
        typer.Option(
            "--type", help=f"What VALUE is, where the stored cursor does not tell: {', '.join(cursor.TYPES)}."
        ),
    ] = None,
    acc: Annotated[
        str | None,
        typer.Option(
            "--acc", metavar="keep|drop", help="With --to-cursor: continue with what was accumulated, or begin again."
        ),
    ] = None,
    to_file: Annotated[
        Path | None, typer.Option("--to-file", help="Resume where a state stands that `cursor export` wrote.")
    ] = None,
    *,
    manner: Manner,
) -> None:
    """Let partitions resume elsewhere: shows first what is delivered again or skipped."""
    if sum((to_beginning, to_cursor is not None, to_file is not None)) != 1:
        raise UsageError("pass where to: --to-beginning, --to-cursor VALUE or --to-file FILE; nothing was changed")
    if to_cursor is None and (key or type_name or acc):
        raise UsageError("--key, --type and --acc belong to --to-cursor; nothing was changed")
    if acc not in (None, "keep", "drop"):
        raise UsageError(f"--acc {acc}: keep or drop; nothing was changed")
    with opened(manner.store) as there:
        found = lookup.batch_named(there, name)
        if to_beginning:
            plan = acts.to_beginning(there, found, partition)
        elif to_cursor is not None:
            plan = acts.to_cursor(there, found, partition, to_cursor, key or (), type_name=type_name,
                                  acc=acc)  # type: ignore[arg-type]  # fmt: skip
        else:
            assert to_file is not None
            plan = acts.to_state(there, found, read_file(to_file), str(to_file), partition)
        _carry_out(there, found, plan, "Reset", manner)


@app.command("import")
@with_manner()
def import_(name: NameArgument, file: FileArgument, *, manner: Manner) -> None:
    """Put a state back that was exported: over the same partitions, or as a new batch."""
    data = read_file(file)
    state_document.read(data, str(file))
    nowhere = manner.dry_run and not is_there(manner.store)
    with opened("memory:" if nowhere else manner.store, must_exist=False) as there:
        found = find_batch(there, name)
        if found is None or not found.admitted:
            _make(there, acts.from_state(there, data, str(file), name), manner)
        else:
            plan = acts.to_state(there, found, data, str(file), kind=IMPORTED)
            _carry_out(there, found, plan, "Import", manner)


@app.command("break-lease")
@with_manner()
def break_lease(name: NameArgument, partition: PartitionArgument = None, *, manner: Manner) -> None:
    """Take partitions from their owners: they resume at their checkpoints, and the owners cannot commit any more."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, name)
        _carry_out(there, found, acts.to_same(there, found, partition), "Break the lease of", manner)


def _carry_out(there: Store, found: Batch, plan: acts.CursorPlan, verb: str, manner: Manner) -> None:
    if not goes_on(manner, plan.as_dict(), lambda: show_plan(plan, agreed=manner.yes and not manner.dry_run)):
        return
    concerned = [turn for turn in plan.parts if not turn.left]
    what = f"{verb} {render.many(len(concerned), 'partition')} of {found.name}"
    by = agreed(what, manner, nothing_to_do=not concerned)
    done = acts.carry_out(there, found, plan, by)
    say_result(done, manner.as_json, "partition")
    if {acts.MOVED, MEANWHILE} & dict(done.left_alone).keys():
        raise typer.Exit(1)


def show_plan(plan: acts.CursorPlan, *, agreed: bool = False) -> None:
    """What would be done, partition by partition; where that is agreed to already, what is done."""
    rows = [
        (
            str(turn.at.key),
            "not begun" if turn.at.cursor is None else str(turn.at.cursor),
            _target(turn),
            str(turn),
            turn.owner if turn.owner is not None else "nobody",
        )
        for turn in islice(plan.parts, PARTS_SHOWN)
    ]
    render.show(
        render.table(
            ["partition", "stands after", "resumes after" if agreed else "would resume after", "so", "held by"], rows
        )
    )
    if len(plan.parts) > PARTS_SHOWN:
        render.say(f"… and {len(plan.parts) - PARTS_SHOWN:,} more partitions", render.FAINT)
    if any(turn.owner is not None for turn in plan.parts):
        render.say("Whoever holds a partition is fenced off: what is not committed yet is handled again.", render.CARE)


def _target(turn: acts.Turn) -> str:
    if turn.to is None:
        return "the same"
    return str(cursors.decode(turn.to.cursor)) if turn.to.cursor else "the beginning"


@app.command("clone")
@with_manner()
def clone(
    name: NameArgument,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="The batch to be made.")],
    *,
    manner: Manner,
) -> None:
    """Make a new batch of the same scan that begins where this one stands; the two continue without each other."""
    with opened(manner.store) as there:
        _make(there, acts.clone(there, lookup.batch_named(there, name), new_name), manner)


def _make(there: Store, plan: acts.Planting, manner: Manner) -> None:
    shown = {"act": plan.kind, "batch": plan.name, "partitions": len(plan.seeds), "fence_above": plan.fence,
             "rows": sum(seed.checkpoint.rows for seed in plan.seeds), **plan.origin}  # fmt: skip

    def say() -> None:
        made = "is made" if manner.yes and not manner.dry_run else "would be made"
        parts, rows = render.many(len(plan.seeds), "partition"), render.many(shown["rows"], "row")
        render.say(
            f"A new batch {plan.name} {made}, with {parts} and {rows} behind it, under fences above {plan.fence}. It "
            "delivers what comes after them."
        )
        for total in plan.origin.get("totals", ()):
            render.say(f"It begins with a total of which this is known: {total['text']}", render.CARE)

    if not goes_on(manner, shown, say):
        return
    by = agreed(f"Make batch {plan.name}", manner)
    say_result(acts.make(there, plan, by), manner.as_json, "partition")


@app.command("audit")
def audit_(
    name: NameArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The scan: app.py:orders.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what the source holds with what was delivered, and name gaps. Ends with 1 if there are any."""
    from holdfast.interfaces.cli.target import load_scan

    scan = load_scan(target)
    with opened(store) as there:
        found = audit.audit(there, lookup.batch_named(there, name), scan.source)
    if as_json:
        render.document(found.as_dict())
    else:
        names = {"in the source": "held", "delivered": "handled", "passed by a person": "passed", "missing": "missing",
                 "again": "twice", "gone since": "surplus"}  # fmt: skip
        rows = [(str(part.key), *(f"{getattr(part, name):,}" for name in names.values())) for part in found.parts]
        render.show(render.table(["partition", *names], rows, right=[*names]))
        for gap in found.gaps:
            render.say(f"  {gap}", render.BAD)
        render.say(found.sentence, render.GOOD if found.is_whole else render.BAD)
        for note in found.notes:
            render.say(f"  {note}", render.BAD)
    raise typer.Exit(0 if found.is_whole else 1)


BAR = 12


def partitions(name: str, seen: Sequence[glance.Glance]) -> Any:
    """The partitions of a scan as a table."""
    has_share = any(each.share is not None for each in seen)
    rows: list[tuple[Any, ...]] = []
    for each in seen[:PARTS_SHOWN]:
        of = "" if each.expected is None else f" of {each.expected:,}"
        rate = "" if each.rate is None else f"{render.number(each.rate)}/s"
        bar = [_bar(each)] if has_share else []
        rows.append((str(each.key), each.state, *bar, f"{each.rows:,}{of}", rate, each.cursor, each.lag))
    if len(seen) > PARTS_SHOWN:
        more = f"and {len(seen) - PARTS_SHOWN:,} more: {command('cursor show', name)}"
        rows.append(("…", *([""] * (4 if has_share else 3)), more, ""))
    headers = ["partition", "state", *(["behind it"] if has_share else []), "rows", "rate", "cursor", "lag"]
    return render.table(headers, rows, right=["rows", "rate"])


def _bar(each: glance.Glance) -> Text:
    """How much of a partition is behind its cursor, as a picture and a figure."""
    if each.share is None:
        return Text("░" * BAR + "   ? %", style=render.FAINT)
    full = int(each.share * BAR)
    style = render.BAD if each.state == "dead" else render.GOOD
    return Text.assemble(("█" * full, style), ("░" * (BAR - full), render.FAINT), f" {int(each.share * 100):3d} %")
