"""Google Cloud Storage, against a stand-in for its transport: what is sent, and how answers are read. It was not tried
on the real service."""

from collections.abc import Callable

import pytest

from holdfast.core.errors import UsageError
from holdfast.stores.buckets.base import Bucket, ObjectMark, WriteUnknown
from holdfast.testing.clock import ManualClock
from tests.buckets import google
from tests.buckets.worker import Worker, store_on


def test_conditions_are_sent_as_generations(new_google: Callable[[], Bucket]) -> None:
    bucket = new_google()
    google.seen.clear()
    first = bucket.create("doc", b"1")
    bucket.replace("doc", b"2", first)
    assert [condition for _, _, condition in google.seen] == ["0", first.version]


def test_a_mark_without_a_generation_is_refused_not_sent_as_no_condition(new_google: Callable[[], Bucket]) -> None:
    bucket = new_google()
    mark = bucket.create("doc", b"1")
    with pytest.raises(UsageError, match="without a mark"):
        bucket.replace("doc", b"2", ObjectMark(mark.etag))
    assert bucket.get("doc") == (b"1", mark)


@pytest.mark.promise("C12")
def test_a_write_is_sent_once_and_a_server_in_trouble_leaves_it_unknown(
    new_google: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that tries again by itself would meet its own first write and report a lost race."""
    bucket = new_google()
    mark = bucket.create("doc", b"1")
    sent: list[str] = []

    def store_and_fail(self: google.Handler) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sent.append(self.path)
        self._answer(503, b"")

    monkeypatch.setattr(google.Handler, "do_PUT", store_and_fail)
    for write in (lambda: bucket.create("other", b"1"), lambda: bucket.replace("doc", b"2", mark)):
        sent.clear()
        with pytest.raises(WriteUnknown):
            write()
        assert len(sent) == 1


def test_a_batch_lives_its_life_there(new_google: Callable[[], Bucket]) -> None:
    bucket = new_google()
    worker = Worker(bucket)
    worker.admit("a", "b", "c")
    worker.work()
    worker.seal()
    worker.check()
    assert store_on(bucket, ManualClock()).batches()[0].sealed_at is not None
