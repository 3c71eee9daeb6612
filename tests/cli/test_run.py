"""`holdfast run`: found, run, killed, resumed, reported, with the exit code that says how it went."""

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import new_python, python, start
from tests.forkserver import Process
from tests.runtime.support import wait_for

APP = """
import os, time
from pydantic import BaseModel
import holdfast as hf

class Row(BaseModel):
    id: int

rows = hf.Pipeline("rows", source=[{"id": n} for n in range(int(os.environ.get("ITEMS", "20")))])

@rows.stage
def first(row: Row) -> Row:
    print("a handler that prints")
    return row

@rows.stage
def second(row: Row, ctx: hf.Context) -> dict:
    time.sleep(float(os.environ.get("SLEEP", "0")))
    if row.id >= int(os.environ.get("HELD", "1000")):
        open("held", "w").close()
        while not ctx.stopping:
            time.sleep(0.002)
    ctx.spend(usd="0.01")
    if row.id in map(int, os.environ.get("BAD", "").split()):
        raise hf.Permanent("bad_row")
    return {"id": row.id, "double": 2 * row.id}
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def counts(folder: Path, batch: str = "rows") -> dict[str, int]:
    return python("status", batch, "--json", cwd=folder).document["counts"]  # type: ignore[no-any-return]


def test_a_file_with_one_pipeline_needs_no_name(app: Path) -> None:
    answer = new_python("run", "app.py", cwd=app)
    assert answer.code == 0, answer.err
    assert "rows: complete. All 20 items are accounted for." in answer.out
    assert counts(app)["done"] == 20


def test_a_module_by_its_name_and_options(app: Path) -> None:
    answer = python(
        "run", "app:rows", "--batch", "b", "--key", "id", "--workers", "2", "--lease", "5s", "--verify", "full", cwd=app
    )
    assert answer.code == 0, answer.err
    assert counts(app, "b")["done"] == 20


@pytest.mark.promise("P11")
def test_running_it_again_does_nothing_again(app: Path) -> None:
    python("run", "app.py:rows", cwd=app)
    plain = python("run", "app.py:rows", "--json", cwd=app).document
    assert (plain["this_run"]["done"], plain["this_run"]["done_before"], plain["totals"]["usd"]) == (0, 20, "0.20")


def test_json_is_one_document_even_when_handlers_print(app: Path) -> None:
    answer = python("run", "app.py:rows", "--json", cwd=app)
    assert answer.document["counts"]["done"] == 20
    assert "a handler that prints" in answer.err


def test_dead_letters_end_it_with_1_unless_they_are_tolerated(app: Path) -> None:
    assert python("run", "app.py", cwd=app, BAD="3 4").code == 1
    assert python("run", "app.py", "--tolerate", "2", cwd=app).code == 0
    assert python("run", "app.py", "--tolerate", "10%", cwd=app).code == 0
    assert python("run", "app.py", "--tolerate", "1", cwd=app).code == 1
    assert python("run", "app.py", "--tolerate", "some", cwd=app).code == 2


def test_a_deadline_ends_it_with_75(app: Path) -> None:
    answer = python("run", "app.py", "--workers", "1", "--deadline", "0.5s", cwd=app, SLEEP="0.1", ITEMS="100")
    assert answer.code == 75, answer.err
    assert "run again" in answer.out
    assert counts(app)["pending"] > 0


def test_a_budget_pauses_it(app: Path) -> None:
    answer = python("run", "app.py", "--workers", "1", "--budget", "$0.05", cwd=app)
    assert (answer.code, "budget" in answer.out) == (75, True)
    assert python("run", "app.py", "--budget", "lots", cwd=app).code == 2


def test_another_store(app: Path) -> None:
    assert python("run", "app.py", "--store", "elsewhere/s.db", cwd=app).code == 0
    assert (app / "elsewhere" / "s.db").exists()
    assert not (app / ".holdfast").exists()


def start_and_hold(app: Path, items: int) -> Process:
    """A run that is in the middle: from row 20 on, rows end once the run stops, not before."""
    options = ("--workers", "2", "--no-progress")
    child = start("run", "app.py:rows", *options, cwd=app, HELD="20", ITEMS=str(items))
    wait_for((app / "held").exists)
    return child


@pytest.mark.promise("A7", "P10")
def test_ctrl_c_drains_ends_with_75_and_the_next_run_goes_on(app: Path) -> None:
    child = start_and_hold(app, 200)
    child.signal(signal.SIGINT)
    assert child.wait() == 75, child.err
    assert "interrupted" in child.out
    before = counts(app)
    assert before["pending"] > 0
    answer = python("run", "app.py:rows", "--json", cwd=app, ITEMS="200")
    assert answer.document["counts"]["done"] == 200
    assert answer.document["this_run"]["done_before"] == before["done"]


@pytest.mark.promise("A7", "P10")
def test_a_killed_run_goes_on(app: Path) -> None:
    start_and_hold(app, 100).kill()
    assert python("audit", "verify", cwd=app).code == 0
    assert python("run", "app.py:rows", cwd=app, ITEMS="100").code == 0
    assert counts(app)["done"] == 100
    assert python("audit", "verify", "--full", cwd=app).code == 0
    lines = python("export", "rows", cwd=app).out.splitlines()
    assert [json.loads(line)["output"]["double"] for line in lines] == [2 * n for n in range(100)]


WRONG = {
    "nope.py": "there is no file nope.py",
    "no.such.module:x": "there is no module 'no.such.module'",
    "app.py:nope": "app.py has no 'nope'; it has the pipeline rows",
    "app.py:Row": "is a ModelMetaclass, not a pipeline or a scan; it has the pipeline rows",
    "two.py": "two.py has the pipelines a, b: name one, for example two.py:a",
    "none.py": "none.py has no pipeline",
    "broken.py": "broken.py could not be imported: NameError: name 'nmae' is not defined",
    "exits.py": "exits.py could not be imported: SystemExit: 3",
    "syntax.py": "syntax.py could not be imported: SyntaxError",
    "missing.py": "missing.py could not be imported: ModuleNotFoundError: No module named 'not_installed'",
}


@pytest.mark.parametrize("target", WRONG)
def test_targets_that_cannot_be_found_are_answered(app: Path, target: str) -> None:
    (app / "two.py").write_text('import holdfast as hf\na, b = hf.Pipeline("a"), hf.Pipeline("b")\n')
    (app / "none.py").write_text("x = 1\n")
    (app / "broken.py").write_text("import holdfast\n\nnmae\n")
    (app / "exits.py").write_text("raise SystemExit(3)\n")
    (app / "syntax.py").write_text("def f(:\n")
    (app / "missing.py").write_text("import not_installed\n")
    answer = python("run", target, cwd=app)
    assert answer.code == 2
    assert WRONG[target] in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


def test_a_file_sees_its_neighbours_from_wherever_it_is_run(app: Path) -> None:
    (app / "helper.py").write_text("FACTOR = 3\n")
    (app / "needs.py").write_text(
        "import holdfast as hf\nfrom helper import FACTOR\np = hf.Pipeline('p', source=[1, 2])\n"
        "@p.stage\ndef triple(n: int) -> int:\n    return FACTOR * n\n"
    )
    elsewhere = app / "elsewhere"
    elsewhere.mkdir()
    answer = python("run", "../needs.py", cwd=elsewhere)
    assert answer.code == 0, answer.err
    lines = python("export", "p", cwd=elsewhere).out.splitlines()
    assert [json.loads(line)["output"] for line in lines] == [3, 6]


def test_stages_on_processes_find_the_file(app: Path) -> None:
    (app / "procs.py").write_text(
        "import os\nimport holdfast as hf\np = hf.Pipeline('p', source=[1, 2, 3])\n"
        "@p.stage(executor='processes')\ndef who(n: int) -> int:\n    return os.getpid()\n"
    )
    answer = new_python("run", "procs.py:p", "--workers", "2", cwd=app)
    assert answer.code == 0, answer.err
