"""One worker on compare-and-swap documents, as the search sees it: what it knows, and what it does next.

The rules are those of the bucket store's verbs: read, decide, send; after a conflict or silence read back, compare the
id of the write, ask the chain, and only then judge.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from holdfast.testing.replay import Violation

if TYPE_CHECKING:
    from tests.model.exhaustive.documents import Documents

replace = msgspec.structs.replace
P = TypeVar("P")


class Phase(StrEnum):
    """What a worker is about."""

    FREE = "free"
    HOLDING = "holding"
    ASKING = "asking"
    """It sent something and waits for the reply."""
    READING = "reading"
    """It heard of a conflict, or nothing: it reads back."""
    UNSURE = "unsure"
    """However often it tried, it does not know: it asks the chain."""


class Fate(StrEnum):
    """What has become of what it sent. The worker does not know: it finds out by reading back."""

    UNWRITTEN = "unwritten"
    WRITTEN = "written"
    """It is what the document says now."""
    OVERWRITTEN = "overwritten"


FREE = Phase.FREE


class Swapper(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows, and what is true of it."""

    phase: Phase = Phase.FREE
    chunk: int = -1
    op: str = ""
    """What it sent: `claim` or `commit`."""
    request: int = -1
    fate: Fate = Fate.UNWRITTEN
    is_fresh: bool = True
    """Whether the document is still the one that it decided from."""
    behind: int = 0
    """Whether its chunk was granted to somebody else, or seized, since."""
    version: int = 0
    rows: int = 0
    epoch: int = 0

    @property
    def holds(self) -> bool:
        return self.phase is Phase.HOLDING or (self.op == "commit" and self.phase is not Phase.FREE)

    @property
    def is_written(self) -> bool:
        """Whether its commit landed and it does not know yet."""
        return self.op == "commit" and self.fate is not Fate.UNWRITTEN

    @property
    def waits(self) -> bool:
        return self.phase is Phase.ASKING

    def named(self, request: int) -> "Swapper":
        return replace(self, request=request)

    def landed(self) -> "Swapper":
        """What it sent is in the document, and it did not hear of it."""
        return replace(self, fate=Fate.WRITTEN, behind=0 if self.op == "claim" else self.behind)


IDLE = Swapper()


class Request(msgspec.Struct, frozen=True):
    """A document on its way to replace the one it was decided from."""

    name: int
    chunk: int
    base: int
    after: int
    op: str


class Move(NamedTuple):
    """Something a worker does."""

    told: str
    normal: bool
    worker: Swapper
    request: int = -1
    """The document that it sends; -1 for none."""
    beats: bool = False
    """The document was written by a heartbeat."""


class Table(Generic[P]):
    """Values by number: equal ones have one number."""

    def __init__(self) -> None:
        self.values: list[P] = []
        self._numbers: dict[P, int] = {}

    def number(self, value: P) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


# -- what it does ---------------------------------------------------------------------------------------------------


def moves(worker: Swapper, chunk: int, document: int, documents: "Documents") -> Iterator[Move]:
    """Everything that a worker may do next about a chunk."""
    match worker.phase:
        case Phase.FREE:
            yield from _claim(chunk, document, documents)
            return
        case Phase.HOLDING:
            yield from _commit(worker, document, documents, "handles rows and sends a checkpoint")
        case Phase.ASKING:
            yield Move("hears of a conflict, or nothing", True, silence(worker, documents))
        case Phase.READING:
            yield from read_back(worker, document, documents)
        case Phase.UNSURE:
            yield from _ask(worker, document, documents)
    if worker.holds:
        yield from _beat(worker, document, documents)
    yield Move("crashes", False, IDLE)


def _claim(chunk: int, document: int, documents: "Documents") -> Iterator[Move]:
    after = documents.grant(document)
    if after is not None:
        rows, epoch = documents.standing(document)
        asking = Swapper(phase=Phase.ASKING, chunk=chunk, op="claim", rows=rows, epoch=epoch)
        yield Move(f"reads chunk {chunk} and sends a claim", True, asking, after)


def _commit(worker: Swapper, document: int, documents: "Documents", told: str) -> Iterator[Move]:
    """Decided from the document as it is: where the guard does not let it through, it is refused."""
    after = documents.commit(document, worker)
    if after is None:
        if worker.fate is not Fate.UNWRITTEN:
            raise Violation("a worker is told that its commit was refused, and it landed")
        yield Move("is refused, and drops its chunk", True, IDLE)
        return
    if worker.fate is not Fate.UNWRITTEN:
        raise Violation("a commit that landed is written a second time")
    asking = replace(worker, phase=Phase.ASKING, op="commit", is_fresh=True)
    yield Move(told, True, asking, after)


def _beat(worker: Swapper, document: int, documents: "Documents") -> Iterator[Move]:
    """A heartbeat replaces the document, too; a lease is lost only where owner or fence differ."""
    if not documents.renews(document, worker):
        yield Move("finds its lease lost, and drops its chunk", True, IDLE)
        return
    if worker.behind:
        raise Violation("a heartbeat was taken from a worker that had been overtaken")
    yield Move("renews its lease", False, stale(worker, worker.chunk), beats=True)


def silence(worker: Swapper, documents: "Documents") -> Swapper:
    """Nothing follows from a conflict or from silence but to read back."""
    return replace(worker, phase=Phase.READING)


def read_back(worker: Swapper, document: int, documents: "Documents") -> Iterator[Move]:
    if is_own_write(worker) or (worker.fate is not Fate.UNWRITTEN and is_in_chain(worker)):
        yield Move("reads back and finds its write", True, succeeds(worker, documents))
    elif worker.is_fresh and worker.fate is Fate.UNWRITTEN:
        yield from _send_again(worker, document, documents)
        gives_up = IDLE if worker.op == "claim" else replace(worker, phase=Phase.UNSURE)
        yield Move("gives up to find out whether it was written", False, gives_up)
    elif worker.op == "claim":
        if worker.fate is not Fate.UNWRITTEN:
            raise Violation("a worker was granted a chunk, and is told that it was not")
        yield Move("reads back and finds that somebody else was first", True, IDLE)
    else:
        yield from _commit(worker, document, documents, "reads back, decides again and sends its checkpoint")


def _send_again(worker: Swapper, document: int, documents: "Documents") -> Iterator[Move]:
    after = documents.grant(document) if worker.op == "claim" else documents.commit(document, worker)
    if after is not None:
        yield Move("reads back, finds all as it was, and sends again", True, replace(worker, phase=Phase.ASKING), after)


def _ask(worker: Swapper, document: int, documents: "Documents") -> Iterator[Move]:
    if worker.fate is not Fate.UNWRITTEN and is_in_chain(worker):
        yield Move("asks the chain, which has its commit", True, succeeds(worker, documents))
    else:
        yield from _commit(worker, document, documents, "asks the chain in vain and sends its commit again")


def is_own_write(worker: Swapper) -> bool:
    """Whether the document says that this worker made it: the id of the write is compared."""
    return worker.fate is Fate.WRITTEN


def is_in_chain(worker: Swapper) -> bool:
    """Whether the chain of the document has the entry that this worker wrote."""
    return worker.fate is not Fate.UNWRITTEN


def succeeds(worker: Swapper, documents: "Documents") -> Swapper:
    """What is durable goes on."""
    if worker.fate is Fate.UNWRITTEN:
        raise Violation("a worker was told that its write is durable, and it is not")
    if worker.op == "claim":
        return Swapper(phase=Phase.HOLDING, chunk=worker.chunk, behind=worker.behind, rows=worker.rows,
                       epoch=worker.epoch)  # fmt: skip
    rows = documents.further(worker.rows)
    if rows == documents.rows:
        return IDLE
    return Swapper(phase=Phase.HOLDING, chunk=worker.chunk, behind=worker.behind, version=worker.version + 1, rows=rows,
                   epoch=worker.epoch)  # fmt: skip


# -- what is done to it ---------------------------------------------------------------------------------------------


def stale(worker: Swapper, chunk: int) -> Swapper:
    """The document of a chunk was replaced by somebody else."""
    if worker.chunk != chunk or not worker.op or worker.phase is Phase.HOLDING:
        return worker
    if worker.op == "claim" and worker.fate is Fate.UNWRITTEN:
        return replace(worker, is_fresh=False, rows=0, epoch=0)  # it will decide again
    fate = Fate.OVERWRITTEN if worker.fate is Fate.WRITTEN else worker.fate
    return replace(worker, is_fresh=False, fate=fate)


def behind(worker: Swapper, chunk: int) -> Swapper:
    """A chunk was granted to somebody else, or seized. From here on nothing but its fence matters: it is refused."""
    return replace(worker, behind=1, version=0, rows=0, epoch=0) if worker.chunk == chunk else worker
