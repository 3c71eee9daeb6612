"""`holdfast dead` and `holdfast orphans`: items that need a decision by a person."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import holdfast as hf
from holdfast import BatchHandle, FoundOrphans, ItemHandle, ItemStory, Pipeline, UsageError
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import (
    ActOptions,
    BatchArgument,
    ItemArgument,
    JsonOption,
    StoreOption,
    decide,
    quietly,
    with_manner,
)
from holdfast.runtime.text import command, in_words, to_the_millisecond, unpause_command, when

app = typer.Typer(help="List, show, redrive, resolve or discard dead letters.", no_args_is_help=True)

PAYLOAD_SHOWN = 2000

ItemsArgument = Annotated[list[str] | None, typer.Argument(metavar="ITEM...", help="Keys of dead letters, or #N.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every dead letter of the batch.")]
CodeOption = Annotated[str | None, typer.Option("--code", help="Every dead letter with this error code.")]


@app.command("list")
def list_them(
    batch: Annotated[
        str | None, typer.Argument(metavar="BATCH", help="The name of the batch. Default: all batches.")
    ] = None,
    code: Annotated[str | None, typer.Option("--code", help="Only dead letters with this error code.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most to list of each batch.")] = 50,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if there are any, for alerts.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters of a batch, or of all batches."""
    with hf.open(store) as there:
        batches = there.batches() if batch is None else [there[batch]]
        found = [letter for each in batches for letter in islice(each.dead(code=code), limit)]
        total = sum(each.status().counts.dead for each in batches)
        rows = [_row(letter) for letter in found]
    if as_json:
        render.document({"dead": total, "items": [{"batch": each.batch, **each.as_dict()} for each in found]})
        raise typer.Exit(int(exit_code and bool(found)))
    if not rows:
        whose = batch if batch is not None else "The store"
        render.say(f"{whose} has no dead letters{f' with code {code!r}' if code else ''}.")
        return
    render.show(render.table(["batch", "item", "stage", "code", "attempts", "reason"], rows, right=["attempts"],
                             whole=["batch", "item", "stage", "code"]))  # fmt: skip
    shown = render.many(total, "dead letter") if len(rows) == total else f"{len(rows):,} of {total:,} dead letters"
    render.say(f"\n{shown}. Next: {command('dead show', rows[0][0], rows[0][1])}", render.FAINT)
    raise typer.Exit(int(exit_code))


def _row(letter: ItemHandle) -> tuple[str, ...]:
    untried = letter.kind == "rows" and not letter.attempts  # its partition was tried, with other rows
    tried = "-" if untried else str(letter.attempts)
    return (
        letter.batch,
        str(letter.key),
        letter.stage,
        letter.code,
        tried,
        render.one_line(letter.reason, 100 if render.out().width >= 120 else 60),
    )


@app.command("show")
def show_one(batch: BatchArgument, item: ItemArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show a dead letter: its payload, its digest and every attempt."""
    with hf.open(store) as there:
        letter = there[batch].item(item)
        told, part, digest = letter.why(), letter.partition(), letter.digest
        content = _content(letter)
    attempts = [event for event in told.events if event.what == "attempt"]
    context = _context(told)
    if as_json:
        plain = letter.as_dict() | {"payload": letter.payload, "digest": digest}
        plain |= {"context": context} if context else {}
        plain |= {"checkpoint": part.as_dict()} if part is not None else {}
        render.document(
            plain | {"attempts": [{"at": event.at, "text": event.text, **event.facts} for event in attempts]}
        )
        return
    render.show(render.heading(f"item {letter.key!r} of {batch}", letter.state.value, render.BAD))
    render.show(
        render.facts(
            [
                *content,
                ("stage", told.stage),
                *([("code", letter.code)] if letter.code else []),
                *([("reason", letter.reason)] if letter.reason else []),
                ("digest", digest),
                *([("context", _in_words(context))] if context else []),
                *([("checkpoint", told.checkpoint)] if told.checkpoint else []),
            ]
        )
    )
    for event in attempts:
        render.say()
        render.show(render.facts([(to_the_millisecond(event.at), event.text)]))
        trace = str(event.facts.get("trace", ""))
        if trace:
            render.say("\n".join(f"      {line}" for line in trace.rstrip().splitlines()[-12:]), render.FAINT)
    if told.commands[1:]:
        render.say()
        render.commands("", "", told.commands[1:])


def _content(letter: ItemHandle) -> list[tuple[str, Text]]:
    """Return the content of a dead letter: a row of a scan field by field, else the payload."""
    if row := letter.row_fields():
        return [(name, Text(render.clean(text))) for name, text in row]
    payload = letter.raw_payload.decode("utf-8", "replace")
    return [("payload", Text(render.clean(render.one_line(payload, PAYLOAD_SHOWN))))]


def _context(told: ItemStory) -> dict[str, Any]:
    """Return the state of the item when a person buried it as an orphan; empty if it was not an orphan."""
    found: dict[str, Any] = told.last_act.facts.get("context", {}) if told.last_act is not None else {}
    return found if told.state == "dead" else {}


def _in_words(context: dict[str, Any]) -> str:
    error = f"{context['last_code']}: {context['last_error']}" if context["last_code"] else "none"
    who = context["owner"] if context["owner"] else "none"
    return (
        f"{context['kind']} at {context['stage']!r} without progress since {when(context['since'])}; last owner {who}, "
        f"{render.many(context['attempts'], 'attempt')}, ${context['usd']} spent at this stage, requeued "
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
    manner: ActOptions,
) -> None:
    """Try dead letters again at the stage where they failed, with all attempts available again."""
    with hf.open(manner.store) as there:
        decide(_chosen(there[batch], items, every, code).redrive(dry_run=True), manner)


@app.command("discard")
@with_manner()
def discard(
    batch: BatchArgument,
    items: ItemsArgument = None,
    every: AllOption = False,
    code: CodeOption = None,
    *,
    manner: ActOptions,
) -> None:
    """Give up dead letters: they count as cancelled."""
    with hf.open(manner.store) as there:
        decide(_chosen(there[batch], items, every, code).discard(dry_run=True), manner)


def _chosen(batch: BatchHandle, items: list[str] | None, every: bool, code: str | None) -> hf.DeadLetters:
    if sum((bool(items), every, code is not None)) != 1:
        raise UsageError("name the dead letters: their keys, --all, or --code CODE; nothing was changed")
    return batch.dead(*(items or ()), code=code)


@app.command("resolve")
@with_manner()
def resolve(
    batch: BatchArgument,
    item: ItemArgument,
    output: Annotated[
        str | None, typer.Option("--output", help="The output as JSON, @FILE, or - for standard input.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--pipeline", metavar="TARGET", help="Check the output against the code of: app.py:book."),
    ] = None,
    source: Annotated[str | None, typer.Option("--source", hidden=True, help="The old name of --pipeline.")] = None,
    *,
    manner: ActOptions,
) -> None:
    """Settle a dead letter by hand: done with the output you give, or skipped without one."""
    raw = None if output is None else _read(output)
    pipeline: Pipeline | None = None
    if (code := target if target is not None else source) is not None:
        from holdfast.interfaces.cli.target import load

        with quietly(manner):
            pipeline = load(code)
    with hf.open(manner.store) as there:
        decide(there[batch].resolve(item, raw_output=raw, pipeline=pipeline, dry_run=True), manner)


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


STRATEGIES = "requeue|fail|review"
ADVISED = 5
"""Batches for which advice of one kind is shown."""
HEADERS = ["batch", "item", "stage", "kind", "idle for", "owner", "last error", "requeued"]


@with_manner()
def orphans(
    batch: Annotated[
        str | None, typer.Argument(metavar="BATCH", help="The name of the batch. Default: all batches.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option("--resolve", metavar=STRATEGIES, help="Resolve the orphans of BATCH in this way.")
    ] = None,
    item: Annotated[
        list[str] | None, typer.Option("--item", metavar="KEY", help="Only this item, a key or #N; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most to list.")] = 50,
    *,
    manner: ActOptions,
) -> None:
    """List items that are stuck, or resolve them: requeue, fail, or send to review. Exits with 1 if there are any."""
    if strategy is None and item:
        raise UsageError("--item goes with --resolve; to look at one item: holdfast why BATCH ITEM")
    if strategy is not None and batch is None:
        raise UsageError("--resolve: name the batch; nothing was changed")
    with hf.open(manner.store) as there:
        if strategy is not None and batch is not None:
            decide(there[batch].resolve_orphans(strategy, *(item or ()), dry_run=True), manner)
            return
        chosen = there if batch is None else there[batch]
        found = chosen.orphans(limit=limit, actor=manner.who)
        if manner.as_json:
            render.document(found.as_dict())
        elif not found.total:
            render.say(f"{batch if batch is not None else 'The store'}: nothing is stuck.", render.GOOD)
        else:
            _show(found, lambda name: there[name].status().mode == "paused")
    raise typer.Exit(1 if found.total else 0)


def _show(found: FoundOrphans, is_paused: Callable[[str], bool]) -> None:
    render.show(render.table(HEADERS, _orphan_rows(found), right=["requeued"], whole=["batch", "item", "kind"]))
    shown = "" if len(found.first) == found.total else f", the first {len(found.first):,} shown"
    parts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.kinds.items()) if count)
    render.say(f"\n{render.many(found.total, 'item')} stuck: {parts}{shown}.")
    for kind in found.kinds:
        concerned = [name for name, of in found.by_batch.items() if of[kind]]
        for name in concerned[:ADVISED]:
            render.say(_advice(kind, name, is_paused=is_paused(name)), render.FAINT)
        if len(concerned) > ADVISED:
            render.say(f"… and so on for {len(concerned) - ADVISED:,} more batches", render.FAINT)


def _orphan_rows(found: FoundOrphans) -> Iterator[tuple[str, ...]]:
    for orphan in found:
        owner = orphan.owner if orphan.owner else "none yet"
        hands = f"{owner}, alive" if orphan.is_held else owner
        yield (
            orphan.batch, str(orphan.key), orphan.stage, orphan.kind.value, in_words(found.now - orphan.since),
            "-" if orphan.kind == "unanswered" else hands, render.one_line(orphan.error, 60) or "-",
            str(orphan.place.requeues),
        )  # fmt: skip


def _advice(kind: str, batch: str, *, is_paused: bool) -> str:
    """Return what to do about orphans of this kind in a batch."""
    if kind == "stranded":
        return f"stranded in a cancelled batch: {command('orphans', batch, options='--resolve fail|review --reason …')}"
    if kind == "unanswered":
        return f"unanswered dead letters: {command('dead list', batch)}, then redrive, resolve or discard"
    first = f"{unpause_command(batch)}, then " if is_paused else ""
    return (
        f"stuck: {first}run {batch} again, or {command('orphans', batch, options=f'--resolve {STRATEGIES} --reason …')}"
    )
