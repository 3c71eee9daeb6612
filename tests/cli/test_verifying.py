"""`holdfast run --verify full`: what a tired person reads when the outside world is not what was recorded."""

from pathlib import Path

import pytest

from tests.cli.conftest import python

APP = """
import os
import holdfast as hf

rows = hf.Pipeline("rows", source=range(120))

@rows.stage
def put(n: int) -> int:
    open(f"shelf/{n}", "w").close()
    return n

@put.verify
def is_there(out: int) -> bool:
    if os.path.exists("broken"):
        raise LookupError("no such shelf")
    return os.path.exists(f"shelf/{out}")
"""


@pytest.mark.promise("A6")
def test_a_shelf_that_is_gone_is_told_and_nothing_is_undone_unless_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    assert python("run", "app.py", cwd=tmp_path).code == 0
    shelf.rename(tmp_path / "not mounted")
    shelf.mkdir()
    refused = python("run", "app.py", "--verify", "full", cwd=tmp_path)
    assert refused.code == 1
    assert "120 of 120 recorded items" in refused.err
    assert "--undo 100%" in refused.err
    assert not any(shelf.iterdir())
    (tmp_path / "broken").touch()
    unclear = python("run", "app.py", "--verify", "full", "--json", cwd=tmp_path)
    assert (unclear.code, unclear.document["unverified"], len(unclear.document["findings"])) == (1, 120, 20)
    assert unclear.document["findings"][0]["what"] == "unverified"
    assert "LookupError: no such shelf" in unclear.document["findings"][0]["why"]
    (tmp_path / "broken").unlink()
    meant = python("run", "app.py", "--verify", "full", "--undo", "100%", cwd=tmp_path)
    assert meant.code == 0, meant.err
    assert "rewound  120 items" in meant.out
    assert len([*shelf.iterdir()]) == 120
