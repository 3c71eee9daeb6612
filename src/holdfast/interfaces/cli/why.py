"""`holdfast why`: an item's story."""

from holdfast.interfaces.cli import hints, render
from holdfast.interfaces.cli.common import BatchArgument, ItemArgument, JsonOption, StoreOption, opened
from holdfast.runtime import lookup
from holdfast.runtime.reports import story


def why(batch: BatchArgument, item: ItemArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Tell an item's whole story: why it is where it is, what happened to it, what can be done."""
    with opened(store) as there:
        told = story.tell(there, lookup.batch_named(there, batch), item)
    if as_json:
        commands = [hints.pasteable(each) for each in told.commands]
        render.document(told.as_dict() | {"commands": commands})
        return
    render.show(render.heading(f"item {told.key!r} (number {told.number}) of batch {told.batch!r}", told.state))
    render.show(render.facts([("now", told.now), *([("stands", told.checkpoint)] if told.checkpoint else []),
                              *([("cost", told.cost)] if told.cost else [])]))  # fmt: skip
    render.say()
    render.show(render.facts((story.to_the_millisecond(event.at), event.text) for event in told.events))
    render.say()
    render.show(render.facts([("next", told.next), *(("", command) for command in told.commands)]))
