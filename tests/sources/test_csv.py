"""Rows come out as they stand in the file; what is no row says where it stood."""

import bz2
import codecs
import csv
import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.runtime.sources import Csv, JsonLines, Malformed, Source, streams, text_file


def rows_of(data: bytes, name: str = "a.csv", **options: Any) -> list[dict[str, str] | Malformed]:
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return list(Csv(name, **options))


def test_rows_are_dictionaries_by_the_header(here: Path) -> None:
    assert rows_of(b"id,name\n1,Ishmael\n2,Ahab\n") == [{"id": "1", "name": "Ishmael"}, {"id": "2", "name": "Ahab"}]
    assert rows_of(b"id,name\n") == []


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (b"\xef\xbb\xbfid,name\r\n1,Queequeg\r\n", {}),
        (b"id,name\r1,Queequeg\r", {}),
        (b'"id","name"\n"1","Queequeg"', {}),
        (b"\n\nid,name\n\n1,Queequeg\n\n", {}),
        (b"id;name\n1;Queequeg\n", {"delimiter": ";"}),
        (b"id\tname\n1\tQueequeg\n", {"delimiter": "\t", "quotechar": None}),
        (b"1,Queequeg\n", {"fields": ["id", "name"]}),
        ("id,name\n1,Queequeg\n".encode("utf-16"), {"encoding": "utf-16"}),
    ],
)
def test_the_usual_spellings_are_read(data: bytes, options: dict[str, Any], here: Path) -> None:
    assert rows_of(data, **options) == [{"id": "1", "name": "Queequeg"}]


def test_compressed_files_are_unpacked(here: Path) -> None:
    assert rows_of(b"id\n1\n", "a.csv.gz") == [{"id": "1"}]


def test_quoted_fields_keep_delimiters_quotes_and_lines(here: Path) -> None:
    (row,) = rows_of(b'id,text\n1,"a, ""b""\r\nc"\n')
    assert row == {"id": "1", "text": 'a, "b"\r\nc'}


def test_a_malformed_row_names_its_line_and_stops_nothing(here: Path) -> None:
    data = b'id,text\n1,"two\nlines"\n2\n3,a,b\n4,\xff\n5,\0\n6,"x"y\n7,good\n8,"open\n'
    *rows, last = rows_of(data)
    assert [row for row in rows if isinstance(row, dict)] == [
        {"id": "1", "text": "two\nlines"},
        {"id": "7", "text": "good"},
    ]
    bad = [row for row in [*rows, last] if isinstance(row, Malformed)]
    assert [(row.where, row.raw, row.why) for row in bad[:4]] == [
        ("a.csv:4", b"2\n", "has 1 fields, the header has 2"),
        ("a.csv:5", b"3,a,b\n", "has 3 fields, the header has 2"),
        ("a.csv:6", b"4,\xff\n", "contains bytes that are not valid in the file's encoding"),
        ("a.csv:7", b"5,\0\n", "contains a NUL byte"),
    ]
    assert (bad[4].where, "is not valid CSV" in bad[4].why) == ("a.csv:8", True)
    assert (bad[5].where, bad[5].raw) == ("a.csv:10", b'8,"open\n')


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (b"", {}, "Csv('a.csv'): the file is empty"),
        (b"\n\r\n", {}, "the file is empty"),
        (b"id,name,id\n1,2,3\n", {}, "line 1: the column names 'id' occur twice"),
        (b"\nid,\xff\n1,2\n", {}, "line 2: the header contains bytes"),
        (b"id,\0\n1,2\n", {}, "line 1: the header contains a NUL"),
        (b'id,text\n1,a\n2,"open\n3,b\n4,c\n', {}, "line 3: a quote is opened and not closed in 3 lines"),
        ("id\nx\n".encode("utf-16")[:-1], {"encoding": "utf-16"}, "pass the right encoding="),
    ],
)
def test_what_would_have_to_be_guessed_stops_with_file_and_line(
    data: bytes, options: dict[str, Any], says: str, here: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        rows_of(data, **options)
    assert says in str(caught.value)
    assert str(caught.value).startswith("Csv('a.csv')")


@pytest.mark.parametrize(
    "options",
    [
        *({"delimiter": ""}, {"delimiter": ";;"}, {"quotechar": ""}, {"encoding": "nonsense"}, {"encoding": "base64"}),
        *({"fields": []}, {"fields": ["a", "a"]}),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^Csv\('a.csv'\)"):
        Csv("a.csv", **options)


def test_a_file_that_is_missing_a_folder_or_damaged_is_named(here: Path) -> None:
    (here / "folder.csv").mkdir()
    (here / "cut.csv.gz").write_bytes(gzip.compress(b"id\n" + b"1\n" * 1000)[:-12])
    (here / "not.csv.gz").write_bytes(b"id\n1\n")
    for name, says in {
        "no.csv": "no such file",
        "folder.csv": "is a folder",
        "cut.csv.gz": "cut off",
        "not.csv.gz": "damaged",
    }.items():
        with pytest.raises(UsageError, match=says) as caught:
            list(Csv(name))
        assert name in str(caught.value)


def test_a_field_may_be_as_long_as_a_payload(here: Path) -> None:
    (row,) = rows_of(b"id,text\n1," + b"x" * 1_000_000 + b"\n")
    assert isinstance(row, dict)
    assert len(row["text"]) == 1_000_000


def test_a_line_without_end_is_not_read_into_memory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "LINE_BYTES", 1000)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 256)
    with pytest.raises(UsageError, match="line 2: the line has more than 1,000 bytes"):
        rows_of(b"id\n" + b"x" * 5000)


def test_reading_again_starts_anew_and_giving_up_closes_the_file(here: Path) -> None:
    Path("a.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(10_000)))
    source = Csv("a.csv")
    first = iter(source)
    assert next(first) == {"id": "0"}
    assert open_files(here) == ["a.csv"]
    first.close()
    assert open_files(here) == []
    assert len(list(source)) == len(list(source)) == 10_000


def test_a_csv_is_a_source_that_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    source = Csv(tmp_path / "a.csv", delimiter=";")
    assert isinstance(source, Source)
    assert source.natural_key({"id": "1"}) is None
    assert str(tmp_path) not in str(source.describe())
    said = source.describe()
    assert (said["kind"], said["name"], said["delimiter"]) == ("csv", "a.csv", ";")


TEXT = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=8))
@settings(max_examples=100, deadline=None)
def test_whatever_python_writes_comes_back(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("a", "b"), *rows])
    assert list(Csv(path)) == [{"a": a, "b": b} for a, b in rows]


def open_files(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    links = (each for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return [to.name for each in links if (to := each.readlink()).parent == folder]


@pytest.mark.parametrize("source", [Csv, JsonLines])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bz2.compress(b"a\n1\n"), "packed with bzip2"),
        (lzma.compress(b"a\n1\n"), "packed with xz"),
        (gzip.compress(b"a\n1\n"), r"rename it to end in \.gz"),
        (b"\x28\xb5\x2f\xfd\x24\x08A\0\0a\n1\n", "packed with zstd"),
        (b"PK\3\4\x14\0\0\0\x08\0a\n1\n", "zip archive or a spreadsheet"),
        (b"PAR1\x15\0\n1\n", "use Parquet"),
        (codecs.BOM_UTF16_BE + "a\n1\n".encode("utf-16-be"), "UTF-16"),
        ("a\n1\n".encode("utf-16"), "UTF-16"),
    ],
    ids=["bzip2", "xz", "gzip", "zstd", "zip", "parquet", "utf-16-be", "utf-16"],
)
def test_a_file_of_another_sort_is_told_by_what_it_is(here: Path, source: Any, data: bytes, said: str) -> None:
    path = here / "a.txt"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=said):
        list(source(path))
    with pytest.raises(UsageError, match=said):
        source(path).split(3)


def test_a_broken_row_that_is_read_like_a_row_says_where_it_is_and_what_to_do() -> None:
    (row,) = rows_of(b"a,b\n1\n")
    with pytest.raises(UsageError, match=r"a\.csv:2: .*has no 'a': skip it with .*hf\.Malformed"):
        row["a"]
