"""A file that others write on: rows come once they are whole, each once, and another file in its place is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.core.errors import SourceChanged, UsageError
from holdfast.runtime.sources import Csv, JsonLines, growth, streams
from holdfast.runtime.sources.base import Malformed
from holdfast.runtime.sources.text_file import LineFile
from tests.sources.reference import rows_of_csv

PIECES = st.lists(
    st.sampled_from(
        [b"a", b"b,c\n", b",", b'"x\ny",z\n', b'"', b'""', b"\n", b"\r\n", b"\r", "é".encode(), b"\xff", b"\0"]
    ),
    max_size=40,
)  # fmt: skip


def tick(source: LineFile, after: Cursor | None, most: int = 10**9) -> tuple[list[Any], Cursor | None]:
    """What is new, up to so many rows, and where that ends."""
    found: list[Any] = []
    for page in source.read(after, None):
        count = min(len(page.rows), most - len(found))
        found += ["malformed" if isinstance(row, Malformed) else row for row in page.rows[:count]]
        after = page.after(count) if count else after
        if len(found) == most:
            break
    return found, after


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("growth") / "a.csv"


@pytest.fixture(autouse=True)
def block_bytes() -> Any:
    before = streams.BLOCK_BYTES, growth.CHECKED_BYTES
    yield
    streams.BLOCK_BYTES, growth.CHECKED_BYTES = before


@pytest.mark.promise("B7", "C1")
@given(pieces=PIECES, most=st.sampled_from([1, 3, 10**9]), size=st.sampled_from([1, 16, 65_536]))
@settings(max_examples=200, deadline=None)
def test_rows_of_a_csv_file_come_when_they_are_whole_and_once(
    path: Path, pieces: list[bytes], most: int, size: int
) -> None:
    streams.BLOCK_BYTES, growth.CHECKED_BYTES = size, 16
    path.write_bytes(b"")
    source, after, seen = Csv(path).followed(), None, list[Any]()
    data = b""
    for piece in [b"h", b",k", b"\n", *pieces]:
        data += piece
        path.write_bytes(data)
        found, after = tick(source, after, most)
        seen += found
    closed = [row for row in rows_of_csv(data) if row is not None] if b"\n" in data else []
    assert seen == closed[: len(seen)], "nothing but rows, in their order"
    if None in rows_of_csv(data + b"\n#,#\n"):
        return  # a quote is open: the rest is nobody's row yet
    path.write_bytes(data + b"\n#,#\n")
    while (more := tick(source, after, most))[0]:
        seen, after = seen + more[0], more[1]
    assert seen == rows_of_csv(data + b"\n#,#\n")


@pytest.mark.promise("B7")
@given(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=20), size=st.sampled_from([1, 16, 65_536]))
@settings(max_examples=100, deadline=None)
def test_lines_of_json_come_when_they_are_whole_and_once(path: Path, cuts: list[int], size: int) -> None:
    streams.BLOCK_BYTES = size
    data = b'{"n": 0}\n\n[1, 2]\r\nnot json\n{"n": "\xff"}\n   \n"six"\n7\n8\n'
    source, after, seen = JsonLines(path).followed(), None, list[Any]()
    for cut in [*cuts, *[30] * 4]:
        at = min(len(data), (path.stat().st_size if seen or after else 0) + cut)
        path.write_bytes(data[:at])
        found, after = tick(source, after)
        seen += found
        assert seen == [{"n": 0}, [1, 2], "malformed", "malformed", "six", 7, 8][: len(seen)]
    path.write_bytes(data)
    assert seen + tick(source, after)[0] == [{"n": 0}, [1, 2], "malformed", "malformed", "six", 7, 8]


def follow(path: Path) -> tuple[hf.Scan, list[str]]:
    scan = hf.Scan("log", hf.Csv(path), follow=True, every=2, store="memory:")
    given_: list[str] = []
    scan.handler(lambda rows: given_.extend(row["id"] for row in rows))
    return scan, given_


@pytest.mark.promise("C1")
def test_a_scan_that_follows_takes_a_file_for_one_that_grows(here: Path) -> None:
    path = here / "log.csv"
    path.write_text("")
    scan, seen = follow(path)
    for text, new in [
        ("i", 0),
        ("d\n", 0),
        ("1", 0),
        ("2\n34\n5", 2),
        ("6\r", 0),
        ("\n", 1),
        ('"7\n', 0),
        ('8"\n9\n', 2),
    ]:
        with path.open("a", newline="") as file:
            file.write(text)
        assert scan.tick().rows == new, text
    assert seen == ["12", "34", "56", "7\n8", "9"]
    assert str(scan.tick().ended) == "nothing new"


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "shortened": (lambda path: os.truncate(path, 10), "it has 10 bytes, and the scan was at byte 45"),
    "emptied": (lambda path: path.write_text(""), "it has 0 bytes, and the scan was at byte 45"),
    "replaced by a longer one": (
        lambda path: path.write_text("id\n" + "".join(f"new {n}\n" for n in range(99))),
        "the 45 bytes before byte 45, where the scan was, are not what they were",
    ),
    "rewritten in one place": (
        lambda path: path.write_text(path.read_text().replace("row 2", "row X")),
        "the 45 bytes before byte 45, where the scan was, are not what they were",
    ),
}


@pytest.mark.promise("C9")
@pytest.mark.parametrize("change", CHANGES)
def test_another_file_in_the_place_of_one_that_is_followed_is_refused_with_what_is_another(
    here: Path, change: str
) -> None:
    path = here / "log.csv"
    path.write_text("id\n" + "".join(f"row {n}\n" for n in range(7)))
    scan, seen = follow(path)
    scan.tick()
    act, said = CHANGES[change]
    act(path)
    with pytest.raises(SourceChanged) as refused:
        scan.tick()
    assert said in str(refused.value)
    assert "cursor reset" in str(refused.value)
    assert seen == [f"row {n}" for n in range(7)], "nothing of it was handled"


def test_a_file_that_is_away_between_two_rotations_is_waited_for(here: Path) -> None:
    path = here / "log.csv"
    scan, _ = follow(path)
    with pytest.raises(UsageError, match="there is no such file"):
        scan.tick()
    path.write_text("id\n1\n")
    scan.tick()
    path.rename(here / "log.csv.1")
    waiting = scan.tick()
    assert (str(waiting.ended), waiting.why) == ("waiting", f"Csv('{path}'): there is no such file at the moment")
    (here / "log.csv.1").rename(path)
    assert str(scan.tick().ended) == "nothing new"


def test_what_cannot_be_sought_is_not_followed(here: Path) -> None:
    with pytest.raises(UsageError, match="only what can be sought can be followed"):
        hf.Scan("log", hf.Csv(here / "log.csv.gz"), follow=True, store="memory:")
    with pytest.raises(UsageError, match="only what can be sought can be followed"):
        hf.Scan("log", hf.Csv(here / "log.csv", encoding="utf-16"), follow=True, store="memory:")
    assert hf.Scan("log", hf.Csv(here / "log.csv.gz"), store="memory:").source is not None


def test_a_line_beyond_the_limit_is_one_dead_letter_once_it_has_its_end(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.sources.text_file.LINE_BYTES", 100)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 10)
    path = here / "log.jsonl"
    source = JsonLines(path).followed()
    path.write_text("1\n" + "9" * 150)
    seen, after = tick(source, None)
    assert seen == [1]
    path.write_text("1\n" + "9" * 500)
    assert tick(source, after) == ([], after)
    path.write_text("1\n" + "9" * 500 + "\n3\n")
    seen, after = tick(source, after)
    assert seen == ["malformed", 3]
    with path.open("a") as file:
        file.write("4\n")
    assert tick(source, after)[0] == [4]


def test_a_cursor_that_a_person_spells_is_not_checked(here: Path) -> None:
    path = here / "log.jsonl"
    path.write_text("1\n2\n3\n")
    assert tick(JsonLines(path).followed(), Cursor("byte", 2, ""))[0] == [2, 3]
    with pytest.raises(SourceChanged):
        tick(JsonLines(path).followed(), Cursor("byte", 2, "0123456789abcdef"))
