"""`holdfast plan`: what a run would do, as a table and as JSON, with nothing changed."""

from pathlib import Path

import pytest

from tests.cli.conftest import python

APP = """
import os
import holdfast as hf

rows = hf.Pipeline("rows", key="id")

@rows.source
def items():
    return [{"id": n, "word": os.environ.get("WORD", "a")} for n in range(int(os.environ.get("ITEMS", "6")))]

@rows.stage(sink=hf.Files("out/{key}.json"), retry=hf.Retry(attempts=1))
def only(row: dict, ctx: hf.Context) -> dict:
    print("a handler that prints")
    ctx.spend(usd="0.50")
    if row["id"] == 3:
        raise hf.Permanent("bad_row")
    return row
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def test_before_the_first_run(app: Path) -> None:
    answer = python("plan", "app.py:rows", cwd=app)
    assert answer.code == 0, answer.err
    for text in ("rows: 6 would run.", "new", "0, 1, 2, …", "are not known yet", "Nothing was changed."):
        assert text in answer.out
    assert not (app / ".holdfast").exists()


def test_a_table_with_reasons_examples_and_a_forecast(app: Path) -> None:
    python("run", "app.py", cwd=app)
    (app / "out" / "1.json").unlink()
    answer = python("plan", "app.py:rows", "rows", "--workers", "2", cwd=app, ITEMS="8")
    assert answer.code == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["run", "2", "new", "only", "6,", "7"] in lines
    assert ["rewind", "1", "failed", "verification", "only", "1"] in lines
    assert ["skip", "1", "dead", "only", "3"] in lines
    assert "with 2 workers" in answer.out
    assert "$1.50" in answer.out


def test_json_is_one_document(app: Path) -> None:
    python("run", "app.py", cwd=app)
    plan = python("plan", "app.py", "--json", "--verify", "full", cwd=app, ITEMS="7").document
    assert plan["counts"] == {"run": 1, "rewind": 0, "adopt": 0, "bury": 0, "skip": 6, "refuse": 0}
    assert plan["rows"][0] == {"fate": "run", "stage": "only", "reason": "new", "count": 1, "examples": [6]}
    assert (plan["verify"], plan["forecast"]["usd"], plan["forecast"]["learned_from"]) == ("full", "0.50", "rows")


def test_a_run_that_would_be_refused_ends_with_1(app: Path) -> None:
    python("run", "app.py", cwd=app)
    answer = python("plan", "app.py", cwd=app, WORD="b")
    assert (answer.code, "in the way: 6 items came with another payload" in answer.out) == (1, True)
    assert python("plan", "app.py", "--changed", "rerun", cwd=app, WORD="b").code == 0


def test_changed_code_is_planned_and_run(app: Path) -> None:
    python("run", "app.py", cwd=app)
    (app / "app.py").write_text(APP.replace("return row\n", 'return {"id": row["id"]}\n'))
    told = python("plan", "app.py", cwd=app)
    assert "the code of stage 'only' changed: 5 items passed it" in told.out
    again = python("plan", "app.py", "--on-code-change", "rerun", "--json", cwd=app).document
    assert again["counts"]["run"] == 5
    assert python("run", "app.py", "--on-code-change", "refuse", cwd=app).code == 1
    report = python("run", "app.py", "--on-code-change", "rerun", "--json", cwd=app).document
    assert report["this_run"]["done"] == 5


def test_unknown_words_are_usage_errors(app: Path) -> None:
    assert python("plan", "app.py", "--verify", "deep", cwd=app).code == 2
    assert python("plan", "nothing.py", cwd=app).code == 2
