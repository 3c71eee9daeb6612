"""Leases and commits on compare-and-swap documents, without exception: everything that can happen in a small world.

There are some chunks, each a document with one range of rows, and some workers. A worker reads a document, decides by
the rules of the bucket store, and sends what shall replace it; that lands only if nobody else has replaced the document
since. Requests are lost or late, replies are lost, or say that there was a conflict although the document was stored;
then the worker reads back. A lease may end at any moment: who watches it can take the chunk over whenever nothing was
heard of its owner. Workers crash at any step; heartbeats come at any moment; an operator resets.

A request whose document was replaced since can never land, so it is forgotten; and what is decided from an old copy is
refused and decided again, so workers keep no copies. Fences are current or outdated, nothing else matters about them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.errors import UsageError
from holdfast.testing.replay import Violation
from tests.model.exhaustive.breadth import Breadth, Explored
from tests.model.exhaustive.documents import Documents
from tests.model.exhaustive.swapper import IDLE, Move, Request, Swapper, Table, behind, moves, stale, succeeds

World = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""The documents, the workers and the requests on their way, each by number; how often the operator may still act."""


class Swap(NamedTuple):
    """One thing that can happen next."""

    told: str
    normal: bool
    world: World


def explore_swaps(
    *, chunks: int = 1, workers: int = 2, rows: int = 2, requests: int = 2, resets: int = 1, most: int = 10_000_000
) -> Explored:
    """See every state of a small world on documents, up to `most`. Raises Counterexample with the shortest story."""
    if min(chunks, workers, rows, requests) < 1 or resets < 0:
        raise UsageError("a small world has at least one chunk, worker, row and request")
    return Swaps(chunks, workers, rows, requests, resets).run(most)


class Swaps(Breadth[World]):
    """The search through one such world."""

    def __init__(self, chunks: int, workers: int, rows: int, requests: int, resets: int) -> None:
        self.documents = Documents(rows)
        self.workers: Table[Swapper] = Table()
        self.requests: Table[Request] = Table()
        self.capacity = requests
        self._trying = ""
        self._known_moves: dict[tuple[int, int, int], list[Move]] = {}
        self._checked: set[tuple[int, int]] = set()
        self._outdated: dict[tuple[int, int, bool], int] = {}
        idle = self.workers.number(IDLE)
        super().__init__(((0,) * chunks, (idle,) * workers, (), resets))

    def is_finished(self, world: World) -> bool:
        finished = self.documents.finished
        return all(finished[document] for document in world[0])

    def stores(self) -> int:
        return len(self.documents.finished)

    def trying(self) -> str:
        return self._trying

    # -- what can happen next -----------------------------------------------------------------------------------

    def next(self, world: World) -> list[Swap]:
        self._trying = ""
        self._check(world)
        return [*self._work(world), *self._post(world), *self._operate(world)]

    def _check(self, world: World) -> None:
        """Nobody but one holds a chunk under its fence, and stands where the document stands."""
        documents, workers, _, _ = world
        held: set[int] = set()
        for number in workers:
            chunk = self._holds(number, documents)
            if chunk in held:
                raise Violation("two workers hold a chunk under one fence")
            if chunk >= 0:
                held.add(chunk)

    def _holds(self, number: int, documents: tuple[int, ...]) -> int:
        """The chunk that a worker holds and was not overtaken in; -1 for none."""
        worker = self.workers.values[number]
        if not worker.holds or worker.behind:
            return -1
        if (number, documents[worker.chunk]) not in self._checked:
            self.documents.check_holder(documents[worker.chunk], worker)
            self._checked.add((number, documents[worker.chunk]))
        return worker.chunk

    def _work(self, world: World) -> Iterator[Swap]:
        documents, workers, _, _ = world
        for at, number in enumerate(workers):
            if at and workers[at - 1] == number:
                continue  # the same as the worker before it
            chunk = self.workers.values[number].chunk
            for each in range(len(documents)) if chunk < 0 else (chunk,):
                yield from self._moved(world, at, number, each)

    def _moved(self, world: World, at: int, number: int, chunk: int) -> Iterator[Swap]:
        documents, workers, post, left = world
        for move in self._moves(number, chunk, documents[chunk]):
            after, on_their_way = move.worker, post
            if move.request >= 0:
                if len(post) >= self.capacity:
                    continue  # what is on its way comes first
                name = after.request if after.request >= 0 else self._unused(workers, post)
                after = after.named(name)
                sent = self.requests.number(Request(name, chunk, documents[chunk], move.request, after.op))
                on_their_way = tuple(sorted({*post, sent}))
            if move.beats:
                yield self._landed(
                    world, f"a worker {move.told}", move.normal, chunk, documents[chunk], {at: after}, post
                )
                continue
            others = tuple(sorted(_with(workers, at, self.workers.number(after))))
            yield Swap(f"a worker {move.told}", move.normal, (documents, others, on_their_way, left))

    def _moves(self, number: int, chunk: int, document: int) -> list[Move]:
        key = (number, chunk, document)
        if key not in self._known_moves:
            self._trying = f"a worker goes on with chunk {chunk}"
            self._known_moves[key] = list(moves(self.workers.values[number], chunk, document, self.documents))
            self._trying = ""
        return self._known_moves[key]

    def _unused(self, workers: tuple[int, ...], post: tuple[int, ...]) -> int:
        taken = {self.requests.values[each].name for each in post}
        taken |= {self.workers.values[each].request for each in workers}
        name = 0
        while name in taken:
            name += 1
        return name

    def _post(self, world: World) -> Iterator[Swap]:
        """A request arrives, and its reply is heard or not; or it is lost. One that is left alone comes late."""
        documents, workers, post, left = world
        for number in post:
            request = self.requests.values[number]
            rest = tuple(each for each in post if each != number)
            self._trying = f"a request for chunk {request.chunk} arrives"
            self.documents.check_landing(documents[request.chunk], request)
            asking = [at for at, each in enumerate(workers) if self.workers.values[each].request == request.name]
            heard = {at: succeeds(self.workers.values[workers[at]].landed(), self.documents) for at in asking
                     if self.workers.values[workers[at]].waits}  # fmt: skip
            unheard = {at: self.workers.values[workers[at]].landed() for at in asking}
            what = f"chunk {request.chunk}: {request.op}"
            if heard:
                told = f"{what} lands, and its sender hears of it"
                yield self._landed(world, told, True, request.chunk, request.after, heard, rest)
            told = f"{what} lands, and nobody hears of it"
            yield self._landed(world, told, not heard, request.chunk, request.after, unheard, rest)
            yield Swap(f"{what} is lost on its way", False, (documents, workers, rest, left))

    def _landed(self, world: World, told: str, normal: bool, chunk: int, after: int, own: dict[int, Swapper],
                post: tuple[int, ...]) -> Swap:  # fmt: skip
        """A document was replaced: what others sent for it can land no more, and what they know of it is old."""
        documents, workers, _, left = world
        raised = self.documents.raises(documents[chunk], after)
        others = list(workers)
        for at, number in enumerate(workers):
            worker = own.get(at)
            others[at] = self._outdate(number, chunk, raised) if worker is None else self.workers.number(worker)
        still = tuple(each for each in post if self.requests.values[each].chunk != chunk or not compares())
        settled = _with(documents, chunk, self.documents.settled(after))
        return Swap(told, normal, (settled, tuple(sorted(others)), still, left))

    def _outdate(self, number: int, chunk: int, raised: bool) -> int:
        """A worker once a document was replaced by somebody else."""
        key = (number, chunk, raised)
        if key not in self._outdated:
            worker = stale(self.workers.values[number], chunk)
            self._outdated[key] = self.workers.number(behind(worker, chunk) if raised else worker)
        return self._outdated[key]

    def _operate(self, world: World) -> Iterator[Swap]:
        """An operator resets a range: it goes on where it stands, or begins again; its owner is fenced out."""
        documents, _, post, left = world
        if not left:
            return
        for chunk, document in enumerate(documents):
            for told, after in self.documents.resets(document):
                self._trying = f"the operator resets chunk {chunk}"
                swap = self._landed(world, f"the operator resets chunk {chunk}{told}", False, chunk, after, {}, post)
                settled, workers, still, _ = swap.world
                yield Swap(swap.told, False, (settled, workers, still, left - 1))


def compares() -> bool:
    """Whether the bucket looks at what a document replaces."""
    return True


def _with(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
