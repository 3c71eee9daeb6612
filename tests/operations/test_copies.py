"""Copies of whole batches in a file: from every store into every other, and never a part of one."""

import hashlib
import json
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import pytest

import holdfast as hf
from holdfast.core.errors import Refused, UsageError
from holdfast.core.model import Batch, BatchMode, State
from holdfast.interfaces.cli.app import call
from holdfast.runtime.acts import Actor
from holdfast.runtime.operate import audit, copies
from holdfast.runtime.operate.copies import CopyFile
from holdfast.stores import faults
from holdfast.stores.base import Idle, Store, find_batch
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance.kit import DEFINITION, HeldCopy, Kit, done, reset
from holdfast.testing.conformance.recording import with_everything

pytestmark = pytest.mark.promise("B7", "E12")
GOLDEN = Path(__file__).parent.parent / "golden"
BY = Actor(name="ada", reason="moving")


def in_bucket(place: Path, *, clock: Callable[[], float], **given: Any) -> BucketStore:
    return BucketStore(LocalBucket(place / "bucket"), clock=clock, monotonic=clock, **given)


MAKERS: dict[str, Callable[..., Store]] = {
    "memory": lambda place, **given: MemoryStore(**given),
    "sqlite": lambda place, **given: SqliteStore(place / "state.db", **given),
    "bucket": in_bucket,
}


def open_kit(kind: str, place: Path) -> Kit:
    """A store with one batch, `book`."""
    place.mkdir()
    return Kit(MAKERS[kind], place)


@pytest.fixture(params=MAKERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """The batch `novel`, in which everything occurs."""
    kit = open_kit(request.param, tmp_path / "from")
    yield with_everything(kit, kit.store)
    kit.store.close()


@pytest.fixture(params=MAKERS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    kit = open_kit(request.param, tmp_path / "to")
    yield kit
    kit.store.close()


@pytest.fixture
def memory(tmp_path: Path) -> Kit:
    kit = open_kit("memory", tmp_path / "memory")
    return with_everything(kit, kit.store)


@pytest.fixture
def file(memory: Kit, tmp_path: Path) -> Path:
    """A copy of `novel`."""
    return write(memory, tmp_path / "novel.batch")


def write(kit: Kit, path: Path) -> Path:
    copies.write(kit.store, batch_of(kit), path)
    return path


def batch_of(kit: Kit) -> Batch:
    return next(batch for batch in kit.store.batches() if batch.id == kit.batch)


def content(kit: Kit) -> tuple[object, ...]:
    return HeldCopy(kit.store, kit.batch).content()


# -- from store to store ----------------------------------------------------------------------------------------------


def test_a_file_has_everything_of_a_batch_whatever_the_stores(source: Kit, target: Kit, tmp_path: Path) -> None:
    before = content(source)
    summary = copies.write(source.store, batch_of(source), tmp_path / "novel.batch")
    copy = CopyFile(tmp_path / "novel.batch")
    here = target.at(target.store, target.store.install(copy).id)
    assert content(here) == before == content(source)
    assert (summary.items, summary.entries) == (len(list(copy.items())), len(list(copy.entries())))
    assert summary.head == batch_of(here).head.hex()
    assert audit.verify(target.store, batch_of(here), full=True).findings == ()
    here.check()


def test_a_copy_is_paused_and_the_source_is_unchanged(source: Kit, target: Kit, tmp_path: Path) -> None:
    file, before = write(source, tmp_path / "novel.batch"), source.everything()
    opened = copies.open_copy(target.store, CopyFile(file), BY)
    here = target.at(target.store, opened.id)
    assert (opened.course, batch_of(source).course) == (BatchMode.PAUSED, BatchMode.OPEN)
    assert isinstance(target.store.claim(here.want()), Idle)
    assert source.everything() == before
    assert here.kinds()[-2:] == ["arrived", "steered"]
    assert audit.verify(target.store, opened, full=True).findings == ()
    here.check()


def test_work_continues_once_a_copy_is_unpaused(target: Kit, file: Path) -> None:
    handle = hf.StoreHandle(target.store, owned=False)
    handle.open_copy(file, reason="moving", actor="ada")
    handle["novel"].unpause(reason="here now", actor="ada")
    (batch,) = target.store.batches("novel")
    here = target.at(target.store, batch.id)
    target.clock.advance(100)
    while not isinstance(claim := target.store.claim(here.want(limit=3)), Idle):
        here.land(claim, [done(item) for item in here.load(claim)], release=True)
    assert State.PENDING not in here.states()
    assert audit.verify(target.store, batch_of(here), full=True).findings == ()


def test_a_copy_of_a_copy_is_the_same_until_something_is_written(source: Kit, target: Kit, tmp_path: Path) -> None:
    first = write(source, tmp_path / "one.batch")
    here = target.at(target.store, target.store.install(CopyFile(first)).id)
    second = write(here, tmp_path / "two.batch")
    back = MemoryStore(clock=target.clock)
    made = back.install(CopyFile(second))
    assert HeldCopy(back, made.id).content() == content(source)


def test_a_sealed_batch_stays_sealed(target: Kit, tmp_path: Path) -> None:
    kit = open_kit("memory", tmp_path / "sealed")
    there = kit.at(kit.store, kit.store.open_batch("novel", "pages", batch_of(kit).definition, actor="ann").id)
    there.admit(*"ab", ended=True)
    there.finish(there.claim())
    kit.store.seal(there.batch, actor="ann", reconciliation=b"{}")
    opened = copies.open_copy(target.store, CopyFile(write(there, tmp_path / "s.batch")), BY)
    assert (opened.sealed_at is not None, opened.course) == (True, BatchMode.OPEN)
    here = target.at(target.store, opened.id)
    with pytest.raises(Refused, match="sealed"):
        here.act("reset", reset(0, here.place(0)))


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_batch_with_a_held_chunk_is_not_copied(source: Kit, tmp_path: Path) -> None:
    source.claim("ann", limit=1, only=7)
    with pytest.raises(Refused, match="is being worked on"):
        write(source, tmp_path / "novel.batch")
    assert not list(tmp_path.glob("*novel*"))


def test_a_batch_of_the_first_format_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(GOLDEN / "sqlite_6.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(tmp_path / ".holdfast" / "state.db", is_dead=lambda owner: True)
    free = [b for b in store.batches() if all(chunk.owner is None for chunk in store.chunks(b.id))]
    assert free
    for batch in free:
        with pytest.raises(Refused, match="older format, whose entries name it by its number"):
            copies.write(store, batch, tmp_path / "old.batch")
    assert not (tmp_path / "old.batch").exists()
    store.close()


def test_a_batch_that_is_there_is_not_opened_again(target: Kit, file: Path) -> None:
    here = target.at(target.store, copies.open_copy(target.store, CopyFile(file), BY).id)
    before = here.everything()
    for call_ in (copies.open_copy, lambda store, copy, _: copies.preview(store, copy)):
        with pytest.raises(Refused, match="has this batch already, 'novel': nothing was changed"):
            call_(target.store, CopyFile(file), BY)
    assert here.everything() == before


def test_another_batch_of_the_same_name_is_left_alone(target: Kit, file: Path) -> None:
    target.store.open_batch("novel", "pages", batch_of(target).definition, actor="ann")
    before = target.store.batches()
    with pytest.raises(Refused, match="has another batch of this name already"):
        copies.open_copy(target.store, CopyFile(file), BY)
    assert target.store.batches() == before


def refused(store: Store, path: Path, data: bytes) -> str:
    """The error for a file with these bytes; nothing may be written."""
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        copies.open_copy(store, CopyFile(path), BY)
    return str(caught.value)


def test_a_file_that_was_cut_off_anywhere_is_refused(target: Kit, file: Path) -> None:
    data, before = file.read_bytes(), target.store.batches()
    for size in {*range(0, len(data), 97), len(data) - 1}:
        said = refused(target.store, file, data[:size])
        assert ("is not a copy of a batch" if size < len(copies.MAGIC) else "is not whole") in said
    assert target.store.batches() == before


def test_a_file_with_a_flipped_bit_is_refused(target: Kit, file: Path) -> None:
    data, before = file.read_bytes(), target.store.batches()
    for at in range(0, len(data), 97):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        refused(target.store, file, bytes(flipped))
    assert target.store.batches() == before


def test_parts_after_the_last_one_are_refused(target: Kit, file: Path) -> None:
    data, before = file.read_bytes(), target.store.batches()
    (item, *_) = CopyFile(file).items()
    more = msgspec.msgpack.encode(copies.CopyItem(list(item.revisions), []))
    assert "is not whole" in refused(target.store, file, data + copies.LENGTH.pack(len(more)) + more)
    assert target.store.batches() == before


def test_a_whole_file_without_a_batch_is_refused(target: Kit, tmp_path: Path) -> None:
    last = msgspec.msgpack.encode(copies.CopyEnd(hashlib.sha256(copies.MAGIC).digest()))
    empty = copies.MAGIC + copies.LENGTH.pack(len(last)) + last
    assert "is not whole" in refused(target.store, tmp_path / "empty.batch", empty)


def test_a_file_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        CopyFile(tmp_path / "nothing.batch")


def test_a_copy_is_private(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_batch_that_is_too_large_for_a_bucket_is_refused(file: Path, tmp_path: Path) -> None:
    kit, copy = open_kit("bucket", tmp_path / "to"), CopyFile(file)
    before = sorted(path for path in (tmp_path / "to").rglob("*"))
    limit = mock.patch("holdfast.stores.bucket.copies.BUCKET_ITEMS", 5)
    with limit, pytest.raises(Refused, match="at most 5: copy it into a database"):
        kit.store.install(copy)
    assert sorted(path for path in (tmp_path / "to").rglob("*")) == before
    kit.store.close()


# -- on a bucket ------------------------------------------------------------------------------------------------------


class Ended(Exception):
    """The process ends here."""


def test_an_attempt_that_ends_before_the_name_is_written_leaves_nothing_to_see(file: Path, tmp_path: Path) -> None:
    kit = open_kit("bucket", tmp_path / "to")

    def end(point: str) -> None:
        if point == "open_batch.written":
            raise Ended

    with faults.overheard(end), pytest.raises(Ended):
        kit.store.install(CopyFile(file))
    later = kit.open_again()
    assert [batch.name for batch in later.batches()] == ["book"]
    opened = later.open_batch("other", "pages", batch_of(kit).definition, actor="ann")
    made = later.install(CopyFile(file))
    assert (opened.id, made.id) == (3, 4), "the number of the first attempt is never used"
    kit.at(later, made.id).check()
    later.close()


def test_a_name_that_is_taken_meanwhile_is_refused_and_other_writes_are_kept(file: Path, tmp_path: Path) -> None:
    kit = open_kit("bucket", tmp_path / "to")
    other, opened = kit.open_again(), list[str]()

    def meddle(point: str) -> None:
        if point == "open_batch.written" and opened:
            other.open_batch(opened.pop(), "pages", batch_of(kit).definition, actor="ann")

    opened.append("novel")
    with faults.overheard(meddle), pytest.raises(Refused, match="another batch of this name"):
        kit.store.install(CopyFile(file))
    renamed = CopyFile(file)
    renamed.batch = msgspec.structs.replace(renamed.batch, name="a novel")
    opened.append("third")
    with faults.overheard(meddle):
        kit.store.install(renamed)
    assert sorted(batch.name for batch in other.batches()) == ["a novel", "book", "novel", "third"]
    other.close()


def test_items_of_a_large_chunk_are_several_groups_on_a_bucket(tmp_path: Path) -> None:
    source, target = open_kit("memory", tmp_path / "from"), open_kit("bucket", tmp_path / "to")
    there = source.at(source.store, source.store.open_batch("novel", "pages", DEFINITION, actor="ann").id)
    there.admit(*range(4_100), ended=True)
    claim = there.claim(limit=2_500)
    there.land(claim, [done(item) for item in there.store.load(claim, None, 5_000, 1 << 30)], release=True)
    copy = HeldCopy(source.store, there.batch)
    here = target.at(target.store, target.store.install(copy).id)
    assert len(list((tmp_path / "to").rglob("b/0000002/g/*.keys"))) == 3
    assert content(here) == copy.content()
    assert here.admit(17, 4_099, 4_100).known == 2
    cut = here.claim(limit=100)
    here.land(cut, [done(item) for item in here.load(cut)], release=True)
    here.check()


# -- by the command ---------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Answer]
OPEN = ("import", "--from-copy", "novel.batch", "--store", "there.db")
AGREED = ("--yes", "--reason", "moving", "--actor", "ada")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process, where `here.db` has the batch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    kit = Kit(lambda place, **given: SqliteStore(place / "here.db", **given), tmp_path)
    with_everything(kit, kit.store)
    kit.store.close()

    def run(*args: str) -> Answer:
        capsys.readouterr()
        code = call(args)
        return Answer(code, *capsys.readouterr())

    return run


def there(tmp_path: Path) -> Batch | None:
    store = SqliteStore(tmp_path / "there.db")
    found = find_batch(store, "novel")
    store.close()
    return found


def test_the_command_copies_a_batch_and_opens_it_elsewhere(command: Command, tmp_path: Path) -> None:
    made = command("export", "novel", "--copy", "--out", "novel.batch", "--store", "here.db")
    assert (made.code, "Copy of 12 items" in made.out) == (0, True)
    assert "import --from-copy. If work is left, it is paused there" in " ".join(made.out.split())
    opened = command(*OPEN, *AGREED)
    assert opened.code == 0, opened.err
    found = there(tmp_path)
    assert found is not None
    assert found.course is BatchMode.PAUSED
    assert command("audit", "verify", "novel", "--store", "there.db").code == 0
    again = command(*OPEN, *AGREED)
    assert (again.code != 0, "has this batch already" in " ".join(again.err.split())) == (True, True)


def test_the_command_answers_in_json(command: Command, tmp_path: Path) -> None:
    made = json.loads(command("export", "novel", "--copy", "--out", "novel.batch", "--store", "here.db", "--json").out)
    assert (made["batch"], made["items"], made["path"]) == ("novel", 12, "novel.batch")
    shown = json.loads(command(*OPEN, "--dry-run", "--json").out)
    assert (shown["batch"], shown["items"], shown["head"]) == ("novel", 12, made["head"])
    assert there(tmp_path) is None
    opened = json.loads(command(*OPEN, *AGREED, "--json").out)
    assert (opened["batch"], opened["changed"]) == ("novel", 12)


def test_a_dry_run_says_what_would_be_opened_and_opens_nothing(command: Command, tmp_path: Path) -> None:
    command("export", "novel", "--copy", "--out", "novel.batch", "--store", "here.db")
    shown = command(*OPEN, "--dry-run")
    assert (shown.code, "Batch novel would be opened here, paused: 12 items" in " ".join(shown.out.split())) == (
        0,
        True,
    )
    assert there(tmp_path) is None


def test_nothing_is_opened_without_a_reason(command: Command, tmp_path: Path) -> None:
    command("export", "novel", "--copy", "--out", "novel.batch", "--store", "here.db")
    answer = command(*OPEN, "--yes")
    assert (answer.code != 0, "reason" in answer.err) == (True, True)
    assert there(tmp_path) is None


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 an archive", copies.MAGIC])
def test_a_wrong_file_is_refused_in_words(command: Command, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "novel.batch").write_bytes(data)
    answer = command(*OPEN, *AGREED)
    said = " ".join(answer.err.split())
    assert (answer.code != 0, "is not a copy of a batch" in said or "is not whole" in said) == (True, True)
    assert there(tmp_path) is None


def test_a_target_or_a_name_does_not_go_with_a_copy(command: Command) -> None:
    for more in (("app.py:book",), ("--batch", "other")):
        answer = command(*OPEN, *more, *AGREED)
        assert (answer.code != 0, "takes no target and no --batch" in " ".join(answer.err.split())) == (True, True)
