"""The files of a folder, in the order of their names, whatever they are called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.core.errors import UsageError
from holdfast.runtime.sources import File, Folder, Malformed, Source

MEASURED = """
import tracemalloc
from holdfast import Folder
tracemalloc.start()
print(sum(1 for _ in Folder("many")), tracemalloc.get_traced_memory()[1])
"""


def fill(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)


def names_of(source: Folder) -> list[str]:
    return [item.name for item in source if isinstance(item, File)]


def test_files_come_in_the_order_of_their_paths(here: Path) -> None:
    fill("in/b.txt", "in/a/2.txt", "in/a/1.txt", "in/a.txt", "in/a-b/x", "in/a0", "in/a/c/d/e.txt")
    found = names_of(Folder("in"))
    assert found == sorted(found)
    assert found == ["a-b/x", "a.txt", "a/1.txt", "a/2.txt", "a/c/d/e.txt", "a0", "b.txt"]
    assert names_of(Folder("in", recursive=False)) == ["a.txt", "a0", "b.txt"]


def test_a_file_knows_its_name_and_size_and_can_be_read(here: Path) -> None:
    fill("in/sub/page é.txt")
    (file,) = Folder("in")
    assert isinstance(file, File)
    assert (file.path, file.name, file.size) == ("in/sub/page é.txt", "sub/page é.txt", 18)
    assert file.modified_ns == Path("in/sub/page é.txt").stat().st_mtime_ns
    assert file.read_text() == "in/sub/page é.txt"
    assert file.read_bytes() == Path(file).read_bytes()
    assert File.model_validate_json(file.model_dump_json()) == file
    with pytest.raises(ValidationError):
        file.size = 1


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.png", ["1.png", "deep/2.png", "deep/er/3.png"]),
        ("**/*.png", ["1.png", "deep/2.png", "deep/er/3.png"]),
        ("deep/*.png", ["deep/2.png", "deep/er/3.png"]),
        ("[12].*", ["1.png", "deep/2.png"]),
        ("*.PNG", []),
    ],
)
def test_a_pattern_chooses_by_name_or_with_a_slash_by_path(pattern: str, found: list[str], here: Path) -> None:
    fill("in/1.png", "in/deep/2.png", "in/deep/er/3.png", "in/deep/notes.txt")
    assert names_of(Folder("in", pattern)) == found


def test_hidden_files_are_left_out_unless_asked_for(here: Path) -> None:
    fill("in/a", "in/.b", "in/.holdfast/tmp", "in/c/.d")
    assert names_of(Folder("in")) == ["a"]
    assert names_of(Folder("in", hidden=True)) == [".b", ".holdfast/tmp", "a", "c/.d"]


def test_links_to_files_count_and_links_to_folders_are_not_followed(here: Path) -> None:
    fill("in/a/file", "elsewhere/x")
    Path("in/a/loop").symlink_to("..")
    Path("in/link").symlink_to("a/file")
    Path("in/out").symlink_to("../elsewhere")
    assert names_of(Folder("in")) == ["a/file", "link"]


def test_what_is_no_plain_file_is_left_out_and_a_link_to_nowhere_is_told(here: Path) -> None:
    fill("in/a")
    os.mkfifo("in/pipe")
    Path("in/gone").symlink_to("nowhere")
    Path("in/self").symlink_to("self")
    bad = [item for item in Folder("in") if isinstance(item, Malformed)]
    assert [(item.where, item.raw) for item in bad] == [("in/gone", b"gone"), ("in/self", b"self")]
    assert [item.why for item in bad] == [
        "it is a broken link",
        "it cannot be read: Too many levels of symbolic links",
    ]


def test_a_name_that_is_not_text_is_malformed_and_stops_nothing(here: Path) -> None:
    fill("in/a", "in/z")
    Path(os.fsdecode(b"in/b\xff")).write_text("x")
    Path(os.fsdecode(b"in/\xfe")).mkdir()
    Path(os.fsdecode(b"in/\xfe/c")).write_text("x")
    first, bad, last, worse = Folder("in")
    assert isinstance(bad, Malformed)
    assert isinstance(worse, Malformed)
    assert [item.name for item in (first, last) if isinstance(item, File)] == ["a", "z"]
    assert (bad.raw, bad.where) == (b"b\xff", "in/b\\xff")
    assert worse.raw == b"\xfe/c"


def test_very_deep_folders_are_walked(here: Path) -> None:
    levels = ["d/" * depth for depth in range(1, 1201)]  # deeper than Python's own recursion goes
    for level in levels:
        os.mkdir(level)  # noqa: PTH102  a Path of 1,200 parts is slow
    Path(levels[-1] + "file").touch()
    try:
        assert [name.count("/") for name in names_of(Folder("d"))] == [1199]
    finally:
        Path(levels[-1] + "file").unlink()
        os.removedirs(levels[-1])


def test_a_folder_that_vanishes_while_it_is_read_is_no_trouble(here: Path) -> None:
    fill("in/a/1", "in/b/2", "in/c/3")
    items = iter(Folder("in"))
    next(items)
    Path("in/b/2").unlink()
    Path("in/b").rmdir()
    Path("in/c/3").unlink()
    assert list(items) == []


@pytest.mark.parametrize(("name", "says"), [("no", "no such folder"), ("file", "is not a folder")])
def test_a_folder_that_is_none_is_named(name: str, says: str, here: Path) -> None:
    fill("file")
    with pytest.raises(UsageError, match=says) as caught:
        list(Folder(name))
    assert f"Folder('{name}')" in str(caught.value)


def test_an_empty_pattern_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="pattern is empty"):
        Folder("in", "")


def test_giving_up_leaves_nothing_open(here: Path) -> None:
    fill(*[f"in/{folder}/{name}" for folder in "abc" for name in "123"])
    before = len(list(Path("/proc/self/fd").iterdir()))
    items = iter(Folder("in"))
    next(items)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert names_of(Folder("in")) == names_of(Folder("in"))


def test_a_folder_is_a_source_that_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").touch()
    source = Folder(tmp_path / "in", "*")
    assert isinstance(source, Source)
    assert [source.natural_key(item) for item in source] == ["a"]
    assert source.natural_key({"name": "a"}) is None
    assert source.describe() == {"kind": "folder", "name": "in", "pattern": "*", "recursive": True, "hidden": False}


PART = st.binary(min_size=1, max_size=6).filter(lambda part: not set(part) & {0, 47} and not part.startswith(b"."))


@given(paths=st.lists(st.lists(PART, min_size=1, max_size=3), max_size=6))
@settings(max_examples=60, deadline=None)
def test_every_file_comes_out_once_whatever_its_name(
    paths: list[list[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("names")
    made = set()
    for parts in paths:
        path = root.joinpath(*map(os.fsdecode, parts))
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            made.add(b"/".join(parts))
    found = [os.fsencode(item.name) if isinstance(item, File) else item.raw for item in Folder(root)]
    assert sorted(found) == sorted(made)


def test_a_folder_of_many_files_is_walked_with_little_in_memory(here: Path) -> None:
    (here / "many").mkdir()
    for n in range(10_000):
        (here / "many" / f"{n:06}").touch()
    # In a process of its own: in this one other tests may have left threads that take memory, too.
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    count, peak = map(int, done.stdout.split())
    assert count == 10_000
    assert peak < 3_000_000, "about 100 bytes for each, not 800"
