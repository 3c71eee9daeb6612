"""Files that were cut, emptied, zeroed, exchanged or never ours: refused or reported, never quietly taken."""

import random
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import HoldfastError, NotOurs, SchemaTooNew
from holdfast.runtime.operate import doctor
from holdfast.runtime.operate.doctor import Level
from holdfast.stores.sqlite import SqliteStore
from tests.damage.original import FRAME, PAGE, Original, holds, is_reported, make, restore, verdict
from tests.operations.world import Clock, World

pytestmark = pytest.mark.promise("A8")
OUTBOX = {"events", "receivers", "sqlite_sequence"}
"""What others hear of, and how far they are: written with the facts it tells, and proved by nothing."""
DERIVED = {"noted", "chunks_number"}
"""Marks of notes, which are themselves in the journal, and an index that only a new chunk is compared with: an audit
reads neither."""
TOLD = {"whole", "refused", "found", "reported"}


def sizes(whole: int, step: int, first: int, seed: int) -> list[int]:
    """Every border, and as many places between."""
    borders = list(range(first, whole, step))
    return borders + [random.Random(seed).randrange(whole) for _ in range(len(borders) + 50)]


def test_a_database_that_was_cut_is_told(closed: Original, spot: Path, tally: Callable[..., None]) -> None:
    cuts = sizes(len(closed.files[""]), PAGE, 0, 1)
    for size in cuts:
        said = verdict(closed, closed.files | {"": closed.files[""][:size]}, spot)
        assert said in TOLD - {"whole"}, f"cut to {size} bytes: {said}"
    tally(truncations=len(cuts))


def test_a_log_that_was_cut_is_told(killed: Original, spot: Path, tally: Callable[..., None]) -> None:
    cuts = sizes(len(killed.files["-wal"]), FRAME, 32, 2)
    for size in cuts:
        said = verdict(killed, killed.files | {"-wal": killed.files["-wal"][:size]}, spot)
        allowed = TOLD - {"whole"} | ({"undone"} if size >= killed.granted else set())  # as after a power cut
        assert said in allowed, f"cut to {size} bytes: {said}"
    tally(truncations=len(cuts))


def test_a_lost_log_is_told(killed: Original, spot: Path) -> None:
    files = {name: data for name, data in killed.files.items() if name != "-wal"}
    assert verdict(killed, files, spot) == "reported"
    (check,) = [each for each in doctor.examine(spot / "state.db").checks if each.name == "history"]
    assert check.level is Level.WARN
    assert "set back" in check.message


def is_found(path: Path) -> bool:
    """Whether an audit of what tells the truth finds that its proof is damaged."""
    try:
        store = SqliteStore(path)
    except HoldfastError:
        return True
    try:
        return not holds(store)
    except HoldfastError:
        return True
    finally:
        store.close()


def pages_of(path: Path, tables: set[str]) -> set[int]:
    db = apsw.Connection(str(path))
    found = {page for name, page in db.execute("SELECT name, pageno FROM dbstat") if name in tables}
    db.close()
    return found


def test_a_zeroed_page_is_told(closed: Original, spot: Path, tally: Callable[..., None]) -> None:
    data, silent = closed.files[""], set[int]()
    for at in range(0, len(data), PAGE):
        said = verdict(closed, closed.files | {"": data[:at] + bytes(PAGE) + data[at + PAGE :]}, spot)
        assert said in TOLD, f"page {at // PAGE + 1} zeroed: {said}"
        if said == "whole" and not is_found(spot / "state.db"):
            silent.add(at // PAGE + 1)
    unread = pages_of(restore(closed.files, spot), OUTBOX | DERIVED)
    assert silent <= unread, "no journal proves the outbox, and nothing else"
    for page in silent:
        at = PAGE * (page - 1)
        spoilt = restore(closed.files | {"": data[:at] + bytes(PAGE) + data[at + PAGE :]}, spot)
        assert is_reported(spoilt), f"page {page} zeroed: the doctor says nothing"
    tally(pages=len(data) // PAGE)


def test_two_pages_that_changed_places_are_told(closed: Original, spot: Path, tally: Callable[..., None]) -> None:
    data, rng = closed.files[""], random.Random(3)
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    for _ in range(60):
        one, other = rng.sample(range(len(pages)), 2)
        swapped = list(pages)
        swapped[one], swapped[other] = pages[other], pages[one]
        said = verdict(closed, closed.files | {"": b"".join(swapped)}, spot)
        assert said in TOLD, f"pages {one + 1} and {other + 1}: {said}"
    tally(pages=60)


def another_store(folder: Path) -> dict[str, bytes]:
    """The files of a store with a batch of its own, whose log holds all there is, and of which nothing was copied."""
    folder.mkdir()
    store = SqliteStore(folder / "state.db", clock=(clock := Clock()))
    world = World(store, clock, batch="white-jacket")
    world.add(*range(300))
    files = {name: Path(f"{store.path}{name}").read_bytes() for name in ("", "-wal", "-fence")}
    store.close()
    return files


def test_the_log_of_another_database_is_told(closed: Original, killed: Original, spot: Path, place: Path) -> None:
    strange = another_store(place / "another")["-wal"]
    for original in (closed, killed):
        assert verdict(original, original.files | {"-wal": strange}, spot) in TOLD - {"whole"}


def test_an_older_log_of_the_same_database_is_told(closed: Original, killed: Original, spot: Path) -> None:
    for original in (closed, killed):
        assert verdict(original, original.files | {"-wal": original.older_log}, spot) == "reported"


def test_a_log_that_holds_another_database_wholly_mixes_nothing(closed: Original, killed: Original, spot: Path) -> None:
    """SQLite takes it, and nothing in it tells whose it is: then all of it is taken, and verifies."""
    files = closed.files | {"-wal": killed.files["-wal"]}
    assert verdict(killed, files, spot) == "whole"


@pytest.mark.parametrize("empty", [{"": b""}, {}])
def test_a_log_without_its_database_is_kept(empty: dict[str, bytes], killed: Original, spot: Path) -> None:
    files = {"-wal": killed.files["-wal"]} | empty
    path = restore(files, spot)
    with pytest.raises(NotOurs, match=r"state\.db-wal is not"):
        SqliteStore(path)
    assert Path(f"{path}-wal").read_bytes() == killed.files["-wal"]


@pytest.mark.promise("C3")
def test_an_emptied_database_is_told_by_the_note_beside_it(closed: Original, spot: Path) -> None:
    assert verdict(closed, closed.files | {"": b""}, spot) == "reported"


REFUSED = {
    "a text": b"To be, or not to be\n" * 500,
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 64,
    "a database of another program": None,
    "a database of a later version": None,
}


@pytest.mark.promise("C18")
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_ours_is_refused_with_its_name_by_store_and_doctor(what: str, closed: Original, spot: Path) -> None:
    data = REFUSED[what]
    path = restore({"": closed.files[""] if data is None else data}, spot)
    if data is None:
        db = apsw.Connection(str(path))
        db.execute("PRAGMA user_version = 99" if "later" in what else "PRAGMA application_id = 7")
        db.close()
    before = path.read_bytes()
    with pytest.raises((NotOurs, SchemaTooNew)) as refusal:
        SqliteStore(path)
    assert str(path) in str(refusal.value)
    (check,) = [each for each in doctor.examine(path).checks if each.name == "store"]
    assert check.level is Level.UNSAFE
    assert path.read_bytes() == before


def test_what_is_refused_keeps_its_log(killed: Original, spot: Path) -> None:
    data = bytearray(killed.files["-wal"])
    data[len(data) // 2] ^= 1
    path = restore(killed.files | {"-wal": bytes(data)}, spot)
    with pytest.raises(HoldfastError, match="its log is damaged"):
        SqliteStore(path)
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == (killed.files[""], bytes(data))


def test_the_doctor_says_what_it_cannot_read_and_does_not_fall_over(
    closed: Original, spot: Path, tally: Callable[..., None]
) -> None:
    rng, data = random.Random(5), closed.files[""]
    written = [at for at, byte in enumerate(data) if byte]
    for _ in range(30):
        spoilt = bytearray(data)
        for at in rng.sample(written, 20):
            spoilt[at] ^= 1 << rng.randrange(8)
        path = restore(closed.files | {"": bytes(spoilt)}, spot)
        assert doctor.examine(path, wall=lambda: Clock().now).checks
    tally(stores=30)


def test_what_is_whole_is_called_whole(closed: Original, killed: Original, spot: Path, place: Path) -> None:
    for original in (closed, killed):
        assert verdict(original, original.files, spot) == "whole"
    assert make(place / "again", closed=True).facts.keys() == closed.facts.keys()
