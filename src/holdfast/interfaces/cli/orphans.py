"""`holdfast orphans`: what is stuck, since when and why; and what a person decides about it."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.core import canonical
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, Course
from holdfast.core.orphans import Kind, Strategy
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import Manner, agreed, goes_on, opened, say_result, with_manner
from holdfast.runtime import lookup
from holdfast.runtime.commands import command, unpause
from holdfast.runtime.durations import in_words
from holdfast.runtime.stuck import discovery, resolution
from holdfast.runtime.stuck.orphans import Orphan
from holdfast.stores.base import Store

STRATEGIES = "|".join(strategy.value for strategy in Strategy)
ADVISED = 5
"""Batches that are named in advice of one kind."""
HEADERS = ["batch", "item", "stage", "kind", "idle for", "owner", "last error", "requeued"]


@with_manner()
def orphans(
    batch: Annotated[str | None, typer.Argument(metavar="BATCH", help="One batch; without it, all of them.")] = None,
    strategy: Annotated[
        str | None, typer.Option("--resolve", metavar=STRATEGIES, help="What becomes of the orphans of BATCH.")
    ] = None,
    item: Annotated[
        list[str] | None, typer.Option("--item", metavar="KEY", help="Only this one, or #N; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to list at most.")] = 50,
    *,
    manner: Manner,
) -> None:
    """List what is stuck, or resolve it: requeue from its checkpoint, fail, or send to review. Ends with 1 if any."""
    if strategy is None:
        if item:
            raise UsageError("--item goes with --resolve; to look at one item: holdfast why BATCH ITEM")
        with opened(manner.store) as there:
            _look(there, batch, limit, manner)
        return
    chosen = resolution.check_strategy(strategy)
    if batch is None:
        raise UsageError("--resolve: name the batch; nothing was changed")
    with opened(manner.store) as there:
        _resolve(there, lookup.batch_named(there, batch), chosen, item, manner)


def _look(there: Store, batch: str | None, limit: int, manner: Manner) -> None:
    """Show what is stuck; what was not announced before becomes an event."""
    batches = there.batches() if batch is None else [lookup.batch_named(there, batch)]
    total, kinds, first, now = 0, Counter[str](), list[Orphan](), there.now()
    found: list[tuple[Batch, Counter[str]]] = []
    who = manner.who
    for each in batches:
        seen = discovery.look(there, each, limit=limit - len(first))
        discovery.announce(there, each, seen, actor=who)
        total, kinds = total + seen.total, kinds + seen.kinds
        first += seen.first
        found += [(each, seen.kinds)] if seen.total else []
    if manner.as_json:
        by_batch = {each.name: _by_kind(of) for each, of in found}
        items = [orphan.as_dict() for orphan in first]
        render.document({"orphans": total, "kinds": _by_kind(kinds), "batches": by_batch, "items": items})
    elif not total:
        render.say(f"{batch if batch is not None else 'The store'}: nothing is stuck.", render.GOOD)
    else:
        render.show(render.table(HEADERS, _rows(first, now), right=["requeued"]))
        shown = "" if len(first) == total else f", the first {len(first):,} shown"
        parts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
        render.say(f"\n{render.many(total, 'item')} stuck: {parts}{shown}.")
        for kind in Kind:
            concerned = [each for each, of in found if of[kind.value]]
            for each in concerned[:ADVISED]:
                render.say(_advice(kind, each), render.FAINT)
            if len(concerned) > ADVISED:
                render.say(f"… and so on for {len(concerned) - ADVISED:,} more batches", render.FAINT)
    raise typer.Exit(1 if total else 0)


def _by_kind(counts: Counter[str]) -> dict[str, int]:
    return {kind.value: counts[kind.value] for kind in Kind}


def _rows(found: list[Orphan], now: float) -> Iterator[tuple[str, ...]]:
    for orphan in found:
        owner = orphan.owner if orphan.owner else "nobody yet"
        hands = f"{owner}, alive" if orphan.is_held else owner
        yield (
            orphan.batch, canonical.key_text(orphan.key), orphan.stage, orphan.kind.value, in_words(now - orphan.since),
            "-" if orphan.kind is Kind.UNANSWERED else hands, render.one_line(orphan.error, 60) or "-",
            str(orphan.place.requeues),
        )  # fmt: skip


def _advice(kind: Kind, of: Batch) -> str:
    """What to do about what is stuck in this way in a batch."""
    batch = of.name
    if kind is Kind.STRANDED:
        return f"stranded in a cancelled batch: {command('orphans', batch, options='--resolve fail|review --reason …')}"
    if kind is Kind.UNANSWERED:
        return f"unanswered dead letters: {command('dead list', batch)}, then redrive, resolve or discard"
    first = f"{unpause(batch)}, then " if of.course is Course.PAUSED else ""
    return (
        f"stuck: {first}run {batch} again, or {command('orphans', batch, options=f'--resolve {STRATEGIES} --reason …')}"
    )


def _resolve(there: Store, batch: Batch, strategy: Strategy, items: list[str] | None, manner: Manner) -> None:
    """Show what would happen, ask, do it, and say what happened."""
    chosen = items if items else None
    shown = resolution.preview(there, batch, strategy, chosen)
    if not goes_on(manner, shown.as_dict(), lambda: _show(shown)):
        return
    what = f"{strategy.value.capitalize()} {render.many(shown.items, 'orphan')} of {batch.name}"
    by = agreed(what, manner, nothing_to_do=shown.items == 0)
    say_result(resolution.resolve(there, batch, by, strategy, chosen), manner.as_json)


def _show(shown: resolution.Preview) -> None:
    keys = f" ({', '.join(shown.first)}{', …' if shown.items > len(shown.first) else ''})" if shown.first else ""
    render.say(f"{render.many(shown.items, 'orphan')} of {shown.batch}{keys} would be resolved by {shown.strategy}:")
    rows = []
    if shown.requeued:
        rows.append(("requeued", f"{shown.requeued:,}, to resume from their checkpoint with the next run"))
    if shown.buried:
        often = ", because they were re-enqueued too often" if shown.strategy == Strategy.REQUEUE.value else ""
        rows.append(("buried", f"{shown.buried:,}, as dead letters{often}"))
    if shown.never_begun:
        rows.append(("never begun", f"{shown.never_begun:,} of them: nobody ever took them, a run still would"))
    if shown.in_flight:
        whom = ", ".join(shown.owners)
        rows.append(("fenced off", f"{whom}, alive, with {shown.in_flight:,} of them: what it does will not count"))
    rows += [("left alone", f"{count:,} ({why})") for why, count in shown.left_alone]
    render.show(render.facts(rows))
    if shown.warning:
        render.say(f"  {shown.warning}.", render.CARE)
