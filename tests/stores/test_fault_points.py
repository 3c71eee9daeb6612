"""Named points where a test may strike: what may be said, and that each strikes once, at its time."""

import pytest

from holdfast.stores import faults
from holdfast.stores.faults import parse


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was struck; nothing is really killed here."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(faults, "_strike", lambda point, mode: seen.append((point, mode)))
    monkeypatch.setattr(faults, "reach", faults.unarmed)
    return seen


def test_a_point_is_struck_when_it_is_reached_for_the_nth_time_and_never_again(struck: list[tuple[str, str]]) -> None:
    faults.arm(parse("commit.written:3:stop"))
    for _ in range(2):
        faults.reach("commit.written")
        faults.reach("commit.after")
    assert struck == []
    for _ in range(5):
        faults.reach("commit.written")
    assert struck == [("commit.written", "stop")]


@pytest.mark.parametrize(
    ("spec", "mode"), [("claim.after", "kill"), ("claim.after:1", "kill"), ("claim.after:1:raise", "raise")]
)
def test_the_first_time_and_a_kill_are_meant_where_nothing_is_said(
    spec: str, mode: str, struck: list[tuple[str, str]]
) -> None:
    faults.arm(parse(spec))
    faults.reach("claim.after")
    assert struck == [("claim.after", mode)]


def test_nothing_happens_where_nothing_is_armed(struck: list[tuple[str, str]]) -> None:
    for point in faults.POINTS:
        faults.reach(point)
    assert struck == []


@pytest.mark.parametrize(
    "spec", ["", "commit", "commit.written:0", "commit.written:-1", "commit.written:x", "commit.written:1:hurt",
             "commit.written:1:kill:now", "nowhere:1:kill"]
)  # fmt: skip
def test_what_is_no_fault_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="write point:hit:mode"):
        parse(spec)


def test_an_injected_error_looks_like_one_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "reach", parse("note.after:1:raise"))
    with pytest.raises(OSError, match=r"injected at note\.after") as caught:
        faults.reach("note.after")
    assert caught.value.errno == 5
