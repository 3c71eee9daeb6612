"""`holdfast run`: run a pipeline or a scan from a file or a module, and print its report."""

import inspect
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from holdfast import Budget, Follow, Scan, ScanReport, Tick, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import JsonOption, StoreOption, quietly
from holdfast.interfaces.cli.render import all_pasteable, remember
from holdfast.interfaces.cli.target import load_runnable


def run(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="app.py:book, or package.module:book.")],
    batch: Annotated[
        str | None, typer.Option("--batch", help="The batch to start or continue. Default: the pipeline's name.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The field that identifies an item.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="How many items run at the same time.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="USD", help="The most that the batch may cost in all.")
    ] = None,
    tolerate: Annotated[
        str | None, typer.Option("--tolerate", metavar="N|SHARE", help="How many dead letters are tolerated: 5 or 1%.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Stop this run after: 30s, 15m, 2h.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="End the batch after 12h, or at 2026-12-01T06:00+00:00."),
    ] = None,
    stop_beyond: Annotated[
        str | None,
        typer.Option(
            "--stop-beyond", metavar="N|SHARE", help="Stop the run when more items than this are dead: 5 or 1%."
        ),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="TIME", help="How long a worker that does not respond keeps its items."),
    ] = None,
    verify: Annotated[
        Literal["none", "quick", "full"] | None,
        typer.Option(
            "--verify",
            help="How recorded outputs are checked first: none, quick (they exist) or full (their content).",
        ),
    ] = None,
    undo: Annotated[
        str | None, typer.Option("--undo", metavar="N|SHARE", help="How many done items may be sent back: 5 or 10%.")
    ] = None,
    changed: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option("--changed", help="How to treat a known key that comes with another payload."),
    ] = None,
    events: Annotated[
        list[str] | None,
        typer.Option("--events", metavar="URL|file:PATH|-", help="A receiver of events; may be repeated."),
    ] = None,
    on_code_change: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option(
            "--on-code-change", help="How to treat outputs of a stage whose code changed: keep them, or run it again."
        ),
    ] = None,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal the batch if every item is accounted for: it takes no more changes.")
    ] = False,
    poll: Annotated[
        str | None,
        typer.Option(
            "--poll",
            metavar="TIME",
            help="For a follower: look for new rows this often. Default: look once.",
        ),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Accept a source without items or rows: exit with 0, not with 1.")
    ] = False,
    patience: Annotated[
        str | None,
        typer.Option(
            "--patience", metavar="TIME", help="How long to wait for a source that is not available. Default: 5m."
        ),
    ] = None,
    accept_source: Annotated[
        str | None,
        typer.Option(
            "--accept-source",
            metavar="REASON",
            help="For a scan whose source changed: continue, with this reason for the journal.",
        ),
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress", help="Show progress. Default: yes, unless --json is given.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a pipeline or a scan, or continue it: finished work is not done again. Exits with 0, 1, 2 or 75."""
    if store is not None:
        os.environ["HOLDFAST_STORE"] = store
    said: dict[str, Any] = {
        "batch": batch,
        "key": key,
        "workers": workers,
        "deadline": deadline,
        "lease": lease,
        "verify": verify,
        "undo": undo,
        "changed": changed,
        "events": events,
        "on_code_change": on_code_change,
        "seal": seal,
        "poll": poll,
        "accept_source": accept_source,
        "patience": patience,
        "allow_empty": allow_empty if allow_empty else None,
        "until": _until(until),
        "tolerate": tolerate,
        "stop_beyond": stop_beyond,
        "budget": _budget(budget),
        "progress": False if as_json and progress is None else progress,
        "signals": "report",
    }
    options = {name: value for name, value in said.items() if value is not None}
    with quietly(as_json):
        found = load_runnable(target)
        pipeline = found.pipeline if isinstance(found, Scan | Follow) else found
        if store is not None:
            pipeline.use_store(store)
        else:
            remember(pipeline.store_name)
        if isinstance(found, Scan | Follow):
            report = _scan(target, found, options)
        else:
            _check_no_scan(target, options)
            report = found.run(**options)
    _tell(report, as_json)
    raise typer.Exit(report.exit_code)


def _check_no_scan(target: str, options: dict[str, Any]) -> None:
    said = [f"--{name.replace('_', '-')}" for name in ("poll", "accept_source") if name in options]
    if said:
        raise UsageError(f"{target} is a pipeline, which takes no {' and no '.join(said)}; nothing was run")


def _scan(target: str, scan: Scan | Follow, options: dict[str, Any]) -> Any:
    """Run a scan. A follower without --poll looks once."""
    looks_once = isinstance(scan, Follow) and "poll" not in options
    verb = scan.tick if isinstance(scan, Follow) and looks_once else scan.run
    if isinstance(scan, Follow) and not looks_once and options.get("progress") is not False:
        options = {**options, "progress": _line}
    return verb(**_of_a_scan(target, scan, verb, options))


def _line(tick: Tick) -> None:
    """Print what a tick of a follower did; flushed, so that a log file is up to date."""
    render.say(tick.line, render.BAD if tick.dead else "")
    sys.stdout.flush()


def _of_a_scan(target: str, scan: Scan | Follow, verb: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a scan; raise UsageError if it does not take one of them."""
    known = inspect.signature(verb).parameters
    foreign = [name for name, value in options.items() if name not in known and value is not False]
    if foreign:
        said = " and no ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise UsageError(f"{target} is a scan, which takes no {said}; nothing was run{_instead(foreign, scan.follows)}")
    return {name: value for name, value in options.items() if name in known}


def _instead(foreign: list[str], follows: bool) -> str:
    """Return how to tolerate dead letters instead."""
    if "tolerate" not in foreign:
        return ""
    if follows:
        return ". A follower never ends: holdfast dead list BATCH --exit-code tells whether there are dead letters"
    return ". Dead letters are judged by holdfast reconcile BATCH --tolerate …"


def _tell(report: Any, as_json: bool) -> None:
    if as_json:
        more: dict[str, Any] = {}
        if isinstance(report, ScanReport):
            more = {"rows": report.rows, "result": report.plain_result()}
        plain = report.as_dict()
        ours = {name: all_pasteable(plain[name]) for name in ("why", "warnings") if name in plain}
        render.document({**plain, **ours, **more})
        return
    style = {0: render.GOOD, 1: render.BAD}.get(report.exit_code, render.CARE)
    first, _, rest = str(report).partition("\n")
    render.say(first, style)
    if rest:
        render.report(rest)
    if isinstance(report, ScanReport):
        render.say(f"  rows     {report.rows:,} in {render.many(report.run.kinds.count, 'partition')}")
        if report.are_apart:
            render.say(f"  result   {render.many(len(report.parts), 'part')}, and no converge to bring them together")
        if report.result is not None:
            render.say(f"  result   {render.one_line(str(report.result), 400)}")


def _budget(text: str | None) -> Budget | None:
    return None if text is None else Budget(usd=text.strip().removeprefix("$"))


def _until(text: str | None) -> str | datetime | None:
    """Return a moment if the text begins like a date, else a time from now."""
    if text is None or not text[:4].isdigit() or text[4:5] != "-":
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--until {text}: write a time such as 12h, or a moment such as 2026-12-01T06:00+00:00"
        ) from None
