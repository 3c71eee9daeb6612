"""Texts from outside give no orders: not to a terminal, not to a spreadsheet; and what a library says stays with us."""

import csv
import gzip
import io
import stat
from pathlib import Path

import httpx
import pytest

import holdfast as hf
from holdfast.runtime.operate import doctor, export
from holdfast.runtime.operate.doctor import Level
from holdfast.stores.base import find_batch
from holdfast.stores.buckets import base

from .support import run

ESCAPE = "\x1b[31mred\x1b]0;pwned\x07"
CELLS = ["=cmd()", "+1", "-2", "@SUM(A1)", "\t=1", "\r=1", "'quoted", f"a {ESCAPE}", "plain", "5-3", "two\nlines"]


@pytest.fixture
def texts() -> hf.Pipeline:
    p = hf.Pipeline("p", store="state.db")

    @p.stage
    def same(text: str) -> dict[str, str]:
        if text == "die":
            raise hf.Permanent(f"bad{ESCAPE}", f"because {ESCAPE}")
        return {"=field": text}

    run(p, [*CELLS, "die"], batch="b")
    return p


def test_a_report_gives_no_orders_to_a_terminal(texts: hf.Pipeline) -> None:
    report = texts.report("b")
    for shown in (str(report), repr(report), report._repr_html_(), str(texts.plan(["die", ESCAPE], batch="b"))):
        assert not [c for c in shown if not c.isprintable() and c != "\n"]
    assert "\\x1b[31mred" in str(report)
    assert report.dead[0].reason == f"because {ESCAPE}", "as data it stays what it is"


def exported(p: hf.Pipeline, **options: bool) -> list[list[str]]:
    stream, batch = io.BytesIO(), find_batch(p.store, "b")
    assert batch is not None
    export.export(p.store, batch, stream, form="csv", **options)
    return list(csv.reader(io.StringIO(stream.getvalue().decode(), newline="")))


def test_cells_of_a_csv_are_no_formulas_and_no_orders(texts: hf.Pipeline) -> None:
    header, *rows = exported(texts)
    cells = [row[-1] for row in rows]
    assert header[-1] == "'=field"
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert not [c for cell in cells for c in cell if not c.isprintable() and c not in "\n\t"]
    taken_back = [cell.removeprefix("'") for cell in cells]
    assert [cell for cell in taken_back if "\\" not in cell] == [
        c for c in CELLS if c.isprintable() or "\n" in c or "\t" in c
    ]


def test_raw_cells_are_the_texts_themselves(texts: hf.Pipeline) -> None:
    header, *rows = exported(texts, raw=True)
    assert (header[-1], [row[-1] for row in rows]) == ("=field", CELLS)


def test_numbers_stay_numbers() -> None:
    stream = io.BytesIO()
    export.write_csv(stream, lambda: [{"key": -1, "n": -2.5}])
    assert stream.getvalue() == b"key,n\r\n-1,-2.5\r\n"


def test_a_store_in_a_directory_is_private(tmp_path: Path) -> None:
    p = hf.Pipeline("p", store=f"file://{tmp_path}/bucket")
    p.stage(name="same")(same)
    run(p, ["secret"], batch="b")
    found = [tmp_path / "bucket", *(tmp_path / "bucket").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    (private,) = permissions(tmp_path)
    assert private.level is Level.OK
    next(path for path in found if path.is_file()).chmod(0o644)
    (wide,) = permissions(tmp_path)
    assert wide.level is Level.WARN
    assert f"chmod -R go= {tmp_path}/bucket" in wide.advice


def same(text: str) -> str:
    return text


def permissions(tmp_path: Path) -> list[doctor.DoctorCheck]:
    checks = doctor.examine_bucket(f"file://{tmp_path}/bucket").checks
    return [check for check in checks if check.name == "permissions"]


def bomb(_request: httpx.Request) -> httpx.Response:
    packed = gzip.compress(b'{"rows": [' + b" " * 5_000_000 + b"1]}")
    return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(packed))


def test_a_reply_has_a_limit_once_it_is_unpacked() -> None:
    client = httpx.Client(transport=httpx.MockTransport(bomb))
    small = hf.Pages("http://api.test/rows", rows="rows", next="next", client=client, reply_bytes=1_000_000)
    with pytest.raises(hf.Permanent, match=r"more than 1,000,000 bytes, unpacked.*reply_bytes") as refused:
        list(small)
    assert refused.value.code == "too_large"
    assert list(hf.Pages("http://api.test/rows", rows="rows", next="next", client=client)) == [1]


def test_options_of_the_connection_reach_it_and_a_panic_of_the_library_stays_inside(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = base.place_of("s3://bucket")
    assert base.client(place, allow_http=True, endpoint="http://127.0.0.1:1", region="x") is not None
    with pytest.raises(hf.UsageError, match="client_options"):
        base.client(place, client_options=5)
    monkeypatch.setattr(base, "CLIENT_OPTIONS", frozenset())
    with pytest.raises(hf.UsageError, match="cannot be opened"):
        base.client(place, allow_http=True, endpoint="http://127.0.0.1:1")
    assert capfd.readouterr().err == ""


def test_the_reason_of_a_dead_letter_is_what_the_server_said_and_not_where_to_read_about_it() -> None:
    p = hf.Pipeline("p", store="memory:")

    @p.stage
    def ask(n: int) -> int:
        request = httpx.Request("GET", "http://localhost/pages")
        return httpx.Response(400, request=request).raise_for_status().status_code

    (letter,) = run(p, [1]).dead
    assert letter.reason == "Client error '400 Bad Request' for url 'http://localhost/pages'"
