"""Exit codes tell a scheduler what to do: 2 where a person has to change something, 75 where it may pass by itself."""

import sqlite3
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

APP = """
import holdfast as hf
from holdfast.testing.rows import Rows

def scan_of(name, source, kind=hf.Scan):
    scan = kind(name, source, retry=hf.Retry(attempts=1))
    scan.handler(count)
    return scan

def count(rows, acc: int) -> int:
    return acc + len(rows)

class Away(Rows):
    def split(self, parts):
        raise hf.Transient("the database did not answer")

class Busy(Rows):
    def split(self, parts):
        raise hf.Defer(30)

rows = scan_of("rows", Rows([1, 2]))
away = scan_of("away", Away([1]))
busy = scan_of("busy", Busy([1]))
nowhere = scan_of("nowhere", hf.Table("sqlite:///no/such/folder/orders.db", "orders", cursor="id", key="id"))
followed = scan_of("followed", hf.Table("sqlite:///no/such/folder/orders.db", "orders", cursor="id", key="id"),
                   kind=hf.Follow)
table = scan_of("table", hf.Table("sqlite:///orders.db", "no_such_table", cursor="id", key="id"))
parquet = scan_of("parquet", hf.Parquet("orders.parquet"))
objects = scan_of("objects", hf.Objects("s3://orders/2026"))
"""


@pytest.fixture
def app(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE",
                 "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_NAME"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    (here / "app.py").write_text(APP)
    sqlite3.connect(here / "orders.db").close()
    return here


@pytest.mark.parametrize("scan", ["nowhere", "followed", "table", "parquet"])
def test_a_source_that_is_not_there_needs_a_person(app: Path, holdfast: Command, scan: str) -> None:
    answer = holdfast("run", f"app.py:{scan}")
    assert answer.code == 2, answer.err
    assert not (app / "state.db").exists()
    dead = holdfast("dead", "list")
    assert "no dead letters" in dead.out or "no store" in dead.err


@pytest.mark.parametrize("scan", ["away", "busy"])
def test_a_source_that_is_away_for_now_says_run_again(app: Path, holdfast: Command, scan: str) -> None:
    assert holdfast("run", f"app.py:{scan}", "--patience", "0s").code == 75


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.parametrize("store", ["/proc/state.db", "file:///proc/holdfast", "orders.db/state.db"])
def test_a_place_where_no_file_can_be_needs_another_one(app: Path, holdfast: Command, store: str) -> None:
    answer = holdfast("run", "app.py:rows", "--store", store)
    assert answer.code == 2, answer.err
    assert "run again" not in answer.err


@pytest.mark.parametrize(
    ("store", "names"),
    [
        ("s3://bucket/state", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]),
        ("gs://bucket/state", ["GOOGLE_APPLICATION_CREDENTIALS"]),
        ("az://container/state", ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"]),
    ],
)
@pytest.mark.parametrize("said", ["403 Forbidden", "error sending request"])
def test_without_credentials_the_variables_are_named(
    app: Path, holdfast: Command, monkeypatch: pytest.MonkeyPatch, store: str, names: list[str], said: str
) -> None:
    import obstore

    def get(*_: object, **__: object) -> None:
        raise obstore.exceptions.GenericError(f"Error performing PUT http://169.254.169.254/latest/api/token: {said}")

    monkeypatch.setattr(obstore, "get", get)
    answer = holdfast("run", "app.py:rows", "--store", store)
    assert answer.code == 2, answer.err
    assert all(name in answer.err for name in names)
    assert "169.254" not in answer.err


def test_a_listing_without_credentials_is_refused_and_buries_nothing(
    app: Path, holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    def listing(*_: object, **__: object) -> None:
        raise obstore.exceptions.GenericError("Error performing PUT http://169.254.169.254/latest/api/token")

    monkeypatch.setattr(obstore, "list", listing)
    answer = holdfast("run", "app.py:objects")
    assert (answer.code, "AWS_ACCESS_KEY_ID" in answer.err) == (2, True)
    assert "no dead letters" in holdfast("dead", "list", "objects").out


def test_a_machine_that_gave_its_role_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    from holdfast.stores.buckets.base import Away
    from holdfast.stores.buckets.obstore import ObstoreBucket

    bucket = ObstoreBucket("s3://bucket/state", access_key_id="a", secret_access_key="b", region="eu-west-1")
    silent = obstore.exceptions.GenericError("error sending request for url (http://169.254.169.254/)")
    answers: list[Exception] = [FileNotFoundError(), silent]

    def get(*_: object, **__: object) -> None:
        raise answers.pop(0)

    monkeypatch.setattr(obstore, "get", get)
    assert bucket.get("doc") is None
    with pytest.raises(Away):
        bucket.get("doc")
