"""How a batch ended, and whether it may go on: derived from facts."""

from typing import Any

import pytest

from holdfast.core.course import End, barrier, end_of, has_ended, is_exceeded, spare
from holdfast.core.errors import UsageError
from holdfast.core.model import Batch, BatchId, BatchMode, DeadLimit
from holdfast.runtime.define.options import count_or_share
from tests.core.made import NOW


def batch(**facts: Any) -> Batch:
    facts = {"admitted": 100, "ingested_at": NOW, **facts}
    return Batch(id=BatchId(1), name="book", pipeline="book", definition=b"", opened_at=NOW, **facts)


def end(**facts: Any) -> End | None:
    over, was_read, cut_short = facts.pop("over", False), facts.pop("was_read", True), facts.pop("cut_short", False)
    pending, dead = facts.pop("pending", 0), facts.pop("dead", 0)
    ended = batch(ends_at=facts.pop("ends_at", NOW if over else None), ingested_at=NOW if was_read else None, **facts)
    return end_of(ended, NOW, pending=pending, dead=dead, cut_short=lambda: cut_short)


@pytest.mark.promise("A15")
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, End.COMPLETE),
        ({"dead": 1}, End.WITH_DEAD),
        ({"pending": 1}, None),
        ({"was_read": False}, None),
        ({"over": True}, End.COMPLETE),
        ({"over": True, "dead": 2}, End.WITH_DEAD),
        ({"over": True, "pending": 1}, End.STOPPED),
        ({"over": True, "was_read": False}, End.STOPPED),
        ({"over": True, "cut_short": True}, End.STOPPED),
        ({"ends_at": NOW + 60, "cut_short": True}, End.STOPPED),
        ({"ends_at": NOW + 60, "cut_short": True, "pending": 1}, None),
        ({"ends_at": NOW + 60}, End.COMPLETE),
        ({"course": BatchMode.PAUSED, "pending": 1}, None),
        ({"course": BatchMode.CANCELLED, "pending": 1}, End.CANCELLED),
        ({"course": BatchMode.CANCELLED, "over": True}, End.CANCELLED),
        ({"expected": 101}, End.STOPPED),
        ({"expected": 100}, End.COMPLETE),
    ],
)
def test_the_end_follows_from_course_time_and_counts(facts: dict[str, Any], expected: End | None) -> None:
    assert end(**facts) is expected


def test_a_batch_ends_at_its_end_and_not_before() -> None:
    assert not has_ended(batch(), NOW + 1e9)
    assert not has_ended(batch(ends_at=NOW + 1), NOW + 0.999)
    assert has_ended(batch(ends_at=NOW + 1), NOW + 1)


def test_what_is_for_good_is_said_before_what_is_for_now() -> None:
    late = {"ends_at": NOW - 1}
    assert barrier(batch(), NOW) is None
    assert barrier(batch(course=BatchMode.PAUSED), NOW) == "paused"
    assert barrier(batch(course=BatchMode.PAUSED, **late), NOW) == "until"
    assert barrier(batch(course=BatchMode.CANCELLED, **late), NOW) == "cancelled"


def test_a_count_or_a_share_of_all_items_may_be_exceeded() -> None:
    assert is_exceeded(DeadLimit(share=0.1), 11, batch())
    assert not is_exceeded(DeadLimit(share=0.1), 10, batch())
    assert is_exceeded(DeadLimit(share=0.5, count=10), 11, batch())


def test_how_many_more_may_die_is_the_least_of_what_is_said() -> None:
    assert spare(DeadLimit(count=10), 4, batch()) == 6
    assert spare(DeadLimit(count=10), 40, batch()) == 0
    assert spare(DeadLimit(count=10, share=0.05), 4, batch()) == 1


@pytest.mark.parametrize(
    ("said", "meant"), [("100%", 1.0), ("30%", 0.3), ("0.5%", 0.005), (200, 200), ("200", 200), (0, 0)]
)
def test_so_many_is_a_number_of_items_or_a_share_with_its_percent_sign(said: object, meant: float) -> None:
    assert count_or_share(said, "undo") == meant
    assert type(count_or_share(said, "undo")) is type(meant)


@pytest.mark.parametrize("said", ["much", -1, 1.0, 0.5, "0.25", 1.5, "150%", None, True, "", "%", float("nan"), "nan%"])
def test_a_number_that_could_mean_either_is_refused_with_what_to_write(said: object) -> None:
    with pytest.raises(UsageError, match=r"undo=.*a number of items such as 5, or a share such as '1%'"):
        count_or_share(said, "undo")
