"""The commands that inspect: `holdfast status`, `show`, `why`, and statistics as tables."""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import holdfast as hf
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import BatchArgument, ItemArgument, JsonOption, StoreOption
from holdfast.interfaces.cli.render import pasteable
from holdfast.runtime.text import brief, command, to_the_millisecond, unpause_command, when

if TYPE_CHECKING:
    from holdfast import BatchHandle, ItemHandle, Statistics, Status, StoreHandle
    from holdfast.runtime.report.overview import ScanOverview
    from holdfast.runtime.report.statistics import StageStatistics, Summary
    from holdfast.runtime.report.status import HeldChunk

COLUMNS = ["count", "min", "p50", "mean", "p95", "max", "sum"]


def statistics_tables(collected: "Statistics") -> Iterator[Table]:
    """Yield tables: time, money and metrics by stage; outcomes of attempts; models."""
    parts = [*collected.stages, collected.overall] if len(collected.stages) > 1 else list(collected.stages)
    rows = [row for part in parts for row in _numbers(part)]
    if rows:
        yield render.table(["stage", "per attempt", *COLUMNS], rows, right=COLUMNS)
    yield render.table(
        ["stage", "attempts", "outcomes", "attempts per item", "errors"],
        [(name(part), f"{part.runs:,}", *_distributions(part)) for part in parts],
        right=["attempts"],
        whole=["stage"],
    )
    shares = [
        (model, f"{share.attempts:,}", f"{share.tokens:,}", render.usd(share.usd))
        for model, share in collected.overall.models.items()
    ]
    if shares:
        yield render.table(["model", "attempts", "tokens", "cost"], shares, right=["attempts", "tokens", "cost"])


def name(part: "StageStatistics") -> str:
    """Return the name of the stage, or `all` for all stages together."""
    return part.stage if part.stage is not None else "all"


def _numbers(part: "StageStatistics") -> Iterator[tuple[str, ...]]:
    kinds = [
        ("queue s", part.queue),
        ("execution s", part.execution),
        ("total s", part.total),
        ("cost", part.usd),
        ("tokens", part.tokens),
    ]
    kinds += part.metrics.items()
    for kind, summary in kinds:
        if summary.count:
            yield (name(part), kind, *_row(summary))


def _row(summary: "Summary") -> list[str]:
    return [_cell(getattr(summary, column)) for column in COLUMNS]


def _cell(value: float | Decimal | None) -> str:
    if isinstance(value, Decimal):
        return render.usd(value)
    return render.number(value, 3 if not value or value >= 0.01 else 2)


def _distributions(part: "StageStatistics") -> tuple[str, str, str]:
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in part.outcomes.items())
    needed = ", ".join(f"{count} ({items:,})" for count, items in list(part.attempt_counts.items())[:6])
    errors = ", ".join(f"{code} ({count:,})" for code, count in list(part.codes.items())[:6])
    return outcomes, needed, errors


MANY_ATTEMPTS = 1_000_000
LISTED = 30
"""How many batches are listed without --limit."""
HALTED = {
    "budget": "its budget was used up: raise it",
    "breaker": "a service did not answer for too long: check it",
    "tolerance": "more items died than are tolerated: handle the dead letters, or raise the tolerance",
}
WORDS = {
    "sealed": render.GOOD,
    "sealed with dead letters": render.CARE,
    "empty": render.BAD,
    "finished with findings": render.BAD,
    "over tolerance": render.BAD,
    "complete": render.GOOD,
    "complete with dead letters": render.CARE,
    "running": render.GOOD,
    "following": render.GOOD,
    "waiting": render.CARE,
    "stopped": render.BAD,
    "cancelled": render.BAD,
    "paused": render.CARE,
    "open": render.CARE,
    "interrupted": render.CARE,
    "orphaned": render.BAD,
    "not begun": render.FAINT,
    "complete, not converged": render.BAD,
}
STATES = ("done", "skipped", "dead", "cancelled", "pending")
WITH_TIMES = 100
"""Columns that a screen needs to list batches with the time they were opened."""
RARE = ("skipped", "cancelled")
"""Columns of the list that are left out if they would be empty."""


def status(
    batch: Annotated[
        str | None, typer.Argument(metavar="BATCH", help="The name of the batch. Default: all batches.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until everything is complete, or until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="With --watch: seconds between two refreshes.")
    ] = 1.0,
    numbers: Annotated[
        bool | None,
        typer.Option(
            "--statistics/--no-statistics",
            help="Show statistics by stage. Default: yes, below a million attempts.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="The most to list, newest first. Default: 30; with --json, all.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a batch: counts, money, rate, time left, owners. Without a batch, list the newest batches."""
    with hf.open(store) as there:
        if watch and not as_json:
            _watch(there, batch, every, LISTED if limit is None else limit)
        elif batch is None and as_json:
            seen = [each.status().as_dict() for each in there.batches(newest=limit)]
            render.document({"store": there.url, "batches": seen, "set_back": there.set_back()})
        elif batch is None:
            render.show(_list(there, [each.status() for each in there.batches(newest=limit or LISTED)]))
            _tell_history(there.set_back())
        else:
            _tell(there[batch], numbers, as_json)


def _tell(batch: "BatchHandle", numbers: bool | None, as_json: bool) -> None:
    """Show one batch, with the statistics of its stages unless reading them would take long."""
    seen = batch.status()
    wanted = seen.totals.attempts <= MANY_ATTEMPTS if numbers is None else numbers
    collected = batch.statistics() if wanted else None
    if as_json:
        more: dict[str, Any] = {} if collected is None else {"statistics": collected.as_dict()}
        if seen.kind == "partitions":
            more |= {"scan": batch.overview().as_dict(), "partitions": [each.as_dict() for each in batch.partitions()]}
            more |= {"notes": [each.as_dict() for each in batch.remarks()], "not_converged": batch.unconverged()}
        render.document({**seen.as_dict(), **more, "set_back": batch.set_back()})
        return
    render.show(_picture(batch, seen))
    _tell_history(batch.set_back())
    if collected is not None and collected.overall.runs:
        for part in statistics_tables(collected):
            render.say()
            render.show(part)
    elif collected is None and numbers is None:
        render.say(f"\nStatistics of {seen.totals.attempts:,} attempts: add --statistics", render.FAINT)


def _tell_history(text: str) -> None:
    if text:
        render.say(f"{text[0].upper()}{text[1:]}.", render.CARE)


def _picture(batch: "BatchHandle", seen: "Status") -> RenderableType:
    """Return a batch at a glance; a scan with its partitions."""
    if seen.kind != "partitions":
        return picture(seen)
    from holdfast.interfaces.cli import cursor

    notes = [("note", Text(render.clean(str(each)), style=render.CARE)) for each in batch.remarks()]
    if why := batch.unconverged():
        told = f"outstanding: {why}; correct it and run again"
        notes.append(("converge", Text(render.clean(told), style=render.BAD)))
    return render.together(
        picture(seen, batch.overview(), notes), "", cursor.partitions(batch.name, batch.partitions())
    )


def _watch(there: "StoreHandle", batch: str | None, every: float, limit: int) -> None:
    """Refresh until everything is complete; the last picture stays on the screen."""
    console = render.out()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    try:
        with live if live is not None else nullcontext():
            while True:
                batches = there.batches(newest=limit) if batch is None else [there[batch]]
                seen = [each.status() for each in batches]
                shown = _picture(batches[0], seen[0]) if batch is not None else _list(there, seen)
                if live is not None:
                    live.update(shown, refresh=True)
                else:
                    render.show(shown)
                if seen and all(_is_over(each) for each in seen):
                    return
                time.sleep(every)
    except KeyboardInterrupt:
        return


def _is_over(seen: "Status") -> bool:
    return (seen.end is not None or seen.is_empty) and not _in_hands(seen)


def _in_hands(seen: "Status") -> bool:
    """Return whether a live owner holds items, even if only to finish them after a cancel."""
    return any(lease.is_live for lease in seen.leases)


Facts = list[tuple[str, str | Text]]


def picture(
    seen: "Status", scan: "ScanOverview | None" = None, notes: Sequence[tuple[str, Text]] = ()
) -> RenderableType:
    """Return a batch at a glance."""
    what = f"pipeline {seen.pipeline}: {' → '.join(seen.stages)}" if scan is None else f"scan {seen.pipeline}"
    head = render.heading(f"{seen.batch}", f"{seen.state} · {what}", WORDS[seen.state])
    return render.together(head, render.facts([*_facts(seen, scan), *notes]))


def _facts(seen: "Status", scan: "ScanOverview | None") -> list[tuple[str, str | Text]]:
    c, totals, forecast = seen.counts, seen.totals, seen.forecast
    more = "; more may come" if scan is None else "; the source was not read to its end yet"
    reading = "" if seen.ingested_at is not None or seen.expected is not None else more
    states = {"done": c.done, "skipped": c.skipped, "dead": c.dead, "cancelled": c.cancelled, "pending": c.pending}
    rows: Facts = []
    if scan is None:
        rows.append(("items", f"{_sum(states)}{reading}"))
    else:
        parts = {word: scan.states.get(word, 0) for word in states}
        rows.append(("partitions", f"{_sum(parts)}{reading}"))
        if scan.follows:
            rows.append(("", "the pending one is the scan itself, which follows its source and never ends"))
        rows.append(("rows", _rows(scan, parts["pending"])))
        buried = {word: count - parts[word] for word, count in states.items() if count != parts[word]}
        rows += [("buried rows", _sum(buried))] if buried else []
    if c.pending and (scan is None or not scan.follows):
        rows.append(
            ("pending", f"{c.ready:,} ready + {c.running:,} claimed + {c.waiting:,} waiting + {c.orphaned:,} orphaned")
        )
    rows += _course(seen)
    money = f"{render.usd(totals.usd)} so far" if totals.usd else "nothing spent"
    if c.pending and forecast.usd:
        money += f", about {render.usd(forecast.usd)} more for what is left"
    work = f", {_attempts(totals.attempts)}, {brief(totals.seconds)} of work"
    if scan is not None and not totals.attempts:  # an attempt at a partition is counted when it has ended
        work = f", {brief(totals.seconds)} of work" if totals.seconds else ""
    rows.append(("cost", f"{money}; {totals.tokens:,} tokens{work}"))
    if forecast.rate is not None and c.pending and scan is None:
        left = (
            f", about {brief(forecast.seconds)} left"
            if forecast.seconds is not None
            else ", but no process works on it now"
        )
        rows.append(("rate", f"{render.number(forecast.rate)} items/s{left}"))
    if seen.progressed_at is not None:
        rows.append(("progress", f"{brief(max(0.0, seen.at - seen.progressed_at))} ago, at {when(seen.progressed_at)}"))
    if seen.seal is not None:
        cut = f", after it was {seen.end}" if seen.end in ("stopped", "cancelled") else ""
        why = f": {seen.seal.reason}" if seen.seal.reason else ""
        rows.append(("sealed", f"at {when(seen.seal.at)} by {seen.seal.by_whom}{cut}{why}"))
        rows += [("late", Text(render.clean(str(late)), style=render.CARE)) for late in seen.seal.late[:8]]
    rows += _leases(seen, "item" if scan is None else "partition")
    if seen.dead_codes:
        codes = ", ".join(f"{code} ({count:,})" for code, count in list(seen.dead_codes.items())[:6])
        rows.append(("dead", Text(render.told(f"{codes}  ({command('dead list', seen.batch)})"), style=render.BAD)))
    if seen.blame is not None:
        rows.append(("careful", Text(render.told(str(seen.blame)), style=render.CARE)))
    if c.orphaned:
        again = "run the batch again, or " if seen.mode == "open" else ""
        why = "left in a cancelled batch" if seen.mode == "cancelled" else "no progress for long"
        rows.append(("orphaned", f"{why}: {again}see {command('orphans', seen.batch)}"))
    return rows


def _sum(states: dict[str, int]) -> str:
    return f"{sum(states.values()):,} = " + " + ".join(f"{count:,} {word}" for word, count in states.items())


def _attempts(count: int) -> str:
    return render.many(count, "attempt")


def _rows(scan: "ScanOverview", pending: int) -> str:
    """Return the progress of a scan in rows: so far, left, rate, time left."""
    told = [f"{scan.rows:,} so far"]
    if scan.follows:
        told += [scan.lag] if scan.lag and scan.lag != "everything" else []
    elif scan.rows_left is not None and pending:
        told.append(f"about {scan.rows_left:,} left")
    if scan.rate is not None:
        told.append(f"{render.number(scan.rate)} rows/s")
    if scan.seconds_left is not None:
        told.append(f"about {brief(scan.seconds_left)} to go")
    return ", ".join(told)


def _leases(seen: "Status", noun: str) -> list[tuple[str, str | Text]]:
    """Return the owners, each in one line with all of its chunks."""
    by_owner: dict[tuple[str, bool], list[HeldChunk]] = {}
    for lease in seen.leases:
        by_owner.setdefault((lease.owner, lease.is_live), []).append(lease)
    rows: list[tuple[str, str | Text]] = [("held by", _held(held, noun)) for held in list(by_owner.values())[:8]]
    return rows if len(by_owner) <= 8 else [*rows, ("", f"… and {render.many(len(by_owner) - 8, 'owner')} more")]


def _course(seen: "Status") -> list[tuple[str, str | Text]]:
    """Return whether the batch may continue, and when it ends."""
    rows: list[tuple[str, str | Text]] = []
    if seen.expected is not None:
        missing = seen.expected - seen.counts.expected
        short = (
            f", {missing:,} {'never came' if seen.ingested_at is not None else 'have not come yet'}"
            if missing > 0
            else ""
        )
        rows.append(("expected", f"{seen.expected:,}{short}" + (f", {-missing:,} more came" if missing < 0 else "")))
    if seen.closed_at is not None:
        rows.append(("closed", f"since {when(seen.closed_at)}: it takes no new items"))
    if seen.mode == "paused":
        text = f"paused by a person; to continue: {unpause_command(seen.batch)}, then run it"
        rows.append(("mode", Text(render.told(text), style=render.CARE)))
    if seen.end is None and seen.mode == "open" and seen.halted in HALTED:
        rows.append(("mode", Text(f"{HALTED[seen.halted]}, then run it", style=render.CARE)))
    if seen.mode == "cancelled":
        left = f"; {render.many(seen.counts.pending, 'item')} left with {_owners(seen)}" if seen.counts.pending else ""
        rows.append(("mode", Text(f"cancelled, for good{left}", style=render.BAD)))
    if seen.ends_at is not None:
        away = seen.ends_at - seen.at
        rows.append(("end", f"{when(seen.ends_at)}, {f'in {brief(away)}' if away > 0 else f'{brief(-away)} ago'}"))
    return rows


def _owners(seen: "Status") -> str:
    if any(lease.is_live for lease in seen.leases):
        return "their owners"
    return f"owners that are gone: {command('cancel', seen.batch)} cancels them"


def _held(leases: "list[HeldChunk]", noun: str) -> str:
    lease = min(leases, key=lambda each: each.expires_in)
    if lease.is_live:
        ends = f"lease for another {brief(lease.expires_in)}"
    else:
        ended = "gone" if lease.expires_in >= 0 else f"lease ended {brief(-lease.expires_in)} ago"
        ends = f"{ended}: the next run takes it over"
    if lease.by_its_clock:
        ends += ", as its owner's clock tells"
    held = render.many(sum(each.pending for each in leases), noun)
    if len(leases) == 1:
        return f"{lease.owner}: {held} of chunk {lease.chunk} under fence {lease.fence}, {ends}"
    fences = ", ".join(str(fence) for fence in sorted({each.fence for each in leases})[:8])
    return f"{lease.owner}: {held} of {len(leases):,} chunks under fence {fences}, {ends}"


def _list(there: "StoreHandle", seen: "list[Status]") -> RenderableType:
    if not seen:
        return Text(render.clean(f"{there.url} holds no batch yet."))
    shown = [name for name in STATES if name not in RARE or any(getattr(each.counts, name) for each in seen)]
    rows: list[tuple[Any, ...]] = [
        (
            each.batch,
            Text(each.state, style=WORDS[each.state]),
            f"{each.counts.expected:,}",
            *(f"{getattr(each.counts, name):,}" for name in shown),
            render.usd(each.totals.usd),
            when(each.opened_at),
        )
        for each in seen
    ]
    headers = ["batch", "state", "items", *shown, "cost", "opened"]
    if render.out().width < WITH_TIMES:
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    table = render.table(headers, rows, right=["items", *shown, "cost"], whole=["batch", "opened"])
    if not (older := len(there) - len(seen)):
        return table
    more = f"… and {older:,} older: holdfast status --limit {older + len(seen)}"
    return render.together(table, Text(more, style=render.FAINT))


def show(
    batch: BatchArgument,
    item: Annotated[str | None, typer.Argument(metavar="ITEM", help="One item: its key, or #N for its number.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a batch with the statistics of its stages, or an item with its payload and outputs."""
    with hf.open(store) as there:
        found = there[batch]
        if item is not None:
            _show_item(found.item(item), as_json)
            return
        _tell(found, True, as_json)


def _show_item(item: "ItemHandle", as_json: bool) -> None:
    outputs, part = item.outputs(), item.partition()
    if as_json:
        render.document(
            {
                "batch": item.batch,
                "key": item.key,
                "n": item.number,
                "state": item.state.value,
                "stage": item.stage,
                "epoch": item.epoch,
                "attempt": item.attempts,
                "due": item.due,
                "code": item.code,
                "reason": item.reason,
                "payload": item.payload,
                "outputs": outputs,
                **({} if part is None else {"checkpoint": part.as_dict()}),
            }
        )
        return
    rows: list[tuple[str, str | Text]] = [("stage", item.stage), ("epoch", str(item.epoch))]
    rows += [("attempts", str(item.attempts))] if item.attempts else []
    rows += [("code", f"{item.code}: {item.reason}")] if item.code else []
    rows += [("checkpoint", at)] if (at := item.checkpoint()) else []
    rows.append(("payload", render.one_line(item.raw_payload.decode("utf-8", "replace"), 400)))
    rows += [(name, render.one_line(render.compact(made["output"]), 400)) for name, made in outputs.items()]
    render.show(render.heading(f"item {item.key!r} (number {item.number}) of {item.batch}", item.state.value))
    render.show(render.facts(rows))
    render.say(f"\nIts story: {command('why', item.batch, item.key)}", render.FAINT)


def why(batch: BatchArgument, item: ItemArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Explain an item: why it is in its state, everything that happened to it, and what can be done."""
    with hf.open(store) as there:
        told = there[batch].item(item).why()
    if as_json:
        commands = [pasteable(each) for each in told.commands]
        render.document(told.as_dict() | {"commands": commands})
        return
    render.show(render.heading(f"item {told.key!r} (number {told.number}) of batch {told.batch!r}", told.state))
    render.show(render.facts([("now", told.now), *([("checkpoint", told.checkpoint)] if told.checkpoint else []),
                              *([("note", told.note)] if told.note else []),
                              *([("cost", told.cost)] if told.cost else [])]))  # fmt: skip
    render.say()
    render.show(render.facts((to_the_millisecond(event.at), event.text) for event in told.events))
    render.say()
    render.commands("next", told.next, told.commands)
