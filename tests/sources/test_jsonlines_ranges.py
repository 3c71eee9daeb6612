"""JSON lines in ranges, and from any line on: exactly the values of the whole."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.core.cursor import Cursor
from holdfast.core.errors import SourceChanged
from holdfast.runtime.sources import Csv, JsonLines, Parquet, Readable, streams, text_file
from tests.sources.reference import cursors, told, write

LINES = st.lists(
    st.sampled_from([b"1", b'{"a":[1,2]}', b'"\\n"', b"", b"  ", b"{", b"\xff", b"a\rb", b"3\r"]), max_size=12
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 7)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jsonl") / "a.jsonl"


def values(data: bytes) -> list[Any]:
    known = {b"1": 1, b'{"a":[1,2]}': {"a": [1, 2]}, b'"\\n"': "\n", b"3\r": 3}
    return [known.get(line, "malformed") for line in data.split(b"\n") if line.strip()]


@pytest.mark.promise("B7", "B10")
@given(lines=LINES, parts=st.integers(1, 5), tail=st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_split_and_any_resume_give_the_values_of_the_whole(
    lines: list[bytes], parts: int, tail: bool, path: Path
) -> None:
    streams.BLOCK_BYTES = 7
    data = b"\n".join(lines) + (b"\n" if tail else b"")
    whole = values(data)
    for source in (JsonLines(write(path, data)), JsonLines(write(path.with_suffix(".gz"), gzip.compress(data)))):
        assert told(source) == whole
        spans = source.split(parts if source.path == path else 1)
        assert [value for span in spans for value in told(source, span.after, span.until)] == whole
        for passed, at in enumerate(cursors(source)):
            assert told(source, at) == whole[passed:]


def test_a_file_is_not_followed(path: Path) -> None:
    for source in (JsonLines(path), Csv(path), JsonLines(path.with_suffix(".gz")), Parquet(path)):
        assert isinstance(source, Readable)
        with pytest.raises(hf.UsageError, match=r"a file cannot be followed: .* follow the folder"):
            hf.Follow("log", source, store="memory:")


def test_a_file_that_was_shortened_is_not_taken_for_its_end(path: Path) -> None:
    source = JsonLines(write(path, b"1\n" * 100))
    (span,) = source.split(1)
    write(path, b"1\n" * 50)
    with pytest.raises(SourceChanged, match="shortened"):
        told(source, span.after, span.until)
    with pytest.raises(SourceChanged, match="shortened"):
        told(source, Cursor("byte", 150))


def test_a_line_beyond_the_limit_is_passed_over_in_every_range(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "LINE_BYTES", 100)
    source = JsonLines(write(path, b"1\n" * 50 + b'"' + b"x" * 5000 + b'"\n' + b"1\n" * 50))
    rows = [value for span in source.split(4) for value in told(source, span.after, span.until)]
    assert rows == [1] * 50 + ["malformed"] + [1] * 50
