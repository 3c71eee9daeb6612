"""The bytes of stored outputs, wherever they are: in the store, or in the files of a sink."""

from holdfast.core import canonical
from holdfast.core.errors import SinkError
from holdfast.core.model import Batch, Output
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.sinks.files import Files


def sinks_of(batch: Batch) -> dict[int, Files]:
    """The file sinks of a batch by stage, as it remembers them; relative paths begin at the current folder."""
    stages = canonical.decode(batch.definition)["stages"]
    sinks = [stage.get("sink") if isinstance(stage, dict) else None for stage in stages]
    return {
        stage: Files(sink["template"])
        for stage, sink in enumerate(sinks)
        if sink is not None and sink.get("kind") == "files"
    }


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
