"""Short words for the values that the tests of the core are about."""

import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from holdfast.core.commitments import Draw
from holdfast.core.journal import Spend
from holdfast.core.model import BatchId, Chunk, ChunkId, ClaimRequest, Counts, Item, ItemNo, ItemState, State
from holdfast.core.outcome import Deferred, Done, Failed, Lost, Skipped

NOW = 1_700_000_000.0
PROPERTY = settings(
    deadline=None, max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
"""Above `@given`: the same cases in every run, and no judgement about the speed of the machine."""

UID = b"uid-of-one-batch"
GRANT = b"grant-id"
STATES = st.sampled_from(list(State))
DRAWS = st.floats(0.0, 1.0, exclude_max=True)


def seeded(seed: int = 0) -> Draw:
    """Random bytes that are the same in every run."""
    return random.Random(seed).randbytes


def item(n: int = 0, *, plain: bool = True, data: bytes = b'{"page":1}', **place: Any) -> Item:
    """An item in the hands of a worker."""
    return Item(ItemNo(n), f"page-{n}", data, ItemState(**place), plain)


def done(one: Item, *, output: bytes = b'"text"', usd: int = 0, **facts: Any) -> Done:
    facts = {"queued": 0.25, "seconds": 0.5, "spend": spend(one, usd), **facts}
    return Done(one, output, **facts)


def failed(one: Item, *, transient: bool = True, usd: int = 0, draw: float = 0.5, **facts: Any) -> Failed:
    code = "http_503" if transient else "http_404"
    facts = {"code": code, "message": "no answer", "queued": 0.25, "seconds": 0.5, "spend": spend(one, usd), **facts}
    return Failed(one, transient, draw=draw, **facts)


def skipped(one: Item, *, usd: int = 0) -> Skipped:
    return Skipped(one, "blank", 0.25, 0.5, spend(one, usd))


def deferred(one: Item, *, wait: float = 60.0, usd: int = 0) -> Deferred:
    return Deferred(one, wait, "closed for the night", 0.25, 0.5, spend(one, usd))


def lost(one: Item, *, to_stage: int = 0) -> Lost:
    return Lost(one, to_stage, "the output is gone")


def spend(one: Item, usd: int) -> Spend | None:
    return Spend(one.n, usd=usd, tokens=3) if usd else None


def chunk(lo: int = 0, hi: int = 10, *, number: int = 1, **facts: Any) -> Chunk:
    """A chunk with its items counted: `done=2` stands for `counts=Counts(done=2)`."""
    counted = {name: facts.pop(name) for name in ("done", "skipped", "dead", "cancelled") if name in facts}
    facts = {"counts": Counts(**counted), "head": bytes(32), **facts}
    return Chunk(id=ChunkId(number), number=number, batch=BatchId(1), lo=ItemNo(lo), hi=ItemNo(hi), **facts)


def want(limit: int = 100, *, owner: str = "ann", seconds: float = 30.0, reserve: int = 0) -> ClaimRequest:
    return ClaimRequest(batch=BatchId(1), owner=owner, limit=limit, seconds=seconds, reserve=reserve)
