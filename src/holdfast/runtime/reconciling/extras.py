"""Files in the folders of sinks that no record names, and names that two records share.

The entries of a folder are counted first. If there are as many as files that are recorded and there, none is extra,
and nothing is kept. Else the names that are recorded are held as sorted 64-bit hashes, at most `NAMES_HELD` at a time;
where there are more, records and folder are read once for each part of them. Hashes have another key in every process.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import PurePath

from holdfast.core.limits import NAMES_HELD
from holdfast.core.model import Batch, Output, State
from holdfast.core.reconcile import Finding, What
from holdfast.runtime import lookup, ownership
from holdfast.runtime.reconciling.observer import Observer
from holdfast.runtime.records.outputs import sinks_of
from holdfast.runtime.sinks import glance, names
from holdfast.runtime.sinks.base import Evidence, Provenance
from holdfast.runtime.sinks.files import Files
from holdfast.stores.base import Store, each_output

NOT_NAMED = "no item of any batch in this store names it"


class Extras:
    """The files of the sinks of one batch."""

    def __init__(self, store: Store, batch: Batch, sinks: Mapping[int, Files], seen: Observer) -> None:
        self._store, self._batch, self._seen = store, batch, seen
        self._stages = lookup.stage_names(batch)
        self._sinks = {stage: sink for stage, sink in sinks.items() if not self._is_taken(stage, sink)}
        self.leftovers = 0
        """Staged files of items whose output at that stage is recorded: of an owner that was fenced out, mostly."""

    def _is_taken(self, stage: int, sink: Files) -> bool:
        """Tell whether the names of a stage belong to a newer batch: then the files are not this one's to judge."""
        names_of_stage = sink.names_of(self._stages[stage], self._batch.name)
        return names_of_stage.taken_from(ownership.holder_of(self._store, self._batch)) is not None

    def findings(self) -> Iterator[Finding]:
        """Extra and duplicated files."""
        yield from self._staged()
        if self._differ():
            yield from self._identify()

    def _differ(self) -> bool:
        """Whether there are more files than are recorded, or may be. A name that two records share has a file that is
        not the one that both recorded, so it was looked at twice."""
        if self._seen.at_second_glance:
            return True
        expected: dict[tuple[str, bool], int] = {}
        there: dict[tuple[str, bool], int] = {}
        for stage, sink in self._sinks.items():
            pattern = sink.pattern(self._batch.name, self._stages[stage])
            where = (pattern.root, pattern.is_flat)
            expected[where] = expected.get(where, 0) + self._seen.in_place[stage]
            there[where] = sink.count(self._batch.name, self._stages[stage])
        return expected != there

    # -- names ----------------------------------------------------------------------------------------------------

    def _identify(self) -> Iterator[Finding]:
        sharing = [each for each in self._store.batches() if each.id != self._batch.id and self._shares(each)]
        named = sum(batch.admitted * len(sinks_of(batch)) for batch in (self._batch, *sharing))
        parts = -(-named // NAMES_HELD) if named else 1
        for part in range(parts):
            own = self._names([self._batch], part, parts)
            others = self._names(sharing, part, parts)
            yield from self._shared({name for name, other in pairwise(own) if name == other})
            for path in self._candidates():
                name = hash(path)
                if name % parts == part and not _holds(own, name) and not _holds(others, name):
                    yield Finding(what=What.EXTRA, why=NOT_NAMED, file=path)

    def _names(self, batches: list[Batch], part: int, parts: int) -> "array[int]":
        found = array("q")
        for batch in batches:
            for output in self._outputs(batch):
                assert output.file is not None
                name = hash(glance.final_of(output.file))
                if name % parts == part:
                    found.append(name)
        return array("q", sorted(found)) if len(found) > 1 else found

    def _outputs(self, batch: Batch) -> Iterator[Output]:
        for stage in self._sinks if batch is self._batch else sinks_of(batch):
            yield from (each for each in each_output(self._store, batch.id, stage=stage) if each.file is not None)

    def _candidates(self) -> Iterator[str]:
        """Every file once that has a name of a stage; of two stages that name alike, the first has it."""
        found = [sink.pattern(self._batch.name, self._stages[stage]) for stage, sink in self._sinks.items()]
        for index, (stage, sink) in enumerate(self._sinks.items()):
            before = [each for each in found[:index] if each.root == found[index].root and each.is_flat]
            for path in sink.named_alike(self._batch.name, self._stages[stage]):
                name = path.removeprefix(found[index].prefix)
                if not any(each.names[0].fullmatch(name) for each in before):
                    yield path

    def _shares(self, other: Batch) -> bool:
        """Whether files of another batch stand in the same folders."""
        ours = {sink.template.folder for sink in self._sinks.values()}
        return any(sink.template.folder in ours for sink in sinks_of(other).values())

    def _shared(self, shared: set[int]) -> Iterator[Finding]:
        """The items whose files have one name."""
        for output in self._outputs(self._batch) if shared else ():
            assert output.file is not None
            final = glance.final_of(output.file)
            if hash(final) in shared:
                (item,) = self._store.items(self._batch.id, lo=output.n, hi=output.n + 1, limit=1)
                why = "the output of another item has the same name, and only one of them can be there"
                yield Finding(what=What.DUPLICATED, why=why, n=item.n, key=item.key, stage=output.stage, file=final)

    # -- staged files ---------------------------------------------------------------------------------------------

    def _staged(self) -> Iterator[Finding]:
        """Outputs of this batch that were staged and that nothing recorded, of items that nobody works on."""
        for stage, sink in self._sinks.items():
            place = Provenance(pipeline=self._batch.pipeline, batch=self._batch.name, stage=self._stages[stage], n=0,
                               epoch=0, fence=0, input_digest=b"", key="")  # fmt: skip
            whose = names.origin(place).rsplit(".", 3)[0]
            for left in sink.leftovers():
                said = names.parse_staged(PurePath(left.path).name)
                if said is not None and said.origin.rsplit(".", 3)[0] == whose:
                    yield from self._left(stage, left.path, said)

    def _left(self, stage: int, path: str, said: names.StagedName) -> Iterator[Finding]:
        n = int(said.origin.rsplit(".", 3)[1])
        item = lookup.item_of(self._store, self._batch, n)
        if item is None or item.place.state is State.PENDING:
            return  # of a batch that was here before; or the item's own next run adopts it
        rows = self._store.outputs(self._batch.id, lo=n, hi=n + 1, stage=stage)
        if not rows:
            why = "an output of the item that was staged and never recorded"
            yield Finding(what=What.EXTRA, why=why, n=n, key=item.key, stage=stage, file=path)
        elif rows[0].file is None or Evidence.decode(rows[0].file).staged != path:
            self.leftovers += 1


def _holds(sorted_names: "array[int]", name: int) -> bool:
    at = bisect_left(sorted_names, name)
    return at < len(sorted_names) and sorted_names[at] == name
