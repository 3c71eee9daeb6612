"""The life of an output: staged, recorded, published, checked, read, adopted."""

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.errors import NotOurs
from holdfast.runtime.sinks import Evidence, Files, Sink, SinkError
from holdfast.stores import faults
from tests.sinks.making import ours, output, place, published, rest, staged


def test_files_are_a_sink(here: Path) -> None:
    sink = Files("out/{key}.json")
    assert isinstance(sink, Sink)
    assert sink.describe() == {"kind": "files", "template": "out/{key}.json"}
    assert list(here.iterdir()) == [], "defining a sink touches nothing"


def test_an_output_gets_the_users_name_with_the_usual_permissions(here: Path) -> None:
    umask = os.umask(0o022)
    try:
        published(Files("out/page_{key:04d}.json"), 7)
    finally:
        os.umask(umask)
    final = here / "out" / "page_0007.json"
    assert final.read_bytes() == output(7) + b"\n"
    assert stat.S_IMODE(final.stat().st_mode) == 0o644
    assert stat.S_IMODE((here / "out" / ".holdfast").stat().st_mode) == 0o700
    assert ours(here) == []


def test_text_is_written_plainly_and_read_back_as_json(here: Path) -> None:
    sink = Files("out/{key}.txt")
    made = sink.stage(place("ch-1"), b'"Call me \\"Ishmael\\".\\n"')
    sink.publish([made])
    assert (here / "out" / "ch-1.txt").read_text() == 'Call me "Ishmael".\n'
    assert sink.read(made) == b'"Call me \\"Ishmael\\".\\n"'


def test_a_relative_path_starts_where_the_sink_was_defined(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Files("out/{key}.json")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    (made,) = published(sink, 1)
    assert (made.final, (here / "out" / "1.json").is_file()) == ("out/1.json", True)
    assert made.staged.startswith("out/.holdfast/moby-dick.correct.1.0.")
    assert sink.check(made, full=True) is None


def test_evidence_survives_the_store() -> None:
    made = Evidence("out/1.json", "out/.holdfast/x", 12, 1_700_000_000_123_456_789, 77, bytes(32), is_text=True)
    assert Evidence.decode(made.encode()) == made
    for data in (b"", b"\xff", made.encode()[:-1], b"\x90"):
        with pytest.raises(NotOurs, match="doctor"):
            Evidence.decode(data)


@pytest.mark.promise("P6")
def test_until_it_is_published_the_old_file_stands(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "1.json").write_text("yesterday")
    sink = Files("out/{key}.json")
    made = staged(sink, 1)
    assert (here / "out" / "1.json").read_text() == "yesterday"
    sink.publish(made)
    assert (here / "out" / "1.json").read_bytes() == output(1) + b"\n"


@pytest.mark.promise("P8")
def test_publishing_twice_changes_nothing(here: Path) -> None:
    sink = Files("out/{batch}/{key}/page.json")
    made = published(sink, 1, 2)
    before = {each.final: (here / each.final).stat() for each in made}
    sink.publish(made)
    sink.publish(made, sync=False)
    assert {each.final: (here / each.final).stat() for each in made} == before


def test_publishing_what_is_nowhere_is_an_error(here: Path) -> None:
    sink = Files("out/{key}.json")
    (made,) = published(sink, 1)
    (here / made.final).unlink()
    with pytest.raises(FileNotFoundError):
        sink.publish([made])
    (here / made.final).write_text("something else")
    with pytest.raises(FileNotFoundError):
        sink.publish([made])


def test_one_bad_name_keeps_no_other_output_from_its_name(here: Path) -> None:
    sink = Files("out/{key}.json")
    (here / "out" / "1.json").mkdir(parents=True)
    made = staged(sink, 1, 2, 3)
    with pytest.raises(IsADirectoryError) as caught:
        sink.publish(made)
    assert caught.value.filename2 == str(here / "out" / "1.json")
    assert rest(sink, made[1:]) == [None, None]
    assert sink.read(made[0]) == output(1), "it is staged still"
    (here / "out" / "1.json").rmdir()
    assert sink.check(made[0], full=False) is None, "and is published when the name is free"


@pytest.mark.promise("A8")
def test_an_output_that_was_not_recorded_is_adopted_under_any_fence(here: Path) -> None:
    (made,) = staged(Files("out/{key}.json"), 1, fence=3)
    found = Files("out/{key}.json").find(place(1, fence=8))
    assert found == made
    sink = Files("out/{key}.json")
    sink.publish([found])
    assert sink.read(found) == output(1)


@pytest.mark.parametrize(
    "change", [{"batch": "other"}, {"stage": "other"}, {"n": 2}, {"epoch": 1}, {"input_digest": bytes(32)}]
)
def test_only_an_output_of_the_same_place_is_adopted(change: dict[str, object], here: Path) -> None:
    staged(Files("out/{key}.json"), 1)
    sink = Files("out/{key}.json")
    assert sink.find(place(1, **change)) is None
    assert sink.find(place(1)) is not None


def test_yesterdays_file_of_the_same_name_is_not_adopted(here: Path) -> None:
    published(Files("out/{key}.json"), 1)
    assert Files("out/{key}.json").find(place(1)) is None


@pytest.mark.promise("A8", "P5")
def test_of_several_leftovers_the_newest_whole_one_is_adopted(here: Path) -> None:
    made = [
        sink.stage(place(1, fence=fence), output(fence)) for sink in [Files("out/{key}.json")] for fence in (9, 10, 11)
    ]
    with (here / made[2].staged).open("r+b") as file:
        file.truncate(5)
    assert Files("out/{key}.json").find(place(1)) == made[1]


def test_leftovers_are_listed_once_and_again_when_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or scan(path))
    sink = Files("out/{key}.json")
    assert [sink.find(place(n, n=n)) for n in range(100)] == [None] * 100
    (made,) = staged(Files("out/{key}.json"), 1)
    assert sink.find(place(1)) is None
    assert len(looks) == 1
    sink.look_again()
    assert sink.find(place(1)) == made


def test_an_adopted_output_that_was_published_meanwhile_is_not_found_again(here: Path) -> None:
    (made,) = staged(Files("out/{key}.json"), 1)
    sink = Files("out/{key}.json")
    assert sink.find(place(1)) == made
    sink.publish([made])
    assert sink.find(place(1)) is None


@pytest.mark.promise("P15")
def test_sweeping_removes_old_temporary_files_and_nothing_else(here: Path) -> None:
    sink = Files("{key}.json")  # beside the default store: its files stand in the same hidden folder
    (kept,) = staged(sink, 1)
    for name, age in {"tmp-12-0123456789abcdef": 7200, "tmp-13-0123456789abcdef": 60, "state.db": 7200}.items():
        (here / ".holdfast" / name).write_bytes(b"half")
        os.utime(here / ".holdfast" / name, (1_000_000 - age,) * 2)
    assert [(left.kind, left.size) for left in sink.leftovers()] == [("staged", kept.size), ("temp", 4), ("temp", 4)]
    swept = sink.sweep(older_than=3600, now=1_000_000)
    assert [left.path for left in swept] == [".holdfast/tmp-12-0123456789abcdef"]
    assert sorted(path.name for path in (here / ".holdfast").iterdir()) == sorted(
        [Path(kept.staged).name, "state.db", "tmp-13-0123456789abcdef"]
    )


def test_a_sink_that_was_never_used_has_no_leftovers(here: Path) -> None:
    sink = Files("out/{key}.json")
    assert (sink.leftovers(), sink.sweep(older_than=0, now=0)) == ([], [])


@pytest.mark.promise("P7", "P8")
def test_threads_stage_and_publish_at_the_same_time_and_lose_nothing(here: Path) -> None:
    sink = Files("out/{batch}/{key}.json", sync=False)
    made: dict[tuple[int, int], Evidence] = {}

    def run(worker: int) -> None:
        for n in range(20):  # every worker does every item, as zombies would
            made[worker, n] = sink.stage(place(n, n=n, fence=worker), output(n))
            sink.publish([made[worker, n]])

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sink.check(each, full=True) for each in made.values()] == [None] * 120
    assert ours(here) == []


def test_the_points_are_reached_in_order(here: Path) -> None:
    points: list[str] = []
    faults.arm(points.append)
    try:
        published(Files("out/{key}.json"), 1, 2)
    finally:
        faults.arm(None)
    assert points == ["sink.temp", "sink.temp", "sink.staged", "sink.published", "sink.published"]


def test_reading_an_output_that_is_gone_or_changed_names_the_file(here: Path) -> None:
    sink = Files("out/{key}.json")
    (made,) = published(sink, 1)
    spoil: list[Callable[[Path], object]] = [lambda f: f.write_bytes(b"x" * made.size), Path.unlink, Path.mkdir]
    for act in spoil:
        act(here / "out" / "1.json")
        with pytest.raises(SinkError, match=r"^out/1\.json: "):
            sink.read(made)


def test_the_folder_of_staged_outputs_may_be_taken_away(here: Path) -> None:
    sink = Files("out/{key}.json")
    published(sink, 1)
    (here / "out" / "1.json").unlink()
    (here / "out" / ".holdfast").rmdir()
    (here / "out").rmdir()
    with pytest.raises(FileNotFoundError):
        sink.stage(place(2, n=2), output(2))
    assert rest(sink, published(sink, 2)) == [None], "the next try makes it again"
