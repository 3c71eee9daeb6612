"""The commands on data: `holdfast audit`, `export`, `import` and `events`."""

import contextlib
import copy
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

import holdfast
from holdfast.core import cursor
from holdfast.core.errors import UsageError
from holdfast.core.limits import EVENTS_PAGE
from holdfast.core.model import Batch, State, StoredEvent
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    BatchArgument,
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
from holdfast.interfaces.cli.target import load, load_scan
from holdfast.runtime import importers, lookup, recover
from holdfast.runtime.acts import By
from holdfast.runtime.define.pipeline import check_name
from holdfast.runtime.events import Envelope, Envelopes, Undelivered, deliver_all, encode, receiver
from holdfast.runtime.importers import Arrival
from holdfast.runtime.operate import audit as auditing
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.operate import evidence as bundles
from holdfast.runtime.operate import export as exporting
from holdfast.runtime.report.reconcile import reconcile
from holdfast.runtime.scan.scan import Scan
from holdfast.runtime.sinks.names import safe_name
from holdfast.stores.base import Store, outbox_of
from holdfast.stores.memory import MemoryStore

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


def export(
    batch: BatchArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file; without it, standard output.")] = None,
    form: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option("--format", help="Default: what the file's name says, else JSON lines."),
    ] = None,
    state: Annotated[State, typer.Option("--state", help="Which items.")] = State.DONE,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="An archive that proves what became of every item, without payloads.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="CSV cells as they are, also those that begin a formula.")] = False,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on standard output; with --out, one document about the file.")
    ] = False,
) -> None:
    """Write the results of a batch as JSON lines, CSV or Parquet, in the order of its items."""
    with opened(store) as there:
        found = lookup.batch_named(there, batch)
        if evidence:
            _export_evidence(there, found, out, as_json)
            return
        if out is None:
            exporting.export(there, found, sys.stdout.buffer, form="jsonl" if as_json else form, state=state, raw=raw)
            sys.stdout.buffer.flush()
            return
        summary = exporting.export(there, found, out, form=form, state=state, raw=raw)
    if as_json:
        render.document(summary.as_dict())
    else:
        render.say(f"{summary.rows:,} items written to {summary.path} ({summary.format}).")


def _export_evidence(there: Store, batch: Batch, out: Path | None, as_json: bool) -> None:
    if out is not None and out.suffix != bundles.SUFFIX:
        raise UsageError(f"--out {out}: evidence is one archive, name it …{bundles.SUFFIX}")
    path = out if out is not None else Path(f"{safe_name(batch.name)}-evidence{bundles.SUFFIX}")
    summary = bundles.write(
        there, batch, path, reconcile(there, batch).as_dict(), made_by=f"holdfast {holdfast.__version__}"
    )
    if as_json:
        render.document(summary.as_dict())
        return
    sealed = "sealed" if summary.is_sealed else "not sealed yet"
    render.say(f"Evidence of {summary.items:,} items and {summary.entries:,} entries ({sealed}): {path}", render.GOOD)
    if not summary.is_quiet:
        render.say("Somebody worked on the batch meanwhile: items may be ahead of the journal in it.", render.CARE)
    render.say(f"Head: {summary.head}")
    render.say("Keep the head elsewhere: an archive in which anything was changed has another.", render.FAINT)
    render.say(f"Check it anywhere: unzip -o {path} check.py && python check.py {path}", render.FAINT)


def import_state(target: str, file: Path, batch: str | None, manner: Manner) -> None:
    """A poller's state."""
    scan = _scan(target, manner)
    now = (scan.pipeline.store_if_there() or MemoryStore()).now()
    _plant(scan, importers.from_poller(scan, _name(scan, batch), read_file(file), str(file), now=now), manner)


def import_checkpoints(target: str, said: list[str], by_rows: bool, batch: str | None, manner: Manner) -> None:
    """Checkpoints with their history, each `FILE` or `PARTITION=FILE`."""
    scan = _scan(target, manner)
    files = [_named(each) for each in said]
    read = [(partition, read_file(file), str(file)) for partition, file in files]
    _plant(scan, importers.from_checkpoints(scan, _name(scan, batch), read, by_rows=by_rows), manner)


def _named(said: str) -> tuple[str | None, Path]:
    partition, equals, file = said.partition("=")
    if equals and not Path(said).exists():
        return partition, Path(file)
    return None, Path(said)


def _scan(target: str, manner: Manner) -> Scan:
    with contextlib.redirect_stdout(sys.stderr) if manner.as_json else contextlib.nullcontext():
        scan = load_scan(target)
    if manner.store is not None:
        scan.pipeline.use_store(manner.store)
    return scan


def _name(scan: Scan, batch: str | None) -> str:
    return check_name(batch if batch is not None else scan.name, "batch")


def _plant(scan: Scan, found: Arrival, manner: Manner) -> None:
    plan = found.plan

    def show() -> None:
        render.say(f"A new batch {plan.name} would continue there, under fences above {plan.fence}:", render.HEAD)
        rows = [
            (
                str(seed.key),
                str(cursor.decode(seed.checkpoint.cursor)) if seed.checkpoint.cursor else "its beginning",
                f"{seed.checkpoint.rows:,}",
                "nothing" if seed.checkpoint.acc is None else render.one_line(seed.checkpoint.acc.decode(), 60),
            )
            for seed in plan.seeds
        ]
        render.show(render.table(["partition", "resumes after", "rows before", "accumulated"], rows))
        if found.history:
            render.say(f"The journal keeps {render.many(len(found.history), 'checkpoint')} that were made elsewhere.")
        for told in found.told:
            render.say(told, render.CARE)

    if not goes_on(manner, found.as_dict(), show):
        return
    by = agreed(f"Make batch {plan.name}", manner)
    say_result(acts.make(scan.pipeline.store, plan, by, list(found.notes(by))), manner.as_json, "partition")


def import_pages(target: str, file: Path, batch: str | None, key: str | None, manner: Manner) -> None:
    """A file of pages with its folder."""
    with contextlib.redirect_stdout(sys.stderr) if manner.as_json else contextlib.nullcontext():
        pipeline = load(target)
    if not pipeline.has_source:
        raise UsageError(f"pipeline {pipeline.name!r} has no source: it says which pages there are")
    if manner.store is not None:
        pipeline.use_store(manner.store)
    name = check_name(batch if batch is not None else pipeline.name, "batch")
    data = read_file(file)
    if manner.dry_run:
        pipeline = copy.copy(pipeline)
        pipeline.use_store(MemoryStore())
        by = By(actor=manner.who, reason="a dry run")
        _tell(importers.take_over_pages(pipeline, file, data, by, batch=name, key=key), manner, "would count")
        return
    said = importers.read_page_file(pipeline, file, data)
    if not manner.as_json:
        render.say(f"{file}: {len(said.page_metrics):,} of {said.total_pages:,} pages are called done.")
    by = agreed(f"Make batch {name} from {file} and the outputs beside it", manner)
    _tell(importers.take_over_pages(pipeline, file, data, by, batch=name, key=key), manner, "count")


def _tell(made: importers.Arrived, manner: Manner, counts: str) -> None:
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
"""So many items are named on a screen."""


@with_manner()
def import_(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="app.py:book, or package.module:book.")],
    from_outputs: Annotated[
        bool, typer.Option("--from-outputs", help="Rebuild the record of a batch from its output files.")
    ] = False,
    from_state: Annotated[
        Path | None, typer.Option("--from-state", help="Resume where a poller's state says: cursor and lease.")
    ] = None,
    from_checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--from-checkpoint",
            metavar="[PARTITION=]FILE",
            help="Resume where a checkpoint with its history stands; once for each partition.",
        ),
    ] = None,
    by_rows: Annotated[
        bool,
        typer.Option(
            "--by-rows", help="With --from-checkpoint: it has no cursor, only a number of rows; the row is looked up."
        ),
    ] = False,
    from_pages: Annotated[
        Path | None,
        typer.Option(
            "--from-pages", help="Resume where a .checkpoint file of pages stands, with the outputs beside it."
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", help="The batch to make. Default: the pipeline's name.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The field that identifies an item.")] = None,
    *,
    manner: Manner,
) -> None:
    """Rebuild a lost or damaged record from output files, or resume where another program stopped."""
    if sum((from_outputs, from_state is not None, bool(from_checkpoint), from_pages is not None)) != 1:
        raise UsageError(
            "pass from what: --from-outputs rebuilds a record from output files; --from-state, --from-checkpoint and "
            "--from-pages resume where another program stopped"
        )
    if by_rows and not from_checkpoint:
        raise UsageError("--by-rows belongs to --from-checkpoint; nothing was changed")
    if from_state is not None:
        import_state(target, from_state, batch, manner)
    elif from_checkpoint:
        import_checkpoints(target, from_checkpoint, by_rows, batch, manner)
    elif from_pages is not None:
        import_pages(target, from_pages, batch, key, manner)
    else:
        _rebuild(target, batch, key, manner)


def _rebuild(target: str, batch: str | None, key: str | None, manner: Manner) -> None:
    """The damaged file is set aside, items with valid outputs count as done."""
    with _quiet(manner.as_json):
        pipeline = load(target)
    if manner.store is not None:
        pipeline.use_store(manner.store)
    path = pipeline.store_path
    damage = recover.is_damaged(path) if path is not None else None
    name = batch if batch is not None else pipeline.name
    if not manner.as_json:
        _announce(path, damage, name)
    if manner.dry_run:
        with _quiet(manner.as_json):
            found = pipeline.recover(by=By(actor="nobody", reason="a dry run"), batch=name, key=key, dry_run=True)
        if manner.as_json:
            render.document({"store": str(path), "damaged": damage, "dry_run": True, **found.as_dict()})
        else:
            _tell_recovered(found, dry_run=True)
        return
    by = agreed(f"Rebuild batch {name} from its output files", manner)
    moved = recover.set_aside(path) if path is not None and damage is not None else ()
    with _quiet(manner.as_json):
        found = pipeline.recover(by=by, batch=name, key=key, set_aside=moved)
    if manner.as_json:
        render.document(found.as_dict())
    else:
        _tell_recovered(found, dry_run=False)


def _quiet(as_json: bool) -> contextlib.AbstractContextManager[object]:
    """What the user's module, source or verifiers print is not our answer."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def _announce(path: Path | None, damage: str | None, batch: str) -> None:
    if path is None:
        return
    if damage is not None:
        render.say(damage, render.BAD)
        render.say("It would be set aside under another name, and a new store made in its place.")
    elif path.exists():
        render.say(f"{path} can be read: batch {batch!r} would be added to it.")
    else:
        render.say(f"There is no store at {path}: one would be made.")


def _tell_recovered(found: recover.Recovery, *, dry_run: bool) -> None:
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
    batch: Annotated[str | None, typer.Argument(metavar="BATCH", help="One batch; without it, all of them.")] = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many at most.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new ones until Ctrl-C.")] = False,
    deliver: Annotated[
        str | None,
        typer.Option("--deliver", metavar="URL|file:PATH|-", help="Deliver what waits for this receiver instead."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the events that others are told of, or deliver to a receiver what it has not got yet."""
    with opened(store) as there:
        if deliver is not None:
            if batch is not None or follow or after:
                raise UsageError("--deliver resumes where the receiver is, with all batches: give nothing else with it")
            _deliver(there, deliver, as_json)
        elif follow:
            _follow(there, batch, after, as_json)
        else:
            _list(there, batch, after, limit, as_json)


def _deliver(there: Store, target: str, as_json: bool) -> None:
    to = receiver(target)
    try:
        count = deliver_all(there, to)
    except Undelivered as error:
        render.complain(f"{to.title} does not take events: {error}; nothing is lost, deliver again later")
        if as_json and target != "-":
            render.document({"error": {"type": "Undelivered", "message": str(error)}})
        raise typer.Exit(AGAIN) from None
    if target == "-":
        return
    if as_json:
        render.document({"receiver": to.title, "delivered": count})
    else:
        render.say(f"{render.many(count, 'event')} delivered to {to.title}")


def _list(there: Store, batch: str | None, after: int, limit: int, as_json: bool) -> None:
    made = Envelopes(there)
    found: list[tuple[StoredEvent, Envelope]] = []
    more = False
    for event in _matching(there, batch, after):
        if len(found) == limit:
            more = True
            break
        found.append((event, made.make(event)))
    if as_json:
        numbered = [{"number": event.id, **envelope} for event, envelope in found]
        render.document({"events": numbered, "more": more})
        return
    if not found:
        render.say("No events." if not after else f"No events after number {after}.")
        return
    render.show(render.table(["number", "time", "event", "about", "what"], map(_row, found), right=["number"]))
    if more:
        render.say(f"\nThere are more: --after {found[-1][0].id}", render.FAINT)


def _follow(there: Store, batch: str | None, after: int, as_json: bool) -> None:
    made = Envelopes(there)
    try:
        while True:
            for event in _matching(there, batch, after):
                after = event.id
                envelope = made.make(event)
                if as_json:
                    sys.stdout.write(encode(envelope).decode() + "\n")
                else:
                    sys.stdout.write("  ".join(map(render.clean, _row((event, envelope)))) + "\n")
            sys.stdout.flush()
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return


def _matching(there: Store, batch: str | None, after: int) -> Iterator[StoredEvent]:
    only = None if batch is None else lookup.batch_named(there, batch).id
    while page := outbox_of(there).events(after, limit=EVENTS_PAGE):
        yield from (event for event in page if only in (None, event.batch))
        after = page[-1].id


def _row(found: tuple[StoredEvent, Envelope]) -> tuple[str, ...]:
    event, envelope = found
    data = envelope["data"]
    facts = [f"{name} {data[name]}" for name in SHOWN_FIRST if name in data and name != "key"]
    at = envelope["time"][:19].replace("T", " ") + "Z"
    return str(event.id), at, event.kind, envelope["subject"], render.one_line(", ".join(facts), 100)
