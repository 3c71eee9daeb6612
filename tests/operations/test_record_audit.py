"""The record of format 2, and of stores that began in format 1: audited, and shown to a third party."""

import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.core import canonical, commitments, journal, lease
from holdfast.core.acts import change_of
from holdfast.core.model import (
    Act,
    Batch,
    BatchId,
    Change,
    ClaimRequest,
    ItemNo,
    ItemOrigin,
    Kind,
    NewItem,
    Output,
    State,
    StoredItem,
)
from holdfast.core.outcome import Done
from holdfast.core.states import Transition, move
from holdfast.runtime.operate import audit, evidence
from holdfast.runtime.operate.evidence import check, entries
from holdfast.runtime.sinks.base import Provenance
from holdfast.runtime.sinks.files import Files
from holdfast.runtime.verify.inspector import RecordedDigest
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.rows import ITEM_BITS
from holdfast.testing.conformance.kit import Kit
from holdfast.testing.conformance.kit import done as kit_done
from tests.operations.world import Clock, World, deferred, done, failed, skipped

GOLDEN = Path(__file__).parents[1] / "golden"
SECRETS = (
    "sekrit-",
    "a telling message",
    "a revealing reason",
    "Traceback of it",
    "overloaded",
    "blank page",
    "page: F",
)
"""Keys and words of the batch `told`."""


def fill(world: World) -> None:
    """Items that fail, wait, are skipped, refused, redriven, renewed and done, with words about most of them."""
    world.add(*(f"sekrit-{n}" for n in range(8)), ended=False)
    world.add_invalid("sekrit-bad")
    deeds = [done, failed, skipped, deferred, done, failed, done, done]
    claim = world.claim(6)
    items = world.items(claim)
    world.commit(claim, [deed(item) for deed, item in zip(deeds, items, strict=False)])
    world.clock.advance(600.0)
    world.work(lambda item: failed(item, transient=False) if item.n == 1 else done(item), limit=4)
    dead = world.store.items(world.id, state=State.DEAD)
    for item in dead[:1]:
        place = move(item.place, Transition.REDRIVE, stages=2)
        act(world, "redriven", change_of(item.n, item.place, place))
    renew(world, 7)
    world.clock.advance(600.0)
    world.finish()
    world.add("sekrit-last")


def act(world: World, kind: str, *changes: Change, seize: bool = True) -> None:
    told = Act(id=os.urandom(16), batch=world.id, kind=kind, actor="ada", reason="a revealing reason", at_items=changes,
               seize=seize)  # fmt: skip
    assert world.store.act(told) == [change.n for change in changes]


def renew(world: World, n: int, payload: bytes = b'{"page": "again"}', raw: bytes | None = b"raw") -> None:
    """Give an item its next payload; it begins again."""
    item = the_item(world.store, world.id, n)
    place = move(item.place, Transition.RENEW, to=State.PENDING, stages=2, reason="a revealing reason")
    change = change_of(item.n, item.place, place)
    act(world, "renewed", msgspec.structs.replace(change, renewed=NewItem(item.key, payload, raw=raw)))


def the_item(store: Store, batch: BatchId, n: int) -> StoredItem:
    (item,) = store.items(batch, lo=n, hi=n + 1)
    return item


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clock, path = Clock(), tmp_path_factory.mktemp("told") / "state.db"
    store = SqliteStore(path, clock=clock)
    fill(World(store, clock))
    store.close()
    return path


@pytest.fixture
def file(told: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(told, tmp_path / "state.db"))


def edit(file: Path, *statements: str) -> int:
    """Change rows behind the store's back; return how many."""
    db = apsw.Connection(str(file))
    for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    count = db.total_changes()
    db.close()
    assert count, "the test changed nothing"
    return count


def audited(file: Path, *, full: bool = False, batch: str = "moby-dick") -> audit.Audit:
    store = SqliteStore(file)
    try:
        (found,) = store.batches(batch)
        return audit.verify(store, found, full=full)
    finally:
        store.close()


def bundled(file: Path, *, batch: str = "moby-dick", redact: bool = False) -> Path:
    store = SqliteStore(file)
    try:
        (found,) = store.batches(batch)
        where = file.parent / f"{batch}.zip"
        evidence.write(store, found, where, {"keys": ["sekrit-0"]}, redact=redact)
        return where
    finally:
        store.close()


def parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def forged(path: Path, files: dict[str, bytes]) -> Path:
    """A bundle of changed files whose manifest fits them."""
    manifest = json.loads(files["MANIFEST.json"])
    manifest["files"] = {n: hashlib.sha256(data).hexdigest() for n, data in files.items() if n != "MANIFEST.json"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (files | {"MANIFEST.json": json.dumps(manifest).encode()}).items():
            archive.writestr(name, data)
    return path


def kinds(found: audit.Audit) -> set[str]:
    return {finding.kind for finding in found.findings}


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("E12")
def test_a_batch_with_a_history_holds_and_so_does_its_evidence(file: Path) -> None:
    found = audited(file)
    assert (found.findings, found.removed) == ((), 0)
    assert "removed" not in str(found)
    shown = check.check(str(bundled(file)))
    assert shown["words_shown"] > 5
    assert (shown["words_withheld"], shown["redacted"], shown["unproven"]) == (0, False, 0)


@pytest.mark.promise("E12")
def test_removing_the_words_of_one_item_leaves_every_chain_valid_and_is_counted(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = edit(file, "UPDATE texts SET frame = NULL WHERE n = 1")
    found = audited(file)
    assert (found.findings, found.removed) == ((), count)
    assert f"words were removed in {count} places" in str(found)
    assert check.main([str(bundled(file))]) == 0
    assert f"{count} withheld" in capsys.readouterr().out


@pytest.mark.promise("E12")
def test_removing_every_word_leaves_every_chain_valid(file: Path) -> None:
    count = edit(file, "UPDATE texts SET frame = NULL")
    assert kinds(audited(file)) == {"place"}, "while a reason is in the store, it must be the one in the journal"
    edit(file, "UPDATE places SET reason = ''")
    assert (audited(file).findings, audited(file).removed) == ((), count)
    shown = check.check(str(bundled(file)))
    assert (shown["words_shown"], shown["words_withheld"]) == (0, count)


PAIR = "(SELECT chain FROM texts GROUP BY chain, seq HAVING count(*) > 1 ORDER BY chain DESC, seq LIMIT 1)"
SEQ = f"(SELECT min(seq) FROM texts WHERE chain = {PAIR} AND at = 1)"


@pytest.mark.promise("E12")
def test_a_swapped_pair_of_words_is_found(file: Path) -> None:
    edit(
        file,
        f"UPDATE texts SET at = 99 WHERE chain = {PAIR} AND seq = {SEQ} AND at = 0",
        "UPDATE texts SET at = 0 WHERE at = 1 AND (chain, seq) IN (SELECT chain, seq FROM texts WHERE at = 99)",
        "UPDATE texts SET at = 1 WHERE at = 99",
    )
    assert "text" in kinds(audited(file))
    with pytest.raises(check.Wrong, match="words of item"):
        check.check(str(bundled(file)))


@pytest.mark.promise("E12")
def test_words_that_nothing_refers_to_are_found(file: Path) -> None:
    edit(file, "INSERT INTO texts SELECT chain, seq, 98, n, boundary, frame FROM texts ORDER BY chain LIMIT 1")
    assert any("nothing refers to" in finding.message for finding in audited(file).findings)


@pytest.mark.promise("E12")
def test_the_reason_of_a_refused_item_is_held_against_the_journal(file: Path) -> None:
    edit(file, "UPDATE places SET reason = 'no reason' WHERE code = 'invalid'")
    (finding,) = audited(file).findings
    assert (finding.kind, "sekrit-bad" in finding.where) == ("place", True)


# -- evidence ---------------------------------------------------------------------------------------------------------


def everything_in(path: Path) -> bytes:
    """All bytes of a bundle, and what its base64 hides."""
    found = [data for name, data in parts(path).items() if name not in ("README.txt", "check.py")]
    for line in map(json.loads, parts(path)["journal.jsonl"].splitlines()):
        hidden = [line["head"], line["body"], line.get("bare"), *(each["frame"] for each in line["texts"])]
        found += [b64decode(each) for each in hidden if each is not None]
    return b"\n".join(found)


@pytest.mark.promise("E12")
def test_a_redacted_archive_verifies_and_has_none_of_the_words_or_keys(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = everything_in(bundled(file))
    assert [secret for secret in SECRETS if secret.encode() in whole] == [
        secret for secret in SECRETS if secret not in ("a telling message", "Traceback of it")
    ]
    path = bundled(file, redact=True)
    whole = everything_in(path)
    assert [secret for secret in SECRETS if secret.encode() in whole] == []
    assert check.main([str(path)]) == 0
    said = capsys.readouterr().out
    assert "The bundle is redacted" in said
    assert "0 shown" in said
    assert "reconciliation.json" not in parts(path)


@pytest.mark.promise("E12")
def test_an_archive_that_says_it_is_redacted_may_not_show_words_or_keys(file: Path, tmp_path: Path) -> None:
    files = parts(bundled(file))
    manifest = json.loads(files["MANIFEST.json"]) | {"redacted": True}
    with pytest.raises(check.Wrong, match="although the bundle is redacted"):
        check.check(str(forged(tmp_path / "f.zip", files | {"MANIFEST.json": json.dumps(manifest).encode()})))
    files = parts(bundled(file, redact=True))
    items = [json.loads(line) for line in files["items.jsonl"].splitlines()]
    items[0]["key"] = "sekrit-0"
    files["items.jsonl"] = b"".join(json.dumps(item).encode() + b"\n" for item in items)
    with pytest.raises(check.Wrong, match="although the bundle is redacted"):
        check.check(str(forged(tmp_path / "f.zip", files)))


def places(line: dict[str, Any]) -> Iterator[tuple[str, int | None]]:
    yield from [("head", None), ("body", None)]
    yield from (("texts", at) for at, text in enumerate(line["texts"]) if text["frame"] is not None)


def flip(encoded: str, rng: random.Random) -> str:
    data = bytearray(b64decode(encoded))
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return b64encode(bytes(data)).decode("ascii")


@pytest.mark.promise("E12")
def test_an_archive_with_one_flipped_bit_in_a_section_a_text_or_a_header_does_not_hold(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, rng = parts(bundled(file)), random.Random(5)
    lines = files["journal.jsonl"].splitlines()
    for number, line in enumerate(lines):
        for name, at in [place for place in places(json.loads(line)) for _ in range(4)]:
            changed = json.loads(line)
            holder, key = (changed, name) if at is None else (changed["texts"][at], "frame")
            holder[key] = flip(holder[key], rng)
            told = [*lines[:number], json.dumps(changed).encode(), *lines[number + 1 :]]
            path = forged(tmp_path / "flipped.zip", files | {"journal.jsonl": b"\n".join(told) + b"\n"})
            assert check.main([str(path)]) == 1, (number, name)
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_an_archive_of_another_format_is_refused_with_a_word_about_it(file: Path, tmp_path: Path) -> None:
    files = parts(bundled(file))
    manifest = json.loads(files["MANIFEST.json"]) | {"format": 2}
    with pytest.raises(check.Wrong, match="has format 2, this script reads format 3"):
        check.check(str(forged(tmp_path / "old.zip", files | {"MANIFEST.json": json.dumps(manifest).encode()})))


# -- facts of format 2 ------------------------------------------------------------------------------------------------


@pytest.mark.promise("C3", "E12")
def test_a_chunk_that_is_held_under_another_grant_is_found(file: Path) -> None:
    store = SqliteStore(file, clock=Clock(1_800_000_000.0))
    (batch,) = store.batches("moby-dick")
    store.claim(ClaimRequest(batch=batch.id, owner="ann", limit=10, seconds=30.0))
    store.close()
    assert audited(file).holds
    edit(file, "UPDATE chunks SET grant_id = zeroblob(8) WHERE owner IS NOT NULL")
    (finding,) = audited(file).findings
    assert (finding.kind, "grant" in finding.message) == ("chunk", True)


@pytest.mark.promise("E12")
def test_windows_parents_and_raw_forms_are_held_against_the_journal(clock: Clock) -> None:
    store = MemoryStore(clock=clock)
    world = World(store, clock)
    world.add("a")
    items = [NewItem(f"b{n}", b"{}", parent=ItemNo(0), raw=b"raw" if n else None) for n in range(2)]
    store.add_items(world.id, items, origin=ItemOrigin(source="a", leg=1, first=1, end=2))
    world.finish()
    assert audit.verify(store, world.batch).holds
    world.work(done) if store.chunks(world.id, pending=True) else None
    (chunk,) = store.chunks(world.id, of=ItemNo(2))
    store._chunks[chunk.id] = msgspec.structs.replace(chunk, leg=0)
    item = store._items[world.id, ItemNo(1)][0]
    store._items[world.id, ItemNo(1)][0] = item._replace(item=NewItem("b0", b"{}", parent=ItemNo(2)))
    found = audit.verify(store, world.batch)
    assert [(f.kind, f.where) for f in found.findings] == [("chunk", "chunk 2"), ("payload", "item 1 ('b0')")]


@pytest.mark.promise("E12")
def test_an_earlier_revision_in_place_of_the_newest_is_found(file: Path) -> None:
    edit(file, "DELETE FROM revisions")
    messages = [finding.message for finding in audited(file).findings if finding.kind == "payload"]
    assert any("revision 0, but its journal says revision 1" in message for message in messages)


@pytest.mark.promise("E12")
def test_what_a_commitment_of_format_2_was_made_of_does_not_pass_as_content_of_format_1(clock: Clock) -> None:
    """The formulas of both formats are never tried in turn: a digest is checked by the format of its entry alone."""
    store = MemoryStore(clock=clock)
    world = World(store, clock)
    world.add("a")
    world.finish()
    output = store._outputs[world.id, ItemNo(0), 0]
    uid, place = world.batch.uid, (0).to_bytes(8, "big") + bytes(2) + bytes(4)
    preimage = b"holdfast/output\0" + output.salt + uid + place + (output.data or b"")
    posing = Output(output.n, 0, 0, preimage[16:], salt=preimage[:16])
    digest = commitments.output(uid, 0, 0, 0, output.salt, output.data or b"")
    assert RecordedDigest(1, digest).proves(uid, posing, posing.data or b"")
    assert not RecordedDigest(2, digest).proves(uid, posing, posing.data or b"")
    store._outputs[world.id, ItemNo(0), 0] = posing
    (finding,) = audit.verify(store, world.batch, full=True).findings
    assert finding.kind == "output"


@pytest.mark.promise("E12")
def test_the_evidence_of_a_file_is_always_checked_and_its_bytes_with_full(clock: Clock, tmp_path: Path) -> None:
    template = str(tmp_path / "{key}.txt")
    store, sink = MemoryStore(clock=clock), Files(template)
    definition = {"stages": [{"name": "ocr", "sink": {"kind": "files", "template": template}}]}
    batch = store.open_batch("moby-dick", "book", canonical.encode(definition), actor="test").id
    world = World.__new__(World)
    world.store, world.clock, world.stages, world.id, world.name = store, clock, ("ocr",), batch, "moby-dick"
    world.add("a")
    claim = world.claim()
    (item,) = world.items(claim)
    made = sink.stage(Provenance(batch="moby-dick", stage="ocr", n=0, epoch=0, fence=1, input_digest=b"", key="a"),
                      b'"text"')  # fmt: skip
    sink.sync_folders([made])
    assert world.commit(claim, [Done(item, b'"text"', 0.1, 0.1, file=made.encode())]).landed
    sink.publish([made])
    found = audit.verify(store, world.batch)
    assert (found.findings, found.files_unread, found.outputs) == ((), 1, 0)
    found = audit.verify(store, world.batch, full=True)
    assert (found.findings, found.files_unread, found.outputs) == ((), 0, 1)
    evidence.write(store, world.batch, tmp_path / "e.zip", {})
    assert check.check(str(tmp_path / "e.zip"))["counts"] == {"done": 1}
    (tmp_path / "a.txt").write_text("other")
    assert audit.verify(store, world.batch).holds
    assert kinds(audit.verify(store, world.batch, full=True)) == {"output"}
    output = store._outputs[batch, ItemNo(0), 0]
    other = msgspec.structs.replace(made, size=made.size + 1).encode()
    store._outputs[batch, ItemNo(0), 0] = msgspec.structs.replace(output, file=other)
    assert kinds(audit.verify(store, world.batch)) == {"output"}


# -- chains that end --------------------------------------------------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A partition whose chain has ended three times."""
    monkeypatch.setattr(lease, "CHAIN_ENTRIES", 8)
    kit = Kit(lambda place, **how: MemoryStore(**how), tmp_path)
    kit.admit("p", "q", kind=Kind.PARTITIONS, ended=True)
    for turn in range(1, 7):
        claim = kit.claim()
        for item in kit.load(claim):
            kit.store.commit([kit.reach(claim, item, 10 * turn + item.n, version=item.n, acc=b"%d" % turn)])
        kit.land(claim, version=2, release=True)
    claim = kit.claim()
    kit.land(claim, [kit_done(kit.load(claim)[0])], release=True)
    assert sum(chunk.is_ended for chunk in kit.store.chunks(kit.batch)) == 3
    kit.check()
    return kit


def the_batch(kit: Kit) -> Any:
    return next(batch for batch in kit.store.batches() if batch.id == kit.batch)


@pytest.mark.promise("E12")
def test_a_chain_that_ended_and_its_successors_hold(kit: Kit, tmp_path: Path) -> None:
    found = audit.verify(kit.store, the_batch(kit))
    assert (found.findings, found.chains) == ((), 5)
    for redact in (False, True):
        evidence.write(kit.store, the_batch(kit), tmp_path / "e.zip", {}, redact=redact)
        assert check.check(str(tmp_path / "e.zip"))["chains"] == 5


def chunk_numbered(store: MemoryStore, number: int) -> Any:
    return next(chunk for chunk in store._chunks.values() if chunk.number == number)


@pytest.mark.promise("E12")
def test_a_successor_that_takes_over_something_else_is_found(kit: Kit, tmp_path: Path) -> None:
    store = kit.store
    assert isinstance(store, MemoryStore)
    rewrite_first_entry(kit, store, chunk_numbered(store, 4))
    (finding, *_) = audit.verify(store, the_batch(kit)).findings
    assert "takes over something else" in finding.message
    evidence.write(store, the_batch(kit), tmp_path / "e.zip", {})
    with pytest.raises(check.Wrong, match="takes over something else"):
        check.check(str(tmp_path / "e.zip"))


def rewrite_first_entry(kit: Kit, store: MemoryStore, chunk: Any) -> None:
    """Let the last successor begin with other rows, in a chain that is valid in itself."""
    from holdfast.core import sections

    entries, uid = store._entries[chunk.id], the_batch(kit).uid
    prev, chain = chunk_numbered(store, 3).head, journal.Chain(uid, chunk.number, chunk.id)
    for at, entry in enumerate(entries):
        header, body = journal.decode_header(entry.head), sections.decode(entry)
        if isinstance(body, journal.Continued):
            first = body.items[0]
            assert first.position is not None
            more = msgspec.structs.replace(first.position, rows=first.position.rows + 1)
            items = [msgspec.structs.replace(first, position=more), *body.items[1:]]
            body = msgspec.structs.replace(body, items=items)
        encoded = sections.encode(body, uid, chunk.number, header.commit_id, os.urandom)
        entries[at] = journal.link(prev, chain, seq=entry.seq, kind=header.kind, at=header.at, actor=header.actor,
                                   fence=header.fence, grant=header.grant, commit_id=header.commit_id,
                                   encoded=encoded)  # fmt: skip
        prev = entries[at].hash
    store._chunks[chunk.id] = msgspec.structs.replace(chunk, head=prev)


@pytest.mark.promise("E12")
def test_totals_that_stay_with_a_chain_that_ended_are_found(kit: Kit) -> None:
    store = kit.store
    assert isinstance(store, MemoryStore)
    ended = chunk_numbered(store, 1)
    counts = msgspec.structs.replace(ended.counts, attempts=3)
    store._chunks[ended.id] = msgspec.structs.replace(ended, counts=counts)
    (finding,) = audit.verify(store, the_batch(kit)).findings
    assert (finding.kind, finding.where) == ("totals", f"chunk {ended.id}")


# -- stores that began in format 1 ------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "sqlite_6"])
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that an older version wrote, in the working directory."""
    with tarfile.open(GOLDEN / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".holdfast" / "state.db"


def open_old(old: Path) -> SqliteStore:
    return SqliteStore(old, clock=Clock(2_000_000_000.0), is_dead=lambda owner: True)


@pytest.mark.promise("E12", "E13")
def test_an_older_store_holds_and_so_does_evidence_of_it(old: Path, tmp_path: Path) -> None:
    store = open_old(old)
    for batch in store.batches():
        assert audit.verify(store, batch, full=True).findings == ()
        for redact in (False, True):
            evidence.write(store, batch, tmp_path / "e.zip", {}, redact=redact)
            shown = check.check(str(tmp_path / "e.zip"))
            assert sum(shown["counts"].values()) == batch.admitted
            assert bool(shown["unproven"]) <= redact
    store.close()


@pytest.mark.promise("E12")
def test_a_redacted_archive_of_an_older_store_has_none_of_its_words_or_keys(old: Path, tmp_path: Path) -> None:
    store = open_old(old)
    for batch in store.batches():
        evidence.write(store, batch, tmp_path / "e.zip", {}, redact=True)
        whole = everything_in(tmp_path / "e.zip")
        codes, words = said_in(store, batch)
        assert [word for word in words if word.encode() in whole and word not in codes] == []
        lines = [json.loads(line) for line in parts(tmp_path / "e.zip")["items.jsonl"].splitlines()]
        assert {line["key"] for line in lines} == {None}
        assert {output["file"] for line in lines for output in line["outputs"]} <= {None}
    store.close()


def said_in(store: Store, batch: Batch) -> tuple[set[str], set[str]]:
    """The codes in the entries of format 1 of a batch, and all texts in the fields for words."""
    codes, words = set[str](), set[str]()
    for chain in (-batch.id, *(chunk.id for chunk in store.chunks(batch.id))):
        for entry in store.entries(chain):
            header = entries.header_of(entry.head)
            for kind, record in entries.with_words(entries.body_of(header, entry.body, [])):
                codes.add(record.get("code", ""))
                told = (record.get(name) for name in entries.TEXTS[kind])
                words |= {word for word in told if isinstance(word, str) and len(word) > 5}
    return codes, words


@pytest.mark.promise("E12", "E13")
def test_an_older_batch_that_goes_on_in_format_2_holds(old: Path, tmp_path: Path) -> None:
    store = open_old(old)
    world = World.__new__(World)
    world.store, world.clock, world.stages, world.name = store, Clock(2_000_000_000.0), ("one", "two"), "book"
    world.id = world.batch.id
    renew(world, 0)
    renew(world, 0, b'{"page": "a third time"}', raw=None)
    renew(world, 1)
    world.finish()
    found = audit.verify(store, world.batch, full=True)
    assert found.findings == ()
    evidence.write(store, world.batch, tmp_path / "e.zip", {})
    assert check.check(str(tmp_path / "e.zip"))["words_shown"] > 0
    assert the_item(store, world.id, 0).revision == 2
    store.close()
    for n, base in ((0, "revisions"), (2, "items")):
        copy = Path(shutil.copy(old, tmp_path / f"{n}.db"))
        edit(copy, f"UPDATE {base} SET payload = CAST(payload || ' ' AS BLOB) WHERE id = {(world.id << ITEM_BITS) + n}")
        assert "payload" in kinds(audited(copy, batch="book"))


@pytest.mark.promise("E12")
def test_an_older_partition_whose_chain_ends_holds_by_both_formats(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "CHAIN_ENTRIES", 1)
    store = open_old(old)
    (batch,) = store.batches("halfway")
    store.claim(ClaimRequest(batch=batch.id, owner="ann", limit=10, seconds=30.0))
    assert any(chunk.is_ended for chunk in store.chunks(batch.id))
    assert audit.verify(store, batch).findings == ()
    evidence.write(store, batch, tmp_path / "e.zip", {})
    assert check.check(str(tmp_path / "e.zip"))["counts"]
    store.close()


@pytest.mark.promise("E12")
def test_another_number_of_a_chunk_than_the_one_with_which_format_2_began_is_found(old: Path) -> None:
    open_old(old).close()
    edit(old, "UPDATE chunks SET number = number + 1000 WHERE id = 1")
    store = open_old(old)
    batch = next(batch for batch in store.batches() if any(c.id == 1 for c in store.chunks(batch.id)))
    found = audit.verify(store, batch)
    store.close()
    assert any("gives it the number" in finding.message for finding in found.findings)


def test_the_script_in_an_archive_is_one_file_for_python_3_8(file: Path, tmp_path: Path) -> None:
    script = parts(bundled(file))["check.py"].decode()
    ast.parse(script, feature_version=(3, 8))
    assert "import holdfast" not in script
    assert "from holdfast" not in script
    (tmp_path / "check.py").write_text(script)
    command = [sys.executable, "-I", "-S", "check.py", "moby-dick.zip"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("It holds.")


def test_numbers_texts_and_lists_are_packed_as_holdfast_packs_them() -> None:
    edges = [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1, -1, -32, -33, -128, -129, -32768, -32769,
             -(2**31), -(2**31) - 1, -(2**63)]  # fmt: skip
    sizes = [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536]
    values = [*edges, None, True, False, 0.5, *("x" * size for size in sizes), *(b"x" * size for size in sizes),
              *([1] * size for size in sizes), *({str(n): n for n in range(size)} for size in sizes)]  # fmt: skip
    for value in values:
        assert entries.pack(value) == msgspec.msgpack.encode(value)
        assert entries.unpack(entries.pack(value)) == value


PHANTOMS = {
    "a chunk after all items": 'INSERT INTO chunks (batch, number, lo, hi, head, "end", spent) '
    "SELECT id, 999, admitted, admitted, x'00', 1, -1000000 FROM batches LIMIT 1",
    "a chunk of items that were never admitted": 'INSERT INTO chunks (batch, number, lo, hi, head, "end") '
    "SELECT id, 999, admitted, admitted + 3, x'00', 1 FROM batches LIMIT 1",
    "an item": "INSERT INTO items (id, key, payload) "
    "SELECT (id << 34) + admitted, 'phantom', x'00' FROM batches LIMIT 1",
    "an output": "INSERT INTO outputs (id, epoch, data) "
    "SELECT ((id << 34) + admitted) << 6, 0, x'00' FROM batches LIMIT 1",
    "a checkpoint": "INSERT INTO checkpoints (id, row_count, cursor, at) "
    "SELECT (id << 34) + admitted, 1, x'00', 1.0 FROM batches LIMIT 1",
    "a key": "INSERT INTO keys (batch, number, n) SELECT id, 1, 0 FROM batches LIMIT 1",
    "an entry after the end of a chain": "INSERT INTO journal "
    "SELECT chain, max(seq) + 1, head, body, hash FROM journal GROUP BY chain LIMIT 1",
    "an entry of a chain that is not there": "INSERT INTO journal "
    "SELECT 99999, 1, head, body, hash FROM journal LIMIT 1",
    "words of an entry that is not there": "INSERT INTO texts (chain, seq, at, n, boundary) VALUES (99999, 1, 0, 0, 0)",
}


@pytest.mark.promise("A8", "E12")
@pytest.mark.parametrize("what", PHANTOMS)
def test_a_row_that_nothing_explains_is_found(what: str, file: Path) -> None:
    edit(file, PHANTOMS[what])
    store = SqliteStore(file)
    found = [finding for batch in store.batches() for finding in audit.verify(store, batch).findings]
    assert [*found, *audit.flaws(store)]
    store.close()
