"""What was recorded and is missing, cut, changed or replaced is found out, and nothing else is."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.sinks import Evidence, Files, SinkError
from tests.sinks.making import output, place, published, staged


@pytest.fixture
def sink(here: Path) -> Files:
    return Files("out/{key}.json")


@pytest.mark.promise("P4")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (Path.unlink, "it is missing"),
        (lambda file: file.write_bytes(b""), "its size differs: 0 bytes"),
        (lambda file: file.write_bytes(file.read_bytes() + b" "), "its size differs"),
        (lambda file: file.write_bytes(file.read_bytes()[::-1]), "its content differs"),
        (lambda file: (file.unlink(), file.mkdir()), "there is a folder in its place"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "it is not a plain file"),
        (lambda file: (file.unlink(), file.symlink_to("nowhere")), "it is missing"),
        (
            lambda file: (file.unlink(), file.parent.rename(file.parent.parent / "moved"), file.parent.touch()),
            "it is missing",
        ),
    ],
)
def test_a_quick_look_finds_exactly_the_output_that_was_spoilt(
    spoil: Callable[[Path], object], reason: str, sink: Files, here: Path
) -> None:
    made = published(sink, 1, 2, 3)
    spoil(here / "out" / "2.json")
    answers = [sink.check(each, full=False) for each in made]
    assert reason in str(answers[1])
    if (here / "out").is_dir():
        assert (answers[0], answers[2]) == (None, None)


def test_a_copy_with_another_time_is_the_same_output(sink: Files, here: Path) -> None:
    (made,) = published(sink, 1)
    os.utime(here / "out" / "1.json", (1, 1))
    assert sink.check(made, full=False) is None
    (here / "out" / "1.json").write_bytes((here / "out" / "1.json").read_bytes().replace(b"Ishmael", b"Ahab..."))
    assert sink.check(made, full=False) == "its content differs"


@pytest.mark.promise("P5", "A8")
def test_no_truncation_passes_for_the_output(sink: Files, here: Path, tally: Callable[..., None]) -> None:
    (made,) = published(sink, 1)
    whole = (here / "out" / "1.json").read_bytes()
    for size in range(len(whole)):
        spoil(here / "out" / "1.json", whole[:size], made)
        assert sink.check(made, full=False) is not None
        assert sink.check(made, full=True) is not None
        with pytest.raises(SinkError):
            sink.read(made)
    tally(truncations=len(whole))


@pytest.mark.promise("P5")
def test_no_flipped_bit_passes_for_the_output(sink: Files, here: Path, tally: Callable[..., None]) -> None:
    (made,) = published(sink, 1)
    whole = (here / "out" / "1.json").read_bytes()
    for bit in range(8 * len(whole)):
        spoil(here / "out" / "1.json", flipped(whole, bit), made)
        assert sink.check(made, full=True) == "its content differs"
        with pytest.raises(SinkError, match="its content differs"):
            sink.read(made)
    tally(flips=8 * len(whole))


@pytest.mark.promise("P5", "A8")
def test_no_damaged_leftover_is_adopted(sink: Files, here: Path, tally: Callable[..., None]) -> None:
    (made,) = staged(sink, 1)
    whole = (here / made.staged).read_bytes()
    damaged = [whole[:size] for size in range(len(whole))] + [flipped(whole, bit) for bit in range(8 * len(whole))]
    for data in damaged:
        (here / made.staged).write_bytes(data)
        assert sink.find(place(1)) is None
    (here / made.staged).write_bytes(whole)
    assert sink.find(place(1)) is not None
    tally(leftovers=len(damaged))


@pytest.mark.promise("P6")
def test_a_recorded_output_that_was_not_published_is_published_over_yesterdays_file(sink: Files, here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "1.json").write_bytes(b"y" * len(output(1)) + b"\n")
    (made,) = staged(sink, 1)
    assert sink.read(made) == output(1), "it can be read before it is published"
    assert sink.check(made, full=False) is None
    assert (here / "out" / "1.json").read_bytes() == output(1) + b"\n"
    assert sink.leftovers() == []


@pytest.mark.promise("P15", "A8")
def test_a_damaged_staged_output_never_replaces_the_users_file(sink: Files, here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "1.json").write_text("yesterday")
    (made,) = staged(sink, 1)
    (here / made.staged).write_bytes((here / made.staged).read_bytes()[:-3])
    for full in (False, True):
        assert "size differs" in str(sink.check(made, full=full))
    assert (here / "out" / "1.json").read_text() == "yesterday"


@pytest.mark.promise("P15")
def test_checking_and_reading_change_no_output(sink: Files, here: Path) -> None:
    made = published(sink, 1, 2)
    (here / "out" / "2.json").write_text("edited by the user")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (here / "out").glob("*.json")}
    for each in made:
        sink.check(each, full=True)
        with pytest.raises(SinkError) if each is made[1] else memoryview(b""):
            sink.read(each)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (here / "out").glob("*.json")} == before


@pytest.mark.promise("P4")
def test_a_zombie_that_replaces_a_newer_output_is_noticed(sink: Files, here: Path) -> None:
    (old,) = staged(sink, 1, fence=3)
    new = sink.stage(place(1, fence=4, epoch=1), b'{"key":"1","text":"Call me Ishmael!"}')
    sink.publish([new])
    sink.publish([old])  # the old owner was stopped after its commit, and wakes up now
    assert sink.check(new, full=False) == "its content differs"


def spoil(file: Path, data: bytes, made: Evidence) -> None:
    """Change the content and cover the tracks: size aside, a quick look sees nothing."""
    file.write_bytes(data)
    os.utime(file, ns=(made.mtime_ns, made.mtime_ns))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
