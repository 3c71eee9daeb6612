"""Stores of an earlier day open, answer exactly as they did then, and are finished.

`make.py` made them; each later version is asked the same. Where an answer changes on purpose, make the answers again
(`python -m tests.golden.make answers`) and read in the difference that nothing else did.
"""

import json
import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from holdfast.core.acts import change_of
from holdfast.core.model import Act, Claim, ClaimRequest, Kind, State
from holdfast.core.states import Transition, move
from holdfast.stores.open import open_store
from tests.golden.answers import HERE, KINDS, ask, url_of

ITEMS, PARTITIONS, ROWS = Kind
KINDS_OF_CHUNKS = {
    "book": {ITEMS: 6}, "sealed": {ITEMS: 1}, "paused": {ITEMS: 1}, "cancelled": {ITEMS: 1}, "reopened": {ITEMS: 1},
    "mail": {ITEMS: 2}, "totals": {PARTITIONS: 3, ROWS: 2}, "halfway": {PARTITIONS: 3, ROWS: 1},
    "feed": {PARTITIONS: 1},
}  # fmt: skip
"""How many chunks of each kind the golden stores have, by batch."""


@pytest.mark.promise("E6", "E7", "E10")
@pytest.mark.parametrize("kind", KINDS)
def test_a_golden_store_answers_as_it_did_and_is_finished(kind: str, tmp_path: Path) -> None:
    golden = json.loads((HERE / f"{kind}.json").read_text(encoding="utf-8"))
    found = ask(kind, golden["at"], tmp_path)
    changed = [
        f"{part}: {name}\n    was {json.dumps(was)}\n    is  {json.dumps(found[part].get(name))}"
        for part in ("as it is", "resumed")
        for name, was in golden[part].items()
        if found[part].get(name) != was
    ]
    assert not changed, "\n".join(changed)
    assert found["as it is"].keys() == golden["as it is"].keys()


@pytest.mark.promise("E10")
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_a_golden_store_get_the_kinds_that_they_did_not_say(kind: str, tmp_path: Path) -> None:
    with tarfile.open(HERE / f"{kind}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    url = str(tmp_path / url_of(kind, tmp_path)) if kind.startswith("sqlite") else url_of(kind, tmp_path)
    assert kinds_in(url) == KINDS_OF_CHUNKS
    store = open_store(url)
    totals = next(batch for batch in store.batches() if batch.name == "totals")
    for chunk in store.chunks(totals.id):
        (item,) = store.items(totals.id, lo=chunk.lo, hi=chunk.lo + 1)
        if item.place.state is State.DONE:
            after = move(item.place, Transition.RESET, stage=0, stages=1, reason="so")
        else:
            after = move(item.place, Transition.REDRIVE, stages=1)
        change = change_of(item.n, item.place, after)
        act = Act(id=os.urandom(16), batch=totals.id, kind="again", actor="ada", reason="so", at_items=(change,))
        assert store.act(act) == [item.n]
    claims = [
        store.claim(ClaimRequest(batch=totals.id, owner="ada", limit=1, seconds=60.0)) for _ in store.chunks(totals.id)
    ]
    said = Counter(claim.kind for claim in claims if isinstance(claim, Claim))
    assert said == KINDS_OF_CHUNKS["totals"]
    store.close()
    assert kinds_in(url) == KINDS_OF_CHUNKS, "what was written since says the same"


def kinds_in(url: str) -> dict[str, Counter[Kind]]:
    store = open_store(url)
    found = {batch.name: Counter(chunk.kind for chunk in store.chunks(batch.id)) for batch in store.batches()}
    store.close()
    return found
