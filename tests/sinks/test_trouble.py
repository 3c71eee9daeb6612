"""A disk that is full, read-only or failing: an OSError, nothing half done, nothing of ours left behind."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.runtime.sinks import Files
from holdfast.stores import faults
from tests.house.source import ROOT
from tests.sinks.making import all_files, ours, output, place, published, rest, staged

FULL_DISK = """
import errno, resource
import holdfast as hf
from holdfast.runtime.sinks import Files
from tests.sinks.making import all_files, place, published
sink = Files("out/{key}.txt")
published(sink, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    sink.stage(place(2, n=2), b'"' + b"x" * 100_000 + b'"')
except OSError as error:
    assert error.errno == errno.EFBIG, error
else:
    raise AssertionError("100,000 bytes fitted into 4,096")
assert all_files(".") == ["./out/1.txt"], all_files(".")
assert sink.find(place(2, n=2)) is None
"""

READ_ONLY = """
import os, pathlib
import holdfast as hf
from holdfast.runtime.sinks import Files
from tests.sinks.making import place, published, staged
sink = Files("out/{key}.json")
(made,) = published(sink, 1)
(later,) = staged(sink, 2)
pathlib.Path("out/1.json").chmod(0o000)
pathlib.Path("out").chmod(0o500)
pathlib.Path("out/.holdfast").chmod(0o500)
if os.geteuid() == 0:
    os.seteuid(65534)
for verb in (lambda: sink.stage(place(3), b"1"), lambda: sink.publish([later]), lambda: sink.read(made)):
    try:
        verb()
    except PermissionError as error:
        assert error.filename is not None
    else:
        raise AssertionError("it was allowed")
assert sink.check(made, full=False) is None, "a quick look needs no permission to read"
assert sink.check(made, full=True) == "it cannot be read: Permission denied"
assert sink.read(later) == b'{"key":"2","text":"Call me Ishmael."}'
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are for their owner alone."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)
        yield path
        for folder, _, _ in os.walk(path):
            Path(folder).chmod(0o755)


def run(script: str, folder: Path) -> None:
    """Run a script in a process of its own, as its folder's owner."""
    as_owner = "import os\nif os.geteuid() == 0: os.seteuid(os.stat('.').st_uid)\n" if "chmod" in script else ""
    command = [sys.executable, "-c", script.replace("sink = ", as_owner + "sink = ", 1)]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.promise("A8")
def test_a_full_disk_leaves_nothing_behind(here: Path) -> None:
    run(FULL_DISK, here)


def test_a_read_only_folder_is_an_error_that_names_the_file(open_folder: Path) -> None:
    run(READ_ONLY, open_folder)


@pytest.mark.promise("A8")
@pytest.mark.parametrize("point", ["sink.temp", "sink.staged", "sink.published"])
def test_an_error_at_any_point_can_be_tried_again(point: str, here: Path) -> None:
    sink = Files("out/{key}.json")
    faults.arm(faults.parse(f"{point}:2:raise") if point != "sink.staged" else faults.parse(f"{point}:1:raise"))
    try:
        with pytest.raises(OSError, match=point) as caught:
            published(sink, 1, 2, 3)
    finally:
        faults.arm(None)
    assert caught.value.errno == errno.EIO
    assert [left for left in sink.leftovers() if left.kind == "temp"] == []
    assert rest(sink, published(sink, 1, 2, 3)) == [None] * 3
    assert ours(here) == []


def test_a_sync_that_fails_leaves_no_output_to_adopt(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_handle: int) -> None:
        raise OSError(errno.EIO, "the disk is failing")

    sink = Files("out/{key}.json")
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="failing"):
            sink.stage(place(1), output(1))
    assert all_files(here) == []
    assert sink.find(place(1)) is None


def test_a_folder_that_cannot_be_synced_stops_the_commit_and_is_synced_next_time(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Files("out/{key}.json")
    made = sink.stage(place(1), output(1))
    calls: list[int] = []

    def fail(handle: int) -> None:
        calls.append(handle)
        raise OSError(errno.EIO, "the disk is failing")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="failing"):
            sink.sync_folders([made])
    with monkeypatch.context() as counting:
        counting.setattr(os, "fsync", calls.append)
        sink.sync_folders([made])
    assert len(calls) == 1 + 3, "the staged outputs, out, and the folder that out was made in"


def test_a_file_system_that_cannot_sync_folders_is_accepted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def only_files(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").is_dir():
            raise OSError(errno.EINVAL, "not for folders")
        real(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    sink = Files("out/{key}.json")
    assert rest(sink, published(sink, 1)) == [None]


@pytest.mark.promise("P16")
def test_a_group_costs_one_sync_more_per_folder_than_a_careless_script(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Files("out/{key}.json")
    published(sink, 0)
    syncs: list[int] = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    published(sink, *range(1, 51))
    assert len(syncs) == 50 + 1 + 1
    syncs.clear()
    published(Files("out/{key}.json", sync=False), *range(51, 100))
    assert syncs == []


def test_staging_needs_no_folder_to_exist(here: Path) -> None:
    sink = Files("a/b/c/{key}.json")
    assert rest(sink, staged(sink, 1)) == [None]


@pytest.mark.promise("P6")
def test_outputs_without_their_final_names_are_no_success_and_the_next_run_names_them(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def make() -> hf.Pipeline:
        book = hf.Pipeline("book", store=here / "state.db")

        @book.stage(sink=hf.Files(str(here / "out/{key}.json")))
        def read(number: int) -> int:
            calls.append(number)
            return number

        return book

    def refuse(self: hf.Files, *_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(hf.Files, "publish", refuse)
        for _ in range(2):  # a resume meets the same trouble when it looks at what is recorded
            with pytest.raises(hf.StoreError, match=r"could not get their final names.*run again"):
                make().run([1, 2], progress=False, workers=1)
    assert caplog.text.count("did not get final names yet") == 1
    assert make().run([1, 2], progress=False).is_complete
    assert sorted(calls) == [1, 2]
    assert sorted(path.name for path in (here / "out").glob("*.json")) == ["1.json", "2.json"]


@pytest.mark.promise("P6")
@pytest.mark.parametrize("way", ["run", "process"])
def test_outputs_are_durable_before_they_are_recorded(here: Path, way: str) -> None:
    """A record of a file that a power cut can take would be a promise that nobody keeps."""
    book = hf.Pipeline("book", store=here / "state.db")

    @book.stage(sink=hf.Files("first/{key}.txt"))
    def first(number: int) -> str:
        return f"page {number}"

    @book.stage(sink=hf.Files("second/{key}.txt"))
    def second(text: str) -> str:
        return text.upper()

    reached: list[str] = []
    faults.arm(reached.append)
    try:
        if way == "run":
            book.run([1], progress=False)
        else:
            book.process(1)
    finally:
        faults.arm(None)
    order = [point for point in reached if point in ("sink.staged", "commit.before", "sink.published")]
    assert order == ["sink.staged", "commit.before", "sink.published"] * 2
