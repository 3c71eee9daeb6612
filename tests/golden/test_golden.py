"""Stores of an earlier day open, answer exactly as they did then, and are finished.

`make.py` made them; each later version is asked the same. Where an answer changes on purpose, make the answers again
(`python -m tests.golden.make answers`) and read in the difference that nothing else did.
"""

import json
from pathlib import Path

import pytest

from tests.golden.answers import HERE, KINDS, ask


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
