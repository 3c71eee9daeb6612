"""The bytes of stored outputs, wherever they are: in the store, or in the files of a sink."""

from typing import Any

from holdfast.core import canonical
from holdfast.core.errors import Refused, SinkError
from holdfast.core.model import Batch, Output, StoredItem
from holdfast.core.states import RESOLVED
from holdfast.runtime.commands import command
from holdfast.runtime.schema import Invalid
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.stage import Stage


def sinks_of(batch: Batch) -> dict[int, Files]:
    """The file sinks of a batch by stage, as it remembers them; relative paths begin at the current folder."""
    stages = canonical.decode(batch.definition)["stages"]
    sinks = [stage.get("sink") if isinstance(stage, dict) else None for stage in stages]
    return {
        stage: Files(sink["template"])
        for stage, sink in enumerate(sinks)
        if sink is not None and sink.get("kind") == "files"
    }


def value_of(stage: Stage, output: Output, batch: str, item: StoredItem) -> Any:
    """Return a recorded output as what its stage returned. Raises Refused where it is not valid any more, SinkError
    where its file is gone or damaged."""
    if output.file is not None and stage.sink is not None:
        data = stage.sink.read(Evidence.decode(output.file))
    else:
        data = output.data if output.data is not None else b"null"
    try:
        return stage.output.decode(data)
    except Invalid as error:
        by_hand = item.place.code == RESOLVED
        why = "it was resolved by hand with this output" if by_hand else "the annotation may have changed since"
        again = command("reset", batch, canonical.key_text(item.key), "--reason …")
        raise Refused(
            f"the output of item {item.key!r} of batch {batch!r} does not fit what stage {stage.name!r} returns: "
            f"{error}; {why}. Correct the annotation, or have it made again: `{again}`, then run the batch"
        ) from None


class OutputReader:
    """Reads outputs without the pipeline's code, by what the batch remembers of its sinks."""

    def __init__(self, batch: Batch) -> None:
        self._files = sinks_of(batch)

    def read(self, output: Output) -> bytes:
        """The JSON bytes of an output. Paths of files begin at the current folder, as they did in the run."""
        if output.file is None:
            if output.data is None:
                raise SinkError("the store has lost its bytes")
            return output.data
        sink = self._files.get(output.stage)
        evidence = Evidence.decode(output.file)
        if sink is None:
            raise SinkError(f"{evidence.final}: the pipeline has no file sink at this stage any more")
        return sink.read(evidence)

    def location(self, output: Output) -> str | None:
        """The path of the file that holds an output; None where the store does."""
        return None if output.file is None else Evidence.decode(output.file).final
