"""Ownership of output files: names belong to the first batch that recorded a file under them.

Another batch is refused when it opens, before anything is paid, unless its sink has `replaces=True`: then it takes the
names, and outputs of the older batch are superseded. A batch that was superseded never takes its names back. A note
beside the files names the owner, so that batches of other stores and pipelines are known as well; without a note, the
store decides. The first entry of its journal distinguishes a batch from one of the same name in another store, even if
the store is moved. That entry is written when the batch is opened, so it is added to the note then.

Templates with `{batch}` give nearly every batch of a store its own names. The sink detects single files that two
batches name alike (`sinks/name_notes.py`), for which it needs a note of every batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Literal

from holdfast.core.course import stage_names
from holdfast.core.errors import Refused, StoreError
from holdfast.core.model import Batch
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.journal import first_hash
from holdfast.runtime.sinks.base import Evidence
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.sinks.name_notes import NamesHolder, Note
from holdfast.runtime.text import command
from holdfast.runtime.verify.inspector import sinks_of
from holdfast.stores.base import Store, each_output, find_batch

Standing = Literal["held", "free", "superseded"]


class Ownership:
    """The names that a batch holds while it is running, and those that a newer batch has taken from it."""

    def __init__(self) -> None:
        self.superseded: dict[str, str] = {}
        """Stage -> the batch that now has its names."""
        self._kept: list[IO[bytes]] = []
        self._claims: list[_NamesClaim] = []

    def keep(self, claim: "_NamesClaim") -> None:
        self._claims.append(claim)
        if (note := claim.names.keep()) is not None:
            self._kept.append(note)

    def settle(self, batch: Batch) -> None:
        """Add the identity of the batch, which is now open, to the notes. Refuse if another store has taken the names
        meanwhile: the batch then stays open and has no items."""
        claims, before = self._claims, self._kept
        self._claims, self._kept = [], []
        try:
            for claim in claims:
                claim.know(batch)
                _take(claim, self)
        except OSError as error:
            raise _unclear(batch.name, error) from error
        finally:
            for note in before:
                note.close()

    def close(self) -> None:
        """Release the names: other batches may take them if nothing was recorded under them, or if they replace
        files."""
        while self._kept:
            self._kept.pop().close()

    def notes(self, batch: str) -> list[str]:
        """Return the notes of a report about outputs that were superseded."""
        return [
            f"the files of stage {stage!r} were superseded by batch {by!r}: no output of {batch!r} is made again, and "
            "its source was not read"
            for stage, by in self.superseded.items()
        ]

    def check_idle(self, batch: str) -> None:
        """Refuse to run a batch whose names a newer batch has."""
        for stage, by in self.superseded.items():
            raise Refused(
                f"batch {batch!r} has work left, but the files of stage {stage!r} were superseded by batch {by!r}, and "
                f"a run would replace them: cancel it (`{command('cancel', batch)}`), or give the items to a new batch"
            )


def own(store: Store, pipeline: str, name: str, stages: Sequence[Stage]) -> Ownership:
    """Take the names that a batch writes its files under, or refuse. The caller closes the result when the run ends."""
    found, known = Ownership(), find_batch(store, name)
    try:
        for each in _claims(store, pipeline, name, known, stages):
            _own(each, found)
    except OSError as error:
        found.close()
        raise _unclear(name, error) from error
    except BaseException:
        found.close()
        raise
    if not found.superseded or known is None:
        return found
    if known.ingested_at is None or any(chunk.pending for chunk in store.chunks(known.id)):
        found.check_idle(name)
    return found


def _unclear(batch: str, error: OSError) -> StoreError:
    return StoreError(
        f"the owner of the output files of batch {batch!r} cannot be determined: {error}; check the disk, then run "
        "again; nothing was done"
    )


def obstacles(store: Store, pipeline: str, name: str, stages: Sequence[Stage]) -> list[str]:
    """Return why `own` would refuse. Nothing is changed."""
    try:
        for each in _claims(store, pipeline, name, find_batch(store, name), stages):
            each.judge()
    except Refused as refused:
        return [str(refused)]
    return []


def adopt(store: Store, pipeline: str, name: str, stages: Sequence[Stage]) -> Ownership:
    """Give existing files to a batch that is rebuilt from them, unless the batch that owns their names is in the store.
    The caller settles and closes the result when the batch is open."""
    found = Ownership()
    try:
        for each in _claims(store, pipeline, name, None, stages):
            if each.names.holder() is not None:
                _adopt(each, found)
    except BaseException:
        found.close()
        raise
    return found


def _adopt(claim: "_NamesClaim", found: Ownership) -> None:
    with claim.names.in_turn() as is_writable:
        holder = claim.names.holder()
        if holder is not None and (claim.in_store(holder) is not None or claim.names.is_in_use()):
            raise claim.refusal(holder)
        if is_writable:
            claim.names.write(claim.me)
            found.keep(claim)


def introduce(store: Store, batch: Batch, sinks: Mapping[int, object]) -> None:
    """Give sinks the batch that uses them, so that they can tell its files from those of others."""
    files = [sink for sink in sinks.values() if isinstance(sink, Files)]
    if files:
        owner = _RecordedFiles(holder_of(store, batch), store, batch, stage_names(batch))
        for sink in files:
            sink.know(owner)


def holder_of(store: Store, batch: Batch) -> NamesHolder:
    """Return the form in which notes name a batch."""
    return NamesHolder(batch.pipeline, batch.name, uid_of(store, batch))


def uid_of(store: Store, batch: Batch) -> str:
    """Return the identity of a batch, from its first entry, which no batch of another store shares."""
    return first_hash(store, batch)[:32]


class _RecordedFiles:
    """The recorded files of a batch, for its sinks."""

    def __init__(self, holder: NamesHolder, store: Store, batch: Batch | None, stages: Sequence[str]) -> None:
        self.holder, self._store, self._batch, self._stages = holder, store, batch, stages

    def recorded(self, n: int, stage: str) -> Evidence | None:
        if self._batch is None or stage not in self._stages:
            return None
        rows = self._store.outputs(self._batch.id, lo=n, hi=n + 1, stage=self._stages.index(stage))
        return next((Evidence.decode(row.file) for row in rows if row.file is not None), None)


class _NamesClaim:
    """A batch's claim to the names of one stage."""

    def __init__(self, store: Store, me: NamesHolder, known: Batch | None, stages: Sequence[Stage], index: int,
                 sink: Files) -> None:  # fmt: skip
        self.store, self.me, self.known, self.stage, self.index = store, me, known, stages[index], index
        self.sink, self.names = sink, sink.names_of(stages[index].name, me.batch)
        self._stages = [stage.name for stage in stages]
        self.noted: NamesHolder | None = None
        """The holder by the note, when it was last read."""
        self._done = "nothing was done"

    def know(self, batch: Batch) -> None:
        """Take over the identity of the batch, which is now open."""
        self.known, self.me = batch, holder_of(self.store, batch)
        self._done = "the batch was opened, but nothing else was done"

    def introduce(self) -> None:
        """Give the sink the batch that writes to it."""
        self.sink.know(_RecordedFiles(self.me, self.store, self.known, self._stages))

    def judge(self) -> tuple[Standing, NamesHolder]:
        """Return the standing of the names for this batch, and their holder; raise Refused if another batch keeps
        them."""
        note = self.names.note()
        self.noted = note.holder if note is not None else None
        if self.known is None and (opened := find_batch(self.store, self.me.batch)) is not None:
            self.known, self.me = opened, holder_of(self.store, opened)  # another process opened it since
        holder = self.noted if note is not None else self._recorded_before()
        if holder is None or (note is None and holder == self.me) or (note is not None and self._is_own(note)):
            return ("free" if holder is None else "held"), self.me
        if self.known is not None and _has_files(self.store, self.known, self.index):
            return "superseded", holder
        if self.names.is_in_use() or (self._has_recorded(holder) and not self._may_replace(holder)):
            raise self.refusal(holder)
        return "free", self.me

    def _is_own(self, note: Note) -> bool:
        """Return whether the note is of this batch. A note of an older version is, unless there are files that this
        store does not know. So is a note of a batch that was about to be opened and had no identity yet."""
        if not note.holder.may_be(self.me):
            return False
        if note.is_old:
            return self.known is not None or not self._any_file()
        return not note.uid or note.uid == self.me.uid

    def in_store(self, holder: NamesHolder) -> Batch | None:
        """Return the holder, if it is a batch of this store."""
        found = find_batch(self.store, holder.batch)
        if found is None or found.pipeline != holder.pipeline:
            return None
        return found if holder.uid in ("", uid_of(self.store, found)) else None

    def refusal(self, holder: NamesHolder) -> Refused:
        there = self.in_store(holder)
        if there is None and (holder.pipeline, holder.batch) == (self.me.pipeline, self.me.batch):
            return self._refusal_of_namesake(holder)
        if there is not None and there.sealed_at is not None:
            way = "it is sealed, and the files of a sealed batch are never replaced"
        elif self.sink.replaces:
            way = "it is running: run this one when it has ended"
        else:
            way = "or use hf.Files(…, replaces=True), which lets a new batch take the names of the one before it"
        return Refused(
            f"the files {self.sink.template.text} of stage {self.stage.name!r} belong to batch {holder.batch!r} of "
            f"pipeline {holder.pipeline!r}, and batch {self.me.batch!r} would replace them; {self._done}. "
            f"{self._instead()}; {way}"
        )

    def _refusal_of_namesake(self, holder: NamesHolder) -> Refused:
        if self.sink.replaces:
            ways = "It is running: run this one when it has ended"
        else:
            ways = (
                "If that store still exists, use it. Otherwise move the files to another folder; or rebuild the batch "
                "from them (`holdfast import … --from-outputs`); or use hf.Files(…, replaces=True), and this batch "
                "makes them again"
            )
        return Refused(
            f"the files {self.sink.template.text} of stage {self.stage.name!r} were recorded by batch {holder.batch!r} "
            f"of pipeline {holder.pipeline!r} in another store, which may have been deleted or in memory only; this "
            f"batch of the same name would replace them; {self._done}. {ways}"
        )

    def _instead(self) -> str:
        if self.sink.template.has_batch:
            return "Use another folder, or another name for the batch"
        return f"Put {{batch}} into the template, such as hf.Files({self.sink.template.by_batch!r})"

    def _may_replace(self, holder: NamesHolder) -> bool:
        there = self.in_store(holder)
        return self.sink.replaces and (there is None or there.sealed_at is None)

    def _has_recorded(self, holder: NamesHolder) -> bool:
        """Return whether the holder has files under the names: by its records, or by the files if it is in another
        store."""
        there = self.in_store(holder)
        if there is not None:
            return any(_has_files(self.store, there, index) for index in sinks_of(there))
        return self._any_file()

    def _any_file(self) -> bool:
        alike = self.sink.named_alike(self.me.batch, self.stage.name)
        return next(alike, None) is not None or any(left.kind == "staged" for left in self.sink.leftovers())

    def _others(self) -> list[Batch]:
        """Return the batches of this store that may have the same names: only this one if the names contain
        `{batch}`."""
        if self.sink.template.has_batch:
            return [self.known] if self.known is not None else []
        return sorted(self.store.batches(), key=lambda each: each.id)

    def _recorded_before(self) -> NamesHolder | None:
        """Return the batch of this store whose files are there, if there is no note: the first one, unless a later one
        has replaced its files, as older versions allowed."""
        if not self._any_file():
            return None
        found: NamesHolder | None = None
        for batch in self._others():
            for index, sink in sinks_of(batch).items():
                its = sink.names_of(stage_names(batch)[index], batch.name)
                evidence = _has_files(self.store, batch, index) if its.path == self.names.path else None
                if evidence is None:
                    continue
                holder = holder_of(self.store, batch)
                if sink.is_as_left(evidence):
                    return holder
                found = found if found is not None else holder
        return found


def _own(claim: _NamesClaim, found: Ownership) -> None:
    if claim.known is not None and claim.known.admitted and not claim.sink.folder.exists():
        claim.introduce()
        return  # a disk may not be mounted: the recheck reports that, so nothing is created in its place
    if claim.sink.template.is_ambiguous and claim.names.note() is None:
        _note_older(claim)
    _take(claim, found)


def _note_older(claim: _NamesClaim) -> None:
    """Write missing notes for batches that an older version ran, which wrote none for names with `{batch}`, if their
    names can be confused with the claimed ones. All batches of the store are read for this, so it is done only while
    this batch has no note."""
    template, stage = claim.sink.template, claim.stage.name
    lead = template.lead(claim.me.batch, stage)
    for batch in claim.store.batches():
        its = template.lead(batch.name, stage)
        if batch.name == claim.me.batch or not (its.startswith(lead) or lead.startswith(its)):
            continue
        for index, sink in sinks_of(batch).items():
            held = sink.names_of(stage_names(batch)[index], batch.name)
            if sink.template == template and held.note() is None and _has_files(claim.store, batch, index):
                with held.in_turn() as is_writable:
                    if is_writable and held.note() is None:
                        held.write(holder_of(claim.store, batch))


def _take(claim: _NamesClaim, found: Ownership) -> None:
    with claim.names.in_turn() as is_writable:
        standing, holder = claim.judge()
        if is_writable and claim.noted != holder:
            claim.names.write(holder)
        if standing == "superseded":
            found.superseded[claim.stage.name] = holder.batch
        else:
            found.keep(claim)
    claim.introduce()


def _claims(
    store: Store, pipeline: str, name: str, known: Batch | None, stages: Sequence[Stage]
) -> Iterator[_NamesClaim]:
    me: NamesHolder | None = None
    for index, stage in enumerate(stages):
        if isinstance(stage.sink, Files):
            if me is None:
                me = NamesHolder(pipeline, name, uid_of(store, known) if known is not None else "")
            yield _NamesClaim(store, me, known, stages, index, stage.sink)


def _has_files(store: Store, batch: Batch, stage: int) -> Evidence | None:
    """Return the evidence of the first file that a batch recorded at a stage."""
    for output in each_output(store, batch.id, stage=stage):
        if output.file is not None:
            return Evidence.decode(output.file)
    return None
