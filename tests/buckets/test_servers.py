"""The store on real servers: moto for S3, Azurite for Azure; and with credentials for one container only."""

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core.errors import StoreUnavailable
from holdfast.runtime.operate import clones
from holdfast.runtime.operate import cursors as acts
from holdfast.runtime.scan.scan import Scan
from holdfast.stores.bucket import BucketStore
from holdfast.stores.buckets.base import Bucket
from holdfast.stores.buckets.obstore import ObstoreBucket
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance import checks
from holdfast.testing.conformance.kit import DEFINITION, Check, Kit, new_item
from holdfast.testing.rows import Rows
from tests.buckets import servers
from tests.buckets.worker import Worker, store_on
from tests.operations.scanned import BY

pytestmark = pytest.mark.slow
SMALL = {
    "two_who_open_the_same_batch_get_the_same_one", "a_key_is_admitted_once_within_a_group_and_across_groups",
    "awkward_keys_and_payloads_are_kept_or_refused_never_lost", "a_claim_cuts_off_what_is_more_than_wanted",
    "a_chunk_with_settled_items_is_cut_by_what_is_pending", "the_fence_grows_over_release_expiry_and_death",
    "items_are_loaded_in_pages_of_a_number_and_of_bytes", "an_own_commit_is_no_conflict_for_a_renewal",
    "a_lease_that_was_taken_over_or_released_is_not_renewed", "a_stale_fence_cannot_commit",
    "a_commit_writes_outputs_places_totals_and_one_entry_together",
    "one_stale_commit_of_a_group_rolls_back_nobody_else",
    "a_commit_lands_once_however_often_it_is_sent", "that_a_commit_landed_is_known_after_release_and_takeover",
    "threads_that_work_at_once_lose_and_double_nothing", "cursor_count_and_accumulator_move_in_one_commit",
    "an_act_can_set_another_checkpoint_and_fences_the_owner", "a_renewed_item_has_another_payload_in_the_next_epoch",
    "seizing_fences_the_owner", "a_sealed_batch_refuses_what_comes_late", "a_seal_can_be_lifted_and_made_again",
    "entries_are_read_in_order_and_in_pages", "everything_is_the_same_when_the_store_is_opened_again",
    "two_handles_see_one_state",
}  # fmt: skip
CHECKS = [check for check in checks(without=("budget", "events")) if check.__name__ in SMALL]


def test_every_check_that_is_named_exists() -> None:
    assert {check.__name__ for check in CHECKS} == SMALL


@pytest.mark.promise("C1", "C3", "C8", "C10", "C12", "B1", "B8", "E12", "P7")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_the_suite_on(kind: str, check: Check, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bucket: Bucket = request.getfixturevalue(f"new_{kind}")()
    kit = Kit(lambda place, clock, is_dead, draw: store_on(bucket, clock, is_dead=is_dead), tmp_path)
    check(kit)
    kit.store.close()


# -- least privilege --------------------------------------------------------------------------------------------------

LEAST = "rwl"
"""Read, write and list, in the order in which Azure wants them: what docs/buckets.md says is enough."""


def limited(azurite: str, permissions: str, number: str) -> tuple[ObstoreBucket, ObstoreBucket]:
    """Two containers, and credentials for the first of them alone."""
    own, other = f"own-{number}", f"other-{number}"
    for name in (own, other):
        servers.make_container(azurite, name)
    options = servers.sas_options(azurite, own, permissions)
    return ObstoreBucket(f"az://{own}/state", **options), ObstoreBucket(f"az://{other}/state", **options)


@pytest.mark.promise("C19")
def test_what_is_tried_here_is_what_is_documented() -> None:
    said = (servers.ROOT / "docs" / "buckets.md").read_text()
    assert f"| Azure | a SAS of the container with `{LEAST}` (read, write, list)" in said


@pytest.mark.promise("C19")
def test_the_documented_permissions_on_one_container_suffice(azurite: str) -> None:
    own, other = limited(azurite, LEAST, "least")
    worker = Worker(own)
    worker.admit("a", "b", "c")
    worker.work()
    worker.seal()
    worker.check()
    with pytest.raises(StoreUnavailable, match="do not allow that"):
        other.create("doc", b"1")


@pytest.mark.promise("C19")
def test_they_suffice_for_scans_too_with_what_operators_do(azurite: str) -> None:
    own, _ = limited(azurite, LEAST, "scans")
    store, rows = BucketStore(own), [1, "poison", 3]
    scan = hf.Follow("orders", Rows(rows), store=store, isolate=True)

    @scan.handler
    def count(some: list[object], acc: int) -> int:
        if "poison" in some:
            raise ValueError("this row cannot be handled")
        return acc + len(some)

    assert (scan.tick().dead, scan.report().result) == (1, 2)
    (batch,) = store.batches("orders")
    acts.carry_out(store, batch, acts.to_beginning(store, batch), BY)
    clones.make(store, clones.clone(store, batch, "copy"), BY)
    rows[1] = 2
    assert (scan.tick().total, scan.tick("copy").total) == (3, 3)
    totals = Scan("totals", Rows([*range(100)]), store=store, partitions=5, every=10)

    @totals.handler
    def add(some: list[int], acc: int) -> int:
        return acc + sum(some)

    totals.converge(sum)
    assert totals.run(progress=False).result == sum(range(100))


@pytest.mark.promise("C19")
@pytest.mark.parametrize("missing", sorted(LEAST))
def test_without_any_one_of_them_a_store_cannot_be_made_and_says_so(missing: str, azurite: str) -> None:
    own, _ = limited(azurite, LEAST.replace(missing, ""), f"without-{missing}")
    secret = servers.sas_options(azurite, "x", LEAST)["sas_key"].partition("sig=")[2]
    with pytest.raises(StoreUnavailable, match="do not allow that") as caught:
        live(store_on(own, ManualClock()))
    assert "sig=" not in str(caught.value)
    assert secret not in str(caught.value)


def live(store: BucketStore) -> None:
    batch = store.open_batch("book", "pages", DEFINITION, actor="ann").id
    store.add_items(batch, [new_item("a")])
    store.chunks(batch)


# -- by URL -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B1", "B7", "B10")
def test_a_pipeline_and_a_scan_run_on_a_url_with_credentials_of_the_environment(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.make_s3_bucket(moto, "by-url")
    for name, value in {
        "AWS_ENDPOINT": moto, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    lines = hf.Pipeline("lines", store="s3://by-url/state")

    @lines.stage
    def read(line: str) -> str:
        return line.upper()

    assert lines.run([f"line {n}" for n in range(50)], progress=False).counts.done == 50
    totals = Scan("totals", Rows([{"n": n} for n in range(100)]), store="s3://by-url/state", every=20, partitions=2)

    @totals.handler
    def add(rows, acc: int) -> int:  # type: ignore[no-untyped-def]
        return acc + sum(row["n"] for row in rows)

    totals.converge(sum)
    assert totals.run(progress=False).result == sum(range(100))
    assert totals.run(progress=False).result == sum(range(100))
