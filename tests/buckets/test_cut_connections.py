"""Real servers behind a proxy that cuts connections before or after a write: nothing is lost, nothing counts twice."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.model import State
from holdfast.stores.buckets import obstore
from holdfast.stores.buckets.base import Bucket, ObjectMark
from holdfast.stores.buckets.obstore import ObstoreBucket
from tests.buckets import proxy as proxies
from tests.buckets import servers
from tests.buckets.proxy import Cut, Proxy
from tests.buckets.worker import Worker

pytestmark = pytest.mark.slow
KEYS = ("a", "b", "c", "d", "e")
PROBE = 4
"""The first conditional writes of a store: who meets trouble there opens it again."""
_numbers = itertools.count(1)
New = Callable[[], Bucket]


class Counted:
    """A bucket whose writes are counted on the side that asks for them."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self.writes = bucket, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def create(self, name: str, data: bytes) -> ObjectMark:
        self.writes += 1
        return self._bucket.create(name, data)

    def replace(self, name: str, data: bytes, mark: ObjectMark) -> ObjectMark:
        self.writes += 1
        return self._bucket.replace(name, data, mark)


@pytest.fixture(scope="module", params=["s3", "azure"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, New]]:
    """A proxy before a real server, and new buckets behind it."""
    kind = request.param
    address = request.getfixturevalue({"s3": "moto", "azure": "azurite"}[kind])
    with proxies.before(address) as (proxy, through):

        def new() -> Bucket:
            name = f"cut-{next(_numbers)}"
            if kind == "s3":
                servers.make_s3_bucket(address, name)
                return ObstoreBucket(f"s3://{name}/state", **servers.s3_options(through))
            servers.make_container(address, name)
            return ObstoreBucket(f"az://{name}/state", **servers.azure_options(through))

        yield proxy, new


def live(bucket: Counted) -> Worker:
    worker = Worker(bucket)
    worker.admit(*KEYS)
    worker.work()
    worker.seal()
    return worker


def check(worker: Worker) -> None:
    """Each item is done, each went on once from each stage, and the journal tells the same story."""
    story = worker.check()
    assert [row.place.state for row in worker.store.items(worker.batch)] == [State.DONE] * len(KEYS)
    assert set(story.advanced.values()) == {1}
    assert [batch.sealed_at is not None for batch in worker.store.batches()] == [True]


@pytest.mark.promise("C9", "C12", "P8")
@pytest.mark.parametrize("cut", [Cut.LOST_REQUEST, Cut.LOST_REPLY])
@pytest.mark.parametrize("first", [PROBE + 1, PROBE + 2])
def test_with_every_second_write_cut_the_story_is_the_same_and_no_library_sends_twice(
    server: tuple[Proxy, New], cut: Cut, first: int, tally: Callable[..., None]
) -> None:
    proxy, new = server
    bucket = Counted(new())
    proxy.begin(lambda number: cut if number >= first and (number - first) % 2 == 0 else Cut.NONE)
    worker = live(bucket)
    assert proxy.cuts > 10
    assert proxy.writes == bucket.writes
    cuts = proxy.cuts
    proxy.begin(lambda _: Cut.NONE)
    check(worker)
    tally(cuts=cuts)


@pytest.mark.promise("C12")
def test_a_library_that_sends_a_write_again_by_itself_is_noticed(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore, "NO_RETRIES", obstore.SOME_RETRIES)
    servers.make_s3_bucket(moto, "sent-twice")
    with proxies.before(moto) as (proxy, through):
        bucket = Counted(ObstoreBucket("s3://sent-twice/state", **servers.s3_options(through)))
        proxy.begin(lambda number: Cut.LOST_REPLY if number == PROBE + 1 else Cut.NONE)
        live(bucket)
        assert proxy.writes == bucket.writes + 1
