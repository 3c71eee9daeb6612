"""What other programs kept: read without a guess, or refused."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.core.cursor import Cursor
from holdfast.core.errors import Damaged, NotOurs, Refused, SchemaTooNew, UsageError
from holdfast.runtime import importers

LIKE = Cursor("column+key", datetime(2020, 1, 1, tzinfo=UTC), {"id": 1})
POLLER: dict[str, Any] = {
    "version": 1,
    "poller_name": "orders",
    "source_fingerprint": "sha256:ab",
    "checkpoint": {
        "cursor": {"kind": "timestamp+pk", "value": "2026-04-07T01:23:45.123456Z", "tiebreaker": {"id": 12093}},
        "last_successful_batch_id": "batch_1",
        "updated_at": "2026-04-07T01:23:46.020000Z",
        "metadata": {"row_count": 100},
    },
    "lease": {
        "owner_id": "app/1",
        "fencing_token": 42,
        "acquired_at": "2026-04-07T01:23:00Z",
        "heartbeat_at": "2026-04-07T01:23:20Z",
        "expires_at": "2026-04-07T01:25:00Z",
    },
}


def poller(**changes: Any) -> bytes:
    return json.dumps(POLLER | changes).encode()


def test_a_poller_is_read_whole() -> None:
    state = importers.read_poller(poller(), "orders.json")
    at = importers.poller_cursor(state.checkpoint.cursor, LIKE, "orders.json")
    assert at == Cursor("column+key", datetime(2026, 4, 7, 1, 23, 45, 123456, tzinfo=UTC), {"id": 12093})
    assert state.lease.fence == 42
    assert state.expires == datetime(2026, 4, 7, 1, 25, tzinfo=UTC).timestamp()


@pytest.mark.promise("C18")
def test_a_poller_that_is_not_known_is_refused() -> None:
    bad: list[tuple[bytes, type[Exception]]] = [
        (b"", Damaged),
        (poller()[:200], Damaged),
        (b"[]", NotOurs),
        (b'{"version": 1}', NotOurs),
        (poller(version=2), SchemaTooNew),
        (poller(version=0), Refused),
        (poller(version=None), NotOurs),
        (poller(version=True), NotOurs),
        (poller(surprise=1), NotOurs),
        (poller(checkpoint={"cursor": {"kind": "timestamp+pk"}}), NotOurs),
        (poller(lease={"owner_id": "a"}), NotOurs),
        (poller(lease={"owner_id": "a", "fencing_token": "42"}), NotOurs),
        (poller(lease={"owner_id": "a", "fencing_token": -1}), NotOurs),
    ]
    for data, error in bad:
        with pytest.raises(error):
            importers.read_poller(data, "orders.json")


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "offset", "value": 5},
        {"kind": "integer+pk", "value": 5, "tiebreaker": {"id": 1}},
        {"kind": "timestamp+pk", "value": 5, "tiebreaker": {"id": 1}},
        {"kind": "timestamp+pk", "value": "now", "tiebreaker": {"id": 1}},
        {"kind": "timestamp+pk", "value": "2026-04-07T01:23:45", "tiebreaker": {"id": 1}},
        {"kind": "timestamp+pk", "value": "2026-04-07T01:23:45.1234567Z", "tiebreaker": {"id": 1}},
        {"kind": "timestamp+pk", "value": "2026-04-07T01:23:45Z", "tiebreaker": {"key": 1}},
        {"kind": "timestamp+pk", "value": "2026-04-07T01:23:45Z", "tiebreaker": {"id": "x"}},
        {"kind": "timestamp+pk", "value": "2026-04-07T01:23:45Z"},
        {"kind": "timestamp", "value": "2026-04-07T01:23:45Z"},
        {"kind": "timestamp+pk", "value": None, "tiebreaker": {"id": 1}},
    ],
)
def test_a_cursor_of_another_kind_or_type_is_refused(said: dict[str, Any]) -> None:
    state = importers.read_poller(poller(checkpoint={"cursor": said}), "orders.json")
    with pytest.raises(UsageError):
        importers.poller_cursor(state.checkpoint.cursor, LIKE, "orders.json")


def test_a_lease_without_a_zone_is_refused() -> None:
    lease = POLLER["lease"] | {"expires_at": "2026-04-07T01:25:00"}
    with pytest.raises(NotOurs, match="zone"):
        _ = importers.read_poller(poller(lease=lease), "orders.json").expires


def test_a_checkpoint_whose_history_says_something_else_is_refused() -> None:
    good: dict[str, Any] = {
        "cursor": 2000, "items_processed": 2000, "accumulated_results": {"total": 1.5},
        "history": [{"cursor": 1000, "timestamp": "t"}, {"cursor": 2000, "timestamp": "t"}],
    }  # fmt: skip
    assert importers.read_checkpoint(json.dumps(good).encode(), "c").items_processed == 2000
    bad: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"cursor": 3000}, Refused),
        ({"items_processed": -1}, NotOurs),
        ({"items_processed": "2000"}, NotOurs),
        ({"history": [{"at": 1}]}, NotOurs),
        ({"offset": 1}, NotOurs),
    ]
    for change, error in bad:
        with pytest.raises(error):
            importers.read_checkpoint(json.dumps(good | change).encode(), "c")


def test_pages_that_contradict_themselves_are_refused() -> None:
    good: dict[str, Any] = {"stage_name": "s", "total_pages": 2, "status": "in_progress", "page_metrics": {"1": {}}}
    assert importers.read_pages(json.dumps(good).encode(), "p").total_pages == 2
    bad: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"page_metrics": {"3": {}}}, Refused),
        ({"page_metrics": {"x": {}}}, NotOurs),
        ({"page_metrics": {"1": {"page_num": 2}}}, NotOurs),
        ({"total_pages": "2"}, NotOurs),
    ]
    for change, error in bad:
        with pytest.raises(error):
            importers.read_pages(json.dumps(good | change).encode(), "p")
