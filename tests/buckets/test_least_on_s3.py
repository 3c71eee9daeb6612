"""The permissions that are documented for S3 are enough, and each of them is needed; moto asks for them."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.buckets.obstore import ObstoreBucket
from holdfast.testing.clock import ManualClock
from tests.buckets import servers
from tests.buckets.test_servers import live
from tests.buckets.worker import Worker, store_on

pytestmark = pytest.mark.promise("C19")
LEAST = {"own/state/*": ["s3:GetObject", "s3:PutObject"], "own": ["s3:ListBucket"]}
ACTS = [act for acts in LEAST.values() for act in acts]


def without(act: str) -> dict[str, list[str]]:
    return {what: [each for each in acts if each != act] for what, acts in LEAST.items()}


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, dict[str, Any]]]:
    """Credentials: of one who may do what is documented, and of each who lacks a part of it."""
    with servers.moto() as address:
        for bucket in ("own", "other"):
            servers.make_s3_bucket(address, bucket)
        made = {"least": servers.s3_user(address, "least", LEAST)}
        made |= {act: servers.s3_user(address, f"without-{act.partition(':')[2]}", without(act)) for act in ACTS}
        servers.enforce(address)
        yield made


def test_what_is_tried_here_is_what_is_documented() -> None:
    said = (servers.ROOT / "docs" / "buckets.md").read_text()
    assert "| S3 | `s3:GetObject`, `s3:PutObject` on `bucket/prefix/*`; `s3:ListBucket` on the bucket" in said


def test_they_suffice_for_a_life_and_allow_no_more(users: dict[str, dict[str, Any]]) -> None:
    worker = Worker(ObstoreBucket("s3://own/state", **users["least"]))
    worker.admit("a", "b", "c")
    worker.work()
    worker.seal()
    worker.check()
    for elsewhere in ("s3://other/state", "s3://own/elsewhere"):
        with pytest.raises(StoreUnavailable, match="do not allow that"):
            ObstoreBucket(elsewhere, **users["least"]).create("doc", b"1")


@pytest.mark.parametrize("act", ACTS)
def test_without_any_one_of_them_a_store_cannot_be_made_and_says_so(act: str, users: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(StoreUnavailable, match="do not allow that") as caught:
        live(store_on(ObstoreBucket(f"s3://own/state/{act.partition(':')[2]}", **users[act]), ManualClock()))
    assert users[act]["secret_access_key"] not in str(caught.value)
