"""What would lose or damage acknowledged work is caught by the same judge: the proof can fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite import rows
from tests.powerloss.crash_states import windows
from tests.powerloss.judge import Judge
from tests.powerloss.recorder import Ignores, Op, ignore_nothing
from tests.powerloss.story import tell
from tests.powerloss.survey import some_of_all, survey

pytestmark = pytest.mark.slow  # test_power_cuts shows some of it in the quick part

STATES = 600


def setting(name: str, value: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(sqlite_file.SETTINGS, name, value)


def nothing(patch: pytest.MonkeyPatch) -> None:
    pass


def in_two_pieces(patch: pytest.MonkeyPatch) -> None:
    """The entry of the journal becomes durable before what it tells of."""
    insert = rows.insert_entries

    def hasty(db: Any, entries: Any) -> None:
        insert(db, entries)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")

    patch.setattr(rows, "insert_entries", hasty)


def syncs(*files: str) -> Ignores:
    return lambda op: op.kind == "sync" and op.file in files


def every_sync(op: Op) -> bool:
    return op.kind.startswith("sync")


def folder_syncs(op: Op) -> bool:
    return op.kind == "sync folder"


UNSAFE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Ignores, set[str]]] = {
    "synchronous=NORMAL": (setting("synchronous", "normal"), ignore_nothing, {"lost"}),
    "synchronous=OFF": (setting("synchronous", "off"), ignore_nothing, {"lost", "damaged"}),
    "fsync is skipped": (nothing, every_sync, {"lost", "damaged"}),
    "the log is not synced": (nothing, syncs("-wal"), {"lost"}),
    "the database is not synced before its log is begun again": (nothing, syncs(""), {"damaged"}),
    "the folder is not synced": (nothing, folder_syncs, {"lost"}),
    "a commit is written in two pieces": (in_two_pieces, ignore_nothing, {"half"}),
}
BY_NAME = {
    "synchronous=NORMAL": pytest.mark.catches("NORMAL durability"),
    "the folder is not synced": pytest.mark.catches("no directory sync"),
}


@pytest.mark.promise("A8", "B7")
@pytest.mark.parametrize("unsafe", [pytest.param(name, marks=BY_NAME.get(name, ())) for name in UNSAFE])
def test_the_judge_catches(
    unsafe: str, place: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    break_it, ignores, words = UNSAFE[unsafe]
    break_it(monkeypatch)
    story = tell(place / "recorded", monkeypatch, ignores)
    monkeypatch.undo()
    judge = Judge(place / "judged", story)
    found = survey(judge, some_of_all(windows(story.ops), 1, STATES), limit=2 * STATES)
    assert set(found.complaints) >= words, f"{unsafe}: {found.complaints} of {found.states} states, {found.first}"
    tally(unsafe=1, states_that_fail=sum(found.complaints.values()))
