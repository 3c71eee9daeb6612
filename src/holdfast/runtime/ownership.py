"""Whose output files are: names without `{batch}` belong to the first batch that recorded a file under them.

Another batch is refused when it opens, before anything is paid, unless its sink says `replaces=True`: then it takes the
names, and outputs of the older batch are superseded. A batch that was superseded never takes its names back. The note
beside the files decides, so that batches of other stores and pipelines are known, too; without one, the store does.
"""

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import IO, Literal

from holdfast.core.errors import Refused, StoreError
from holdfast.core.model import Batch
from holdfast.runtime import lookup
from holdfast.runtime.records.outputs import sinks_of
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.sinks.holder import Holder, Names
from holdfast.runtime.stage import Stage
from holdfast.stores.base import Store, each_output

Standing = Literal["held", "free", "superseded"]


class Ownership:
    """The names that a batch keeps while it is at work, and those that a newer batch has taken from it."""

    def __init__(self) -> None:
        self.superseded: dict[str, str] = {}
        """Stage -> the batch that has its names now."""
        self._kept: list[IO[bytes]] = []

    def keep(self, names: Names) -> None:
        if (note := names.keep()) is not None:
            self._kept.append(note)

    def close(self) -> None:
        """Let others have the names, where nothing was recorded under them or they are to be replaced."""
        while self._kept:
            self._kept.pop().close()

    def notes(self, batch: str) -> list[str]:
        """What a report says about outputs that were superseded."""
        return [
            f"the files of stage {stage!r} were superseded by batch {by!r}: nothing of {batch!r} is made again, and "
            "its source was not read"
            for stage, by in self.superseded.items()
        ]

    def check_idle(self, batch: str) -> None:
        """Refuse to work on a batch whose names a newer one has."""
        for stage, by in self.superseded.items():
            raise Refused(
                f"batch {batch!r} has work left, but the files of stage {stage!r} were superseded by batch {by!r}, and "
                f"it would replace them: cancel it (`holdfast cancel {quote(batch)}`), or give the items to a new batch"
            )


def own(store: Store, pipeline: str, name: str, stages: Sequence[Stage]) -> Ownership:
    """Take the names that a batch writes its files under, or refuse; close the answer when the batch is not worked on
    any longer."""
    found, known = Ownership(), store.batch(name)
    try:
        for each in _claims(store, Holder(pipeline, name), known, stages):
            _own(each, found)
    except OSError as error:
        found.close()
        raise StoreError(f"whose the output files of batch {name!r} are cannot be told: {error}; see to the disk, "
                         "then run again: nothing was done") from error  # fmt: skip
    except BaseException:
        found.close()
        raise
    if not found.superseded or known is None:
        return found
    if known.ingested_at is None or any(chunk.pending for chunk in store.chunks(known.id)):
        found.check_idle(name)
    return found


def obstacles(store: Store, pipeline: str, name: str, stages: Sequence[Stage]) -> list[str]:
    """Why `own` would refuse; nothing is changed."""
    try:
        for each in _claims(store, Holder(pipeline, name), store.batch(name), stages):
            each.judge()
    except Refused as refused:
        return [str(refused)]
    return []


def adopt(store: Store, pipeline: str, name: str, stages: Sequence[Stage]) -> None:
    """Make files that are there those of a batch whose record is rebuilt from them, unless the batch that holds their
    names is in the store."""
    for each in _claims(store, Holder(pipeline, name), None, stages):
        if each.names.holder() in (None, each.me):
            continue
        with each.names.in_turn() as is_writable:
            holder = each.names.holder()
            if holder is not None and (each.in_store(holder) is not None or each.names.is_in_use()):
                raise each.refusal(holder)
            if is_writable:
                each.names.write(each.me)


class _Claim:
    """The names of one stage, as one batch wants them."""

    def __init__(self, store: Store, me: Holder, known: Batch | None, stage: Stage, index: int, sink: Files,
                 names: Names) -> None:  # fmt: skip
        self.store, self.me, self.known, self.stage, self.index = store, me, known, stage, index
        self.sink, self.names = sink, names

    def judge(self) -> tuple[Standing, Holder]:
        """How the names stand for the batch, and who holds them; refused where that is another that keeps them."""
        holder = self.names.holder()
        holder = holder if holder is not None else self._recorded_before()
        if holder is None or holder == self.me:
            return ("free" if holder is None else "held"), self.me
        if self.known is not None and _has_files(self.store, self.known, self.index):
            return "superseded", holder
        if self.names.is_in_use() or (self._has_recorded(holder) and not self._may_replace(holder)):
            raise self.refusal(holder)
        return "free", self.me

    def in_store(self, holder: Holder) -> Batch | None:
        """The holder, if it is a batch of this store."""
        found = self.store.batch(holder.batch)
        return found if found is not None and found.pipeline == holder.pipeline else None

    def refusal(self, holder: Holder) -> Refused:
        template = self.sink.template
        better = f"{template.folder if template.folder != '.' else ''}{{batch}}/{template.tail}"
        there = self.in_store(holder)
        if there is not None and there.sealed_at is not None:
            way = "it is sealed, and what is sealed is never replaced"
        elif self.sink.replaces:
            way = "it is at work: run this one when it has ended"
        else:
            way = "or write hf.Files(…, replaces=True), which lets a new batch take the names of the one before it"
        return Refused(
            f"the files {template.text} of stage {self.stage.name!r} belong to batch {holder.batch!r} of pipeline "
            f"{holder.pipeline!r}, and batch {self.me.batch!r} would replace them; nothing was done. Put {{batch}} "
            f"into the template, such as hf.Files({better!r}); {way}"
        )

    def _may_replace(self, holder: Holder) -> bool:
        there = self.in_store(holder)
        return self.sink.replaces and (there is None or there.sealed_at is None)

    def _has_recorded(self, holder: Holder) -> bool:
        """Whether the holder has files under the names: by its record, or by what is there where that is elsewhere."""
        there = self.in_store(holder)
        if there is not None:
            return any(_has_files(self.store, there, index) for index in sinks_of(there))
        return self._any_file()

    def _any_file(self) -> bool:
        alike = self.sink.named_alike(self.me.batch, self.stage.name)
        return next(alike, None) is not None or any(left.kind == "staged" for left in self.sink.leftovers())

    def _recorded_before(self) -> Holder | None:
        """Without a note, the batch of this store whose files are there: the first one, unless a later one has replaced
        its files, as was possible before there were notes."""
        if not self._any_file():
            return None
        found: Holder | None = None
        for batch in sorted(self.store.batches(), key=lambda each: each.id):
            for index, sink in sinks_of(batch).items():
                its = sink.names_of(lookup.stage_names(batch)[index])
                evidence = (
                    _has_files(self.store, batch, index) if its is not None and its.path == self.names.path else None
                )
                if evidence is None:
                    continue
                if sink.is_as_left(evidence):
                    return Holder(batch.pipeline, batch.name)
                found = found if found is not None else Holder(batch.pipeline, batch.name)
        return found


def _own(claim: _Claim, found: Ownership) -> None:
    if claim.known is not None and claim.known.admitted and not claim.sink.folder.exists():
        return  # perhaps a disk is not mounted: the look at what is recorded says so, and nothing is made in its place
    with claim.names.in_turn() as is_writable:
        standing, holder = claim.judge()
        if is_writable and claim.names.holder() != holder:
            claim.names.write(holder)
        if standing == "superseded":
            found.superseded[claim.stage.name] = holder.batch
        else:
            found.keep(claim.names)


def _claims(store: Store, me: Holder, known: Batch | None, stages: Sequence[Stage]) -> Iterator[_Claim]:
    for index, stage in enumerate(stages):
        names = stage.sink.names_of(stage.name) if isinstance(stage.sink, Files) else None
        if names is not None and isinstance(stage.sink, Files):
            yield _Claim(store, me, known, stage, index, stage.sink, names)


def _has_files(store: Store, batch: Batch, stage: int) -> Evidence | None:
    """The evidence of the first file that a batch recorded at a stage."""
    for output in each_output(store, batch.id, stage=stage):
        if output.file is not None:
            return Evidence.decode(output.file)
    return None
