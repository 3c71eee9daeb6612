"""Values come out as they stand in the file; a broken line says where it stood."""

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.core.limits import PREVIEW_BYTES
from holdfast.runtime.sources import JsonLines, Malformed, Source, text_file


def values_of(data: bytes, name: str = "a.jsonl") -> list[Any]:
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return list(JsonLines(name))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(
    "data",
    [
        b'{"n":1}\n[2]\nnull\n',
        b'{"n":1}\r\n[2]\r\nnull',
        b'\xef\xbb\xbf{"n":1}\n\n  \t\n[2]\n\r\n null \n\n',
    ],
)
def test_every_line_is_a_value(data: bytes, name: str, here: Path) -> None:
    assert values_of(data, name) == [{"n": 1}, [2], None]


def test_an_empty_file_has_no_values(here: Path) -> None:
    assert values_of(b"") == values_of(b"\n") == values_of(b"\xef\xbb\xbf") == []


def test_large_numbers_keep_their_digits(here: Path) -> None:
    assert values_of(b"123456789012345678901234567890\n") == [123456789012345678901234567890]


@pytest.mark.parametrize(
    "line",
    [
        b'{"n":',
        b"{'n': 1}",
        b'"\xff"',
        b"\0\0\0",
        b"NaN",
        b"1 2",
        b'"\\ud800"',
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_broken_line_names_its_place_and_stops_nothing(line: bytes, here: Path) -> None:
    first, bad, last = values_of(b"1\n\n" + line + b"\r\n2\n")
    assert (first, last) == (1, 2)
    assert isinstance(bad, Malformed)
    assert (bad.where, bad.raw) == ("a.jsonl:3", line)
    assert bad.why.startswith("is not valid JSON: ")


def test_a_line_beyond_the_limit_is_passed_over(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "LINE_BYTES", 5000)
    exact = b'"' + b"x" * 4997 + b'"\n'
    long = b'"' + b"y" * 3_000_000 + b'"\n'
    fits, bad, last = values_of(exact + long + b"3\n")
    assert (len(fits), last) == (4997, 3)
    assert (bad.where, len(bad.raw), "more than 5,000 bytes" in bad.why) == ("a.jsonl:2", PREVIEW_BYTES, True)
    assert isinstance(values_of(long.strip())[-1], Malformed), "also where the file ends within it"


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("no.jsonl", None, "no such file"),
        ("a.jsonl", '{"n":1}\n'.encode("utf-16"), "UTF-16"),
        ("a.jsonl.gz", gzip.compress(b"1\n" * 1000, mtime=0)[:-12], "cut off"),
        ("b.jsonl.gz", b"1\n", "damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name: str, data: bytes | None, says: str, here: Path) -> None:
    if data is not None:
        Path(name).write_bytes(data)
    with pytest.raises(UsageError, match=says) as caught:
        list(JsonLines(name))
    assert name in str(caught.value)


def test_reading_again_starts_anew_and_giving_up_closes_the_file(here: Path) -> None:
    Path("a.jsonl").write_text("1\n" * 100_000)
    source = JsonLines("a.jsonl")
    before = len(list(Path("/proc/self/fd").iterdir()))
    first = iter(source)
    assert next(first) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    del first
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert sum(source) == sum(source) == 100_000


def test_json_lines_are_a_source_that_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    source = JsonLines(tmp_path / "a.jsonl")
    assert isinstance(source, Source)
    assert source.natural_key({"id": 1}) is None
    assert source.describe() == {"kind": "jsonlines", "name": "a.jsonl"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\n", max_size=3), inner, max_size=3),
)


@given(values=st.lists(VALUES, max_size=6))
@settings(max_examples=100, deadline=None)
def test_whatever_is_written_comes_back(values: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in values))
    assert list(JsonLines(path)) == values
