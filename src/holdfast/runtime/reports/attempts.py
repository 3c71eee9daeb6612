"""The attempts of a batch as its journal tells them: numbers in blocks, and counts of what is told apart by name."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from operator import add
from typing import Any

from holdfast.core import journal
from holdfast.core.columns import FLOAT32, UINT16, unpack
from holdfast.core.limits import DISTINCT_NAMES
from holdfast.core.model import Chunk
from holdfast.runtime.reports.quantiles import Block, Number
from holdfast.stores.base import Store, each_entry

BLOCK = 4096
OTHER = "other"
OUTCOMES = {"skip": "skipped", "defer": "deferred", "retry": "retried", "bury": "buried", "rewind": "rewound"}
ENDS = frozenset({"skip", "bury"})
FAILURES = frozenset({"retry", "bury"})


class Tally:
    """What is counted by name, at one stage."""

    def __init__(self) -> None:
        self.runs = 0
        self.outcomes: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.model_usd: Counter[str] = Counter()
        self.model_tokens: Counter[str] = Counter()
        self.usage: dict[str, Number] = {}
        self.attempt_counts: Counter[int] = Counter()

    @classmethod
    def sum(cls, tallies: Iterable["Tally"]) -> "Tally":
        whole = cls()
        for tally in tallies:
            whole.runs += tally.runs
            for name in ("outcomes", "codes", "models", "model_usd", "model_tokens", "attempt_counts"):
                getattr(whole, name).update(getattr(tally, name))
            for name, amount in tally.usage.items():
                whole.usage[name] = whole.usage.get(name, 0) + amount
        return whole

    def advanced(self, group: journal.Advanced) -> None:
        count = len(group.items)
        if group.adopted:
            self.outcomes["adopted"] += count
            return
        self.runs += count
        self.outcomes["done"] += count
        if group.attempts:
            self.attempt_counts.update(unpack(UINT16, group.attempts))
        else:
            self.attempt_counts[1] += count

    def attempted(self, attempt: journal.Attempted) -> None:
        self.outcomes[OUTCOMES.get(attempt.outcome, attempt.outcome)] += 1
        if not was_run(attempt):
            return
        self.runs += 1
        if attempt.outcome in FAILURES:
            self.codes[named(attempt.code, self.codes)] += 1
        if attempt.outcome in ENDS:
            self.attempt_counts[attempt.attempt] += 1

    def spent(self, spend: journal.Spend) -> None:
        if spend.model:
            model = named(spend.model, self.models)
            self.models[model] += 1
            self.model_usd[model] += spend.usd
            self.model_tokens[model] += spend.tokens
        for name, amount in numbers_in(spend.usage):
            key = named(name, self.usage)
            self.usage[key] = self.usage.get(key, 0) + amount


class Reader:
    """Reads the journal of some chunks up to where it stood at first, so that every pass sees the same."""

    def __init__(self, store: Store, chunks: Sequence[Chunk]) -> None:
        self._store = store
        self._upto = [(chunk.id, chunk.seq) for chunk in chunks if chunk.seq]

    def read(self, tallies: dict[int, Tally] | None = None) -> Iterator[tuple[int, str, Block]]:
        """Blocks of (stage, name, numbers): every number once. With `tallies`, what is counted goes there by stage."""
        waiting: dict[tuple[int, str], Block] = {}
        metrics: dict[str, None] = {}
        for body in self.checkpoints():
            if tallies is not None:
                tally_up(body, tallies)
            for stage, name, numbers in numbers_of(body, metrics):
                block = waiting.setdefault((stage, name), [])
                block += numbers
                if len(block) >= BLOCK:
                    yield stage, name, block
                    waiting[stage, name] = []
        for (stage, name), block in waiting.items():
            if block:
                yield stage, name, block

    def checkpoints(self) -> Iterator[journal.Checkpointed]:
        """The bodies of all commits."""
        for chain, upto in self._upto:
            for entry in each_entry(self._store, chain):
                if entry.seq > upto:
                    break
                body = journal.decode_body(entry.body)
                if isinstance(body, journal.Checkpointed):
                    yield body


def tally_up(body: journal.Checkpointed, tallies: dict[int, Tally]) -> None:
    """Count what is told apart by name."""
    for group in body.advanced:
        _tally_of(group.stage, tallies).advanced(group)
    for attempt in body.attempts:
        _tally_of(attempt.stage, tallies).attempted(attempt)
    for stage, spend in body.spends:
        _tally_of(stage, tallies).spent(spend)


def _tally_of(stage: int, tallies: dict[int, Tally]) -> Tally:
    found = tallies.get(stage)
    if found is None:
        found = tallies[stage] = Tally()
    return found


def numbers_of(body: journal.Checkpointed, metrics: dict[str, None]) -> Iterator[tuple[int, str, Block]]:
    """The numbers of one commit, by stage and name. `metrics` remembers which metrics are told apart."""
    for group in body.advanced:
        if not group.adopted:
            queued, took = unpack(FLOAT32, group.queued), unpack(FLOAT32, group.seconds)
            yield from _times(group.stage, queued, took)
    runs = sorted(filter(was_run, body.attempts), key=lambda attempt: attempt.stage)
    for stage, some in groupby(runs, key=lambda attempt: attempt.stage):
        times = [(attempt.queued, attempt.seconds) for attempt in some]
        yield from _times(stage, [queued for queued, _ in times], [took for _, took in times])
    for stage, spend in body.spends:
        if spend.usd or spend.tokens or spend.model or spend.usage:
            yield stage, "usd", [spend.usd]
            yield stage, "tokens", [spend.tokens]
        for name, value in numbers_in(spend.metrics):
            if name in metrics or len(metrics) < DISTINCT_NAMES:
                metrics[name] = None
                yield stage, f"metrics.{name}", [value]


def was_run(attempt: journal.Attempted) -> bool:
    """Whether a handler was called. Attempts are numbered from 1; an item that goes back, or is buried, because what
    it rests on is gone has the number 0."""
    return attempt.attempt > 0


def _times(stage: int, queued: Sequence[float], seconds: Sequence[float]) -> Iterator[tuple[int, str, Block]]:
    yield stage, "queue", list(queued)
    yield stage, "execution", list(seconds)
    yield stage, "total", list(map(add, queued, seconds))


def numbers_in(facts: Mapping[str, Any]) -> Iterator[tuple[str, Number]]:
    """The numbers among some facts. Truth values and what is not finite are none."""
    for name, value in facts.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isfinite(value) if isinstance(value, float) else abs(value) < 1 << 63:
            yield name, value


def named(name: str, known: Mapping[str, Any]) -> str:
    """The name to count under: a flood of different names is counted together."""
    return name if name in known or len(known) < DISTINCT_NAMES else OTHER
