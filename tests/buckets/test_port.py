"""The port: what every bucket promises, in memory, in a directory, on S3 and on Azure."""

import threading

import pytest

from holdfast.core.errors import StoreUnavailable, UsageError
from holdfast.stores.buckets.base import Bucket, ListedObject, ObjectMark, WriteLost


def test_what_was_created_is_read_back_byte_for_byte(bucket: Bucket) -> None:
    data = bytes(range(256)) * 5
    mark = bucket.create("a/b.json", data)
    found = bucket.get("a/b.json")
    assert found is not None
    assert (found.data, found.mark) == (data, mark)
    assert bucket.get("a/c.json") is None
    assert bucket.get("a") is None


@pytest.mark.promise("C2")
def test_of_two_who_create_one_wins(bucket: Bucket) -> None:
    bucket.create("doc", b"first")
    with pytest.raises(WriteLost):
        bucket.create("doc", b"second")
    assert bucket.get("doc") == (b"first", bucket.get("doc").mark)  # type: ignore[union-attr]


@pytest.mark.promise("C1", "C8")
def test_a_document_is_replaced_only_by_who_saw_it_last(bucket: Bucket) -> None:
    first = bucket.create("doc", b"1")
    second = bucket.replace("doc", b"2", first)
    assert second != first
    with pytest.raises(WriteLost):
        bucket.replace("doc", b"3", first)
    found = bucket.get("doc")
    assert found == (b"2", second)
    bucket.replace("doc", b"3", second)
    assert bucket.get("doc").data == b"3"  # type: ignore[union-attr]


def test_what_is_not_there_cannot_be_replaced(bucket: Bucket) -> None:
    mark = bucket.create("other", b"1")
    with pytest.raises(WriteLost):
        bucket.replace("doc", b"2", mark)
    bucket.delete("other")
    with pytest.raises(WriteLost):
        bucket.replace("other", b"2", mark)
    assert bucket.get("other") is None


@pytest.mark.promise("C1", "C2")
def test_of_many_writers_at_once_each_increment_counts(bucket: Bucket) -> None:
    bucket.create("count", b"0")
    lost: list[str] = []

    def add(times: int) -> None:
        for _ in range(times):
            while True:
                found = bucket.get("count")
                assert found is not None
                try:
                    bucket.replace("count", b"%d" % (int(found.data) + 1), found.mark)
                    break
                except WriteLost:
                    lost.append("")

    threads = [threading.Thread(target=add, args=(10,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bucket.get("count").data == b"40"  # type: ignore[union-attr]


def test_a_part_of_an_object_is_read_alone(bucket: Bucket) -> None:
    bucket.create("payload", b"0123456789")
    assert bucket.part("payload", 3, 4) == b"3456"
    assert bucket.part("payload", 9, 1) == b"9"
    assert bucket.part("payload", 4, 0) == b""
    assert bucket.part("nothing", 3, 4) is None


def test_names_are_listed_in_order_by_prefix_and_from_a_place_on(bucket: Bucket) -> None:
    marks = {name: bucket.create(name, name.encode()) for name in ("c/2", "c/10", "c/1", "cc/1", "b", "c/deep/1")}
    assert [each.name for each in bucket.list("c/")] == ["c/1", "c/10", "c/2", "c/deep/1"]
    assert [each.name for each in bucket.list("c/", "c/10")] == ["c/2", "c/deep/1"]
    assert list(bucket.list("d/")) == []
    assert [each.name for each in bucket.list("")] == ["b", "c/1", "c/10", "c/2", "c/deep/1", "cc/1"]
    assert list(bucket.list("cc/", etags=True)) == [ListedObject("cc/1", marks["cc/1"].etag.strip('"'))]


def test_a_listing_tells_that_a_document_changed(bucket: Bucket) -> None:
    mark = bucket.create("c/1", b"1")
    (before,) = bucket.list("c/", etags=True)
    bucket.replace("c/1", b"2", mark)
    (after,) = bucket.list("c/", etags=True)
    assert before.etag != after.etag


def test_more_than_a_page_is_listed(new_bucket_of_many: Bucket) -> None:
    assert len(list(new_bucket_of_many.list("m/"))) == 1203
    assert len(list(new_bucket_of_many.list("m/", "m/0999"))) == 203


@pytest.fixture
def new_bucket_of_many(request: pytest.FixtureRequest) -> Bucket:
    """More objects than one answer lists; in memory, where they cost nothing."""
    from holdfast.stores.buckets.memory import MemoryBucket

    made = MemoryBucket()
    for number in range(1203):
        made.create(f"m/{number:04}", b"")
    return made


def test_what_is_deleted_is_gone_and_may_be_created_again(bucket: Bucket) -> None:
    bucket.create("doc", b"1")
    bucket.delete("doc")
    bucket.delete("doc")
    assert bucket.get("doc") is None
    bucket.create("doc", b"2")


@pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a//b", "a b", "a/.hidden", "é"])
def test_a_name_that_means_something_else_is_refused(name: str, bucket: Bucket) -> None:
    for call in (bucket.get, bucket.delete, lambda name: bucket.create(name, b""),
                 lambda name: bucket.replace(name, b"", ObjectMark("x"))):  # fmt: skip
        with pytest.raises(UsageError, match="is not an object name"):
            call(name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_a_bucket_that_is_not_there_is_said_to_be_missing(kind: str, request: pytest.FixtureRequest) -> None:
    from holdfast.stores.buckets.obstore import ObstoreBucket
    from tests.buckets import servers

    if kind == "s3":
        nowhere = ObstoreBucket("s3://nobody", **servers.s3_options(request.getfixturevalue("moto")))
    else:
        nowhere = ObstoreBucket("az://nobody", **servers.azure_options(request.getfixturevalue("azurite")))
    with pytest.raises(StoreUnavailable, match="no such bucket"):
        nowhere.create("doc", b"1")
