"""Recorded outputs, in the store or in the files of a sink: their bytes, and whether they are still valid."""

import errno
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from holdfast.core import canonical, commitments, record
from holdfast.core.errors import Refused, SinkError
from holdfast.core.limits import FINDINGS_LISTED, STAGES
from holdfast.core.model import Batch, BatchId, Item, ItemState, Key, Output, StoredItem
from holdfast.core.states import RESOLVED
from holdfast.core.verify import GONE, Decision, Depth, Finding, Inspection, Verdict, What, decide, next_to_ask
from holdfast.runtime.define.calls import Asker, Verifier, current_batch, no_answer
from holdfast.runtime.define.context import Context
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.define.stage import Stage, sinks_among
from holdfast.runtime.sinks.base import Evidence, Obstructed, Sink, SinkTrouble, TakenOver
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.text import command
from holdfast.stores.base import Store


def sinks_of(batch: Batch) -> dict[int, Files]:
    """Return the file sinks of a batch by stage, from its stored definition; relative paths start at the current
    folder."""
    stages = canonical.decode(batch.definition)["stages"]
    sinks = [stage.get("sink") if isinstance(stage, dict) else None for stage in stages]
    return {
        stage: Files(sink["template"])
        for stage, sink in enumerate(sinks)
        if sink is not None and sink.get("kind") == "files"
    }


def value_of(stage: Stage, output: Output, batch: str, item: StoredItem) -> Any:
    """Return the value of a recorded output, as its stage returned it. Raises Refused if it is no longer valid,
    SinkError if its file is gone or damaged."""
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
            f"{error}; {why}. Correct the annotation, or have the output made again: `{again}`, then run the batch"
        ) from None


class OutputReader:
    """A reader of outputs in the store and in files. Relative paths start at the current folder, as they did in the
    run."""

    def __init__(self, sinks: Mapping[int, Sink]) -> None:
        self._sinks = sinks

    def read(self, output: Output) -> bytes:
        """Return the JSON bytes of an output. Raises `SinkError` if they are gone or changed, `OSError` if the disk
        failed."""
        if output.file is None or output.data:
            if output.data is None:
                raise SinkError("the store has lost its bytes")
            return output.data
        sink, evidence = self._sinks.get(output.stage), Evidence.decode(output.file)
        if sink is None:
            raise SinkError(f"{evidence.final}: the pipeline no longer has a file sink at this stage")
        return sink.read(evidence)

    def location(self, output: Output) -> str | None:
        """Return the path of the file that holds an output; None if the store holds it."""
        return None if output.file is None else Evidence.decode(output.file).final


WARNED = 5


class Findings:
    """The first findings of a run, and how many there are."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self.stages = stages
        self.count = 0
        self.listed: list[Finding] = []
        self._named = array("Q")
        """The outputs that they are about, sorted and compact."""

    def add(self, key: Key, n: int, stage: int, why: str) -> None:
        """Add an output that could not be verified; its item stays as it is. Adding it again at the end of a run does
        nothing."""
        output = n * STAGES + stage
        at = bisect_left(self._named, output)
        if at < len(self._named) and self._named[at] == output:
            return
        self._named.insert(at, output)
        self.count += 1
        if len(self.listed) < FINDINGS_LISTED:
            self.listed.append(Finding(what=What.UNVERIFIED, why=why, n=n, key=key, stage=stage))

    def warnings(self) -> list[str]:
        """Return the warnings of a report."""
        lines = [
            f"item {f.key!r}, stage {self.stages[f.stage or 0]!r} could not be verified: {f.why}"
            for f in self.listed[:WARNED]
        ]
        more = self.count - len(lines)
        return [*lines, f"{more:,} more could not be verified"] if more > 0 else lines


class RecordedDigest(NamedTuple):
    """A digest in the journal, with the format of its entry: only the formula of that format proves it."""

    format: int
    digest: bytes

    def proves(self, uid: bytes, output: Output, data: bytes) -> bool:
        """Return whether it is the digest of a stored output with these bytes. In format 2, the digest of an output in
        a file is one of the evidence of the file, with which the sink compared the bytes when it read them."""
        if self.format == 1:
            return commitments.first_format(output.salt, data) == self.digest
        return record.of_output(uid, output) == self.digest


IN_THE_WAY = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST})
"""Errors that a person must fix at one file, while the disk itself is fine."""


class RecordedItem:
    """The record of one item, read from the store as needed."""

    def __init__(
        self, store: Store | None, batch: BatchId, item: Item, fence: int, *, outputs: Iterable[Output] = (),
        payload: bytes | None = None, whole: bool = False,
    ) -> None:  # fmt: skip
        self._store, self._batch = store, batch
        self.n, self.key, self.place, self.fence = item.n, item.key, item.place, fence
        self.outputs = {output.stage: output for output in outputs}
        self._payload = payload
        self._whole = whole
        """True if all of its outputs are loaded."""

    @classmethod
    def of(cls, item: StoredItem, outputs: Iterable[Output], *, fence: int = 0) -> "RecordedItem":
        """Return an item with its whole record loaded."""
        held = Item(item.n, item.key, b"", item.place, False, revision=item.revision)
        return cls(None, BatchId(0), held, fence, outputs=outputs, payload=item.payload, whole=True)

    def output(self, stage: int) -> Output | None:
        if stage not in self.outputs and not self._whole:
            self._whole = True
            assert self._store is not None
            found = self._store.outputs(self._batch, lo=self.n, hi=self.n + 1)
            self.outputs = {output.stage: output for output in found} | self.outputs
        return self.outputs.get(stage)

    @property
    def payload(self) -> bytes:
        if self._payload is None:
            assert self._store is not None
            self._payload = self._store.items(self._batch, lo=self.n, hi=self.n + 1)[0].payload
        return self._payload


class OutputInspector:
    """The check whether recorded outputs are still valid, for a run, its plan, a reconciliation, an audit or a
    recovery. Without the stages of a pipeline it uses the stored definition of the batch, and cannot ask verifiers."""

    def __init__(
        self, stages: Sequence[Stage] = (), *, batch: str, uid: bytes, pipeline: str = "", names: Sequence[str] = (),
        sinks: Mapping[int, Sink] | None = None, publishes: bool = True, knows_inputs: bool = True,
    ) -> None:  # fmt: skip
        self.stages = stages
        self.pipeline = pipeline
        self.batch = batch
        self.uid = uid
        """The uid of the batch, which the digests of its outputs name."""
        self.publishes = publishes
        """True if outputs that were never published get their final names during the check."""
        self._knows_inputs = knows_inputs
        """True if the inputs of outputs are recorded: if not, a verifier that needs the item is not asked."""
        self._names = names or [stage.name for stage in stages]
        self._sinks = sinks if sinks is not None else sinks_among(stages)
        self._reader = OutputReader(self._sinks)
        self.asker = Asker()

    def close(self) -> None:
        self.asker.close()

    def before_going_on(self, past: RecordedItem, seen: list[Inspection]) -> Decision:
        """Return whether a pending item may continue: outputs are checked from its stage downward, until one is
        valid."""
        while (stage := next_to_ask(past.place.stage, seen)) is not None:
            seen.append(self.inspect(past, stage, Depth.QUICK, asks=True))
        return decide(seen)

    def look_over(
        self, past: RecordedItem, *, full: bool, digests: Mapping[tuple[int, int], RecordedDigest]
    ) -> Decision:
        """Check every recorded output of an item; `full` reads all bytes and asks verifiers, `digests` are the
        journal's."""
        depth = Depth.VERIFIED if full else Depth.QUICK
        seen = [
            self.inspect(past, stage, depth, digest=digests.get((past.n, stage)), asks=full)
            for stage in sorted(past.outputs)
        ]
        return decide([*seen, *self._gaps(past, seen)])

    def _gaps(self, past: RecordedItem, seen: Sequence[Inspection]) -> list[Inspection]:
        """Return the missing outputs below one that is not valid: an item that was recovered from a file, or resolved
        by hand, has no outputs of the stages before. It goes back to the stage whose input exists."""
        lowest = min((each.stage for each in seen if each.verdict is Verdict.FAILS), default=0)
        below = takewhile(lambda stage: past.output(stage) is None, reversed(range(lowest)))
        return [self._fails(stage, "it was never recorded") for stage in below]

    def inspect(
        self, past: RecordedItem, stage: int, depth: Depth, *, digest: RecordedDigest | None = None, asks: bool = False
    ) -> Inspection:
        """Check one output. `digest` is the journal's; with `asks`, its verifier is asked."""
        output = past.output(stage)
        if output is None:
            return self._fails(stage, "it is gone")
        try:
            wrong = self._name(stage, output, full=depth is not Depth.QUICK)
            if wrong is None and depth is not Depth.QUICK:
                wrong = self.content(past, stage, self.read(output), depth, digest)
            elif wrong is None and asks and self.stages[stage].verifier is not None:
                wrong = self._asked(past, stage, self.read(output))
            return wrong or Inspection(stage, Verdict.HOLDS)
        except (Invalid, SinkError) as error:
            return self._fails(stage, str(error))
        except OSError as error:
            if error.errno not in IN_THE_WAY:
                raise
            return Inspection(stage, Verdict.UNKNOWN, f"it cannot be read: {error}; fix the file, then run again",
                        SinkTrouble(f"the output of stage {self._names[stage]!r} for item {past.key!r} cannot be "
                                    f"read: {error}"), reason=f"it cannot be read: {error}")  # fmt: skip

    def is_there(self, output: Output) -> bool:
        """Return whether a quick check confirms that the file of an output is there; True if the store holds it."""
        sink = self._sinks.get(output.stage)
        if output.file is None or sink is None:
            return True
        return sink.check(Evidence.decode(output.file), full=False, publish=self.publishes) is None

    def read(self, output: Output) -> bytes:
        """Return the JSON bytes of an output, as `OutputReader.read`."""
        return self._reader.read(output)

    def content(
        self, past: RecordedItem, stage: int, data: bytes, depth: Depth, digest: RecordedDigest | None = None
    ) -> Inspection | None:
        """Return the flaw in the bytes of an output, or None. Raises `Invalid` if they do not fit what the stage
        returns."""
        output = past.output(stage)
        if digest is not None and (output is None or not digest.proves(self.uid, output, data)):
            return self._fails(stage, OTHER)
        return self._asked(past, stage, data) if depth is Depth.VERIFIED else None

    def input_of(self, past: RecordedItem, stage: int) -> bytes:
        """Return the input of a stage: the output of the stage before it, or the payload. Raises `SinkError` if it is
        gone."""
        if stage == 0:
            return past.payload
        before = past.output(stage - 1)
        if before is None:
            raise SinkError(f"the output of stage {self._names[stage - 1]!r}, from which it was made, is gone")
        return self.read(before)

    def _name(self, stage: int, output: Output, *, full: bool) -> Inspection | None:
        """Return the flaw in how an output is stored; None if it is in its place, or staged there."""
        if output.file is None:
            return None if output.data is not None else self._fails(stage, GONE)
        sink, evidence = self._sinks.get(stage), Evidence.decode(output.file)
        if sink is None:
            return self._fails(stage, NO_SINK)
        reason = sink.check(evidence, full=full, publish=self.publishes)
        if isinstance(reason, TakenOver):
            return Inspection(stage, Verdict.HOLDS, reason, superseded=True)
        if isinstance(reason, Obstructed):
            why = f"{evidence.final}: {reason}; fix that, then run again"
            return Inspection(stage, Verdict.UNKNOWN, why, SinkTrouble(why), reason)
        return None if reason is None else self._fails(stage, reason, evidence.final)

    def _asked(self, past: RecordedItem, stage: int, data: bytes) -> Inspection | None:
        """Return the flaw in an output by the code of its stage: its schema and its verifier."""
        out, verifier, given, ctx = self.stages[stage].output.decode(data), self.stages[stage].verifier, None, None
        if verifier is None or (verifier.wants_item and not self._knows_inputs):
            return None
        if verifier.wants_item:
            try:
                made_from = self.input_of(past, stage)
                given = self.stages[stage].input.decode(made_from)
            except (Invalid, SinkError) as error:
                return self._unknown(verifier, stage, error)
            ctx = self._context(past, stage, made_from)
        try:
            current_batch.set((self.pipeline, self.batch))
            objection = self.asker.ask(verifier.objection, out, given, ctx, seconds=verifier.seconds)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return self._unknown(verifier, stage, error)
        finally:
            current_batch.set(None)
        return None if objection is None else self._fails(stage, objection)

    def search(self, past: RecordedItem, stage: int) -> Inspection:
        """Return whether the adopter of a stage finds a valid output for the item, one that the schema and the verifier
        accept. Nothing is recorded."""
        at, adopter = self.stages[stage], self.stages[stage].adopter
        if adopter is None:
            return self._fails(stage, "it has no adopter")
        try:
            current_batch.set((self.pipeline, self.batch))
            data = self.input_of(past, stage)
            given, ctx = at.input.decode(data), self._context(past, stage, data)
            found = self.asker.ask(adopter.find, given, ctx, seconds=adopter.seconds)
        except BaseException as error:  # noqa: BLE001 - user code: its failure does not tell whether there is an output
            return Inspection(
                stage, Verdict.UNKNOWN, f"its adopter gave no answer: {no_answer(error)}", adopter.failed(error)
            )
        finally:
            current_batch.set(None)
        if found is None:
            return self._fails(stage, "its adopter found none")
        try:
            made = at.output.encode(found)
        except Invalid as error:
            return self._fails(stage, f"the value that its adopter found is not valid: {error}")
        return self._asked(past, stage, made) or Inspection(stage, Verdict.HOLDS)

    def _context(self, past: RecordedItem, stage: int, data: bytes) -> Context:
        place = ItemState(stage=stage, epoch=past.place.epoch, rewinds=past.place.rewinds)
        return Context(
            item=Item(past.n, past.key, data, place, True), batch=self.batch, pipeline=self.pipeline,
            stage=self.stages[stage].name, fence=past.fence, timeout=None, stopping=lambda: False, metrics=None,
        )  # fmt: skip

    def _fails(self, stage: int, reason: str, file: str = "") -> Inspection:
        told = f"{file}: {reason}" if file else reason
        return Inspection(stage, Verdict.FAILS, f"the output of stage {self._names[stage]!r}: {told}", reason=reason)

    def _unknown(self, verifier: Verifier, stage: int, error: BaseException) -> Inspection:
        why = f"its verifier gave no answer: {no_answer(error)}"
        return Inspection(stage, Verdict.UNKNOWN, why, verifier.failed(error), why)


OTHER = "it is not what the journal recorded"
NO_SINK = "it is in a file, but the pipeline no longer has a sink at this stage to read it"
