"""An output that a person gives, as a file where the last stage keeps its outputs in files.

It is staged, recorded and published in the order of a run.
"""

from holdfast.core.errors import Permanent, Refused, StoreError
from holdfast.core.model import Batch, Output, StoredItem
from holdfast.runtime import lookup, ownership
from holdfast.runtime.records.outputs import sinks_of
from holdfast.runtime.sinks.base import Evidence, Provenance
from holdfast.runtime.sinks.files import Files
from holdfast.stores.base import Store


class OutputByHand:
    """The file of one output; without a sink at the last stage there is none."""

    def __init__(self, store: Store, batch: Batch) -> None:
        names = lookup.stage_names(batch)
        self._batch, self._index, self._stage = batch, len(names) - 1, names[-1]
        self._sink: Files | None = sinks_of(batch).get(self._index)
        self._staged: Evidence | None = None
        if self._sink is not None:
            ownership.introduce(store, batch, {self._index: self._sink})
            self._me = ownership.holder_of(store, batch)

    def stage(self, item: StoredItem, data: bytes) -> Output | None:
        """Write the output of an item under its staged name, durable; None where the store keeps it. Refused where it
        could not be published."""
        if self._sink is None:
            return None
        place = Provenance(pipeline=self._batch.pipeline, batch=self._batch.name, stage=self._stage, n=item.n,
                           epoch=item.place.epoch, fence=0, input_digest=b"", key=item.key)  # fmt: skip
        self._check_folder(self._sink)
        try:
            self._sink.check_name(place)
            self._staged = self._sink.stage(place, data)
            self._sink.sync_folders([self._staged])
        except Permanent as error:
            raise Refused(f"{error}; nothing was changed") from error
        except OSError as error:
            raise StoreError(f"the output could not be written: {error}; nothing was changed") from error
        return Output(item.n, self._index, item.place.epoch, None, self._staged.encode())

    def publish(self, changed: int) -> str:
        """Give the output its name, if it was recorded; return why that was not possible, or nothing."""
        if self._sink is None or self._staged is None or not changed:
            return ""
        try:
            self._sink.publish([self._staged])
        except OSError as error:
            return (
                f"the output is safe in {self._staged.staged}, and cannot get its name yet: {error}; see to that, then "
                "run the batch again"
            )
        return ""

    def _check_folder(self, sink: Files) -> None:
        """Refuse where no run has written: this may be another working directory, or a disk that is not mounted."""
        names = sink.names_of(self._stage, self._batch.name)
        if not names.folder.is_dir():
            raise Refused(
                f"stage {self._stage!r} keeps its outputs in {sink.template.text}, and no run has written to "
                f"{sink.folder}: change to the folder that the runs were started in; nothing was changed"
            )
        if (holder := names.taken_from(self._me)) is not None:
            raise Refused(
                f"the files {sink.template.text} of stage {self._stage!r} belong to batch {holder.batch!r} of pipeline "
                f"{holder.pipeline!r} now: the output would replace one of them; nothing was changed"
            )
