"""The demo, as anyone would run it."""

from decimal import Decimal
from pathlib import Path

import pytest

from tests.cli.conftest import new_python, python


@pytest.mark.slow
@pytest.mark.promise("P13", "P10", "A7")
def test_the_demo_kills_resumes_and_adds_up(tmp_path: Path) -> None:
    answer = new_python("demo", "--dir", "here", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    told = answer.document
    assert told["holds"]
    assert told["counts"]["done"] == 447
    assert Decimal(told["recorded_usd"]) == Decimal("5.00")
    assert Decimal(told["billed_usd"]) == Decimal("5.00") + Decimal(told["repeated_usd"])
    assert told["repeated"] <= 32
    assert len(list((tmp_path / "here" / "out").glob("page_*.json"))) == 447


def test_the_demo_does_not_run_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / ".holdfast").mkdir()
    (tmp_path / ".holdfast" / "state.db").write_text("mine")
    answer = python("demo", "--dir", ".", cwd=tmp_path)
    assert answer.code == 2
    assert "there already" in answer.err
    assert (tmp_path / ".holdfast" / "state.db").read_text() == "mine"
