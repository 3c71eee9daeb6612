"""A file that an earlier version wrote: opened by this one it goes on, keeps everything, and audits clean."""

import hashlib
import signal
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core import canonical, commitments, journal, sections
from holdfast.core.commitments import SALT_BYTES, UID_BYTES, KeyIndex
from holdfast.core.errors import HoldfastError
from holdfast.core.model import Batch, BatchMode, Chunk, Entry, State, chain_of_batch
from holdfast.runtime.operate import audit
from holdfast.stores import faults
from holdfast.stores.base import find_items
from holdfast.stores.sqlite import SqliteStore, upgrade
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.testing.conformance.opening import one_number
from tests.forkserver import ForkServer
from tests.operations.world import Clock, World

HERE = Path(__file__).parent
RECORD = 7
"""The migration that brought format 2 of the record."""
ADDED = {
    "batches": ("course", "ends_at", "expected", "closed_at", "uid"),
    "places": ("requeues", "deferred", "used", "wait"),
    "chunks": ("kind", "number", "grant_id", "leg", "first", "end", "origin"),
    "items": ("raw", "parent"),
}
"""Columns that files of the first format do not have, by table."""
REMOVED = {"places": ("since",), "items": ("salt",)}
TABLES = ("events", "receivers", "checkpoints", "revisions", "texts", "noted")

ARCHIVES = {
    1: (HERE / "golden" / "format_1.tar.gz", "old.db"),
    3: (HERE / "golden" / "format_3.tar.gz", "state.db"),
    5: (HERE.parent / "golden" / "sqlite.tar.xz", ".holdfast/state.db"),
    6: (HERE.parent / "golden" / "sqlite_6.tar.xz", ".holdfast/state.db"),
}
"""Files that earlier versions wrote, by their format. The first has a batch that is half-way through; those of the last
two have everything that a store can hold."""


def unpack(version: int, folder: Path) -> Path:
    archive, name = ARCHIVES[version]
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / name


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return unpack(1, tmp_path)


@pytest.fixture(params=ARCHIVES)
def any_old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path)


def shape(path: Path) -> tuple[int, set[str]]:
    """The number of the format, and everything that has a name in it."""
    db = apsw.Connection(str(path))
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    for table in ADDED:
        names |= {f"{table}.{row[1]}" for row in db.execute(f"PRAGMA table_info({table})")}
    found = int(db.pragma("user_version")), names
    db.close()
    return found


def rows_of(path: Path) -> dict[str, list[Any]]:
    """Every row as it is."""
    db = apsw.Connection(str(path))
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {name: list(db.execute(f"SELECT * FROM {name}")) for name in tables if not name.startswith("sqlite_")}
    db.close()
    return found


def content(path: Path) -> dict[str, list[Any]]:
    """What is stored, in whatever format: with the columns that all formats have, salts apart from what they protect,
    keys by their items, and without the entries at which format 2 begins."""
    db = apsw.Connection(str(path))
    is_new = db.pragma("user_version") >= RECORD
    found: dict[str, list[Any]] = {
        "keys": sorted(db.execute("SELECT batch, n FROM keys")),
        "items": [(id_, key, *frame(salt, payload)) for id_, key, salt, payload in db.execute(
            f"SELECT id, key, {'NULL' if is_new else 'salt'}, payload FROM items ORDER BY id")],
        "outputs": [(id_, epoch, *frame(salt, data), *frame(salt, file)) for id_, epoch, salt, data, file in db.execute(
            f"SELECT o.id, epoch, {'NULL' if is_new else 'salt'}, data, file FROM outputs AS o "
            "JOIN items AS i ON i.id = o.id >> 6 ORDER BY o.id")],
        "journal": [row for row in db.execute("SELECT * FROM journal ORDER BY chain, seq") if not is_formatted(row)],
    }  # fmt: skip
    if "checkpoints" in {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}:
        salt = "NULL" if is_new else "salt"
        found["checkpoints"] = [(id_, count, cursor, at, *frame(salt, acc)) for id_, count, cursor, at, salt, acc in
            db.execute(f"SELECT c.id, row_count, cursor, at, {salt}, acc FROM checkpoints AS c "
                       "JOIN items AS i ON i.id = c.id ORDER BY c.id")]  # fmt: skip
    for table in ("batches", "chunks", "places"):
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        dropped = {*ADDED[table], *REMOVED.get(table, ()), *(("seq", "head") if table == "batches" else ())}
        kept = ", ".join(name for name in columns if name not in dropped)
        found[table] = list(db.execute(f"SELECT {kept} FROM {table} ORDER BY id"))
    db.close()
    return found


def frame(salt: bytes | None, stored: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Salt and content, if there is any."""
    if stored is None:
        return None, None
    return (salt, stored) if salt is not None else (stored[:SALT_BYTES], stored[SALT_BYTES:])


def is_formatted(row: tuple[Any, ...]) -> bool:
    return journal.decode_header(row[2]).kind == upgrade.FORMATTED


def test_the_old_file_is_of_the_first_format(old: Path) -> None:
    version, names = shape(old)
    assert version == 1
    assert not names & {*TABLES, *(f"{table}.{column}" for table, columns in ADDED.items() for column in columns)}
    assert names >= {f"{table}.{column}" for table, columns in REMOVED.items() for column in columns}
    assert {journal.decode_header(row[2]).format for row in rows_of(old)["journal"]} == {1}


def test_the_other_old_files_have_what_a_store_can_hold(tmp_path: Path) -> None:
    for version in ARCHIVES:
        assert shape(unpack(version, tmp_path / str(version)))[0] == version
    found = content(tmp_path / "6" / ARCHIVES[6][1])
    assert {row[-1] is not None for row in found["checkpoints"]} == {True, False}, "with accumulators and without"
    assert {(row[3] is not None, row[5] is not None) for row in found["outputs"]} == {(True, False), (False, True)}
    assert len(found["batches"]) > 5


@pytest.mark.promise("A4", "A7", "C10", "C18", "P3")
def test_a_file_of_the_first_format_goes_on_and_keeps_everything(old: Path) -> None:
    before = content(old)
    clock = Clock()
    store = SqliteStore(old, clock=clock)
    (batch,) = store.batches("moby-dick")
    assert (batch.course, batch.ends_at, batch.sealed_at) == (BatchMode.OPEN, None, None)
    assert content(old) == {**before, "checkpoints": []}
    assert audit.verify(store, batch).findings == ()
    go_on(store, clock)
    store.close()
    assert shape(old)[0] == len(sqlite_file._migrations())


# -- format 2 of the record -------------------------------------------------------------------------------------------


@pytest.mark.promise("E5", "E12")
def test_whatever_an_old_file_has_is_kept_byte_for_byte_with_its_salt_in_front(any_old: Path) -> None:
    before = content(any_old)
    assert all(len(salt) == SALT_BYTES for _, _, salt, _ in before["items"])
    SqliteStore(any_old).close()
    assert content(any_old) == {"checkpoints": [], **before}
    version, names = shape(any_old)
    assert version == len(sqlite_file._migrations())
    assert not names & {f"{table}.{column}" for table, columns in REMOVED.items() for column in columns}
    assert names >= {*TABLES, *(f"{table}.{column}" for table, columns in ADDED.items() for column in columns)}


@pytest.mark.promise("E12")
def test_every_batch_of_an_old_file_gets_a_uid_and_an_entry_at_which_the_format_begins(any_old: Path) -> None:
    heads = {row[0]: row[-2:] for row in rows_of(any_old)["batches"]}
    assert heads
    store = SqliteStore(any_old)
    batches = store.batches()
    assert len({batch.uid for batch in batches}) == len(batches) == len(heads)
    for batch in batches:
        assert len(batch.uid) == UID_BYTES
        entries = chain(store, batch)
        assert [journal.decode_header(entry.head).kind for entry in entries].count(upgrade.FORMATTED) == 1
        last, chunks = entries[-1], store.chunks(batch.id)
        header = journal.decode_header(last.head)
        assert (header.format, header.uid, header.kind) == (2, batch.uid, upgrade.FORMATTED)
        numbers = sorted((int(chunk.id), chunk.number) for chunk in chunks)
        assert sections.decode(last) == journal.Formatted(batch.id, numbers)
        assert [number for _, number in numbers] == list(range(1, len(chunks) + 1))
        assert {(chunk.first, chunk.end, chunk.leg, chunk.grant) for chunk in chunks} <= {
            (0, stages, 0, b"") for stages in (1, 2)
        }
    store.close()


@pytest.mark.promise("E12")
def test_old_entries_verify_in_an_upgraded_file_and_have_the_digests_of_what_is_stored(any_old: Path) -> None:
    store = SqliteStore(any_old)
    for batch in store.batches():
        entries = chain(store, batch)
        headers = checked(entries, batch, None)
        assert [header.format for header in headers] == [1] * (len(headers) - 1) + [2]
        chains = {chunk: chain(store, batch, chunk) for chunk in store.chunks(batch.id)}
        starts = [entry.hash for each in (entries, *chains.values()) for entry in each]
        for chunk, found in chains.items():
            assert {header.format for header in checked(found, batch, chunk, starts)} <= {1}
        items = {int(item.n): item for item in store.items(batch.id, limit=10_000)}
        admitted = [sections.decode(entry) for entry in entries]
        renewed = {n for body in acts_of(store, batch) for n in body}
        for body in (body for body in admitted if isinstance(body, journal.Ingested)):
            for at, n in enumerate(range(body.lo, body.hi)):
                item, told = items[n], body.digests[32 * at : 32 * at + 32]
                digest = commitments.first_format_item(item.salt, canonical.key_text(item.key), item.payload)
                assert n in renewed or digest == told
    store.close()


def chain(store: SqliteStore, batch: Batch, chunk: Chunk | None = None) -> list[Entry]:
    return store.entries(chain_of_batch(batch.id) if chunk is None else chunk.id, limit=10_000)


def checked(
    entries: list[Entry], batch: Batch, chunk: Chunk | None, starts: Sequence[bytes] = (journal.GENESIS,)
) -> list[journal.Header]:
    """The headers of a chain. That of a chunk begins at an entry of its batch or of the chunk that it was cut off."""
    if not entries:
        return []
    (start,) = [prev for prev in starts if hashlib.sha256(prev + entries[0].head).digest() == entries[0].hash]
    at: Batch | Chunk = batch if chunk is None else chunk
    of = journal.chain_of(batch, chunk)
    return [header for _, header in journal.check_chain(entries, of, batch.id, start=start, head=at.head, seq=at.seq)]


def acts_of(store: SqliteStore, batch: Batch) -> list[set[int]]:
    """The items that acts gave another payload."""
    bodies = [sections.decode(entry) for chunk in store.chunks(batch.id) for entry in chain(store, batch, chunk)]
    return [{moved.n for moved in body.items if moved.digest} for body in bodies if isinstance(body, journal.Acted)]


@pytest.mark.promise("E4")
def test_keys_of_an_old_file_are_found_under_numbers_that_cannot_be_guessed(any_old: Path) -> None:
    numbers = {(batch, n): number for batch, number, n in rows_of(any_old)["keys"]}
    store = SqliteStore(any_old)
    ((key,),) = [[value] for name, value in rows_of(any_old)["meta"] if name == upgrade.INDEX_KEY]
    index, again = KeyIndex(key), {(batch, n): number for batch, number, n in rows_of(any_old)["keys"]}
    assert again.keys() == numbers.keys()
    for batch in store.batches():
        items = store.items(batch.id, limit=10_000)
        assert find_items(store, batch.id, [canonical.key_text(item.key) for item in items]) == [
            item.n for item in items
        ]
        for item in items:
            assert again[batch.id, item.n] == index.number(item.key) != numbers[batch.id, item.n]
    store.close()


def test_two_copies_of_one_old_file_get_keys_and_uids_of_their_own(tmp_path: Path) -> None:
    uids, keys = set[bytes](), set[bytes]()
    for copy in "ab":
        path = unpack(1, tmp_path / copy)
        SqliteStore(path).close()
        rows = rows_of(path)
        uids |= {bytes(each) for batch in SqliteStore(path).batches() for each in (batch.uid,)}
        keys |= {value for name, value in rows["meta"] if name == upgrade.INDEX_KEY}
    assert (len(uids), len(keys)) == (2, 2)


def test_keys_that_collide_are_told_apart_by_the_upgrade(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyIndex, "numbers", one_number)
    db = apsw.Connection(str(old))
    for n, key in enumerate(("one", "other", "another")):
        db.execute("UPDATE items SET key = ? WHERE id = ?", (key, (1 << upgrade.ITEM_BITS) + n))
    db.close()
    store = SqliteStore(old)
    assert find_items(store, store.batches()[0].id, ["one", "other", "another", "none"]) == [0, 1, 2, None]
    store.close()


def test_the_payloads_of_an_upgraded_file_are_append_only(old: Path) -> None:
    SqliteStore(old).close()
    db = apsw.Connection(str(old))
    with pytest.raises(apsw.ConstraintError, match="payloads are append-only"):
        db.execute("UPDATE items SET payload = x''")
    db.close()


# -- to its end, and killed on the way --------------------------------------------------------------------------------


def go_on(store: SqliteStore, clock: Clock) -> None:
    """To its end, and sealed: what only the new format can hold."""
    clock.advance(3600.0)
    world = World(store, clock)
    for _ in range(2):
        world.finish()
        clock.advance(3600.0)
    states = {item.place.state for item in store.items(world.id)}
    assert states == {State.DONE, State.SKIPPED, State.DEAD}
    sealed = store.seal(world.id, actor="ada", reconciliation=canonical.encode({}))
    assert sealed.sealed_at == clock()
    assert audit.verify(store, world.batch).findings == ()


def statements_of(path: Path) -> int:
    """How many statements and steps bring a file up to date."""
    hits: list[str] = []
    faults.arm(hits.append)
    try:
        SqliteStore(path).close()
    finally:
        faults.arm(None)
    return hits.count("migrate.statement")


@pytest.fixture
def statements(tmp_path: Path) -> int:
    """How many bring a file of the first format up to date."""
    found = statements_of(unpack(1, tmp_path / "counted"))
    assert found > sum(len(script) for script in sqlite_file._migrations()[1:]), "also those that are no SQL"
    return found


@pytest.mark.promise("A8", "B7", "P6")
def test_killed_at_every_statement_of_its_migration_the_file_is_whole(
    old: Path, statements: int, forkserver: ForkServer, tally: Callable[..., None]
) -> None:
    rows, old_shape, whole = rows_of(old), shape(old), old.read_bytes()
    kept = {**content(old), "checkpoints": []}
    for hit in range(1, statements + 1):
        path = old.parent / f"{hit}.db"
        path.write_bytes(whole)
        fault = f"migrate.statement:{hit}:kill"
        process = forkserver.start("tests.stores.elsewhere", ["open_it", str(path)], cwd=old.parent, fault=fault)
        assert process.wait() == -signal.SIGKILL, process.err
        assert (rows_of(path), shape(path)) == (rows, old_shape), "half of a migration"
        store = SqliteStore(path, clock=(clock := Clock()))
        assert content(path) == kept
        go_on(store, clock)
        store.close()
    tally(kills=statements)
    forkserver.clear()


def test_a_migration_that_fails_leaves_an_old_file_as_it_was(old: Path, statements: int) -> None:
    rows, old_shape = rows_of(old), shape(old)
    for hit in range(1, statements + 1):
        faults.arm(faults.parse(f"migrate.statement:{hit}:raise"))
        try:
            with pytest.raises((OSError, HoldfastError), match="injected"):
                SqliteStore(old)
        finally:
            faults.arm(None)
        assert (rows_of(old), shape(old)) == (rows, old_shape)
