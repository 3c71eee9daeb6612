"""What is remembered of a pipeline with a batch, and what must not differ when the batch is run again."""

from collections.abc import Sequence
from typing import Any

from holdfast.core import canonical
from holdfast.core.errors import DefinitionChanged, UsageError
from holdfast.core.model import Batch
from holdfast.runtime.ingester import Identity, KeyFrom
from holdfast.runtime.stage import Stage
from holdfast.runtime.stuck.patience import USUAL, Patience

FIELD = "the field "
FUNCTION = "a function"
DEFAULT = "the items themselves"
CONTENT = "their content"
NEW = "nothing: every item is new"


def describe(pipeline: str, stages: Sequence[Stage], keyed: str, patience: Patience = USUAL) -> bytes:
    """The pipeline as it is kept with a batch: its stages, what identifies its items, and when they are orphans."""
    described = [stage.describe() for stage in stages]
    return canonical.encode({"pipeline": pipeline, "stages": described, "keyed": keyed, **patience.describe()})


def keyed_by(key: KeyFrom, identity: Identity) -> str:
    """What identifies an item, in words."""
    if identity != "key":
        return {"content": CONTENT, "new": NEW}[identity]
    if isinstance(key, str):
        return f"{FIELD}{key!r}"
    return DEFAULT if key is None else FUNCTION


def remembered_key(known: Batch | None, key: KeyFrom, identity: Identity) -> KeyFrom:
    """The key to go on with: the one that is given, or the field the batch was begun with."""
    if key is not None or known is None or identity != "key":
        return key
    keyed = remembered(known)
    return keyed.removeprefix(FIELD)[1:-1] if keyed.startswith(FIELD) else None


def remembered(known: Batch) -> str:
    """What identified the items of a batch when they were read, in words."""
    return str(_read(known).get("keyed", DEFAULT))


def remembered_identity(known: Batch) -> Identity:
    """How the items of a batch were identified when it was last run."""
    keyed = _read(known).get("keyed", DEFAULT)
    if keyed == CONTENT:
        return "content"
    return "new" if keyed == NEW else "key"


def check_key(known: Batch, key: KeyFrom, identity: Identity) -> None:
    """Refuse to identify items of a batch by something else than before."""
    before, now = _read(known).get("keyed", DEFAULT), keyed_by(key, identity)
    if before != now:
        raise DefinitionChanged(
            f"the items of batch {known.name!r} were identified by {before}, and now by {now}: give the same key"
        )


def check(known: Batch, pipeline: str, definition: bytes, *, reads_items: bool) -> None:
    """Refuse what would make another batch of it: other stages, or items identified by something else."""
    if known.pipeline != pipeline:
        raise UsageError(
            f"batch {known.name!r} belongs to pipeline {known.pipeline!r}, not to {pipeline!r}: choose another "
            "batch name"
        )
    if not known.admitted:
        return
    before, after = _read(known), canonical.decode(definition)
    stages = [[stage["name"] for stage in each["stages"]] for each in (before, after)]
    if stages[0] != stages[1]:
        raise DefinitionChanged(
            f"batch {known.name!r} was opened with the stages {', '.join(stages[0])}, and the pipeline now has "
            f"{', '.join(stages[1])}: give the batch another name, or restore the stages"
        )
    if reads_items and remembered(known) != after["keyed"]:
        raise DefinitionChanged(
            f"the items of batch {known.name!r} were identified by {remembered(known)}, and now by "
            f"{after['keyed']}: every item would be taken for a new one; give the same key, or another batch name"
        )


def _read(batch: Batch) -> dict[str, Any]:
    found: dict[str, Any] = canonical.decode(batch.definition)
    return found
