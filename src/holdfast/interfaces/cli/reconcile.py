"""The commands `holdfast reconcile`, `plan` and `reopen`, and the remedies for a reconciled batch."""

import os
from typing import Annotated, Any, Literal

import typer

import holdfast as hf
from holdfast import BatchHandle, Finding, Follow, Pipeline, Plan, Preview, Reconciliation, Scan, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    ActOptions,
    BatchArgument,
    JsonOption,
    StoreOption,
    agreed,
    check_reason,
    quietly,
    show_preview,
    with_manner,
)
from holdfast.interfaces.cli.render import all_pasteable, pasteable, remember
from holdfast.interfaces.cli.target import load, load_runnable
from holdfast.runtime.handles.batch import check_share
from holdfast.runtime.text import command, when

UNDO_SHARE = "10%"
MUCH = (
    "--undo 100% since so much would go back: first see that the disk is there, and that this is the folder that the "
    "batch ran in"
)
"""Shown beside a repair that is refused without it."""
SHOWN = 20


@with_manner()
def reconcile(
    batch: BatchArgument,
    full: Annotated[bool, typer.Option("--full", help="Read the content of every output, including files.")] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="TARGET", help="Also compare with the keys of the source of this pipeline: app.py:book."
        ),
    ] = None,
    tolerate: Annotated[
        str | None, typer.Option("--tolerate", metavar="N|SHARE", help="How many dead letters are tolerated: 5 or 1%.")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Send back items whose output is missing or different, so that the next run makes it again.",
        ),
    ] = False,
    undo: Annotated[
        str, typer.Option("--undo", metavar="N|SHARE", help="How many done items may be sent back: 5 or 10%.")
    ] = UNDO_SHARE,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal the batch if every item is accounted for: it takes no more changes.")
    ] = False,
    *,
    manner: ActOptions,
) -> None:
    """Compare what a batch should have, what is recorded, and what is there. Exits with 1 if something differs."""
    if repair and seal:
        raise UsageError("--repair sends items back, so that there is nothing to seal yet: repair, run, then seal")
    check_share(undo, "undo")
    pipeline: Pipeline | None = None
    if source is not None:
        with quietly(manner):
            pipeline = load(source)
        if manner.store is not None:
            pipeline.use_store(manner.store)
    with hf.open(pipeline.store if pipeline is not None else manner.store) as there:
        found = there[batch]
        result = found.reconcile(source=pipeline, full=full, actor=manner.who)
        most = found.allowed_dead(result, tolerate if tolerate is not None else 0)
        extra: dict[str, Any] = {"state": found.state_after(result)}
        if not manner.as_json:
            _show(result, found.stages, most, extra["state"], follows=found.is_followed)
            if not repair:
                _show_remedies(found.remedies(result, source=source))
        if repair:
            extra["repair"] = _repair(found, result, pipeline, undo, manner)
        if seal and manner.dry_run and not manner.as_json:
            render.say(f"{batch} would {'not ' if result.exit_code(most) else ''}be sealed; nothing was changed.")
        elif seal and not manner.dry_run:
            done = found.seal(result, tolerate=most, reason=manner.reason, actor=manner.who)
            extra["sealed_at"] = done.sealed_at
    if manner.as_json:
        plain = result.as_dict()
        told = [{**each, "remedy": pasteable(each["remedy"])} for each in plain["findings"]]
        told_too = {"tolerated": most, "exit_code": result.exit_code(most)}
        render.document({**plain, "findings": told, **told_too, **extra})
    elif seal and not manner.dry_run:
        render.say(f"{batch} is sealed: it takes no more items, commits or acts.", render.GOOD)
    raise typer.Exit(result.exit_code(most))


@with_manner(dry_run=False)
def reopen(
    batch: BatchArgument,
    *,
    manner: ActOptions,
) -> None:
    """Lift the seal of a batch, so that it can change again. The journal keeps the seal, and who lifted it."""
    with hf.open(manner.store) as there:
        found = there[batch]
        told = found.seal_of()
        if told is None:
            raise UsageError(f"batch {batch!r} is not sealed: nothing to reopen")
        check_reason(f"Reopen {batch}", manner)
        if not manner.as_json:
            why = f" ({told.reason})" if told.reason else ""
            took = f"{batch} was sealed at {when(told.at)} by {told.by}{why}."
            render.say(f"{took} It would take items, runs and acts again.")
        by = agreed(f"Reopen {batch}", manner)
        done = found.reopen(reason=by.reason, actor=by.name)
    if manner.as_json:
        render.document({**done.as_dict(), "was_sealed_at": told.at, "was_sealed_by": told.by,
                         "was_sealed_because": told.reason})  # fmt: skip
    else:
        render.say(f"{batch} is open again.", render.GOOD)


def _repair(
    batch: BatchHandle, found: Reconciliation, pipeline: Pipeline | None, undo: str, manner: ActOptions
) -> dict[str, Any]:
    """Show the repair, ask, carry it out, and show the result."""
    wanted: Preview = batch.repair(found, source=pipeline, undo=undo, dry_run=True)
    if not manner.dry_run and not wanted.is_idle:
        check_reason(wanted.question, manner)
    if not manner.as_json:
        render.say()
        show_preview(wanted)
    if manner.dry_run or wanted.is_idle:
        return {"plan": wanted.as_dict(), "changed": 0}
    by = agreed(wanted.question, manner)
    done = wanted.carry_out(reason=by.reason, actor=by.name)
    if not manner.as_json:
        render.say(f"{render.many(done.changed, 'item')} went back: run the batch to make them again.", render.GOOD)
    return {"plan": wanted.as_dict(), **done.as_dict()}


def _expected(found: Reconciliation) -> str:
    """Return how many of the expected items are known to have come."""
    expected = found.expected
    source = "source read to its end" if expected.read else "more may come"
    if expected.scanned and not expected.read:
        source = "source not read to its end: run it again"
    if expected.closed:
        source = "closed: no more come"
    if found.end in ("stopped", "cancelled"):
        source = f"taken until it was {found.end}"
    if expected.total is not None:
        source = f"of {expected.total:,}"
    return source + ("" if found.expected.keys is None else f"; {render.many(found.expected.keys, 'key')} compared")


def _show(found: Reconciliation, stages: list[str], tolerated_dead: int, state: str, *, follows: bool) -> None:
    word = "every item is accounted for" if found.is_explained else "not explained: " + ", ".join(found.unexplained)
    render.show(render.heading(f"{found.batch}", word, render.GOOD if found.is_explained else render.BAD))
    counts, r = found.counts, found.recorded
    told = [] if state.startswith(("complete", "sealed")) else [("state", state)]
    sums = " + ".join(f"{counts[name]:,} {name}" for name in ("done", "skipped", "dead", "cancelled", "pending"))
    rows = [
        *told,
        ("expected", f"{counts['expected']:,} admitted, {_expected(found)}"),
        ("recorded", f"{r.total:,} = {sums}"),
    ]
    if r.pending:
        split = f"{r.ready:,} ready + {r.running:,} claimed + {r.waiting:,} waiting + {r.orphaned:,} orphaned"
        rows.append(("pending", split))
    if r.pending and follows:
        rows.append(("follows", "one of these is the scan itself, which never ends unless it is cancelled"))
    seen = found.observed
    closely = "read" if seen.how == "full" else "looked at"
    named = f"; {seen.published:,} got their final names now" if seen.published else ""
    depth = "; of done items the last output and files only, all with --full" if seen.partly else ""
    looked = f"{render.many(seen.outputs, 'output')} {closely}, {seen.files:,} of them in files"
    rows.append(("observed", f"{looked}{named}{depth}"))
    if seen.superseded:
        rows.append(("superseded", f"{render.many(seen.superseded, 'output')}, replaced by files of a newer batch"))
    if seen.leftovers:
        beside = "in .holdfast/, of attempts that were overtaken; nothing needs them"
        rows.append(("leftovers", f"{render.many(seen.leftovers, 'staged file')} {beside}"))
    if r.dead > tolerated_dead:
        rows.append(("dead", f"{r.dead:,}, tolerated are {tolerated_dead:,}: {command('dead list', found.batch)}"))
    render.show(render.facts(rows))
    if found.findings:
        render.say()
        columns = ["finding", "item", "stage", "file", "what is wrong", "what to do"]
        render.show(render.table(columns, [_row(each, stages) for each in found.findings[:SHOWN]], whole=columns[:3]))
        total = sum(found.found.values())
        if total > SHOWN:
            render.say(f"… and {total - SHOWN:,} more; --json has the first {len(found.findings):,}", render.FAINT)


def _show_remedies(commands: list[str]) -> None:
    """Show the commands that would repair it."""
    if commands:
        render.say(f"\nNext: {' · '.join(commands)}", render.FAINT)
    if any("--undo" in each for each in commands):
        render.say(f"({MUCH})", render.FAINT)


def _row(finding: Finding, stages: list[str]) -> tuple[str, ...]:
    key = "" if finding.key is None else str(finding.key)
    stage = "" if finding.stage is None else stages[finding.stage]
    return finding.what.value, key, stage, finding.file, finding.why, pasteable(finding.remedy)


FINDINGS = 1


def plan(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="app.py:book, or package.module:book.")],
    batch: Annotated[
        str | None, typer.Argument(metavar="[BATCH]", help="The batch. Default: the pipeline's name.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The field that identifies an item.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="How many items run at the same time.")
    ] = None,
    verify: Annotated[
        Literal["none", "quick", "full"] | None,
        typer.Option(
            "--verify",
            help="How recorded outputs are checked first: none, quick (they exist) or full (their content).",
        ),
    ] = None,
    changed: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option("--changed", help="How to treat a known key that comes with another payload."),
    ] = None,
    on_code_change: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option(
            "--on-code-change", help="How to treat outputs of a stage whose code changed: keep them, or run it again."
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would do with every item, and why, with a forecast. Nothing is changed.

    Exits with 1 if a run would be refused.
    """
    if store is not None:
        os.environ["HOLDFAST_STORE"] = store
    said: dict[str, Any] = {
        "batch": batch, "key": key, "workers": workers, "verify": verify, "changed": changed,
        "on_code_change": on_code_change,
    }  # fmt: skip
    with quietly(as_json):
        found = load_runnable(target)
        pipeline = found.pipeline if isinstance(found, Scan | Follow) else found
        if store is not None:
            pipeline.use_store(store)
        else:
            remember(pipeline.store_name)
        if isinstance(found, Scan | Follow) and key is not None:
            raise UsageError(f"{target} is a scan, which takes no --key; nothing was changed")
        made = found.plan(**{name: value for name, value in said.items() if value is not None})
    if as_json:
        plain = made.as_dict()
        render.document({**plain, **{name: all_pasteable(plain[name]) for name in ("obstacles", "notes")}})
    else:
        _print_plan(made)
    raise typer.Exit(FINDINGS if made.obstacles else 0)


def _print_plan(made: Plan) -> None:
    style = render.BAD if made.obstacles else render.FAINT if made.is_idle else render.GOOD
    render.say(f"{made.batch}: {made.headline}", style)
    if made.rows:
        rows = [
            (row.fate, f"{row.count:,}", row.reason, row.stage or "-", _keys(row.examples, row.count))
            for row in made.rows
        ]
        render.show(render.table(["would", "items", "why", "stage", "such as"], rows, right=["items"], whole=["would"]))
    _show_forecast(made)
    for text in made.obstacles:
        render.say(f"in the way: {text}", render.BAD)
    for text in made.notes:
        render.say(f"note: {text}", render.CARE)
    render.say("Nothing was changed.", render.FAINT)


def _show_forecast(made: Plan) -> None:
    for line in made.outlook:
        render.say(line)
    busy = [each for each in made.forecast.stages if each.items]
    if made.forecast.learned_from is not None and len(busy) > 1:
        rows = [(s.stage, f"{s.items:,}", render.number(s.seconds), render.usd(s.usd)) for s in busy]
        render.show(render.table(["stage", "items", "seconds of work", "money"], rows,
                                 right=["items", "seconds of work", "money"]))  # fmt: skip


def _keys(examples: tuple[Any, ...], count: int) -> str:
    shown = ", ".join(render.one_line(str(key), 40) for key in examples)
    return f"{shown}, …" if count > len(examples) else shown
