"""What a run asks of a store, held against what the store can do: refused by name before anything happens."""

from collections.abc import Sequence

from holdfast.core.errors import UsageError
from holdfast.runtime.options import Options
from holdfast.runtime.policy import Tolerance
from holdfast.stores.base import Capabilities


def check(able: Capabilities, options: Options, receivers: Sequence[object]) -> None:
    """Refuse a run that its store cannot hold to what was said."""
    if options.cap is not None and not able.budget:
        raise _refused("budget=", "money is counted over all chunks of a batch, and a bucket writes one at a time")
    if isinstance(options.tolerate, Tolerance) and options.tolerate.window is not None and not able.window:
        raise _refused("Tolerance(window=…)", "the items that were settled last stand in many documents")
    if receivers and not able.events:
        raise _refused("events=", "a bucket has no order over all chunks in which events could be delivered")


def _refused(what: str, why: str) -> UsageError:
    return UsageError(f"{what} does not work with the state in a bucket: {why}. Leave it out, or use a database")
