"""`holdfast run`: a pipeline or a scan from a file or a module, to its report."""

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
        str | None, typer.Option("--budget", metavar="USD", help="The most that the batch may cost in total.")
    ] = None,
    tolerate: Annotated[
        str | None, typer.Option("--tolerate", metavar="N|SHARE", help="How many dead letters are acceptable: 5 or 1%.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="End this run after 30s, 15m, 2h …")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="The end of the batch: 12h from now, or 2026-12-01T06:00+00:00."),
    ] = None,
    stop_beyond: Annotated[
        str | None,
        typer.Option("--stop-beyond", metavar="N|SHARE", help="Stop when more items than this are dead: 5 or 1%."),
    ] = None,
    lease: Annotated[
        str | None, typer.Option("--lease", metavar="TIME", help="How long a claim lasts if this process dies.")
    ] = None,
    verify: Annotated[
        Literal["none", "quick", "full"] | None,
        typer.Option(
            "--verify",
            help="How closely recorded outputs are checked first: not at all, by size and time, or in full.",
        ),
    ] = None,
    undo: Annotated[
        str | None,
        typer.Option("--undo", metavar="N|SHARE", help="How many outputs that are no longer valid may be made again."),
    ] = None,
    changed: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option("--changed", help="What to do if a known key comes with another payload."),
    ] = None,
    events: Annotated[
        list[str] | None,
        typer.Option("--events", metavar="URL|file:PATH|-", help="A receiver of events; may be repeated."),
    ] = None,
    on_code_change: Annotated[
        Literal["refuse", "keep", "rerun"] | None,
        typer.Option(
            "--on-code-change", help="If the code of a stage has changed: keep finished items, or run them again."
        ),
    ] = None,
    seal: Annotated[bool, typer.Option("--seal", help="Seal the batch once every item is accounted for.")] = False,
    poll: Annotated[
        str | None,
        typer.Option(
            "--poll",
            metavar="TIME",
            help="For a follower: keep running, and look for new rows this often. Without it, look once.",
        ),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="A source without items or rows is fine: exit with 0, not with 1.")
    ] = False,
    patience: Annotated[
        str | None,
        typer.Option(
            "--patience", metavar="TIME", help="How long to wait for a source that is unavailable. Default: 5m."
        ),
    ] = None,
    accept_source: Annotated[
        str | None,
        typer.Option(
            "--accept-source",
            metavar="REASON",
            help="For a scan: continue although the source has changed. The journal keeps the reason.",
        ),
    ] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show progress.", show_default=False)
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a pipeline or a scan, or continue it: finished work is not repeated. Exits with 0, 1, 2 or 75."""
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
    """Run a scan. One that follows its source, and is not told to stay, looks once."""
    looks_once = isinstance(scan, Follow) and "poll" not in options
    verb = scan.tick if isinstance(scan, Follow) and looks_once else scan.run
    if isinstance(scan, Follow) and not looks_once and options.get("progress") is not False:
        options = {**options, "progress": _line}
    return verb(**_of_a_scan(target, scan, verb, options))


def _line(tick: Tick) -> None:
    """What a scan that stays did, when it did something: also in a file that somebody looks at meanwhile."""
    render.say(tick.line, render.BAD if tick.dead else "")
    sys.stdout.flush()


def _of_a_scan(target: str, scan: Scan | Follow, verb: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, if all of them mean something to a scan."""
    known = inspect.signature(verb).parameters
    foreign = [name for name, value in options.items() if name not in known and value is not False]
    if foreign:
        said = " and no ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise UsageError(f"{target} is a scan, which takes no {said}; nothing was run{_instead(foreign, scan.follows)}")
    return {name: value for name, value in options.items() if name in known}


def _instead(foreign: list[str], follows: bool) -> str:
    """Return where to say that some dead letters are fine."""
    if "tolerate" not in foreign:
        return ""
    if follows:
        return ". What follows never ends: holdfast dead list BATCH --exit-code tells whether dead letters stand"
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
    """Return a moment where it begins like a date, else a time from now."""
    if text is None or not text[:4].isdigit() or text[4:5] != "-":
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--until {text}: write a time such as 12h, or a moment such as 2026-12-01T06:00+00:00"
        ) from None
