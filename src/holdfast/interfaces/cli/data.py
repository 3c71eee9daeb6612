"""The commands for data: `holdfast audit`, `export`, `import` and `events`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

import holdfast as hf
from holdfast import BatchHandle, Follow, NumberedEvent, Scan, State, StoreHandle, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    ActOptions,
    BatchArgument,
    JsonOption,
    StoreOption,
    agreed,
    check_reason,
    decide,
    quietly,
    with_manner,
)
from holdfast.interfaces.cli.target import load, load_scan

if TYPE_CHECKING:
    from holdfast.runtime.handles.imports import StoreFile
    from holdfast.runtime.importers import ImportedPages
    from holdfast.runtime.operate.audit import Audit
    from holdfast.runtime.recover import Recovery

app = typer.Typer(help="Verify the journal.", no_args_is_help=True)

SHOWN = 20


@app.command("verify")
def verify(
    batch: Annotated[
        str | None, typer.Argument(metavar="BATCH", help="The name of the batch. Default: all batches.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Read the content of every output, including files.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify every chain, and the store against it, and name every change. Exits with 1 if there is one."""
    with hf.open(store) as there:
        batches = there.batches() if batch is None else [there[batch]]
        found = [each.audit(full=full) for each in batches]
        flaws = there.flaws()
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


def _show(found: "Audit") -> None:
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
        render.say(
            f"  {render.many(found.files_unread, 'output')} in files were not read; --full reads them.", render.FAINT
        )
    if found.superseded:
        render.say(f"  {render.many(found.superseded, 'output')} superseded by files of a newer batch.", render.FAINT)
    if found.removed:
        render.say(f"  Words were removed in {render.many(found.removed, 'place')}.", render.FAINT)
    if found.set_back:
        render.say(f"  {found.set_back}.", render.CARE)
    if found.busy:
        render.say(f"  {found.busy:,} groups kept changing; audit again when fewer processes are at work.", render.CARE)


def export(
    batch: BatchArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write. Default: standard output.")
    ] = None,
    form: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option("--format", help="The format. Default: by the name of the file, else JSON lines."),
    ] = None,
    state: Annotated[State, typer.Option("--state", help="The state of the items to write.")] = State.DONE,
    evidence: Annotated[
        bool,
        typer.Option("--evidence", help="Write an archive that proves the outcome of every item, without payloads."),
    ] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="With --evidence: leave out keys, error messages, reasons and other words.")
    ] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="Write the whole batch to one file, to open it in another store.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Leave CSV cells as they are, including those that start a formula.")
    ] = False,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines; with --out, one JSON document about the file.")
    ] = False,
) -> None:
    """Write the results of a batch as JSON lines, CSV or Parquet, in the order of its items."""
    if redact and not evidence:
        raise UsageError("--redact is for evidence: pass --evidence as well")
    if copy and evidence:
        raise UsageError("pass --copy or --evidence: a copy is opened in another store, evidence is for an auditor")
    with hf.open(store) as there:
        found = there[batch]
        if evidence:
            _export_evidence(found, out, as_json, redact)
            return
        if copy:
            _export_copy(found, out, as_json)
            return
        if out is None:
            found.export(sys.stdout.buffer, format="jsonl" if as_json else form, state=state, raw=raw)
            sys.stdout.buffer.flush()
            return
        summary = found.export(out, format=form, state=state, raw=raw)
    if as_json:
        render.document(summary.as_dict())
    else:
        render.say(f"{summary.rows:,} items written to {summary.path} ({summary.format}).")


def _export_evidence(batch: BatchHandle, out: Path | None, as_json: bool, redact: bool) -> None:
    summary = batch.evidence(out, redact=redact)
    path = summary.path
    if as_json:
        render.document(summary.as_dict())
        return
    sealed = ("sealed" if summary.is_sealed else "not sealed yet") + (", redacted" if summary.is_redacted else "")
    render.say(f"Evidence of {summary.items:,} items and {summary.entries:,} entries ({sealed}): {path}", render.GOOD)
    if not summary.is_quiet:
        render.say(
            "Another process worked on the batch meanwhile: items may be ahead of the journal in it.", render.CARE
        )
    render.say(f"Head: {summary.head}")
    render.say("Keep the head elsewhere: an archive in which anything was changed has another.", render.FAINT)
    render.say(f"Check it anywhere: unzip -o {path} check.py && python check.py {path}", render.FAINT)


def _export_copy(batch: BatchHandle, out: Path | None, as_json: bool) -> None:
    summary = batch.copy(out)
    if as_json:
        render.document(summary.as_dict())
        return
    what = f"{render.many(summary.items, 'item')} and {render.many(summary.entries, 'entry', 'entries')}"
    render.say(f"Copy of {what}: {summary.path}", render.GOOD)
    render.say("It has every payload: keep it as safe as the store. Files of a sink are not part of it.", render.FAINT)
    render.say("Open it in another store with import --from-copy. If work is left, it is paused there.", render.FAINT)


def _scan(target: str, manner: ActOptions) -> Scan | Follow:
    with quietly(manner):
        scan = load_scan(target)
    if manner.store is not None:
        scan.pipeline.use_store(manner.store)
    return scan


def _named(said: str) -> tuple[str | None, Path]:
    partition, equals, file = said.partition("=")
    if equals and not Path(said).exists():
        return partition, Path(file)
    return None, Path(said)


def _import_pages(target: str, file: Path, batch: str | None, key: str | None, manner: ActOptions) -> None:
    """Import a file of pages with its folder."""
    from holdfast.runtime.handles.imports import check_pages, import_pages

    with quietly(manner):
        pipeline = load(target)
    if manner.store is not None:
        pipeline.use_store(manner.store)
    if manner.dry_run:
        _tell(import_pages(pipeline, file, batch=batch, key=key, dry_run=True), manner, "would count")
        return
    done, total = check_pages(pipeline, file)
    question = f"Make batch {batch if batch is not None else pipeline.name} from {file} and the outputs beside it"
    check_reason(question, manner)
    if not manner.as_json:
        render.say(f"{file}: {done:,} of {total:,} pages are called done.")
    by = agreed(question, manner)
    _tell(import_pages(pipeline, file, batch=batch, key=key, reason=by.reason, actor=by.name), manner, "count")


def _tell(made: "ImportedPages", manner: ActOptions, counts: str) -> None:
    if manner.as_json:
        render.document(made.as_dict())
        return
    whole = sum(made.recovery.recovered.values())
    render.say(
        f"{whole:,} of {made.recovery.items:,} pages {counts} as done, {made.recovery.pending:,} run.", render.GOOD
    )
    rows = [("called done", f"{made.noted:,}, for ${made.usd}; the journal keeps what each cost")]
    if made.lost:
        rows.append(("run again", f"{', '.join(made.lost[:20])}: called done, without a valid output"))
    if made.found:
        rows.append(("found", f"{', '.join(made.found[:20])}: not called done, with a valid output"))
    rows += [(f"page {name}", why) for name, why in made.recovery.invalid[:20]]
    render.show(render.facts(rows))


NAMED = 20
"""Items that are named on a screen."""


@with_manner()
def import_(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="app.py:book, or package.module:book; none with --from-copy."),
    ] = None,
    from_outputs: Annotated[
        bool, typer.Option("--from-outputs", help="Rebuild a batch from its output files.")
    ] = False,
    from_state: Annotated[
        Path | None, typer.Option("--from-state", help="Resume at the cursor in the state file of a poller.")
    ] = None,
    from_checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--from-checkpoint",
            metavar="[PARTITION=]FILE",
            help="Resume at the checkpoint in a file with its history; once per partition.",
        ),
    ] = None,
    by_rows: Annotated[
        bool,
        typer.Option(
            "--by-rows", help="With --from-checkpoint: the file has a number of rows and no cursor; look up the row."
        ),
    ] = False,
    from_pages: Annotated[
        Path | None,
        typer.Option("--from-pages", help="Resume at a .checkpoint file of pages, with the outputs beside it."),
    ] = None,
    from_copy: Annotated[
        Path | None, typer.Option("--from-copy", help="Open a batch that `export --copy` wrote in another store.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", help="The name of the batch. Default: the pipeline's name.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The field that identifies an item.")] = None,
    *,
    manner: ActOptions,
) -> None:
    """Rebuild a lost or damaged store from output files, resume where another program stopped, or open a copied
    batch."""
    others = (from_outputs, from_state is not None, bool(from_checkpoint), from_pages is not None)
    if sum((*others, from_copy is not None)) != 1:
        raise UsageError(
            "pass one of these: --from-outputs rebuilds a batch from output files; --from-state, --from-checkpoint and "
            "--from-pages resume where another program stopped; --from-copy opens a copied batch"
        )
    if from_copy is not None:
        _import_copy(target, from_copy, batch, manner)
        return
    if target is None:
        raise UsageError("name the pipeline or scan, such as app.py:book")
    if by_rows and not from_checkpoint:
        raise UsageError("--by-rows belongs to --from-checkpoint; nothing was changed")
    if from_pages is not None:
        _import_pages(target, from_pages, batch, key, manner)
    elif from_outputs:
        _rebuild(target, batch, key, manner)
    else:
        from holdfast.runtime.handles.imports import import_checkpoints, import_poller

        scan = _scan(target, manner)
        if from_state is not None:
            decide(import_poller(scan, from_state, batch=batch, dry_run=True), manner)
        else:
            files = [_named(each) for each in from_checkpoint or ()]
            decide(import_checkpoints(scan, files, by_rows=by_rows, batch=batch, dry_run=True), manner)


def _import_copy(target: str | None, file: Path, batch: str | None, manner: ActOptions) -> None:
    if target is not None or batch is not None:
        raise UsageError("--from-copy takes no target and no --batch: the batch keeps its name; nothing was changed")
    from holdfast.runtime.handles.store import check_copy, exists

    check_copy(file)  # before a store is made for it
    is_there = exists(manner.store)
    with hf.open("memory:" if manner.dry_run and not is_there else manner.store, must_exist=False) as there:
        decide(there.open_copy(file, dry_run=True), manner)


def _rebuild(target: str, batch: str | None, key: str | None, manner: ActOptions) -> None:
    """Rebuild a batch: a damaged file is set aside, and items with valid outputs count as done."""
    from holdfast.runtime.handles.imports import import_outputs, look_at_file

    with quietly(manner):
        pipeline = load(target)
    if manner.store is not None:
        pipeline.use_store(manner.store)
    file, name = look_at_file(pipeline), batch if batch is not None else pipeline.name
    question = f"Rebuild batch {name} from its output files"
    if not manner.dry_run:
        check_reason(question, manner)
    if not manner.as_json:
        _announce(file, name, dry_run=manner.dry_run)
    if manner.dry_run:
        with quietly(manner):
            found = import_outputs(pipeline, batch=batch, key=key, dry_run=True)
        if manner.as_json:
            render.document({"store": str(file.path), "damaged": file.damage, "dry_run": True, **found.as_dict()})
        else:
            _tell_recovered(found, dry_run=True)
        return
    by = agreed(question, manner)
    with quietly(manner):
        found = import_outputs(pipeline, batch=batch, key=key, reason=by.reason, actor=by.name)
    if manner.as_json:
        render.document(found.as_dict())
    else:
        _tell_recovered(found, dry_run=False)


def _announce(file: "StoreFile", batch: str, *, dry_run: bool) -> None:
    path, damage, will = file.path, file.damage, "would" if dry_run else "will"
    if path is None:
        return
    if damage is not None:
        render.say(damage, render.BAD)
        render.say(f"It {will} be set aside under another name, and a new store made in its place.")
    elif path.exists():
        render.say(f"{path} can be read: batch {batch!r} {will} be added to it.")
    else:
        render.say(f"There is no store at {path}: one {will} be made.")


def _tell_recovered(found: "Recovery", *, dry_run: bool) -> None:
    for name in found.set_aside:
        render.say(f"set aside: {name}", render.FAINT)
    whole = sum(found.recovered.values())
    done, rest = ("would be recovered", "would run") if dry_run else ("recovered", "will run")
    render.say(f"{render.many(whole, 'item')} of {found.items:,} {done}, {found.pending:,} {rest}.", render.GOOD)
    rows = [(f"after {stage}", f"{count:,}") for stage, count in found.recovered.items()]
    rows.append(("without a valid output", f"{found.pending:,}"))
    rows.append(("unknown about the recovered", "; ".join(found.unknown)))
    render.show(render.facts(rows))
    _name_of_batch("not recovered", found.invalid, found.invalid_count)
    _name_of_batch("recovered and not verified", found.unverified, found.unverified_count)
    if found.unverified_count:
        render.say("  run with --verify full once the verifiers can answer: what does not hold is made again then")
    render.say("Nothing was changed." if dry_run else "Outputs were not changed. Run the pipeline to continue.")


def _name_of_batch(what: str, items: Sequence[tuple[str, str]], count: int) -> None:
    for name, why in items[:NAMED]:
        render.say(f"  {what}: {name}: {why}", render.CARE)
    if count > NAMED:
        render.say(f"  and {count - NAMED:,} more; --json names them", render.CARE)


AGAIN = 75
EVERY = 0.5
SHOWN_FIRST = ("key", "stage", "code", "kind", "strategy", "end", "items", "message", "reason")


def events(
    batch: Annotated[
        str | None, typer.Argument(metavar="BATCH", help="The name of the batch. Default: all batches.")
    ] = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most to list.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new events until Ctrl-C.")] = False,
    deliver: Annotated[
        str | None,
        typer.Option(
            "--deliver", metavar="URL|file:PATH|-", help="Deliver to this receiver the events it does not have yet."
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the events of the store, or deliver to a receiver those it does not have yet."""
    with hf.open(store) as there:
        if deliver is not None:
            if batch is not None or follow or after:
                raise UsageError(
                    "--deliver resumes where the receiver stopped, for all batches: pass nothing else with it"
                )
            _deliver(there, deliver, as_json)
        elif follow:
            _follow(there, batch, after, as_json)
        else:
            _list(there, batch, after, limit, as_json)


def _deliver(there: StoreHandle, target: str, as_json: bool) -> None:
    try:
        done = there.deliver(target)
    except hf.Undelivered as error:
        render.complain(f"{error.receiver} does not take events: {error}; nothing is lost, deliver again later")
        if as_json and target != "-":
            render.document({"error": {"type": "Undelivered", "message": str(error)}})
        raise typer.Exit(AGAIN) from None
    if target == "-":
        return
    if as_json:
        render.document({"receiver": done.receiver, "delivered": done.events})
    else:
        render.say(f"{render.many(done.events, 'event')} delivered to {done.receiver}")


def _list(there: StoreHandle, batch: str | None, after: int, limit: int, as_json: bool) -> None:
    found: list[NumberedEvent] = []
    more = False
    for event in there.events(after=after, batch=batch):
        if len(found) == limit:
            more = True
            break
        found.append(event)
    if as_json:
        numbered = [{"number": event.number, **event.envelope} for event in found]
        render.document({"events": numbered, "more": more})
        return
    if not found:
        render.say("No events." if not after else f"No events after number {after}.")
        return
    render.show(render.table(["number", "time", "event", "about", "what"], map(_row, found), right=["number"],
                             whole=["time", "event"]))  # fmt: skip
    if more:
        render.say(f"\nThere are more: --after {found[-1].number}", render.FAINT)


def _follow(there: StoreHandle, batch: str | None, after: int, as_json: bool) -> None:
    try:
        while True:
            for event in there.events(after=after, batch=batch):
                after = event.number
                if as_json:
                    sys.stdout.write(msgspec.json.encode(event.envelope).decode() + "\n")
                else:
                    sys.stdout.write("  ".join(map(render.clean, _row(event))) + "\n")
            sys.stdout.flush()
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return


def _row(event: NumberedEvent) -> tuple[str, ...]:
    data = event.envelope["data"]
    facts = [f"{name} {data[name]}" for name in SHOWN_FIRST if name in data and name != "key"]
    at = event.envelope["time"][:19].replace("T", " ") + "Z"
    return str(event.number), at, event.kind, event.envelope["subject"], render.one_line(", ".join(facts), 100)
