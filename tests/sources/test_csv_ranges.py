"""A CSV file in ranges, and from any row on: exactly the rows of the whole, whatever quotes stand where."""

import gzip
import logging
import os
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core import cursor as cursors_
from holdfast.core.cursor import Cursor
from holdfast.core.errors import SourceChanged, UsageError
from holdfast.runtime.sources import Csv, Readable, streams
from holdfast.runtime.sources.text_rows import RowParser
from tests.sources.reference import cursors, is_split, rows_of_csv, told, write

NASTY = st.lists(
    st.sampled_from(
        [b"a", b"b", b"1", b",", b'"', b'""', b"\n", b"\r\n", b"\r", b"\0", b"\xff", "é\u2028".encode(), b" "]
    ),
    max_size=60,
).map(b"".join)
ORDINARY = st.lists(
    st.lists(st.sampled_from([b"x", b"", b'"q"', b'"a\nb"', b'"a,""b"', "ü".encode()]), min_size=1, max_size=3).map(
        b",".join
    ),
    max_size=14,
).flatmap(lambda rows: st.sampled_from([b"\n", b"\r\n", b"\r"]).map(lambda end: end.join(rows)))  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Any:
    """Blocks of a few bytes: every border is met."""
    before, streams.BLOCK_BYTES = streams.BLOCK_BYTES, 7
    yield
    streams.BLOCK_BYTES = before


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv") / "a.csv"


PLAIN = st.lists(st.sampled_from([b"a", b"b,c", b",", b"\n", b"\r\n", b" ", "é".encode()]), max_size=40).map(b"".join)


@pytest.mark.promise("B7", "B10")
@given(
    body=NASTY | ORDINARY | PLAIN,
    parts=st.integers(1, 50),
    size=st.sampled_from([1, 7, 64, 65_536]),
    tail=st.booleans(),
)
@example(body=b'x,"a\nb\nc"\n' * 5, parts=4, size=7, tail=True)
@example(body=b'5" disk,x\n"a\n"\n' * 5, parts=5, size=1, tail=True)
@settings(max_examples=300, deadline=None)
def test_any_split_and_any_resume_give_the_rows_of_the_whole(
    body: bytes, parts: int, size: int, tail: bool, path: Path, small_blocks: None
) -> None:
    streams.BLOCK_BYTES = size
    data = b"h,k\n" + body + (b"\n" if tail else b"")
    source = Csv(write(path, data))
    whole = rows_of_csv(data)
    assert told(source) == whole
    spans = source.split(parts)
    assert 1 <= len(spans) <= parts
    assert is_split([told(source, span.after, span.until) for span in spans], whole)
    places = cursors(source)
    end = spans[-1].until
    for passed, at in enumerate(places):
        streams.BLOCK_BYTES = size % 50 + 5  # another version may read in other blocks
        assert told(source, at) == whole[passed:], at
        assert told(source, at, end) == whole[passed:], at
    streams.BLOCK_BYTES = 13
    for (lo, after), (hi, until) in product(list(enumerate(places))[:5], list(enumerate(cursors(source)))[:8]):
        if lo <= hi and until is not None:
            assert told(source, after, until) == whole[lo:hi], (after, until)
            *_, last = [after, *(page.after(len(page.rows)) for page in source.read(after, until) if page.rows)]
            assert told(source, last) == whole[hi:], (after, until, last)


@given(body=NASTY, parts=st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_quotes_may_be_ordinary_characters(body: bytes, parts: int, path: Path) -> None:
    streams.BLOCK_BYTES = 7
    data = b"h,k\n" + body
    source = Csv(write(path, data), quotechar=None)
    whole = rows_of_csv(data, quotechar=None)
    assert [row for span in source.split(parts) for row in told(source, span.after, span.until)] == whole


@given(body=NASTY | ORDINARY)
@settings(max_examples=80, deadline=None)
def test_what_cannot_be_sought_is_one_range_by_the_number_of_the_row(body: bytes, path: Path) -> None:
    streams.BLOCK_BYTES = 7
    data = b"h,k\n" + body.replace(b"\xff", b"")
    whole = rows_of_csv(data)
    packed = Csv(write(path.with_suffix(".csv.gz"), gzip.compress(data)))
    wide = Csv(write(path, data.decode().encode("utf-16")), encoding="utf-16")
    for source in (packed, wide):
        (span,) = source.split(1)
        assert told(source, span.after, span.until) == whole
        for passed, at in enumerate(cursors(source)):
            assert at is None or (at.kind, at.value) == ("row", passed)
            assert told(source, at) == whole[passed:]
            assert told(source, None, at) == whole[: passed if at is not None else None]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1", "cp1252", "shift_jis", "gb18030", "utf-8"])
def test_ranges_and_cursors_hold_in_every_encoding_whose_lines_are_those_of_ascii(encoding: str, path: Path) -> None:
    streams.BLOCK_BYTES = 16
    text = "ア,é" if encoding in {"shift_jis", "gb18030", "utf-8", "utf-8-sig"} else "ß,é"
    text = text.replace("é", "e") if encoding == "shift_jis" else text
    data = ("h,k\n" + f'{text}\n"{text}\n",x\n' * 20).encode(encoding)
    source = Csv(write(path, data), encoding=encoding)
    whole = rows_of_csv(data.removeprefix(b"\xef\xbb\xbf"), encoding=encoding.removesuffix("-sig"))
    assert len(whole) == 40
    assert source.can_be_sought
    for parts in (1, 3, 8):
        assert [row for span in source.split(parts) for row in told(source, span.after, span.until)] == whole
    for passed, at in enumerate(cursors(source)):
        assert told(source, at) == whole[passed:]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "utf-7", "iso2022_jp", "cp037"])
def test_other_encodings_are_read_by_row(encoding: str, path: Path) -> None:
    source = Csv(write(path, "h,k\n1,a\n2,b\n".encode(encoding)), encoding=encoding)
    assert not source.can_be_sought
    assert [told(source, at) for at in cursors(source)][1:] == [[{"h": "2", "k": "b"}], []]


def test_a_pipe_is_read_once_from_its_start(path: Path) -> None:
    streams.BLOCK_BYTES = 7
    pipe = path.with_name("pipe.csv")
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"h,k\n1,a\n2,b\n",))
    writer.start()
    assert list(Csv(pipe)) == [{"h": "1", "k": "a"}, {"h": "2", "k": "b"}]
    writer.join()
    assert len(Csv(pipe).split(1)) == 1


def test_a_border_by_parity_of_quotes_or_by_lines_alone_would_be_wrong(path: Path, monkeypatch: Any) -> None:
    """The oracle above sees it: a split that takes every line's end for a row's end loses and doubles rows."""
    streams.BLOCK_BYTES = 7
    data = b"h,k\n" + b'x,"a\nb\nc\nd"\n' * 20
    monkeypatch.setattr(RowParser, "is_whole", lambda *_: True)
    source = Csv(write(path, data))
    assert not is_split([told(source, span.after, span.until) for span in source.split(7)], rows_of_csv(data))


def test_a_file_of_ordinary_size_is_read_in_even_ranges(path: Path) -> None:
    streams.BLOCK_BYTES = 65_536
    body = b"".join(b'%d,"line\nof %d"\n' % (n, n) for n in range(20_000))
    source = Csv(write(path, b"h,k\n" + body))
    sizes = [len(told(source, span.after, span.until)) for span in source.split(5)]
    assert sum(sizes) == 20_000
    assert max(sizes) - min(sizes) < 1_000


def test_a_huge_field_is_a_row_like_any_other_and_cut_by_no_border(path: Path) -> None:
    streams.BLOCK_BYTES = 4096
    huge = b'1,"' + b"line\n" * 100_000 + b'"\n'
    source = Csv(write(path, b"h,k\n0,a\n" + huge + b"2,b\n" * 50_000))
    rows = [row for span in source.split(5) for row in told(source, span.after, span.until)]
    assert [row["h"] for row in rows[:3]] == ["0", "1", "2"]
    assert (len(rows), len(rows[1]["k"])) == (50_002, 500_000)


def test_the_line_of_a_malformed_row_is_the_same_wherever_reading_began(path: Path) -> None:
    streams.BLOCK_BYTES = 7
    source = Csv(write(path, b'h,k\r\n1,"two\r\nlines"\r\n\r\nbad\r\n2,b\r\nworse,,\r\n'))

    def places(after: Cursor | None) -> list[str]:
        return [row.where for page in source.read(after, None) for row in page.rows if not isinstance(row, dict)]

    assert places(None) == ["a.csv:5", "a.csv:7"]
    assert [places(at) for at in cursors(source)] == [["a.csv:5", "a.csv:7"]] * 2 + [["a.csv:7"]] * 2 + [[]]


@pytest.mark.parametrize("body", [b"", b"\n\n", b"\r\n"])
def test_a_header_alone_is_one_empty_range(body: bytes, path: Path) -> None:
    source = Csv(write(path, b"h,k" + body))
    (span,) = source.split(5)
    assert told(source, span.after, span.until) == []
    assert isinstance(source, Readable)


def test_asking_for_more_ranges_than_can_be_had_says_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(Csv(write(path.with_suffix(".csv.gz"), gzip.compress(b"h\n1\n2\n"))).split(2)) == 1
    assert "as one partition, not 2" in caplog.text


@pytest.mark.parametrize(
    "at",
    [
        *(Cursor("row", 3), Cursor("byte", "3"), Cursor("byte", -1), Cursor("byte", 1.5), Cursor("byte", 3, "x")),
        Cursor("byte", True),
    ],
)
def test_a_cursor_of_another_source_is_refused(at: Cursor, path: Path) -> None:
    with pytest.raises(UsageError, match="to another source, or is damaged"):
        told(Csv(write(path, b"h\n1\n2\n")), at)


def test_a_file_that_changed_under_a_half_done_scan_is_told_by_what_is_another(path: Path) -> None:
    source = Csv(write(path, b"h\n" + b"1\n" * 10_000))
    before = source.split(2)[0].identity
    assert before is not None
    assert source.changed(before) is None
    write(path, b"h\n" + b"1\n" * 10_001)
    assert source.changed(before) is None, "it only grew"
    write(path, b"h\n" + b"1\n" * 9_000)
    assert source.changed(before) == "it has 18,002 bytes, but had 20,002: it was shortened"
    write(path, b"h\n" + b"2\n" * 10_000)
    assert "are not what they were: it was rewritten" in str(source.changed(before))
    path.unlink()
    with pytest.raises(UsageError, match="no such file"):
        source.changed(before)


def test_a_file_that_is_shortened_in_mid_read_is_no_end_of_the_rows(path: Path) -> None:
    streams.BLOCK_BYTES = 64
    source = Csv(write(path, b"h\n" + b"1\n" * 10_000))
    (span,) = source.split(1)
    pages = source.read(span.after, span.until)
    next(pages)
    with path.open("r+b") as file:
        file.truncate(5_000)
    with pytest.raises(SourceChanged, match="it was shortened"):
        list(pages)
    with pytest.raises(SourceChanged, match="it was shortened"):
        told(source, Cursor("byte", 20_000, 3))
    with pytest.raises(SourceChanged, match="no line ends before byte 4,999"):
        told(source, Cursor("byte", 4_999))


def test_a_cursor_survives_being_written_down(path: Path) -> None:
    for at in cursors(Csv(write(path, b"h\n" + b"1\n" * 20))):
        assert at is None or cursors_.decode(cursors_.encode(at)) == at
