"""What is special about a store in a bucket: lost races, seals chunk by chunk, foreign documents, copies, costs."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import holdfast as hf
from holdfast.core.errors import Damaged, NotOurs, Refused, SchemaTooNew, StoreUnusable, UsageError
from holdfast.core.model import Claim, CommitRefusal, Receipt
from holdfast.stores import faults
from holdfast.stores.base import Idle, has_landed
from holdfast.stores.bucket import BucketStore
from holdfast.stores.bucket import items as bucket_items
from holdfast.stores.bucket import store as bucket_store
from holdfast.stores.bucket.cas import HeldDocument, Raced
from holdfast.stores.bucket.documents import FORMAT, ChunkDocument, decode
from holdfast.stores.buckets.base import ObjectMark
from holdfast.stores.buckets.local import LocalBucket
from holdfast.stores.buckets.memory import Fate, MemoryBucket
from holdfast.stores.buckets.obstore import ObstoreBucket
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.kit import LEASE, Kit, done, failed, new_item, reset
from tests.buckets.worker import store_on


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def kit(bucket: MemoryBucket, tmp_path: Path) -> Kit:
    return Kit(lambda place, clock, is_dead, draw: store_on(bucket, clock, is_dead=is_dead), tmp_path)


def just_before(bucket: MemoryBucket, verb: str, call: Callable[[], object]) -> None:
    """Somebody else does something right before the next write of that kind."""

    def fate(said: str, name: str) -> Fate:
        if said == verb and "/c/" in name:
            bucket.fate = None
            call()
        return Fate.PLAIN

    bucket.fate = fate


# -- races ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C1", "C2")
def test_a_claim_that_lost_its_race_leaves_nothing_that_can_be_seen(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit(*"abcdef")
    other = store_on(bucket, kit.clock)
    won: list[object] = []
    just_before(bucket, "replace", lambda: won.append(other.claim(kit.want("bob", 2))))
    claim = kit.claim("ann", 2)
    assert isinstance(won[0], Claim)
    assert (won[0].lo, won[0].hi, claim.lo, claim.hi) == (0, 2, 2, 4)
    assert [(chunk.lo, chunk.hi) for chunk in kit.store.chunks(kit.batch)] == [(0, 2), (2, 4), (4, 6)]
    documents = [each.name for each in bucket.list("b/0000001/c/")]
    assert len(documents) == 4, "the child of the lost race is still there, and nothing leads to it"
    for store in (kit.store, other, store_on(bucket, kit.clock)):
        assert len(store.chunks(kit.batch)) == 3
    kit.check()


@pytest.mark.promise("C1", "E4")
def test_of_two_who_admit_the_same_items_at_once_each_item_is_admitted_once(kit: Kit, bucket: MemoryBucket) -> None:
    other = store_on(bucket, kit.clock)
    just_before(bucket, "create", lambda: other.add_items(kit.batch, [new_item("b"), new_item("c")]))
    answer = kit.admit("a", "b")
    assert (answer.added, answer.known, answer.lo) == (1, 1, 2)
    assert [row.key for row in kit.store.items(kit.batch)] == ["b", "c", "a"]
    kit.check()


@pytest.mark.promise("C1")
def test_a_conflict_with_an_own_renewal_is_no_lost_lease(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a")
    claim = kit.claim("ann")
    written = kit.commit_of(claim, [done(kit.load(claim)[0])])
    heartbeat = store_on(bucket, kit.clock)
    just_before(bucket, "replace", lambda: heartbeat.renew([claim.lease], LEASE))
    assert kit.store.commit([written]) == [Receipt(landed=True)]
    kit.check()


@pytest.mark.promise("C8", "C13")
def test_a_stale_owner_that_knows_nothing_of_the_takeover_cannot_commit(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a")
    zombie = kit.claim("ann")
    late = kit.commit_of(zombie, [done(kit.load(zombie)[0])])
    other = store_on(bucket, kit.clock, is_dead=lambda owner: owner == "ann")
    just_before(bucket, "replace", lambda: other.claim(kit.want("bob")))
    assert kit.store.commit([late]) == [Receipt(landed=False, reason=CommitRefusal.LOST)]
    assert kit.store.renew([zombie.lease], LEASE) == []
    kit.check()


@pytest.mark.promise("C1", "C8")
def test_the_same_state_written_twice_has_two_marks_so_that_a_stale_writer_stays_out(
    kit: Kit, bucket: MemoryBucket
) -> None:
    """Etags of content repeat where content does (A, B, A). The revision in the document keeps it from repeating."""
    kit.admit("a")
    claim = kit.claim("ann")
    name = "b/0000001/c/00000001.json"
    found = bucket.get(name)
    assert found is not None
    stale = HeldDocument(name, decode(ChunkDocument, found.data, name), found.mark)
    marks = [found.mark]
    for _ in range(3):
        kit.store.renew([claim.lease], LEASE)
        marks.append(bucket.get(name).mark)  # type: ignore[union-attr]
    assert len(set(marks)) == 4, "the clock stands still: all but revision and write id is equal"
    with pytest.raises(Raced):
        kit.store._documents.swap(stale, stale.document)  # type: ignore[attr-defined]


# -- seals ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A14")
def test_an_act_between_two_steps_of_a_seal_stops_it(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a")
    kit.admit("b", ended=True)
    for _ in range(2):
        kit.finish(kit.claim())
    other = store_on(bucket, kit.clock)
    hits = 0

    def strike(point: str) -> None:
        """After the last chunk was marked, before the batch is sealed."""
        nonlocal hits
        if point == "seal.written":
            hits += 1
            faults.arm(None)
            kit_of_other = kit.store
            kit.store = other
            assert kit.act("reset", reset(0, kit.place(0))) == [0]
            kit.store = kit_of_other

    faults.arm(strike)
    try:
        with pytest.raises(Refused, match="try again"):
            kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    finally:
        faults.arm(None)
    assert hits == 1
    assert kit.store.batches()[0].sealed_at is None
    kit.finish(kit.claim())
    kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    kit.check()


@pytest.mark.promise("A14", "A15")
def test_a_seal_that_died_half_way_holds_up_nobody(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a", ended=True)
    kit.finish(kit.claim())

    def die(point: str) -> None:
        if point == "seal.written":
            raise OSError("killed")

    faults.arm(die)
    try:
        with pytest.raises(OSError, match="killed"):
            kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    finally:
        faults.arm(None)
    assert kit.act("reset", reset(0, kit.place(0))) == [0]
    kit.finish(kit.claim("bob"))
    kit.store.seal(kit.batch, actor="run", reconciliation=b"")
    kit.check()


# -- what is refused --------------------------------------------------------------------------------------------------


class Heedless(MemoryBucket):
    """Takes every write, whatever its condition."""

    def create(self, name: str, data: bytes) -> ObjectMark:
        self._objects[name] = data
        return ObjectMark(str(len(data)))

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        return self.create(name, data)


@pytest.mark.promise("C1", "C2")
def test_a_bucket_without_conditional_writes_is_refused(tmp_path: Path) -> None:
    heedless = Heedless()
    with pytest.raises(StoreUnusable, match="cannot hold a store"):
        store_on(heedless, ManualClock())
    assert heedless.get("root.json") is None


def test_a_bucket_is_probed_once_for_each_store(bucket: MemoryBucket) -> None:
    for _ in range(3):
        store_on(bucket, ManualClock())
    assert [verb for verb, name in bucket.calls if name.startswith("probe/")] == [
        "create", "create", "get", "replace", "replace",
    ]  # fmt: skip
    assert not [verb for verb, _ in bucket.calls if verb == "delete"], "nothing is ever deleted"


@pytest.mark.promise("C18")
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", NotOurs), (b"<html>", NotOurs), (b'{"some": "json"}', NotOurs), (b'{"holdfast": "root", "for', NotOurs),
        (b'{"holdfast": "root", "format": 99}', SchemaTooNew), (b'{"holdfast": "chunk", "format": 1}', Damaged),
        (b'{"holdfast": "root", "format": 1, "names": 7}', Damaged),
    ],
)  # fmt: skip
def test_a_foreign_torn_or_newer_document_is_refused_never_guessed_at(
    data: bytes, error: type[Exception], bucket: MemoryBucket
) -> None:
    bucket.create("root.json", data)
    before = dict(bucket._objects)
    with pytest.raises(error):
        store_on(bucket, ManualClock())
    assert bucket._objects == before


@pytest.mark.promise("C18")
@pytest.mark.parametrize("data", [b"", b"<html>", b'{"some": "json"}', b'{"holdfast": "chunk", "for'])
def test_a_torn_document_within_a_store_is_damage_not_another_place(
    data: bytes, kit: Kit, bucket: MemoryBucket
) -> None:
    kit.admit("a")
    bucket._objects["b/0000001/c/00000001.json"] = data
    with pytest.raises(Damaged, match="foreign or incomplete: restore it from a backup"):
        store_on(bucket, kit.clock).chunks(kit.batch)


@pytest.mark.promise("C18")
@pytest.mark.parametrize("suffix", ["batch.json", "c/00000001.json"])
def test_a_document_of_a_newer_format_within_a_store_is_refused_and_left_as_it_is(
    suffix: str, kit: Kit, bucket: MemoryBucket
) -> None:
    kit.admit("a")
    (name,) = (each for each in bucket._objects if each.startswith("b/0000001/") and each.endswith(suffix))
    written = f'"format":{FORMAT}'.encode()
    assert written in bucket._objects[name]
    bucket._objects[name] = bucket._objects[name].replace(written, b'"format":99')
    before = dict(bucket._objects)
    with pytest.raises(SchemaTooNew, match="newer Holdfast"):
        store_on(bucket, kit.clock).claim(kit.want())
    assert bucket._objects == before


@pytest.mark.parametrize("prefix", ["h#y", "q?x", "..", "a/../b", "x%20y", "a b", "a//b", "ü", "'", ".hidden"])
def test_a_prefix_that_a_url_reads_as_another_place_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be a place for state|contains more than a place"):
        ObstoreBucket(f"s3://bucket/{prefix}")


@pytest.mark.promise("C18")
def test_a_document_that_is_gone_is_told_not_made_anew(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a")
    bucket.delete("b/0000001/c/00000001.json")
    with pytest.raises(Damaged, match="is missing"):
        store_on(bucket, kit.clock).chunks(kit.batch)


def test_a_budget_is_refused_by_the_store_itself(kit: Kit) -> None:
    kit.admit("a")
    with pytest.raises(UsageError, match="budget"):
        kit.claim("ann", reserve=1, cap=10)


def test_what_a_bucket_cannot_do_is_refused_before_anything_happens(tmp_path: Path) -> None:
    lines = hf.Pipeline("lines", store=f"file://{tmp_path}/state")

    @lines.stage
    def read(line: str) -> str:
        raise AssertionError("it must not come to this")

    for asked in ({"budget": hf.Budget(usd=1)}, {"events": "-"}):
        with pytest.raises(UsageError, match="does not work with a store in a bucket"):
            lines.run(["a"], progress=False, **asked)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_more_items_than_a_bucket_takes_are_refused(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "BUCKET_ITEMS", 3)
    kit.admit("a", "b")
    before = kit.everything()
    with pytest.raises(UsageError, match="the most on a bucket"):
        kit.admit("c", "d")
    assert kit.everything() == before


# -- size and copies --------------------------------------------------------------------------------------------------


def test_many_items_become_several_chunks_each_with_a_small_document(
    kit: Kit, bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_items, "BUCKET_CHUNK_ITEMS", 4)
    answer = kit.store.add_items(kit.batch, [new_item(key) for key in [*range(10), 3, 9]], ended=True)
    assert (answer.added, answer.known, answer.lo) == (10, 2, 0)
    assert [chunk.size for chunk in kit.store.chunks(kit.batch)] == [4, 4, 2]
    for _ in range(3):
        kit.finish(kit.claim())
    kit.check()


@pytest.mark.promise("C3")
def test_a_copy_of_a_store_gives_out_higher_fences_than_the_original_ever_will(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a", "b")
    first = kit.claim("ann", 1)
    copy = MemoryBucket(url="memory-bucket:elsewhere")
    copy._objects = dict(bucket._objects)
    second = store_on(copy, kit.clock, is_dead=lambda owner: True).claim(kit.want("bob", 1))
    assert isinstance(second, Claim)
    assert second.lease.fence > first.lease.fence + 1_000_000


@pytest.mark.promise("C18")
def test_a_bucket_that_was_set_back_under_a_running_process_is_noticed(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a")
    before = dict(bucket._objects)
    claim = kit.claim("ann")
    bucket._objects = before
    with pytest.raises(Damaged, match="set back"):
        has_landed(kit.store, kit.commit_of(claim))


# -- what it costs ----------------------------------------------------------------------------------------------------


def spent(bucket: MemoryBucket, call: Callable[[], object]) -> Counter[str]:
    bucket.calls.clear()
    call()
    return Counter({"get": 0} | Counter("get" if verb == "part" else verb for verb, _ in bucket.calls))


def test_requests_are_as_few_as_the_page_on_buckets_says(kit: Kit, bucket: MemoryBucket) -> None:
    items = [new_item(key) for key in range(100)]
    assert spent(bucket, lambda: kit.store.add_items(kit.batch, items)) == Counter(get=1, list=1, create=4, replace=1)
    claims: list[Claim] = []
    assert spent(bucket, lambda: claims.append(kit.claim("ann", 10))) == Counter(get=1, list=1, create=2, replace=1)
    (claim,) = claims
    assert spent(bucket, lambda: kit.load(claim)) == Counter(get=2 + 1)
    loaded = kit.load(claim)
    first, second = [done(item) for item in loaded], [failed(item) for item in loaded]
    assert spent(bucket, lambda: kit.land(claim, first)) == Counter(get=0, create=2, replace=1)
    checkpoint = kit.reach(claim, loaded[0], 200, version=1, acc=b"7")
    assert spent(bucket, lambda: kit.store.commit([checkpoint])) == Counter(get=0, create=1, replace=1)
    assert spent(bucket, lambda: kit.store.renew([claim.lease], LEASE)) == Counter(get=0, replace=1)
    kit.land(claim, second, version=2, release=True, due=kit.clock() + 60)
    rest = kit.claim("bob", 1000)
    assert isinstance(kit.store.claim(kit.want("cid")), Idle)
    assert spent(bucket, lambda: kit.store.claim(kit.want("cid"))) == Counter(get=1, list=1)
    assert rest.pending == 90


def test_a_document_grows_with_its_items_and_not_with_its_commits(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("part")
    claim = kit.claim("ann")
    (item,) = kit.load(claim)
    sizes = []
    for version in range(30):
        assert kit.store.commit([kit.reach(claim, item, 1000 + version, version=version, acc=b"1")])[0].landed
        sizes.append(len(bucket.get("b/0000001/c/00000001.json").data))  # type: ignore[union-attr]
    assert max(sizes) - min(sizes) < 16


def test_a_large_accumulator_does_not_stand_in_the_document(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("part")
    claim = kit.claim("ann")
    (item,) = kit.load(claim)
    acc = b'"' + b"x" * 100_000 + b'"'
    assert kit.store.commit([kit.reach(claim, item, 10, acc=acc)])[0].landed
    assert len(bucket.get("b/0000001/c/00000001.json").data) < 3000  # type: ignore[union-attr]
    assert [at.acc for at in store_on(bucket, kit.clock).checkpoints(kit.batch)] == [acc]
    kit.check()


# -- a directory ------------------------------------------------------------------------------------------------------


def test_a_directory_keeps_nothing_temporary_and_lists_no_file_of_its_own(tmp_path: Path) -> None:
    store = BucketStore(LocalBucket(tmp_path))
    store.open_batch("book", "pages", b'{"stages":[1]}', actor="ann")
    assert list((tmp_path / ".holdfast-tmp").iterdir()) == []
    assert [each.name for each in LocalBucket(tmp_path).list("")][-1] == "root.json"


def test_documents_say_what_they_are(kit: Kit, bucket: MemoryBucket) -> None:
    kit.admit("a")
    for name in ("root.json", "b/0000001/batch.json", "b/0000001/c/00000001.json"):
        found = bucket.get(name)
        assert found is not None
        said = msgspec.json.decode(found.data)
        assert {"holdfast", "format", "revision", "write", "epoch"} <= said.keys()


@pytest.mark.promise("E5")
def test_items_that_changed_are_named_though_they_come_in_several_groups(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_items, "BUCKET_CHUNK_ITEMS", 3)
    keys = list("abcdefgh")
    kit.admit(*keys)
    came = [new_item(key, b"another" if key in "bdh" else None) for key in keys]
    answer = kit.store.add_items(kit.batch, came)
    assert answer.changed == ((1, 1), (3, 3), (7, 7))
