"""The bytes of stored outputs, wherever they are: in the store, or in the files of a sink."""

import errno
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from holdfast.core import canonical
from holdfast.core.errors import Refused, SinkError
from holdfast.core.limits import FINDINGS_LISTED, STAGES
from holdfast.core.model import Batch, BatchId, Item, ItemNo, Key, Output, Place, StoredItem
from holdfast.core.states import RESOLVED
from holdfast.core.verify import Decision, Finding, Seen, Verdict, What, decide, next_to_ask
from holdfast.runtime.define.calls import Asker, Verifier, here
from holdfast.runtime.define.context import Context
from holdfast.runtime.define.schema import Invalid
from holdfast.runtime.define.stage import Stage
from holdfast.runtime.sinks.base import Evidence, Obstructed, TakenOver
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.text import command
from holdfast.runtime.working.explanation import SinkTrouble, no_answer
from holdfast.stores.base import Store


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


WARNED = 5


class Findings:
    """The first findings of a run, and how many there are."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self.stages = stages
        self.count = 0
        self.listed: list[Finding] = []
        self._named = array("Q")
        """Which outputs they are about, in order: few bytes for each."""

    def add(self, key: Key, n: int, stage: int, why: str) -> None:
        """Note that the output of a stage could not be verified: its item stays as it is. Who comes to it again at the
        end of a run adds nothing."""
        output = n * STAGES + stage
        at = bisect_left(self._named, output)
        if at < len(self._named) and self._named[at] == output:
            return
        self._named.insert(at, output)
        self.count += 1
        if len(self.listed) < FINDINGS_LISTED:
            self.listed.append(Finding(what=What.UNVERIFIED, why=why, n=n, key=key, stage=stage))

    def warnings(self) -> list[str]:
        """Return what a person reads about them."""
        lines = [
            f"item {f.key!r}, stage {self.stages[f.stage or 0]!r} could not be verified: {f.why}"
            for f in self.listed[:WARNED]
        ]
        more = self.count - len(lines)
        return [*lines, f"{more:,} more could not be verified"] if more > 0 else lines


IN_THE_WAY = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST})
"""What a person has to put right at one file, while the disk itself is fine."""


class Past:
    """What is recorded of one item, read from the store as far as it is needed."""

    def __init__(
        self, store: Store, batch: BatchId, item: Item, fence: int, *, outputs: Sequence[Output] = (),
        payload: bytes | None = None, whole: bool = False,
    ) -> None:  # fmt: skip
        self._store, self._batch = store, batch
        self.n, self.key, self.salt, self.place, self.fence = item.n, item.key, item.salt, item.place, fence
        self.outputs = {output.stage: output for output in outputs}
        self._payload = payload
        self._whole = whole
        """All of its outputs are at hand."""

    def output(self, stage: int) -> Output | None:
        if stage not in self.outputs and not self._whole:
            self._whole = True
            found = self._store.outputs(self._batch, lo=self.n, hi=self.n + 1)
            self.outputs = {output.stage: output for output in found} | self.outputs
        return self.outputs.get(stage)

    @property
    def payload(self) -> bytes:
        if self._payload is None:
            self._payload = self._store.items(self._batch, lo=self.n, hi=self.n + 1)[0].payload
        return self._payload


class Looker:
    """Looks at outputs on behalf of one run."""

    def __init__(self, stages: Sequence[Stage], *, pipeline: str, batch: str, publishes: bool = True) -> None:
        self.stages = stages
        self.pipeline = pipeline
        self.batch = batch
        self.publishes = publishes
        """Whether outputs that were never published get their final names on the way."""
        self.asker = Asker()

    def close(self) -> None:
        self.asker.close()

    def before_going_on(self, past: Past, seen: list[Seen]) -> Decision:
        """Whether a pending item may go on: asked from its stage downward, until something holds."""
        while (stage := next_to_ask(past.place.stage, seen)) is not None:
            seen.append(self.see(past, stage, full=False, asks=True))
        return decide(seen)

    def look_over(self, past: Past, *, full: bool, digests: Mapping[tuple[int, int], bytes]) -> Decision:
        """Every recorded output of an item; `full` reads all of it and asks verifiers, `digests` are the journal's."""
        seen = [
            self.see(past, stage, full=full, asks=full, digest=digests.get((past.n, stage)))
            for stage in sorted(past.outputs)
        ]
        return decide([*seen, *self._gaps(past, seen)])

    def _gaps(self, past: Past, seen: Sequence[Seen]) -> list[Seen]:
        """What is missing below an output that does not hold: an item that was recovered from a file, or resolved by
        hand, has no outputs of the stages before. It goes back to where its input is."""
        lowest = min((each.stage for each in seen if each.verdict is Verdict.FAILS), default=0)
        below = takewhile(lambda stage: past.output(stage) is None, reversed(range(lowest)))
        return [self._fails(stage, "it was never recorded") for stage in below]

    def see(self, past: Past, stage: int, *, full: bool, asks: bool, digest: bytes | None = None) -> Seen:
        """One look at one output. `full` reads every byte, `asks` asks the verifier; `digest` is the journal's."""
        output = past.output(stage)
        if output is None:
            return self._fails(stage, "it is gone")
        try:
            return (
                self._file(stage, output, full=full)
                or (self._content(past, stage, output, digest) if full else None)
                or (self._asked(past, stage, output) if asks else None)
                or Seen(stage, Verdict.HOLDS)
            )
        except (Invalid, SinkError) as error:
            return self._fails(stage, str(error))
        except OSError as error:
            if error.errno not in IN_THE_WAY:
                raise
            return Seen(stage, Verdict.UNKNOWN, f"it cannot be read: {error}; see to the file, then run again",
                        SinkTrouble(f"the output of stage {self.stages[stage].name!r} for item {past.key!r} cannot be "
                                    f"read: {error}"))  # fmt: skip

    def _file(self, stage: int, output: Output, *, full: bool) -> Seen | None:
        sink = self.stages[stage].sink
        if sink is None or output.file is None:
            return None
        evidence = Evidence.decode(output.file)
        reason = sink.check(evidence, full=full, publish=self.publishes)
        if isinstance(reason, TakenOver):
            return Seen(stage, Verdict.HOLDS, reason)  # its item keeps what it was: nothing is made again
        if isinstance(reason, Obstructed):
            why = f"{evidence.final}: {reason}; put that right, then run again"
            return Seen(stage, Verdict.UNKNOWN, why, SinkTrouble(why))
        return None if reason is None else self._fails(stage, f"{evidence.final}: {reason}")

    def _content(self, past: Past, stage: int, output: Output, digest: bytes | None) -> Seen | None:
        data = self._bytes(stage, output)
        if digest is not None and canonical.digest(past.salt, data) != digest:
            return self._fails(stage, "it is not what the journal recorded")
        self.stages[stage].output.decode(data)
        return None

    def _bytes(self, stage: int, output: Output) -> bytes:
        sink = self.stages[stage].sink
        if output.data:
            return output.data
        if output.file is None or sink is None:
            raise SinkError("it is gone")
        return sink.read(Evidence.decode(output.file))

    def _asked(self, past: Past, stage: int, output: Output) -> Seen | None:
        verifier = self.stages[stage].verifier
        if verifier is None:
            return None
        out, given, ctx = self.stages[stage].output.decode(self._bytes(stage, output)), None, None
        if verifier.wants_item:
            try:
                data = self._input(past, stage)
                given = self.stages[stage].input.decode(data)
            except (Invalid, SinkError) as error:
                return self._unknown(verifier, stage, error)
            ctx = self._context(past, stage, data)
        try:
            here.batch = (self.pipeline, self.batch)
            objection = self.asker.ask(verifier.objection, out, given, ctx, seconds=verifier.seconds)
        except BaseException as error:  # noqa: BLE001 - the user's; it says nothing about the output
            return self._unknown(verifier, stage, error)
        finally:
            here.batch = None
        return None if objection is None else self._fails(stage, objection)

    def search(self, past: Past, stage: int) -> Seen:
        """Whether the adopter of a stage finds an output for the item that counts: it holds where the schema and the
        verifier accept it. Nothing is recorded of it."""
        at, adopter = self.stages[stage], self.stages[stage].adopter
        if adopter is None:
            return self._fails(stage, "it has no adopter")
        try:
            here.batch = (self.pipeline, self.batch)
            data = self._input(past, stage)
            given, ctx = at.input.decode(data), self._context(past, stage, data)
            found = self.asker.ask(adopter.find, given, ctx, seconds=adopter.seconds)
        except BaseException as error:  # noqa: BLE001 - the user's; it says nothing about what there is
            return Seen(
                stage, Verdict.UNKNOWN, f"its adopter gave no answer: {no_answer(error)}", adopter.failed(error)
            )
        finally:
            here.batch = None
        if found is None:
            return self._fails(stage, "its adopter found none")
        try:
            made = Output(ItemNo(past.n), stage, past.place.epoch, at.output.encode(found))
        except Invalid as error:
            return self._fails(stage, f"what its adopter found is none: {error}")
        return self._asked(past, stage, made) or Seen(stage, Verdict.HOLDS)

    def _input(self, past: Past, stage: int) -> bytes:
        """What the stage made its output from: the output of the stage before it, or the payload."""
        if stage == 0:
            return past.payload
        before = past.output(stage - 1)
        if before is None:
            raise SinkError(f"the output of stage {self.stages[stage - 1].name!r}, which it was made from, is gone")
        return self._bytes(stage - 1, before)

    def _context(self, past: Past, stage: int, data: bytes) -> Context:
        place = Place(stage=stage, epoch=past.place.epoch, rewinds=past.place.rewinds)
        return Context(
            item=Item(past.n, past.key, past.salt, data, place, True), batch=self.batch, pipeline=self.pipeline,
            stage=self.stages[stage].name, fence=past.fence, timeout=None, stopping=lambda: False, metrics=None,
        )  # fmt: skip

    def _fails(self, stage: int, reason: str) -> Seen:
        return Seen(stage, Verdict.FAILS, f"the output of stage {self.stages[stage].name!r}: {reason}")

    def _unknown(self, verifier: Verifier, stage: int, error: BaseException) -> Seen:
        return Seen(stage, Verdict.UNKNOWN, f"its verifier gave no answer: {no_answer(error)}", verifier.failed(error))
