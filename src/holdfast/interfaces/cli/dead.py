"""`holdfast dead`: dead letters, and what a person decides about them."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from holdfast.core import canonical
from holdfast.core.acts import OrphanKind, Strategy
from holdfast.core.course import stage_names
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, Course, Kind, State, StoredItem
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    BatchArgument,
    ItemArgument,
    JsonOption,
    Manner,
    StoreOption,
    agreed,
    goes_on,
    opened,
    say_result,
    show_preview,
    warn_of_end,
    with_manner,
)
from holdfast.runtime import lookup
from holdfast.runtime.acts import ActResult, By
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.operate import operations, resolution
from holdfast.runtime.operate.by_hand import fitted
from holdfast.runtime.operate.resolution import announce, look_for_orphans
from holdfast.runtime.partitions import kind_by_number
from holdfast.runtime.report import lifecycle, why
from holdfast.runtime.report import overview as glance
from holdfast.runtime.report.orphans import Orphan
from holdfast.runtime.text import command, in_words, unpause, when
from holdfast.stores.base import Store, chunk_of, each_item

app = typer.Typer(help="Dead letters: list, show, redrive, resolve, discard.", no_args_is_help=True)

KEYS_SHOWN = 5
PAYLOAD_SHOWN = 2000

ItemsArgument = Annotated[list[str] | None, typer.Argument(metavar="ITEM...", help="Keys of dead letters, or #N.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every dead letter of the batch.")]
CodeOption = Annotated[str | None, typer.Option("--code", help="Every dead letter with this error code.")]


@app.command("list")
def list_them(
    batch: Annotated[str | None, typer.Argument(metavar="BATCH", help="One batch; without it, all of them.")] = None,
    code: Annotated[str | None, typer.Option("--code", help="Only those with this error code.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of a batch at most.")] = 50,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 if there are any: for alerts.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters of a batch, or of all batches."""
    with opened(store) as there:
        batches = there.batches() if batch is None else [lookup.batch_named(there, batch)]
        found = [(each, list(islice(_dead(there, each, code), limit))) for each in batches]
        chunks = {each.id: there.chunks(each.id) for each in batches}
        total = sum(chunk.counts.dead for some in chunks.values() for chunk in some)
    if as_json:
        plain = [{"batch": each.name, **_plain(item, stage_names(each))} for each, items in found for item in items]
        render.document({"dead": total, "items": plain})
        raise typer.Exit(int(exit_code and bool(plain)))
    rows = [row for each, items in found for row in _rows(each, items, kind_by_number(chunks[each.id]))]
    if not rows:
        whose = batch if batch is not None else "The store"
        render.say(f"{whose} has no dead letters{f' with code {code!r}' if code else ''}.")
        return
    render.show(render.table(["batch", "item", "stage", "code", "attempts", "reason"], rows, right=["attempts"]))
    shown = render.many(total, "dead letter") if len(rows) == total else f"{len(rows):,} of {total:,} dead letters"
    render.say(f"\n{shown}. Next: {command('dead show', rows[0][0], rows[0][1])}", render.FAINT)
    raise typer.Exit(int(exit_code))


def _rows(batch: Batch, items: list[StoredItem], kind_of: Callable[[int], Kind]) -> Iterator[tuple[str, ...]]:
    names = stage_names(batch)
    for item in items:
        place, key = item.place, canonical.key_text(item.key)
        stage, reason = lookup.stage_title(names, place.stage), render.one_line(place.reason)
        untried = kind_of(item.n) is Kind.ROWS and not place.attempt  # its partition was tried, with other rows
        tried = "-" if untried else str(place.attempt)
        yield batch.name, key, stage, place.code, tried, reason


@app.command("show")
def show_one(batch: BatchArgument, item: ItemArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a dead letter: its payload, its digest and every attempt."""
    with opened(store) as there:
        found = lookup.batch_named(there, batch)
        letter = lookup.item_named(there, found, item)
        told = why.tell(there, found, item)
        part, kind = glance.of_item(there, found, letter), chunk_of(there, found.id, letter.n).kind
    attempts = [event for event in told.events if event.what == "attempt"]
    context = _context(told)
    if as_json:
        plain = _plain(letter, stage_names(found)) | {"payload": _payload(letter), "digest": _digest(letter)}
        plain |= {"context": context} if context else {}
        plain |= {"checkpoint": part.as_dict()} if part is not None else {}
        render.document(
            plain | {"attempts": [{"at": event.at, "text": event.text, **event.facts} for event in attempts]}
        )
        return
    render.show(render.heading(f"item {letter.key!r} of {batch}", letter.place.state.value, render.BAD))
    render.show(
        render.facts(
            [
                *_content(letter, kind),
                ("stage", told.stage),
                *([("code", letter.place.code)] if letter.place.code else []),
                *([("reason", letter.place.reason)] if letter.place.reason else []),
                ("digest", _digest(letter)),
                *([("context", _in_words(context))] if context else []),
                *([("checkpoint", told.checkpoint)] if told.checkpoint else []),
            ]
        )
    )
    for event in attempts:
        render.say()
        render.show(render.facts([(why.to_the_millisecond(event.at), event.text)]))
        trace = str(event.facts.get("trace", ""))
        if trace:
            render.say("\n".join(f"      {line}" for line in trace.rstrip().splitlines()[-12:]), render.FAINT)
    if told.commands[1:]:
        render.say()
        render.show(render.facts(("", command) for command in told.commands[1:]))


def _content(letter: StoredItem, kind: Kind) -> list[tuple[str, Text]]:
    """What the letter holds, as it is: a row of a scan field by field, else the payload."""
    if row := why.row_fields(letter) if kind is Kind.ROWS else []:
        return [(name, Text(render.clean(text))) for name, text in row]
    payload = letter.payload.decode("utf-8", "replace")
    return [("payload", Text(render.clean(render.one_line(payload, PAYLOAD_SHOWN))))]


def _context(told: why.ItemStory) -> dict[str, Any]:
    """What the item was doing when a person buried it as an orphan; empty where nobody did."""
    acted = next((event for event in reversed(told.events) if event.what in why.ACTS), None)
    found: dict[str, Any] = acted.facts.get("context", {}) if acted is not None else {}
    return found if told.state == State.DEAD else {}


def _in_words(context: dict[str, Any]) -> str:
    error = f"{context['last_code']}: {context['last_error']}" if context["last_code"] else "none"
    who = context["owner"] if context["owner"] else "nobody"
    return (
        f"{context['kind']} at {context['stage']!r} without progress since {when(context['since'])}; last owner {who}, "
        f"{render.many(context['attempts'], 'attempt')}, ${context['usd']} spent at this stage, re-enqueued "
        f"{context['requeues']} times; last error {error}"
    )


@app.command("redrive")
@with_manner()
def redrive(
    batch: BatchArgument,
    items: ItemsArgument = None,
    every: AllOption = False,
    code: CodeOption = None,
    *,
    manner: Manner,
) -> None:
    """Try dead letters again where they stopped, with a fresh budget of attempts."""
    _settle(operations.redrive, "redrive", "tried again where {they} stopped", batch, _chosen(items, every, code), code,
            manner)  # fmt: skip


@app.command("discard")
@with_manner()
def discard(
    batch: BatchArgument,
    items: ItemsArgument = None,
    every: AllOption = False,
    code: CodeOption = None,
    *,
    manner: Manner,
) -> None:
    """Give dead letters up: they count as cancelled from now on."""
    _settle(operations.discard, "discard", "given up: {they} count{s} as cancelled", batch, _chosen(items, every, code),
            code, manner)  # fmt: skip


@app.command("resolve")
@with_manner()
def resolve(
    batch: BatchArgument,
    item: ItemArgument,
    output: Annotated[
        str | None, typer.Option("--output", help="The output as JSON, @FILE, or - for standard input.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="TARGET", help="Check the output against the code, too: app.py:book."),
    ] = None,
    *,
    manner: Manner,
) -> None:
    """Settle a dead letter by hand: done with the output you give, else skipped."""
    raw = None if output is None else operations.check_output(_read(output))
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        stage = None if source is None else _last_stage(found, source, manner)
        data = None if raw is None else fitted(there, found, raw, stage)
        fate = "counted as skipped" if data is None else f"done with the output {render.one_line(data.decode(), 60)}"

        def act(by: By) -> ActResult:
            return operations.resolve(there, found, by, item, output=data, stage=stage)

        _Letters(there, found, [item], None).decide("resolve", fate, manner, act)


def _last_stage(batch: Batch, source: str, manner: Manner) -> Stage:
    """The last stage as the code has it. What its module prints is not our answer."""
    from holdfast.interfaces.cli.target import load

    with contextlib.redirect_stdout(sys.stderr) if manner.as_json else contextlib.nullcontext():
        pipeline = load(source)
    if pipeline.name != batch.pipeline or not pipeline.stages:
        raise UsageError(f"{source}: batch {batch.name!r} belongs to pipeline {batch.pipeline!r}; nothing was changed")
    return pipeline.stages[-1]


class _Letters:
    """The dead letters that were chosen, and what is decided about them."""

    def __init__(self, there: Store, batch: Batch, chosen: list[str] | None, code: str | None) -> None:
        self.there, self.batch, self.chosen, self.code = there, batch, chosen, code

    def decide(self, verb: str, fate: str, manner: Manner, act: Callable[[By], ActResult]) -> None:
        """Show what would happen, ask, do it, and say what happened."""
        check = lifecycle.check_goes_on if verb == "redrive" else lifecycle.check_open
        check(self.there, self.batch)
        if verb == "resolve":
            self._refuse_the_living()
        count, keys = self._look()

        def show() -> None:
            if self.chosen is not None and not count:
                render.say(f"Nothing to {verb}: {self._standing()}, of {self.batch.name}.")
                return
            some = f" ({', '.join(keys)}{', …' if count > len(keys) else ''})" if keys else ""
            render.say(
                f"{render.many(count, 'dead letter')} of {self.batch.name}{some} {self._words(fate, count, manner)}."
            )
            if verb == "redrive":
                warn_of_end(self.there, self.batch)

        warning = lifecycle.end_in_the_way(self.there, self.batch) if verb == "redrive" else ""
        plan = {"act": verb, "batch": self.batch.name, "items": count, "first": keys, "warning": warning}
        if not goes_on(manner, plan, show):
            return
        what = f"{verb.capitalize()} {render.many(count, 'dead letter')} of {self.batch.name}"
        by = agreed(what, manner, nothing_to_do=count == 0)
        say_result(act(by), manner.as_json)

    @staticmethod
    def _words(fate: str, count: int, manner: Manner) -> str:
        """One is no several, and what is agreed to is done."""
        is_one = count == 1
        would_be = "would be" if not manner.yes or manner.dry_run else "is" if is_one else "are"
        return f"{would_be} {fate.replace('{they}', 'it' if is_one else 'they').replace('{s}', 's' if is_one else '')}"

    def _refuse_the_living(self) -> None:
        """A person who settles an item by hand takes it for dead; to settle it twice is harmless."""
        for item in self._named():
            if item.place.state is not State.DEAD and item.place.code != operations.RESOLVED:
                is_what = f"item {item.key!r} of batch {self.batch.name!r} is {item.place.state}, not dead"
                raise UsageError(f"{is_what}; nothing was changed")

    def _standing(self) -> str:
        return ", ".join(f"{canonical.key_text(item.key)} is {item.place.state}" for item in self._named())

    def _named(self) -> list[StoredItem]:
        return [lookup.item_named(self.there, self.batch, key) for key in self.chosen or ()]

    def _look(self) -> tuple[int, list[str]]:
        """How many there are, and the keys of the first ones."""
        if self.chosen is not None:
            letters: Iterable[StoredItem] = [item for item in self._named() if item.place.state is State.DEAD]
        else:
            letters = _dead(self.there, self.batch, self.code)
        count = 0
        keys: list[str] = []
        for letter in letters:
            count += 1
            if len(keys) < KEYS_SHOWN:
                keys.append(canonical.key_text(letter.key))
        return count, keys


def _settle(operation: Callable[..., ActResult], verb: str, fate: str, batch: str, chosen: list[str] | None,
            code: str | None, manner: Manner) -> None:  # fmt: skip
    """One of the operations on dead letters: shown, agreed to, done."""
    with opened(manner.store) as there:
        found = lookup.batch_named(there, batch)
        letters = _Letters(there, found, chosen, code)
        letters.decide(verb, fate, manner, lambda by: operation(there, found, by, chosen, code=code))


def _chosen(items: list[str] | None, every: bool, code: str | None) -> list[str] | None:
    if sum((bool(items), every, code is not None)) != 1:
        raise UsageError("name the dead letters: their keys, --all, or --code CODE; nothing was changed")
    return items if items else None


def _dead(there: Store, batch: Batch, code: str | None) -> Iterable[StoredItem]:
    return (item for item in each_item(there, batch.id, state=State.DEAD) if code in (None, item.place.code))


def _plain(item: StoredItem, names: list[str]) -> dict[str, Any]:
    place = item.place
    return {
        "key": item.key,
        "n": item.n,
        "state": place.state.value,
        "stage": lookup.stage_title(names, place.stage),
        "code": place.code,
        "reason": place.reason,
        "attempts": place.attempt,
        "epoch": place.epoch,
    }


def _payload(item: StoredItem) -> Any:
    try:
        return canonical.decode(item.payload)
    except msgspec.DecodeError:
        return item.payload.decode("utf-8", "replace")


def _digest(item: StoredItem) -> str:
    return canonical.item_digest(item.salt, canonical.key_text(item.key), item.payload).hex()


def _read(output: str) -> bytes:
    read: Callable[[], bytes]
    if output == "-":
        read = sys.stdin.buffer.read
    elif output.startswith("@"):
        read = Path(output[1:]).read_bytes
    else:
        return output.encode()
    try:
        return read()
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from None


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
        seen = look_for_orphans(there, each, limit=limit - len(first))
        announce(there, each, seen, actor=who)
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
        render.show(render.table(HEADERS, _orphan_rows(first, now), right=["requeued"]))
        shown = "" if len(first) == total else f", the first {len(first):,} shown"
        parts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
        render.say(f"\n{render.many(total, 'item')} stuck: {parts}{shown}.")
        for kind in OrphanKind:
            concerned = [each for each, of in found if of[kind.value]]
            for each in concerned[:ADVISED]:
                render.say(_advice(kind, each), render.FAINT)
            if len(concerned) > ADVISED:
                render.say(f"… and so on for {len(concerned) - ADVISED:,} more batches", render.FAINT)
    raise typer.Exit(1 if total else 0)


def _by_kind(counts: Counter[str]) -> dict[str, int]:
    return {kind.value: counts[kind.value] for kind in OrphanKind}


def _orphan_rows(found: list[Orphan], now: float) -> Iterator[tuple[str, ...]]:
    for orphan in found:
        owner = orphan.owner if orphan.owner else "nobody yet"
        hands = f"{owner}, alive" if orphan.is_held else owner
        yield (
            orphan.batch, canonical.key_text(orphan.key), orphan.stage, orphan.kind.value, in_words(now - orphan.since),
            "-" if orphan.kind is OrphanKind.UNANSWERED else hands, render.one_line(orphan.error, 60) or "-",
            str(orphan.place.requeues),
        )  # fmt: skip


def _advice(kind: OrphanKind, of: Batch) -> str:
    """What to do about what is stuck in this way in a batch."""
    batch = of.name
    if kind is OrphanKind.STRANDED:
        return f"stranded in a cancelled batch: {command('orphans', batch, options='--resolve fail|review --reason …')}"
    if kind is OrphanKind.UNANSWERED:
        return f"unanswered dead letters: {command('dead list', batch)}, then redrive, resolve or discard"
    first = f"{unpause(batch)}, then " if of.course is Course.PAUSED else ""
    return (
        f"stuck: {first}run {batch} again, or {command('orphans', batch, options=f'--resolve {STRATEGIES} --reason …')}"
    )


def _resolve(there: Store, batch: Batch, strategy: Strategy, items: list[str] | None, manner: Manner) -> None:
    """Show what would happen, ask, do it, and say what happened."""
    chosen = items if items else None
    shown = resolution.preview_resolution(there, batch, strategy, chosen)
    if not goes_on(manner, shown.as_dict(), lambda: show_preview(shown)):
        return
    what = f"{strategy.value.capitalize()} {render.many(shown.items, 'orphan')} of {batch.name}"
    by = agreed(what, manner, nothing_to_do=shown.items == 0)
    say_result(resolution.resolve_orphans(there, batch, by, strategy, chosen), manner.as_json)
