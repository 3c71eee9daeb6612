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
from holdfast.runtime import discovery, lookup, resolution
from holdfast.runtime.durations import in_words
from holdfast.runtime.orphans import Orphan
from holdfast.stores.base import Store

STRATEGIES = "|".join(strategy.value for strategy in Strategy)
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
    for each in batches:
        seen = discovery.look(there, each, limit=limit - len(first))
        discovery.announce(there, each, seen, actor=manner.who)
        total, kinds = total + seen.total, kinds + seen.kinds
        first += seen.first
    if manner.as_json:
        counts = {kind.value: kinds[kind.value] for kind in Kind}
        render.document({"orphans": total, "kinds": counts, "items": [orphan.as_dict() for orphan in first]})
    elif not total:
        render.say(f"{batch if batch is not None else 'The store'}: nothing is stuck.", render.GOOD)
    else:
        render.show(render.table(HEADERS, _rows(first, now), right=["requeued"]))
        shown = "" if len(first) == total else f", the first {len(first):,} shown"
        parts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
        render.say(f"\n{render.many(total, 'item')} stuck: {parts}{shown}.")
        of = first[0].batch if batch is None else batch
        for line in _advice(kinds, lookup.batch_named(there, of)):
            render.say(line, render.FAINT)
    raise typer.Exit(1 if total else 0)


def _rows(found: list[Orphan], now: float) -> Iterator[tuple[str, ...]]:
    for orphan in found:
        owner = orphan.owner if orphan.owner else "nobody yet"
        hands = f"{owner}, alive" if orphan.is_held else owner
        yield (
            orphan.batch, canonical.key_text(orphan.key), orphan.stage, orphan.kind.value, in_words(now - orphan.since),
            "-" if orphan.kind is Kind.UNANSWERED else hands, render.one_line(orphan.error, 60) or "-",
            str(orphan.place.requeues),
        )  # fmt: skip


def _advice(kinds: Counter[str], of: Batch) -> Iterator[str]:
    batch = of.name
    if kinds[Kind.STUCK.value]:
        first = f"holdfast pause {batch} --off --reason …, then " if of.course is Course.PAUSED else ""
        yield f"stuck: {first}run the batch again, or holdfast orphans {batch} --resolve {STRATEGIES} --reason …"
    if kinds[Kind.STRANDED.value]:
        yield f"stranded in a cancelled batch: holdfast orphans {batch} --resolve fail|review --reason …"
    if kinds[Kind.UNANSWERED.value]:
        yield f"unanswered dead letters: holdfast dead list {batch}, then redrive, resolve or discard"


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
        rows.append(("requeued", f"{shown.requeued:,}, to go on from their checkpoint with the next run"))
    if shown.buried:
        often = ", because they were re-enqueued too often" if shown.strategy == Strategy.REQUEUE.value else ""
        rows.append(("buried", f"{shown.buried:,}, as dead letters{often}"))
    if shown.in_flight:
        whom = ", ".join(shown.owners)
        rows.append(("fenced off", f"{whom}, alive, with {shown.in_flight:,} of them: what it does will not count"))
    rows += [("left alone", f"{count:,} ({why})") for why, count in shown.left_alone]
    render.show(render.facts(rows))
