"""`holdfast export --evidence` and `holdfast import --from-outputs`, as a person calls them."""

import sqlite3
from pathlib import Path

import pytest

from holdfast.runtime.operate.evidence import check
from holdfast.stores.sqlite import SqliteStore
from tests.cli.conftest import Command, python

APP = """
import holdfast as hf

book = hf.Pipeline("book", source=[{"number": n} for n in range(6)], key="number")

@book.stage(sink=hf.Files("out/{key}.json"))
def read(page: dict) -> dict:
    if page["number"] == 4:
        raise hf.Permanent("blank", "nothing on it")
    return page
"""


@pytest.fixture
def app(here: Path) -> Path:
    (here / "app.py").write_text(APP)
    assert python("run", "app.py:book", "--no-progress", cwd=here).code == 1
    return here


def spoil(here: Path) -> bytes:
    store = here / ".holdfast" / "state.db"
    SqliteStore(store).close()  # nothing is left in its log
    store.write_bytes(store.read_bytes()[:100] + bytes(20_000))
    return store.read_bytes()


def test_evidence_is_written_and_holds(app: Path, holdfast: Command) -> None:
    answer = holdfast("export", "book", "--evidence")
    assert answer.code == 0
    assert "python check.py book-evidence.zip" in answer.out
    assert check.check(str(app / "book-evidence.zip"))["counts"] == {"done": 5, "dead": 1}
    told = holdfast("export", "book", "--evidence", "--json", "--out", "there.zip").document
    assert (told["path"], told["items"], told["is_sealed"], told["is_quiet"]) == ("there.zip", 6, False, True)


def test_redacted_evidence_holds_and_names_no_key(app: Path, holdfast: Command) -> None:
    answer = holdfast("export", "book", "--evidence", "--redact", "--out", "there.zip")
    assert (answer.code, "redacted" in answer.out) == (0, True)
    found = check.check(str(app / "there.zip"))
    assert (found["redacted"], found["counts"]) == (True, {"done": 5, "dead": 1})
    refused = holdfast("export", "book", "--redact")
    assert (refused.code, "--evidence" in refused.err) == (2, True)


def test_evidence_has_a_name_of_its_own_kind(app: Path, holdfast: Command) -> None:
    answer = holdfast("export", "book", "--evidence", "--out", "there.csv")
    assert answer.code == 2
    assert ".zip" in answer.err
    assert not (app / "there.csv").exists()


@pytest.mark.promise("P12")
def test_a_damaged_store_is_set_aside_and_rebuilt(app: Path, holdfast: Command) -> None:
    spoilt = spoil(app)
    refused = holdfast("run", "app.py:book", "--no-progress")
    assert refused.code == 1
    assert "--from-outputs" in refused.err
    dry = holdfast("import", "app.py:book", "--from-outputs", "--dry-run")
    assert (dry.code, "5 items of 6 would be recovered, 1 would run." in dry.out) == (0, True), dry.out
    told = holdfast("import", "app.py:book", "--from-outputs", "--dry-run", "--json").document
    assert (told["items"], told["recovered"], told["pending"], told["set_aside"]) == (6, {"read": 5}, 1, [])
    assert holdfast("import", "app.py:book", "--from-outputs").code == 2, "without a terminal it needs --yes"
    assert (app / ".holdfast" / "state.db").read_bytes() == spoilt
    told = holdfast("import", "app.py:book", "--from-outputs", "--yes", "--reason", "the disk died", "--json").document
    assert (told["items"], told["recovered"], told["pending"]) == (6, {"read": 5}, 1)
    assert Path(told["set_aside"][0]).read_bytes() == spoilt
    assert holdfast("run", "app.py:book", "--no-progress").code == 1
    why = holdfast("why", "book", "0")
    assert "recovered by" in why.out
    assert "the disk died" in why.out


def test_what_the_module_prints_is_no_part_of_the_answer(app: Path, holdfast: Command) -> None:
    (app / "app.py").write_text(APP + "\nprint('noise')\n")
    spoil(app)
    assert holdfast("import", "app.py:book", "--from-outputs", "--dry-run", "--json").document["batch"] == "book"


def test_a_store_of_somebody_else_is_not_set_aside(app: Path, holdfast: Command) -> None:
    other = sqlite3.connect(app / "other.db")
    other.execute("CREATE TABLE bookmarks (url)")
    other.close()
    before = (app / "other.db").read_bytes()
    answer = holdfast(
        "import", "app.py:book", "--from-outputs", "--yes", "--reason", "x", "--store", str(app / "other.db")
    )
    assert answer.code == 1
    assert "another program wrote it" in answer.err
    assert (app / "other.db").read_bytes() == before


def test_what_can_be_read_is_not_rebuilt(app: Path, holdfast: Command) -> None:
    answer = holdfast("import", "app.py:book", "--from-outputs", "--yes", "--reason", "x")
    assert answer.code == 1
    assert "nothing to rebuild" in answer.err
    dry = holdfast("import", "app.py:book", "--from-outputs", "--dry-run")
    assert (dry.code, "nothing to rebuild" in dry.err) == (1, True)
    assert holdfast("import", "app.py:book").code == 2


@pytest.mark.promise("P12")
def test_the_store_that_the_pipeline_names_is_the_one_that_is_rebuilt(app: Path, holdfast: Command) -> None:
    (app / "mine.py").write_text(APP.replace('"book", ', '"book", store="mine.db", '))
    assert python("run", "mine.py:book", "--no-progress", cwd=app).code == 1
    whole = (app / ".holdfast" / "state.db").read_bytes()
    SqliteStore(app / "mine.db").close()
    (app / "mine.db").write_bytes((app / "mine.db").read_bytes()[:100] + bytes(20_000))
    told = holdfast("import", "mine.py:book", "--from-outputs", "--yes", "--reason", "the disk died", "--json").document
    assert told["recovered"] == {"read": 5}
    assert any(name.startswith("mine.db.damaged-") for name in told["set_aside"])
    assert (app / ".holdfast" / "state.db").read_bytes() == whole
