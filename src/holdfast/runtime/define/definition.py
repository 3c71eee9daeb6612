"""The definition of a pipeline that is stored with a batch: its stages, what identifies its items, and its patience."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core import canonical
from holdfast.core.errors import DefinitionChanged, UsageError
from holdfast.core.limits import DEAD_AGE, ORPHAN_GRACE
from holdfast.core.model import Batch
from holdfast.runtime.text import Duration, seconds

if TYPE_CHECKING:
    from holdfast.runtime.define.options import Identity, KeyFrom
    from holdfast.runtime.define.pipeline import PipelineDefinition
    from holdfast.runtime.define.stage import Stage


@dataclass(frozen=True, slots=True)
class Patience:
    """The times after which a pending item is an orphan, and a dead letter unanswered, in seconds."""

    orphan_after: float = ORPHAN_GRACE
    dead_after: float = DEAD_AGE

    @staticmethod
    def check(orphan_after: Duration, dead_after: Duration) -> "Patience":
        """Return the patience from the user's options."""
        found = Patience(seconds(orphan_after, "orphan_after"), seconds(dead_after, "dead_after"))
        for name, given, value in (
            ("orphan_after", orphan_after, found.orphan_after),
            ("dead_after", dead_after, found.dead_after),
        ):
            if value <= 0:
                raise UsageError(f"{name}={given!r}: pass a time longer than 0, such as '30m', '2h' or '7d'")
        return found

    @staticmethod
    def of(batch: Batch) -> "Patience":
        """Return the patience of the last run of the batch."""
        said = canonical.decode(batch.definition)
        return Patience(
            float(said.get("orphan_after", ORPHAN_GRACE)),
            float(said.get("dead_after", DEAD_AGE)),
        )

    def describe(self) -> dict[str, Any]:
        """Return the values to store with a batch: those that differ from the default."""
        said = {"orphan_after": self.orphan_after, "dead_after": self.dead_after}
        usual = {"orphan_after": ORPHAN_GRACE, "dead_after": DEAD_AGE}
        return {name: value for name, value in said.items() if value != usual[name]}


USUAL = Patience()


FIELD = "the field "
FUNCTION = "a function"
DEFAULT = "the items themselves"
CONTENT = "their content"
NEW = "nothing: every item is new"


def describe(pipeline: str, stages: "Sequence[Stage]", keyed: str, patience: Patience = USUAL) -> bytes:
    """Return the pipeline as it is stored with a batch: its stages, what identifies its items, and its patience."""
    described = [stage.describe() for stage in stages]
    return canonical.encode({"pipeline": pipeline, "stages": described, "keyed": keyed, **patience.describe()})


def for_run(
    pipeline: "PipelineDefinition", known: Batch | None, key: "KeyFrom", identity: "Identity", *, reads_items: bool
) -> tuple["KeyFrom", bytes]:
    """Return what identifies the items of a run, and its pipeline as it is stored with the batch. A run that reads no
    items keeps what identified the items of the batch."""
    key = remembered_key(known, key, identity)
    keyed = keyed_by(key, identity) if known is None or reads_items else remembered(known)
    return key, describe(pipeline.name, pipeline.stages, keyed, pipeline.patience)


def keyed_by(key: "KeyFrom", identity: "Identity") -> str:
    """Return what identifies an item, in words."""
    if identity != "key":
        return {"content": CONTENT, "new": NEW}[identity]
    if isinstance(key, str):
        return f"{FIELD}{key!r}"
    return DEFAULT if key is None else FUNCTION


def remembered_key(known: Batch | None, key: "KeyFrom", identity: "Identity") -> "KeyFrom":
    """Return the key to use: the given one, or the field with which the batch was begun."""
    if key is not None or known is None or identity != "key":
        return key
    keyed = remembered(known)
    return keyed.removeprefix(FIELD)[1:-1] if keyed.startswith(FIELD) else None


def remembered(known: Batch) -> str:
    """Return what identified the items of a batch when they were read, in words."""
    return str(_read(known).get("keyed", DEFAULT))


def remembered_identity(known: Batch) -> "Identity":
    """Return how the items of a batch were identified when it was last run."""
    keyed = _read(known).get("keyed", DEFAULT)
    if keyed == CONTENT:
        return "content"
    return "new" if keyed == NEW else "key"


def check_key(known: Batch, key: "KeyFrom", identity: "Identity") -> None:
    """Refuse to identify the items of a batch by anything but before."""
    before, now = _read(known).get("keyed", DEFAULT), keyed_by(key, identity)
    if before != now:
        raise DefinitionChanged(
            f"the items of batch {known.name!r} were identified by {before}, but now by {now}: pass the same key"
        )


def check(known: Batch, pipeline: str, definition: bytes, *, reads_items: bool) -> None:
    """Refuse a definition that does not fit the batch: other stages, or items identified by something else."""
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
            f"batch {known.name!r} was opened with the stages {', '.join(stages[0])}, but the pipeline now has "
            f"{', '.join(stages[1])}: use another batch name, or restore the stages"
        )
    if reads_items and remembered(known) != after["keyed"]:
        raise DefinitionChanged(
            f"the items of batch {known.name!r} were identified by {remembered(known)}, but now by {after['keyed']}: "
            "every item would look new; pass the same key, or use another batch name"
        )


def _read(batch: Batch) -> dict[str, Any]:
    found: dict[str, Any] = canonical.decode(batch.definition)
    return found
