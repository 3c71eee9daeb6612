"""The checks that must hold before an item continues, and the stage it goes back to if they do not.

Each inspected output gets a verdict: it holds, it does not hold, or it is unknown. Unknown never sends an item back: a
check that raised, hung or could not read proves nothing about the output.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from shlex import quote
from typing import Any, ClassVar, Literal

import msgspec

from holdfast.core import course, journal
from holdfast.core.canonical import decode, encode
from holdfast.core.course import Decide, End, word_of
from holdfast.core.limits import FINDINGS_SEALED, REWINDS, UNDO_ITEMS
from holdfast.core.model import Batch, BatchMode, Chunk, ItemState, Key, State, Value
from holdfast.core.plain import Plain, plain
from holdfast.core.states import Transition, keeps_outputs, move


class Verdict(StrEnum):
    """The result of inspecting an output."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"


class Depth(StrEnum):
    """How closely an output is inspected."""

    QUICK = "quick"
    """Is it there, with its size?"""
    FULL = "full"
    """Are its bytes those that were recorded?"""
    VERIFIED = "verified"
    """Does it fit what its stage returns, and does its verifier accept it?"""


class Inspection(msgspec.Struct, frozen=True):
    """One inspection of the output of one stage."""

    stage: int
    verdict: Verdict
    why: str = ""
    """The sentence for the user, with the stage and the file."""
    error: BaseException | None = None
    """The exception of a check that gave no verdict."""
    reason: str = ""
    """The same without the stage and the file."""
    superseded: bool = False
    """A newer batch has taken the name of its file: the output is not made again."""


class Stays(msgspec.Struct, frozen=True):
    """The item may continue at its current stage."""


class GoesBack(msgspec.Struct, frozen=True):
    """The item begins again at `stage`: everything that this stage needs holds."""

    stage: int
    why: str


class Unclear(msgspec.Struct, frozen=True):
    """Nothing can be decided until this output is known."""

    seen: Inspection


Decision = Stays | GoesBack | Unclear


def next_to_ask(at: int, seen: Sequence[Inspection]) -> int | None:
    """Return the stage whose output is inspected next for an item at stage `at`: downward from there, as long as the
    outputs do not hold."""
    if not seen:
        return at - 1 if at > 0 else None
    last = seen[-1]
    return last.stage - 1 if last.verdict is Verdict.FAILS and last.stage > 0 else None


def decide(seen: Sequence[Inspection]) -> Decision:
    """Return the stage where an item belongs. It goes back to the lowest stage whose output does not hold, so that
    everything that does not hold is made again, provided that the input of this stage is known to hold."""
    verdicts = {each.stage: each for each in seen}
    failed = [each for each in seen if each.verdict is Verdict.FAILS]
    if not failed:
        unknown = [each for each in seen if each.verdict is Verdict.UNKNOWN]
        return Unclear(max(unknown, key=lambda each: each.stage)) if unknown else Stays()
    lowest = min(failed, key=lambda each: each.stage)
    below = verdicts.get(lowest.stage - 1)
    if below is not None and below.verdict is Verdict.UNKNOWN:
        return Unclear(below)
    return GoesBack(lowest.stage, lowest.why)


def rewound(place: ItemState, stage: int, stages: int, *, reason: str) -> ItemState:
    """Return the place of an item that goes back; one that went back too often is buried instead."""
    if place.rewinds < REWINDS:
        return move(place, Transition.REWIND, stage=stage, stages=stages, reason=reason)
    why = f"{reason} (rewound {place.rewinds} times)"
    return move(place, Transition.EXHAUST, stage=stage, stages=stages, code="rewound_too_often", reason=why)


def may_have_been_tried(place: ItemState, *, resumed: bool) -> bool:
    """Return whether the handler may have run for this item at this stage before: under another grant, in an earlier
    attempt, or in an earlier epoch."""
    return resumed or place.attempt > 0 or place.epoch > 0


def is_too_much(bad: int, looked_at: int, allowed: float) -> bool:
    """Return whether so many items would be undone that a wrong folder or database is likelier than damage. `allowed`
    is a number of items, or a share of those inspected; a share is not applied below `limits.UNDO_ITEMS`."""
    if isinstance(allowed, int):
        return bad > allowed
    return bad >= UNDO_ITEMS and bad > allowed * looked_at


def is_enough_to_judge(looked_at: int, allowed: float) -> bool:
    """Return whether inspecting so many items is enough to undo the bad ones before the others are inspected."""
    return isinstance(allowed, int) or allowed * looked_at >= UNDO_ITEMS or allowed >= 1


GONE = "it is missing"
"""The reason for an output that does not exist; any other reason means that the output is different."""
How = Literal["sums", "files", "quick", "full"]


class What(StrEnum):
    """The way in which expected, recorded and observed do not agree."""

    MISSING = "missing"
    DIFFERENT = "different"
    EXTRA = "extra"
    DUPLICATED = "duplicated"
    NEVER_CREATED = "never created"
    UNEXPECTED = "unexpected"
    UNKNOWN = "unknown"
    MISCOUNTED = "miscounted"
    UNVERIFIED = "unverified"


REMEDIES = {
    What.MISSING: "repair, or run the batch again (a run leaves dead letters alone): the item goes back to the stage "
    "that makes it",
    What.DIFFERENT: "put the recorded file back, or repair: the item goes back to the stage that makes it",
    What.EXTRA: "check it, and move or delete it yourself if it is not needed: Holdfast never does",
    What.DUPLICATED: "use a sink template that gives each item a different name, then run the batch with "
    'on_code_change="rerun"',
    What.NEVER_CREATED: "run the batch again with its source: the item is admitted then",
    What.UNEXPECTED: "find out where they came from; if they belong to it, put the right number on record: `{expect}`",
    What.UNKNOWN: "find out why the source no longer has it; Holdfast does not remove the item",
    What.MISCOUNTED: "do not continue: check the store with `holdfast audit verify`",
    What.UNVERIFIED: "fix what keeps the check from running, then run the batch again; the item stays as it is",
}
NEVER_CAME = (
    "find out why they never came, and send those still wanted to another batch; if the number was wrong, put the "
    "right one on record: `{expect}`"
)
"""The remedy for items of which only the number is known."""
REPAIRABLE = frozenset({What.MISSING, What.DIFFERENT})
COUNTED = frozenset(What) - {What.UNVERIFIED}
"""Kinds whose number machine-readable output includes even if it is zero."""


class Finding(Plain, Value, frozen=True, kw_only=True):
    """One disagreement: the item, the file, what is wrong with it, and what to do."""

    _tells: ClassVar[str] = "what item=key number=n stage file why remedy"

    what: What
    """The kind: missing, different, extra, duplicated, never created, unexpected, unknown, miscounted, unverified."""
    why: str
    """What is wrong, in words."""
    n: int | None = None
    """The number of the item, if the finding is about one."""
    key: Key | None = None
    """The key of the item, if it is known."""
    stage: int | None = None
    """The index of the stage whose output it is about."""
    file: str = ""
    """The file that it is about."""
    expect: str = ""
    """The command that puts the number of items on record, if the finding is about that number."""

    @property
    def remedy(self) -> str:
        """The action to take about the finding."""
        of_number = self.what is What.NEVER_CREATED and self.key is None
        text = NEVER_CAME if of_number else REMEDIES[self.what]
        return text.replace("{expect}", self.expect or "holdfast expect BATCH N --reason …")


class Expected(Value, frozen=True, kw_only=True):
    """The items that the batch should have."""

    admitted: int
    read: bool
    """True if the source was read to the end, or if the batch takes no more items because it was cancelled or ended."""
    keys: int | None = None
    """The number of keys in the source, if it was compared."""
    total: int | None = None
    """The expected number of items, if one was given."""
    closed: bool = False
    """True if the batch was closed and takes no new items."""
    scanned: bool = False
    """True if its items are partitions of a source, which only a scan adds."""

    @property
    def lacking(self) -> tuple[str, ...]:
        """Why more items may come, in words; empty if all are there."""
        if self.read:
            return ()
        if self.total is not None:
            return (f"{self.total - self.admitted:,} of {self.total:,} expected items have not come",)
        if self.scanned or self.keys is not None:
            return ("the source was not read to its end",)
        return ("more items may come: no source was read to its end, nor was it closed",)


class Recorded(Value, frozen=True, kw_only=True):
    """The number of items in each state, counted item by item."""

    done: int = 0
    skipped: int = 0
    dead: int = 0
    cancelled: int = 0
    ready: int = 0
    running: int = 0
    waiting: int = 0
    orphaned: int = 0

    @property
    def pending(self) -> int:
        return self.ready + self.running + self.waiting + self.orphaned

    @property
    def total(self) -> int:
        return self.done + self.skipped + self.dead + self.cancelled + self.pending


class Observed(Value, frozen=True, kw_only=True):
    """The outputs that were inspected, and how closely."""

    _tells: ClassVar[str] = "how outputs files published leftovers superseded"

    how: How
    outputs: int = 0
    files: int = 0
    published: int = 0
    """Files that were recorded earlier and only now got their final names."""
    leftovers: int = 0
    """Staged files beside the recorded output of their item, for example of an owner that was fenced out. They are not
    findings, and nothing depends on them."""
    superseded: int = 0
    """Outputs whose files were replaced by a newer batch, which has their names now. They are not made again."""
    partly: bool = False
    """True if only the last output and the files were inspected of some items that are done."""


class Reconciliation(Plain, Value, frozen=True, kw_only=True):
    """A comparison of the expected, the recorded and the observed state of a batch."""

    batch: str
    """The name of the batch."""
    course: BatchMode
    """The mode of the batch: open, paused or cancelled."""
    stopped: bool
    """True if the batch ended while work was left."""
    expected: Expected
    """The items that it should have: `admitted`, `read`, `keys`, `total`, `closed`."""
    recorded: Recorded
    """The number of items in each state, counted item by item."""
    observed: Observed
    """The outputs that were inspected: `how`, `outputs`, `files`, `published`, `leftovers`, `superseded`."""
    heads: str
    """A digest over the ends of all chains: the state of the batch that was compared."""
    found: Mapping[What, int]
    """The number of findings of each kind."""
    findings: tuple[Finding, ...] = ()
    """The first findings, in full."""
    nothing: str = ""
    """The missing content of an empty source, "item" or "row", unless that was allowed."""
    basis: bytes = b""
    """The facts that decided the end (`course.basis`): the end is announced only while they are unchanged."""

    def __str__(self) -> str:
        told = f"not explained: {', '.join(self.unexplained)}" if self.unexplained else "every item is accounted for"
        return "\n".join([f"{self.batch}: {told}", *(f"  {each.what}: {each.why}" for each in self.findings[:20])])

    @property
    def unexplained(self) -> tuple[str, ...]:
        """The reasons why the batch is not finished, in words; empty if every item is accounted for."""
        reasons = [f"{count:,} {what}" for what, count in self.found.items() if count]
        if self.recorded.pending:
            reasons.append(f"{self.recorded.pending:,} pending")
        if self.nothing:
            reasons.append(f"the source gave no {self.nothing}")
        return (*reasons, *self.expected.lacking)

    @property
    def is_explained(self) -> bool:
        """True if every item is accounted for."""
        return not self.unexplained

    @property
    def is_told(self) -> bool:
        """True if the end is announced: every admitted item is accounted for, and there are not more of them than
        expected. If there are fewer, the batch was stopped, and that is announced."""
        missing = max(0, (self.expected.total or 0) - self.expected.admitted)
        others = sum(count for what, count in self.found.items() if what is not What.NEVER_CREATED)
        return self.is_ended and not others and self.found.get(What.NEVER_CREATED, 0) <= missing

    @property
    def is_ended(self) -> bool:
        """True if nothing is left to do; there may be findings. An empty batch has not ended."""
        return self.expected.read and not self.recorded.pending and not self.nothing

    @property
    def state(self) -> str:
        """One word for how the batch ended, or for an empty source; empty while it has not ended."""
        end = End(self.end) if self.is_ended or self.course is BatchMode.CANCELLED or self.stopped else None
        return word_of(end, empty=bool(self.nothing), findings=not self.is_explained)

    @property
    def end(self) -> str:
        """How the batch ended, if it has ended."""
        if self.course is BatchMode.CANCELLED:
            return End.CANCELLED
        if self.stopped:
            return End.STOPPED
        return End.WITH_DEAD if self.recorded.dead else End.COMPLETE

    def exit_code(self, tolerated: int = 0) -> int:
        """Return 0 if every item is accounted for and no more are dead than is tolerated, else 1."""
        return 0 if self.is_explained and self.recorded.dead <= tolerated else 1

    @property
    def counts(self) -> dict[str, int]:
        """The number of items in each state, and their expected sum."""
        r = self.recorded
        return {"expected": self.expected.admitted, "done": r.done, "skipped": r.skipped, "dead": r.dead,
                "cancelled": r.cancelled, "pending": r.pending}  # fmt: skip

    def facts(self, after: int | None = None) -> bytes:
        """Return the facts that the journal keeps, as canonical JSON, with the numbers of items and never their keys.
        The same state of the batch with the same findings gives the same bytes. `after`: the entry of another end, if
        this end followed it."""
        listed = [[f.what.value, f.n, f.stage] for f in self.findings if f.n is not None][:FINDINGS_SEALED]
        found = {what.value: count for what, count in self.found.items() if count}
        cut = self.end if self.end in (End.STOPPED, End.CANCELLED) else None
        others = {"expected": self.expected.total, "end": cut, "after": after}
        known = {name: value for name, value in others.items() if value is not None}
        return encode({"counts": self.counts, "found": found, "findings": listed, "heads": self.heads, **known})

    def as_dict(self) -> dict[str, Any]:
        """Return the reconciliation as plain values, for machines."""
        r = self.recorded
        split = {"ready": r.ready, "running": r.running, "waiting": r.waiting, "orphaned": r.orphaned}
        return {
            "batch": self.batch,
            "explained": self.is_explained,
            "unexplained": list(self.unexplained),
            "end": self.end if self.is_ended else None,
            "counts": {**self.counts, **split},
            "source": {"read": self.expected.read, "keys": self.expected.keys},
            "expected": self.expected.total,
            "observed": plain(self.observed),
            "found": {what.value: self.found.get(what, 0) for what in What if self.found.get(what) or what in COUNTED},
            "findings": plain(self.findings),
            "heads": self.heads,
        }  # fmt: skip


RECONCILED = "reconciled"


def to_publish(found: Reconciliation, *, after: int | None = None) -> Decide:
    """Return the decision that notes the reconciliation of an ended batch and, if every item that came is accounted
    for, announces that it is finished: once for each end, and only while the batch is unchanged since the
    reconciliation."""
    said = "every item is accounted for" if found.is_explained else ", ".join(found.unexplained)
    body = journal.Acted(reason=said, note=found.facts(after))
    told = [course.batch_finished(found.end, found.counts)] if found.is_told else []
    return course.to_note(RECONCILED, body, once=True, events=told, basis=found.basis)


def judge(place: ItemState, stages: int, seen: Mapping[int, Inspection]) -> Iterator[tuple[int, What, str]]:
    """Yield the findings about the outputs of an item, stage by stage. `seen` has an entry for every output that the
    store has a row for.

    Only outputs that an item keeps are judged, including those of a skipped or dead item. The output of a stage that
    the item has not passed, because it went back, is ignored. Outputs of earlier stages may be missing if an operator
    settled the item by hand.
    """
    if not keeps_outputs(place):
        return
    reached = stages if place.state is State.DONE else place.stage
    for stage in sorted(seen):
        if stage < reached and seen[stage].verdict is not Verdict.HOLDS:
            yield stage, what_is_wrong(seen[stage]), seen[stage].reason
    if reached > 0 and reached - 1 not in seen and place.state in (State.DONE, State.PENDING):
        yield reached - 1, What.MISSING, "the store has no output of it"


def what_is_wrong(seen: Inspection) -> What:
    """Return the kind of finding for an output that does not hold."""
    if seen.verdict is Verdict.UNKNOWN:
        return What.UNVERIFIED
    return What.MISSING if seen.reason == GONE else What.DIFFERENT


def conclude(
    batch: Batch,
    chunks: Sequence[Chunk],
    *,
    stopped: bool = False,
    expected: Expected,
    recorded: Recorded,
    observed: Observed,
    found: Mapping[What, int],
    findings: Sequence[Finding],
    nothing: str = "",
) -> Reconciliation:
    """Return the reconciliation. If the states do not add up to the number of admitted items, that is a finding as
    well."""
    counted, listed = dict(found), list(findings)
    if recorded.total != expected.admitted or min(getattr(recorded, name) for name in recorded.__struct_fields__) < 0:
        counted[What.MISCOUNTED] = counted.get(What.MISCOUNTED, 0) + 1
        why = f"{expected.admitted:,} items were admitted, but the states of all items add up to {recorded.total:,}"
        listed.insert(0, Finding(what=What.MISCOUNTED, why=why))
    for what, count, why in _of_number(expected, batch.course, counted.get(What.NEVER_CREATED, 0)):
        counted[what] = counted.get(what, 0) + count
        listed.insert(0, Finding(what=what, why=why, expect=_expect(batch.name, expected.admitted)))
    return Reconciliation(batch=batch.name, course=batch.course, stopped=stopped, expected=expected, recorded=recorded,
                          observed=observed, heads=course.cover(chunks).hex(), found=counted, findings=tuple(listed),
                          nothing=nothing, basis=course.basis(batch, chunks))  # fmt: skip


def _expect(batch: str, items: int) -> str:
    """Return the command that puts this number of items on record; empty if the name would be taken for an option."""
    return "" if batch.startswith("-") else f"holdfast expect {quote(batch)} {items} --reason …"


def _of_number(expected: Expected, mode: BatchMode, named: int) -> Iterator[tuple[What, int, str]]:
    """Yield the difference between the items of the batch and its expected number; `named`: how many of the items that
    were never created are named by a source."""
    total, admitted = expected.total, expected.admitted
    if total is not None and admitted > total:
        yield What.UNEXPECTED, admitted - total, f"{admitted:,} items came, {total:,} were expected"
    if total is not None and admitted + named < total and expected.read and mode is not BatchMode.CANCELLED:
        yield What.NEVER_CREATED, total - admitted - named, f"{total:,} items were expected, {admitted:,} came"


def told_before(note: bytes) -> bytes | None:
    """Return the recorded facts of an end, without the entry after which it came again; None if the end was not
    announced (`is_told`)."""
    kept: dict[str, Any] = decode(note)
    missing = max(0, kept.get("expected", 0) - kept["counts"]["expected"])
    found = dict(kept["found"])
    if found.pop(What.NEVER_CREATED.value, 0) > missing or found:
        return None
    return encode({name: value for name, value in kept.items() if name != "after"})
