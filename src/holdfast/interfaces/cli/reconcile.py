"""The commands `holdfast reconcile`, `plan`, `reopen`, and what would put a reconciled batch right."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from holdfast.core.course import End, stage_names, to_reopen
from holdfast.core.errors import UsageError
from holdfast.core.limits import UNDO_SHARE
from holdfast.core.model import Batch, Course
from holdfast.core.verify import REPAIRABLE, Finding, How, Reconciliation, What, is_too_much
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    BatchArgument,
    JsonOption,
    Manner,
    StoreOption,
    agreed,
    opened,
    show_preview,
    warn_of_end,
    with_manner,
)
from holdfast.interfaces.cli.render import all_pasteable, pasteable, remember
from holdfast.interfaces.cli.status import word_of
from holdfast.interfaces.cli.target import load, load_runnable
from holdfast.runtime import lookup
from holdfast.runtime.define.options import allowed, count_or_share, tolerance_of
from holdfast.runtime.define.stage import sinks_among
from holdfast.runtime.operate import repair
from holdfast.runtime.pipeline import Pipeline
from holdfast.runtime.plan import Plan
from holdfast.runtime.report import lifecycle
from holdfast.runtime.report import overview as glance
from holdfast.runtime.report import status as standing
from holdfast.runtime.report.reconcile import reconcile as look
from holdfast.runtime.report.reconcile import repairable
from holdfast.runtime.scan.scan import Scan
from holdfast.runtime.sinks.base import Sink
from holdfast.runtime.text import command, when
from holdfast.stores.base import Store

OF_NUMBER = frozenset({What.NEVER_CREATED, What.UNEXPECTED})
MUCH = (
    "--undo 100% since so much would go back: first see that the disk is there, and that this is the folder that the "
    "batch ran in"
)
"""Said beside a repair that is refused without it."""


def remedy_commands(found: Reconciliation, batch: Batch, *, source: str | None = None) -> list[str]:
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
        yield _repair_command(found, batch, source)
    if What.NEVER_CREATED in kinds and any(map(_is_named, found.findings)):
        yield "holdfast run …"
    if kinds & OF_NUMBER and any(map(_is_number, found.findings)):
        yield command("expect", batch.name, found.expected.admitted, "--reason …")
    if found.nothing:
        yield "holdfast run … --allow-empty"
    elif not found.expected.read and not found.recorded.pending:
        yield "holdfast run …" if found.expected.scanned else f"holdfast run …, or {command('close', batch.name)}"


def _repair_command(found: Reconciliation, batch: Batch, source: str | None) -> str:
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


SHOWN = 20


@with_manner()
def reconcile(
    batch: BatchArgument,
    full: Annotated[bool, typer.Option("--full", help="Read every output, instead of looking at it.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="TARGET", help="Compare with the keys of its source, too: app.py:book."),
    ] = None,
    tolerate: Annotated[
        str | None, typer.Option("--tolerate", metavar="N|SHARE", help="Dead letters that are fine: 5 or 1%.")
    ] = None,
    mend: Annotated[
        bool, typer.Option("--repair", help="Send items back whose output is missing or different.")
    ] = False,
    undo: Annotated[
        str, typer.Option("--undo", metavar="N|SHARE", help="How much of what is done a repair may send back.")
    ] = UNDO_SHARE,
    seal: Annotated[bool, typer.Option("--seal", help="Finish it for good, if every item is accounted for.")] = False,
    *,
    manner: Manner,
) -> None:
    """Compare what a batch should have, what is recorded, and what is there. Ends with 1 while it is unexplained."""
    if mend and seal:
        raise UsageError("--repair sends items back, so that there is nothing to seal yet: repair, run, then seal")
    share, fine = count_or_share(undo, "undo"), tolerance_of(tolerate if tolerate is not None else 0)
    with _there(source, manner) as (there, pipeline):
        found = lookup.batch_named(there, batch)
        result = lifecycle.conclude_end(there, found, lambda: _look(there, found, pipeline, full), actor=manner.who)
        most = allowed(fine, result.expected.admitted)
        extra: dict[str, Any] = {"state": _state(there, batch, result)}
        if not manner.as_json:
            _show(result, stage_names(found), most, extra["state"], follows=glance.is_followed(there, found))
            if not mend:
                _show_remedies(result, lookup.batch_named(there, batch), source)
        if mend:
            extra["repair"] = _repair(there, found, result, pipeline, share, manner)
        if seal:
            extra["sealed_at"] = _seal(there, found, result, manner, most)
    if manner.as_json:
        plain = result.as_dict()
        told = [{**each, "remedy": pasteable(each["remedy"])} for each in plain["findings"]]
        told_too = {"tolerated": most, "exit_code": result.exit_code(most)}
        render.document({**plain, "findings": told, **told_too, **extra})
    elif seal:
        render.say(f"{batch} is sealed: it takes no more items, commits or acts.", render.GOOD)
    raise typer.Exit(result.exit_code(most))


@with_manner(dry_run=False)
def reopen(
    batch: BatchArgument,
    *,
    manner: Manner,
) -> None:
    """Lift the seal of a batch, so that it can be worked on again. The journal keeps the seal, and who lifted it."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        told = lifecycle.seal_of(there, found)
        if told is None:
            raise UsageError(f"batch {batch!r} is not sealed: nothing to reopen")
        if not manner.as_json:
            why = f" ({told.reason})" if told.reason else ""
            took = f"{batch} was sealed at {when(told.at)} by {told.by}{why}."
            render.say(f"{took} It would take items, runs and acts again.")
        by = agreed(f"Reopen {batch}", manner)
        there.amend(found.id, to_reopen(by.reason), actor=by.actor)
    if manner.as_json:
        render.document({"batch": batch, "reopened": True, "was_sealed_at": told.at, "was_sealed_by": told.by,
                         "was_sealed_because": told.reason})  # fmt: skip
    else:
        render.say(f"{batch} is open again.", render.GOOD)


@contextlib.contextmanager
def _there(source: str | None, manner: Manner) -> Iterator[tuple[Store, Pipeline | None]]:
    """The store; and the pipeline, where its source shall be compared. What its module prints is not our answer."""
    if source is None:
        with opened(manner.store) as there:
            yield there, None
        return
    with contextlib.redirect_stdout(sys.stderr) if manner.as_json else contextlib.nullcontext():
        pipeline = load(source)
    if manner.store is not None:
        pipeline.use_store(manner.store)
    yield pipeline.store, pipeline


def _look(there: Store, batch: Batch, pipeline: Pipeline | None, full: bool) -> Reconciliation:
    if pipeline is None:
        return look(there, batch, how=_how(full))
    found = pipeline.reconcile(batch.name, full=full)
    if found.expected.keys is None:
        raise UsageError(f"pipeline {pipeline.name!r} has no source that could be read again: leave --source away")
    return found


def _seal(there: Store, batch: Batch, found: Reconciliation, manner: Manner, most: int) -> float | None:
    """Sealing what is sealed already changes nothing: perhaps the answer of the first time was lost."""
    if batch.sealed_at is not None and found.is_explained:
        return batch.sealed_at
    return lifecycle.seal(there, batch, found, actor=manner.who, reason=manner.reason, tolerated=most).sealed_at


def _how(full: bool) -> How:
    return "full" if full else "quick"


def _repair(
    there: Store, batch: Batch, found: Reconciliation, pipeline: Pipeline | None, share: float, manner: Manner
) -> dict[str, Any]:
    """Show what would be done, ask, do it, and say what was done."""
    lifecycle.check_goes_on(there, batch)
    sinks: Mapping[int, Sink] | None = sinks_among(pipeline.stages) if pipeline is not None else None
    findings = repairable(there, batch, sinks, _how(found.observed.how == "full"))
    wanted = repair.preview_repair(batch, found, findings)
    if not manner.as_json:
        render.say()
        show_preview(wanted)
        warn_of_end(there, batch)
    if wanted.items:
        repair.check_share(wanted, share)
    if manner.dry_run or not wanted.items:
        return {"plan": wanted.as_dict(), "changed": 0}
    by = agreed(f"Send {render.many(wanted.items, 'item')} of {batch.name} back", manner)
    done = repair.repair(there, batch, findings, by)
    if not manner.as_json:
        render.say(f"{render.many(done.changed, 'item')} went back: run the batch to make them again.", render.GOOD)
    return {"plan": wanted.as_dict(), **done.as_dict()}


def _expected(found: Reconciliation) -> str:
    """Return how much of what should be there is known to have come."""
    expected = found.expected
    source = "source read to its end" if expected.read else "more may come"
    if expected.scanned and not expected.read:
        source = "source not read to its end: run it again"
    if expected.closed:
        source = "closed: no more come"
    if found.end in (End.STOPPED, End.CANCELLED):
        source = f"taken until it was {found.end}"
    if expected.total is not None:
        source = f"of {expected.total:,}"
    return source + ("" if found.expected.keys is None else f"; {render.many(found.expected.keys, 'key')} compared")


def _state(there: Store, batch: str, found: Reconciliation) -> str:
    """Return the word for the batch: what was found decides, and else what its status says."""
    seen = standing.snapshot(there, lookup.batch_named(there, batch))
    return word_of(there, seen) if found.is_explained or seen.end is None else found.state


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
        rows.append(("follows", "one of them is the scan itself, which never ends, unless it is cancelled"))
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
        render.show(render.table(columns, [_row(each, stages) for each in found.findings[:SHOWN]]))
        total = sum(found.found.values())
        if total > SHOWN:
            render.say(f"… and {total - SHOWN:,} more; --json has the first {len(found.findings):,}", render.FAINT)


def _show_remedies(found: Reconciliation, batch: Batch, source: str | None) -> None:
    """Tell which commands would put it right."""
    commands = remedy_commands(found, batch, source=source)
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
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="How many items at a time.")] = None,
    verify: Annotated[
        Literal["none", "quick", "full"] | None,
        typer.Option(
            "--verify",
            help="Look at recorded outputs first: not at all, whether they are there, or at all that is in them.",
        ),
    ] = None,
    changed: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option("--changed", help="What to do where a known key came with another payload."),
    ] = None,
    code: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option("--code", help="The code of a stage changed since: keep what is done, or run it again."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would do with every item, and why, with a forecast. Nothing is changed.

    Ends with 0, or with 1 where a run would be refused.
    """
    if store is not None:
        os.environ["HOLDFAST_STORE"] = store
    said: dict[str, Any] = {
        "batch": batch, "key": key, "workers": workers, "verify": verify, "changed": changed, "code": code,
    }  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        found = load_runnable(target)
        pipeline = found.pipeline if isinstance(found, Scan) else found
        if store is not None:
            pipeline.use_store(store)
        else:
            remember(pipeline.store_name)
        if isinstance(found, Scan) and key is not None:
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
        render.show(render.table(["would", "items", "why", "stage", "such as"], rows, right=["items"]))
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
