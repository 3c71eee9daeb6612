"""`holdfast events`: what others are told, and delivering it by hand."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.core.errors import UsageError
from holdfast.core.limits import EVENTS_PAGE
from holdfast.core.model import StoredEvent
from holdfast.interfaces.cli import render
from holdfast.interfaces.cli.common import JsonOption, StoreOption, opened
from holdfast.runtime import lookup
from holdfast.runtime.events.cloudevents import Envelope, Envelopes, encode
from holdfast.runtime.events.outbox import deliver_all
from holdfast.runtime.events.receivers import Undelivered, receiver
from holdfast.stores.base import Store

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
    while page := there.events(after, limit=EVENTS_PAGE):
        yield from (event for event in page if only in (None, event.batch))
        after = page[-1].id


def _row(found: tuple[StoredEvent, Envelope]) -> tuple[str, ...]:
    event, envelope = found
    data = envelope["data"]
    facts = [f"{name} {data[name]}" for name in SHOWN_FIRST if name in data and name != "key"]
    at = envelope["time"][:19].replace("T", " ") + "Z"
    return str(event.id), at, event.kind, envelope["subject"], render.one_line(", ".join(facts), 100)
