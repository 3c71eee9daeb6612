"""Flipped bits: whatever is read is the truth, or somebody is told that it is not."""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.model import Batch
from holdfast.runtime.operate import audit
from holdfast.stores.sqlite import safety as sqlite_log
from tests.damage.original import Original, make, restore, verdict, written
from tests.simulation.conftest import seeds_of_this_commit

PROMISES = pytest.mark.promise("A8", "E12")
TOLD = {"whole", "refused", "found", "reported"}
PARTS = 4
FLIPS = {"": 900, "-wal": 350}
"""In each part, of the database and of its log."""


def flip(original: Original, file: str, spot: Path, seed: int, flips: int) -> Counter[str]:
    """Flip one bit after the other, each in a file that is whole but for it, where something is written."""
    rng, found = random.Random(seed), Counter[str]()
    places = written(original, file)
    for _ in range(flips):
        at, bit = rng.choice(places), rng.randrange(8)
        data = bytearray(original.files[file])
        data[at] ^= 1 << bit
        said = verdict(original, original.files | {file: bytes(data)}, spot)
        if said == "undone" and file == "-wal" and at >= original.last:
            said = "refused"  # nobody can tell it from a power cut: what the last transaction did is done again
        assert said in TOLD, f"bit {bit} of byte {at} of state.db{file}: {said}; replay it: HOLDFAST_SEED={seed}"
        found[said] += 1
    return found


@PROMISES
def test_no_flipped_bit_of_a_database_is_silent(closed: Original, spot: Path, tally: Callable[..., None]) -> None:
    found = flip(closed, "", spot, 1, 500)
    assert min(found["found"], found["refused"], found["whole"]) > 20, "the flips hit everything"
    tally(flips=500)


@PROMISES
def test_rows_out_of_order_are_not_read_round_and_round(closed: Original, spot: Path) -> None:
    """Seeds that a soak found: a row whose number was changed led the audit back to where it had been."""
    flip(closed, "", spot, 3688482234, 200)


@PROMISES
def test_how_often_an_item_was_sent_on_its_way_is_proved(closed: Original, spot: Path) -> None:
    changed = "UPDATE places SET requeues = requeues + 1 WHERE id = (SELECT max(id) FROM places)"
    assert after(changed, closed, spot) == "found"


def after(statement: str, original: Original, spot: Path) -> str:
    """The verdict on a file in which somebody changed a row."""
    path = restore(original.files, spot)
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()
    return verdict(original, original.files | {"": path.read_bytes()}, spot)


@PROMISES
@pytest.mark.parametrize(
    "change", ["course = 'paused'", "course = 'open'", "ends_at = 1.0", "ends_at = NULL", "sealed_at = NULL"]
)
def test_how_a_batch_ended_is_proved(change: str, closed: Original, spot: Path) -> None:
    assert after(f"UPDATE batches SET {change} WHERE name = 'typee'", closed, spot) == "found"


@PROMISES
def test_a_batch_that_was_never_sealed_is_not_taken_for_sealed(closed: Original, spot: Path) -> None:
    assert after("UPDATE batches SET sealed_at = 1.0 WHERE name = 'moby-dick'", closed, spot) == "found"


def test_the_same_bytes_are_spoilt_every_time(closed: Original, killed: Original, place: Path) -> None:
    for original, name in ((closed, "closed"), (killed, "killed")):
        again = make(place / f"{name} again", closed=original is closed)
        assert [written(again, file) for file in again.files] == [written(original, file) for file in original.files]
    assert make(place / "once more", closed=True).files == closed.files


@PROMISES
def test_no_flipped_bit_of_a_log_is_silent(killed: Original, spot: Path, tally: Callable[..., None]) -> None:
    assert flip(killed, "-wal", spot, 1, 200)["refused"] > 180
    tally(flips=200)


@PROMISES
def test_no_flipped_bit_in_the_header_of_a_log_is_silent(
    killed: Original, spot: Path, tally: Callable[..., None]
) -> None:
    for bit in range(8 * sqlite_log.HEADER.size):
        data = bytearray(killed.files["-wal"])
        data[bit // 8] ^= 1 << bit % 8
        assert verdict(killed, killed.files | {"-wal": bytes(data)}, spot) in TOLD, f"bit {bit}"
    tally(flips=8 * sqlite_log.HEADER.size)


@PROMISES
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_flipped_bit_is_silent(
    part: int, closed: Original, killed: Original, spot: Path, tally: Callable[..., None]
) -> None:
    said = os.environ.get("HOLDFAST_SEED")
    seed = int(said) if said else 100 + part if part % 2 else seeds_of_this_commit() + part
    flip(closed, "", spot, seed, FLIPS[""])
    flip(killed, "-wal", spot, seed, FLIPS["-wal"])
    tally(flips=sum(FLIPS.values()))


def believe(store: Any, batch: Batch, **_: Any) -> audit.Audit:
    return audit.Audit(
        batch=batch.name, chains=0, entries=0, items=0, outputs=0, files_unread=0, busy=0, findings=()
    )  # fmt: skip


def test_without_an_audit_a_flipped_bit_would_be_silent(
    closed: Original, spot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "verify", believe)
    with pytest.raises(AssertionError, match="silent"):
        flip(closed, "", spot, 1, 500)


def test_without_a_look_at_the_log_acknowledged_work_would_be_forgotten(
    killed: Original, spot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "is_log_damaged", lambda _db: False)
    with pytest.raises(AssertionError, match=r"of state\.db-wal: (silent|undone)"):
        flip(killed, "-wal", spot, 1, 1000)  # the first that is not told ends it
