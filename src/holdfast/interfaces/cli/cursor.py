"""`holdfast cursor`: the cursors of the partitions of a scan, and what a person can do with them."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

import holdfast as hf
from holdfast import CursorHandle, Preview, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import ActOptions, JsonOption, StoreOption, decide, with_manner
from holdfast.runtime.handles.cursors import CURSOR_TYPES, check_document, past_line, short_owner, spoken
from holdfast.runtime.handles.store import exists
from holdfast.runtime.text import command

if TYPE_CHECKING:
    from holdfast.runtime.report.overview import PartitionStatus

app = typer.Typer(
    help="Show, reset, clone, export, import or audit the cursors of a scan, or break their leases.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="BATCH", help="The batch of the scan.")]
PartitionArgument = Annotated[
    str | None, typer.Argument(metavar="PARTITION", help="The key of the partition. Default: all partitions.")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `cursor export` wrote.")]
PARTS_SHOWN = 20


@app.command("show")
def show(
    name: NameArgument,
    partition: PartitionArgument = None,
    past: Annotated[bool, typer.Option("--history", help="Show every checkpoint in the journal.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the cursor, rows, accumulator and lease of every partition."""
    with hf.open(store) as there:
        found = there[name]
        if past:
            _tell_history(found.cursors, partition, as_json)
            return
        plain, notes = found.cursors.document(partition), found.remarks()
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
    yield "owner", f"{short_owner(lease['owner'])}{word}"
    yield "acquired", str(lease["acquired_at"])
    yield "heartbeat", str(lease["heartbeat_at"])
    judged = ", as its owner's clock tells" if lease["by_its_clock"] else ""
    yield "expires", f"{lease['expires_at']}{judged}"


def _spoken(plain: Any) -> str:
    """Return a stored value as text: a Decimal as a number, a moment as a moment; --json has the types."""
    return render.one_line(spoken(plain), 200)


def _tell_history(found: CursorHandle, partition: str | None, as_json: bool) -> None:
    """Print every checkpoint while it is read, so that memory stays flat."""
    if as_json:
        _stream(found.name, (past.as_dict(key) for past, key in found.history(partition)))
        return
    count = 0
    for past, key in found.history(partition):
        render.report(past_line(past, key))
        count += 1
    render.say(f"\n{render.many(count, 'checkpoint')} of {found.name}.", render.FAINT)


def _stream(name: str, entries: Iterator[dict[str, Any]]) -> None:
    """Write one JSON document while its entries are read."""
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
    """Write the state of all partitions to standard output, to keep it or to import it elsewhere."""
    with hf.open(store) as there:
        render.document(there[name].cursors.document())


# -- acts -----------------------------------------------------------------------------------------------------------


@app.command("reset")
@with_manner()
def reset(
    name: NameArgument,
    partition: PartitionArgument = None,
    to_beginning: Annotated[
        bool, typer.Option("--to-beginning", help="Resume before the first row: every row is delivered again.")
    ] = False,
    to_cursor: Annotated[
        str | None,
        typer.Option(
            "--to-cursor",
            metavar="VALUE",
            help="Resume after the row with this value, and with the key in --row-key.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--row-key", metavar="PK", help="The key of that row; if it has several columns, each as NAME=PK."
        ),
    ] = None,
    old_key: Annotated[list[str] | None, typer.Option("--key", hidden=True, help="The old name of --row-key.")] = None,
    type_name: Annotated[
        str | None,
        typer.Option(
            "--type", help=f"The type of VALUE, if the stored cursor does not tell it: {', '.join(CURSOR_TYPES)}."
        ),
    ] = None,
    acc: Annotated[
        Literal["keep", "drop"] | None,
        typer.Option("--acc", metavar="keep|drop", help="With --to-cursor: keep the accumulator, or start it again."),
    ] = None,
    to_file: Annotated[
        Path | None, typer.Option("--to-file", help="Resume at the cursors in a file that `cursor export` wrote.")
    ] = None,
    *,
    manner: ActOptions,
) -> None:
    """Let partitions resume at another cursor: shows first which rows are delivered again or skipped."""
    if sum((to_beginning, to_cursor is not None, to_file is not None)) != 1:
        raise UsageError("pass where to: --to-beginning, --to-cursor VALUE or --to-file FILE; nothing was changed")
    key = [*(key or ()), *(old_key or ())]
    if to_cursor is None and (key or type_name or acc):
        raise UsageError("--row-key, --type and --acc belong to --to-cursor; nothing was changed")
    with hf.open(manner.store) as there:
        shown = there[name].cursors.reset(
            partition, to_beginning=to_beginning, to_cursor=to_cursor, key=key, type_name=type_name,
            acc=acc, to_file=to_file, dry_run=True,
        )  # fmt: skip
        _decide(shown, manner)


def _decide(shown: Preview, manner: ActOptions) -> None:
    """Do the same for cursors; exit with 1 if a partition moved after it was read."""
    done = decide(shown, manner)
    if done is not None and done.overtaken:
        raise typer.Exit(1)


@app.command("import")
@with_manner()
def import_(name: NameArgument, file: FileArgument, *, manner: ActOptions) -> None:
    """Import a state that was exported, over the same partitions or as a new batch."""
    check_document(file)  # before a store is made
    nowhere = manner.dry_run and not exists(manner.store)
    with hf.open("memory:" if nowhere else manner.store, must_exist=False) as there:
        _decide(there.import_cursors(name, file, dry_run=True), manner)


@app.command("break-lease")
@with_manner()
def break_lease(name: NameArgument, partition: PartitionArgument = None, *, manner: ActOptions) -> None:
    """Take partitions from their owners: they resume at their checkpoints, and the owners cannot commit."""
    with hf.open(manner.store) as there:
        _decide(there[name].cursors.break_lease(partition, dry_run=True), manner)


@app.command("clone")
@with_manner()
def clone(
    name: NameArgument,
    new_name: Annotated[str, typer.Argument(metavar="NEW_BATCH", help="The batch to create.")],
    *,
    manner: ActOptions,
) -> None:
    """Create a batch of the same scan that resumes at the same cursors; the two continue independently."""
    with hf.open(manner.store) as there:
        _decide(there[name].cursors.clone(new_name, dry_run=True), manner)


@app.command("audit")
def audit_(
    name: NameArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The scan: app.py:orders.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the rows of the source with the delivered rows, and name gaps. Exits with 1 if there are any."""
    from holdfast.interfaces.cli.target import load_scan

    scan = load_scan(target)
    with hf.open(store) as there:
        found = there[name].cursors.audit(scan)
    if as_json:
        render.document(found.as_dict())
    else:
        names = {"in source": "held", "delivered": "handled", "passed over": "passed", "missing": "missing",
                 "again": "twice", "gone since": "surplus"}  # fmt: skip
        rows = [(str(part.key), *(f"{getattr(part, name):,}" for name in names.values())) for part in found.parts]
        render.show(render.table(["partition", *names], rows, right=[*names], whole=["partition"]))
        for gap in found.gaps:
            render.say(f"  {gap}", render.BAD)
        render.say(found.sentence, render.GOOD if found.is_whole else render.BAD)
        for note in found.notes:
            render.say(f"  {note}", render.BAD)
    raise typer.Exit(0 if found.is_whole else 1)


BAR = 12


def partitions(name: str, seen: "Sequence[PartitionStatus]") -> Any:
    """Return the partitions of a scan as a table."""
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
    headers = ["partition", "state", *(["read"] if has_share else []), "rows", "rate", "cursor", "lag"]
    return render.table(headers, rows, right=["rows", "rate"], whole=["partition", "state", "read"])


def _bar(each: "PartitionStatus") -> Text:
    """Return the share of a partition that is behind its cursor, as a bar and a percentage."""
    if each.share is None:
        return Text("░" * BAR + "   ? %", style=render.FAINT)
    full = int(each.share * BAR)
    style = render.BAD if each.state == "dead" else render.GOOD
    return Text.assemble(("█" * full, style), ("░" * (BAR - full), render.FAINT), f" {int(each.share * 100):3d} %")
